"""The training pool: tokenised documents from every generator, made by parallel workers, reproducible from one seed."""

import multiprocessing
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_DOCUMENT_TOKENS = 4096
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Pool:
    """Flat documents: `tokens[offsets[i]:offsets[i+1]]`, of which those from `answer_starts[i]` on are the answer."""

    tokens: npt.NDArray[np.uint16]
    offsets: npt.NDArray[np.int64]
    answer_starts: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int16]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.offsets)


def encode(tokenizer: Any, document: Any) -> tuple[list[int], int]:
    """Token ids of a document and where its answer starts; plain text ends with the end-of-text token."""
    prompt = tokenizer.encode(document.prompt, add_special_tokens=False).ids if document.prompt else []
    answer = document.answer if document.answer.endswith("<|im_end|>") else document.answer + END_OF_TEXT
    return prompt + tokenizer.encode(answer, add_special_tokens=False).ids, len(prompt)


def _build_shard(job: tuple[str, dict[str, float], int, int, int, str]) -> str:
    tokenizer_file, shares, target_tokens, seed, shard, out = job
    from tokenizers import Tokenizer

    from q36eval.app.sandbox.mixture import Renderer, document

    tokenizer, renderer = Tokenizer.from_file(tokenizer_file), Renderer()
    rng = random.Random(f"pool-{seed}-{shard}")
    kinds = sorted(shares)
    drawn = dict.fromkeys(kinds, 0)
    tokens: list[npt.NDArray[np.uint16]] = []
    starts: list[int] = []
    labels: list[int] = []
    total = 0
    while total < target_tokens:
        kind = min(kinds, key=lambda name: (drawn[name] + 1) / shares[name])
        ids, start = encode(tokenizer, document(kind, rng, "train", renderer))
        drawn[kind] += len(ids)
        total += len(ids)
        if len(ids) > MAX_DOCUMENT_TOKENS:
            continue
        tokens.append(np.asarray(ids, dtype=np.uint16))
        starts.append(start)
        labels.append(kinds.index(kind))
    path = f"{out}/shard-{shard:03d}.npz"
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in tokens])])
    np.savez(path, tokens=np.concatenate(tokens), offsets=offsets, starts=np.asarray(starts), kinds=np.asarray(labels))
    return path


def build_pool(
    tokenizer_file: Path, shares: dict[str, float], total_tokens: int, *, seed: int, workers: int, out: Path
) -> Pool:
    """Generate about `total_tokens` training tokens; the content depends on the seed and the number of workers."""
    out.mkdir(parents=True, exist_ok=True)
    jobs = [(str(tokenizer_file), shares, total_tokens // workers, seed, shard, str(out)) for shard in range(workers)]
    with multiprocessing.get_context("spawn").Pool(workers) as processes:
        paths = processes.map(_build_shard, jobs, chunksize=1)
    return load_pool([Path(path) for path in paths])


def load_pool(paths: list[Path]) -> Pool:
    """Join shards in the order of `paths`."""
    shards = [np.load(path) for path in paths]
    lengths = np.concatenate([np.diff(shard["offsets"]) for shard in shards])
    return Pool(
        tokens=np.concatenate([shard["tokens"] for shard in shards]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        answer_starts=np.concatenate([shard["starts"] for shard in shards]).astype(np.int32),
        kinds=np.concatenate([shard["kinds"] for shard in shards]).astype(np.int16),
    )
