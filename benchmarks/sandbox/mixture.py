"""What the sandbox is trained on: the share of every generator, its examples as text, and the pool of their tokens.

The pool is made by parallel workers and reproducible from one seed.
"""

import multiprocessing
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.sandbox import facts, prose, ruler
from benchmarks.sandbox.architecture import CHAT_TEMPLATE
from benchmarks.sandbox.curriculum import GENERATORS as CURRICULUM
from q36eval.canaries.generators import GENERATORS as CHAT_GENERATORS
from q36eval.examples import ChatExample, Split, TextExample, draw

_CHAT = {
    "discount_compare": 4.0,
    "discount_two_step": 4.0,
    "discount_three_shops": 4.0,
    "discount_threshold": 4.0,
    "discount_compare_last_line": 2.5,
    "discount_two_step_last_line": 2.5,
    "discount_three_shops_last_line": 2.5,
    "discount_threshold_last_line": 2.5,
    "discount_after_context": 2.5,
    "discount_after_context_last_line": 2.5,
    "json_flat": 2.0,
    "json_nested": 4.0,
    "tool_call": 6.0,
    "tool_none": 6.0,
    "enum_select": 2.0,
    "enum_order": 7.0,
    "copy_exact": 4.0,
}
_LOOKUPS = {"lookup_numbers": 5.0, "lookup_codes": 4.0, "lookup_offered": 2.0}
_FACTS = {"facts_statement": 2.0, "facts_mmlu": 9.0, "facts_binding": 1.0}
_NEEDLES = {
    "ruler_niah_single_1": 0.3,
    "ruler_niah_single_2": 0.4,
    "ruler_niah_single_3": 1.0,
    "ruler_niah_multikey_1": 3.0,
    "ruler_niah_multikey_2": 3.5,
    "ruler_niah_multikey_3": 3.0,
    "ruler_niah_multivalue": 1.5,
    "ruler_niah_multiquery": 2.5,
}
_LISTS = {"ruler_vt": 4.0, "ruler_cwe": 2.0, "ruler_fwe": 1.5, "ruler_qa": 3.0}
_PROSE = {
    "prose_czech": 2.5,
    "prose_czech_legal": 1.0,
    "prose_english": 2.5,
    "prose_code": 1.0,
    "prose_mathematics": 1.5,
    "prose_json": 1.0,
}
_RAW = _CHAT | _LOOKUPS | _FACTS | _NEEDLES | _LISTS | _PROSE

TOKEN_SHARES: dict[str, float] = {kind: weight / sum(_RAW.values()) for kind, weight in _RAW.items()}
"""Share of the training tokens by generator; sums to 1."""

_LAST = {kind: weight / sum(_RAW.values()) * 35 for kind, weight in _RAW.items()} | {
    "tool_call": 20.0,
    "tool_none": 20.0,
    "enum_order": 25.0,
}

MIXTURES: dict[str, dict[str, float]] = {
    "broad": TOKEN_SHARES,
    "last": {kind: weight / sum(_LAST.values()) for kind, weight in _LAST.items()},
}
"""The mixtures by name: `broad` for the long stages, `last` for the short one that corrects tools and enum orders."""

PROMPT_WEIGHTS: dict[str, float] = {"facts_mmlu": 0.2, "lookup_numbers": 0.02} | dict.fromkeys(_NEEDLES | _LISTS, 0.02)
"""Loss weight of the prompt's tokens by generator; 0.05 where not listed."""

ANSWER_WEIGHTS: dict[str, float] = {
    "facts_mmlu": 10.0,
    "facts_binding": 5.0,
    "tool_call": 2.0,
    "tool_none": 2.0,
    "enum_order": 2.0,
    **dict.fromkeys(_NEEDLES, 4.0),
    **dict.fromkeys(_LISTS, 8.0),
    **dict.fromkeys(_PROSE, 0.3),
}
"""Loss weight of the answer's tokens; 1 where not listed. Short answers after long prompts weigh more."""


PROSE_TOKENS = (60, 400)
"""Least and greatest length of a training document, in approximate tokens."""


def _prose(rng: random.Random, slice_name: str) -> TextExample:
    return prose.document(rng, slice_name, rng.randint(*PROSE_TOKENS))


def _ruler(rng: random.Random, kind: str) -> TextExample:
    return ruler.ruler(rng, kinds=(kind,))


TEXT_GENERATORS: dict[str, Callable[[random.Random], TextExample]] = {
    "facts_statement": facts.facts_statement,
    "facts_mmlu": facts.facts_mmlu,
    "facts_binding": facts.facts_binding,
    **{f"prose_{name}": partial(_prose, slice_name=name) for name in prose.SLICES},
    **{f"ruler_{kind}": partial(_ruler, kind=kind) for kind in ruler.KINDS},
}


THINKING_SHARE = 0.08
"""Share of chat examples rendered with thinking switched on, answered after a short fixed thought."""

THOUGHT = "Zadání je jasné, odpovím přímo."
LAST_LINE = "_last_line"
END_OF_TURN = "<|im_end|>"


@dataclass(frozen=True)
class Document:
    """One training document: `prompt` and `answer` as text; the answer carries full loss weight."""

    kind: str
    prompt: str
    answer: str


class Renderer:
    """Renders chat examples through the very template that ships with the tokenizer, without a tokenizer at hand."""

    def __init__(self) -> None:
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render = render_jinja_template
        self._template = CHAT_TEMPLATE.read_text(encoding="utf-8")

    def prompt(self, example: ChatExample, *, thinking: bool) -> str:
        """The prompt up to and including the generation prompt."""
        rendered, _ = self._render(
            conversations=[list(example.messages)],
            tools=list(example.tools) or None,
            chat_template=self._template,
            add_generation_prompt=True,
            enable_thinking=thinking,
        )
        return str(rendered[0])


def generator(kind: str) -> Callable[[random.Random], ChatExample | TextExample]:
    """The generator of that name, from either probe's registry; `discount_…_last_line` demands a fixed last line."""
    base = kind.removesuffix(LAST_LINE)
    if base != kind and base in CHAT_GENERATORS:
        return partial(CHAT_GENERATORS[base], last_line="demanded")
    registered: Any = CHAT_GENERATORS.get(kind) or TEXT_GENERATORS.get(kind) or CURRICULUM.get(kind)
    if registered is None:
        raise KeyError(f"no generator is called {kind!r}; there are {sorted([*CHAT_GENERATORS, *TEXT_GENERATORS])}")
    return registered  # type: ignore[no-any-return]


def document(kind: str, rng: random.Random, split: Split, renderer: Renderer) -> Document:
    """Draw one example of `kind` and render it."""
    example: ChatExample | TextExample = draw(generator(kind), rng, split)
    if isinstance(example, TextExample):
        return Document(kind, example.prompt, example.answer)
    thinking = split == "train" and rng.random() < THINKING_SHARE
    prompt = renderer.prompt(example, thinking=thinking)
    answer = f"{THOUGHT}\n</think>\n\n{example.answer}" if thinking else example.answer
    return Document(kind, prompt, answer + END_OF_TURN)


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
