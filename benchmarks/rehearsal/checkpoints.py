"""The two checkpoints of a rehearsal: random NVFP4 content with an FP8 head, and what it decodes to, in BF16.

The branch is of `benchmarks.full_shape` (20.5 GiB at the full shape), the reference 64.6 GiB: a folder in memory where
the disk is smaller. Text only; both with one tokenizer and chat template. Written shard by shard, each by a process of
its own, so that a killed writing goes on where it stopped.
"""

import json
import math
import os
import shutil
import subprocess
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.full_shape import Content, recipe, stored
from benchmarks.rehearsal import tokenizer

CONTEXT_LENGTH = 262_144
INDEX = "model.safetensors.index.json"
WRITERS = 8
"""A layer takes 2 GiB of a process while it is decoded, beside 65 GiB of a reference that lies in memory."""
GIB = 2**30
SPARE = GIB // 2
"""Left free where the reference lies."""


@dataclass(frozen=True)
class Shape:
    """How much smaller than the real model, for a trial on a CPU."""

    layers: int = 40
    experts: int = 256
    hidden: int = 2048
    vocabulary: int = 248_320

    def config(self) -> dict[str, Any]:
        """transformers' defaults are the shape of Qwen3.6-35B-A3B, but for the length of its context."""
        from transformers import Qwen3_5MoeTextConfig

        full: dict[str, Any] = Qwen3_5MoeTextConfig().to_dict()
        return full | {
            "architectures": ["Qwen3_5MoeForCausalLM"],
            "num_hidden_layers": self.layers,
            "layer_types": full["layer_types"][: self.layers],
            "num_experts": self.experts,
            "num_experts_per_tok": min(full["num_experts_per_tok"], self.experts),
            "hidden_size": self.hidden,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": CONTEXT_LENGTH,
            "dtype": "bfloat16",
        }


def write_branch(folder: Path, shape: Shape, writers: int = WRITERS) -> None:
    """The stored tensors, one shard a layer and one of the rest; the index last."""
    config = shape.config()
    folder.mkdir(parents=True, exist_ok=True)
    by_shard = _shapes(config)
    files = {key: _file(number) for number, key in enumerate(by_shard)}
    index: dict[str, str] = {}
    jobs = [(folder / files[key], shapes, number) for number, (key, shapes) in enumerate(by_shard.items())]
    for file, names in _in_processes(_write_shard, jobs, "writing the branch", writers):
        index |= dict.fromkeys(names, file)
    _finish(folder, config | {"quantization_config": recipe()}, index)


def write_reference(branch: Path, folder: Path, writers: int = WRITERS) -> None:
    """What the branch decodes to, in BF16; shards that `folder` has no room for lie beside the branch, linked to."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = _shapes(json.loads((branch / "config.json").read_text())).values()
    sizes = {_file(at): 2 * sum(map(math.prod, shapes.values())) for at, shapes in enumerate(shards)}
    there = sum((folder / file).stat().st_size for file in sizes if (folder / file).is_file())
    _make_room(folder, sum(sizes.values()) - there)
    _link_what_does_not_fit(folder, branch.with_name(f"{folder.name}-rest"), sizes)
    jobs = [(branch, folder, file) for file in sizes]
    index: dict[str, str] = {}
    for file, names in _in_processes(_decode_shard, jobs, "decoding the reference", writers):
        index |= dict.fromkeys(names, file)
    config = json.loads((branch / "config.json").read_text())
    config.pop("quantization_config")
    _finish(folder, config, index)


def write_texts(folders: tuple[Path, ...], shape: Shape, template: Path | None, given: Path | None) -> None:
    """Tokenizer, chat template and generation config: made here, or those that a person has."""
    from transformers import AutoTokenizer

    if given is None:
        text = (template or tokenizer.TEMPLATE).read_text(encoding="utf-8")
        made = tokenizer.train(shape.vocabulary, CONTEXT_LENGTH, text)
    else:
        made = AutoTokenizer.from_pretrained(given, local_files_only=True, trust_remote_code=False)
        if template is not None:
            made.chat_template = template.read_text(encoding="utf-8")
    ends = {"eos_token_id": [made.eos_token_id, made.pad_token_id], "pad_token_id": made.pad_token_id}
    for folder in folders:
        made.save_pretrained(folder)
        (folder / "generation_config.json").write_text(json.dumps({"do_sample": False, **ends}))


def is_written(folder: Path) -> bool:
    """Whether a checkpoint lies there whole."""
    return (folder / INDEX).is_file()


def size_gib(folder: Path) -> float:
    """Of its weights."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / GIB


def _file(shard: int) -> str:
    return f"model-{shard:05}.safetensors"


def _shapes(config: dict[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of all parameters by name, by shard: each layer, and the rest."""
    import torch
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig.from_dict(plain))
    by_shard: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        key = name.split(".layers.")[1].split(".")[0] if ".layers." in name else "rest"
        by_shard.setdefault(key, {})[name] = tuple(parameter.shape)
    return by_shard


def _write_shard(path: Path, shapes: dict[str, tuple[int, ...]], seed: int) -> tuple[str, list[str]]:
    import torch
    from safetensors.torch import save_file

    names = path.with_suffix(".json")
    if not names.is_file():
        torch.set_num_threads(1)
        content = Content(seed)
        tensors: dict[str, Any] = {}
        for name, shape in shapes.items():
            tensors |= stored(content, name, shape)
        save_file(tensors, path)
        names.write_text(json.dumps(list(tensors)))
    return path.name, json.loads(names.read_text())


def _decode_shard(branch: Path, folder: Path, file: str) -> tuple[str, list[str]]:
    import torch
    from safetensors.torch import save_file

    from q36eval.checkpoints.reader import open_checkpoint
    from q36eval.checkpoints.weights import index_weights

    names = (folder / file).with_suffix(".json")
    if not names.is_file():
        torch.set_num_threads(1)
        weights = index_weights(open_checkpoint(branch)).weights
        own = {name: weight for name, weight in weights.items() if weight.parts[0][1].file.name == file}
        decoded = {name: weight.decode(weight.read_parts()).bfloat16() for name, weight in own.items()}
        save_file(decoded, (folder / file).resolve())  # a link would be replaced
        names.write_text(json.dumps(list(decoded)))
    return file, json.loads(names.read_text())


def _in_processes(call: Any, jobs: list[tuple[Any, ...]], what: str, writers: int) -> Any:
    """The results as they come; says how far it is."""
    begun = time.monotonic()
    with ProcessPoolExecutor(min(writers, len(os.sched_getaffinity(0)), len(jobs))) as pool:
        waiting = [pool.submit(call, *job) for job in jobs]
        for done, each in enumerate(as_completed(waiting), 1):
            yield each.result()
            print(f"{what}: {done} of {len(jobs)} shards, {time.monotonic() - begun:.0f} s", flush=True)


def _finish(folder: Path, config: dict[str, Any], index: dict[str, str]) -> None:
    for names in folder.glob("model-*.json"):
        names.unlink()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))


def _make_room(folder: Path, needed: int) -> None:
    """Where the folder lies in a memory file system that is smaller than what is to be written, make that larger."""
    if shutil.disk_usage(folder).free >= needed or not folder.resolve().is_relative_to("/dev/shm"):
        return
    size = f"size={-(-(shutil.disk_usage(folder).used + needed + SPARE) // GIB)}G"
    subprocess.run(["mount", "-o", f"remount,{size}", "/dev/shm"], check=False)


def _link_what_does_not_fit(folder: Path, beside: Path, sizes: dict[str, int]) -> None:
    """Of the shards that are to be written, the last ones lie in the folder `beside` where there is no room for all."""
    free = shutil.disk_usage(folder).free - SPARE
    for file, size in sizes.items():
        place = folder / file
        if place.is_symlink() or place.is_file():
            continue
        if size <= free:
            free -= size
            continue
        free = 0
        beside.mkdir(exist_ok=True)
        place.symlink_to(beside / file)
