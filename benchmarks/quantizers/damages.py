"""Good branches of SmolLM2, each damaged in one way that people reported.

    python -m benchmarks.quantizers.damages [NAME ...]        make them, or all, and print name and folder

A damage starts from a copy of a real producer's branch and changes that copy only. The branch is good by itself where
the damage allows it, so that a verdict is about the damage. Folders are kept in the tests' cache under the hash of the
branch and of the function that damages it.
"""

import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests import smollm2, smollm2_branches

WEIGHTS, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
EMBEDDINGS, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
MIDDLE = "model.layers.15"
"""The layer that is damaged where one is."""
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max


@dataclass(frozen=True)
class Damage:
    """A function that damages a copy of a branch in place, and a public report of such damage."""

    branch: str
    apply: Callable[[Path], None]
    report: str


def damaged(name: str) -> Path:
    """The folder of a damaged branch, made on the first call."""
    damage = DAMAGES[name]
    branch = smollm2_branches.branch(damage.branch).folder
    identity = f"{branch.parent.name}\0{inspect.getsource(damage.apply)}"
    made = smollm2.cache() / f"smollm2-damaged-{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not made.is_dir():
        with tempfile.TemporaryDirectory(dir=smollm2.cache()) as place:
            copy = Path(shutil.copytree(branch, Path(place, "model")))
            damage.apply(copy)
            copy.replace(made)
    return made


@contextmanager
def _weights(folder: Path) -> Iterator[dict[str, Tensor]]:
    """Every tensor of the weights file by name; changes are written back with the file's own metadata."""
    file, new = folder / WEIGHTS, folder / "new"
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    tensors = load_file(file)
    yield tensors
    save_file(tensors, new, metadata)  # to another file, since loaded tensors are mapped from the first
    new.replace(file)


@contextmanager
def _settings(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """A JSON file's content; changes are written back."""
    file = folder / name
    content = json.loads(file.read_text(encoding="utf-8"))
    yield content
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _exchange(tensors: dict[str, Tensor], one: str, other: str) -> None:
    """Exchange the tensors whose names differ only in these two texts."""
    for name in [name for name in tensors if one in name]:
        twin = name.replace(one, other)
        tensors[name], tensors[twin] = tensors[twin], tensors[name]


def _earlier_version() -> dict[str, Tensor]:
    """The model before it was rescaled, in FP8 with a scale per row as llm-compressor stores it."""
    tensors: dict[str, Tensor] = load_file(smollm2.folder(rescaled=False) / WEIGHTS)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name]
        scale = weight.abs().amax(dim=1, keepdim=True) / FP8_MAX
        tensors[name] = (weight / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale
    return tensors


def _exchanged_gate_up(folder: Path) -> None:
    with _weights(folder) as tensors:
        _exchange(tensors, "gate_proj", "up_proj")


def _swapped_layers(folder: Path) -> None:
    with _weights(folder) as tensors:
        _exchange(tensors, "layers.10.", "layers.20.")


def _halved_scales(folder: Path) -> None:
    """FP8 has two encodings of 4 exponent bits whose values differ by 2; a converter may forget that factor."""
    with _weights(folder) as tensors:
        for name in tensors:
            if name.endswith("down_proj.weight_scale"):
                tensors[name] = tensors[name] * 0.5


def _scale_5_percent_off(folder: Path) -> None:
    """Engines fuse q, k and v under the first one's scale, which moves a projection by a few per cent."""
    with _weights(folder) as tensors:
        tensors[f"{MIDDLE}.self_attn.q_proj.weight_scale"] *= 1.05


def _shifted_scales(folder: Path) -> None:
    with _weights(folder) as tensors:
        name = f"{MIDDLE}.mlp.up_proj.scales"
        tensors[name] = tensors[name].roll(1, dims=0)


def _zeroed_row(folder: Path) -> None:
    """The codes become zero and the scale stays, so that no scale looks wrong."""
    with _weights(folder) as tensors:
        tensors[f"{MIDDLE}.mlp.down_proj.weight"].view(torch.uint8)[100] = 0


def _zero_point_off_by_one(folder: Path) -> None:
    """Version 2 of the GPTQ layout stores zero points themselves, version 1 stores them less one."""
    with _weights(folder) as tensors:
        for name in tensors:
            if name.endswith(".qzeros"):
                tensors[name] = tensors[name] + 0x11111111


def _ignored_kv_scales(folder: Path) -> None:
    """Loaders that drop the scales, or do not find them, cast keys and values with a scale of 1."""
    with _weights(folder) as tensors:
        for name in [name for name in tensors if name.endswith((".k_scale", ".v_scale"))]:
            del tensors[name]


def _final_norm_without_one(folder: Path) -> None:
    with _weights(folder) as tensors:
        tensors[FINAL_NORM] -= 1


def _norm_of_another_layer(folder: Path) -> None:
    with _weights(folder) as tensors:
        tensors[f"{MIDDLE}.input_layernorm.weight"] = tensors["model.layers.14.input_layernorm.weight"].clone()


def _untie(folder: Path, head: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Store a head of its own, made of the embeddings and the final norm."""
    with _weights(folder) as tensors:
        tensors[HEAD] = head(tensors[EMBEDDINGS], tensors[FINAL_NORM])
    with _settings(folder, CONFIG) as config:
        config["tie_word_embeddings"] = False


def _head_ids_off_by_one(folder: Path) -> None:
    _untie(folder, lambda embeddings, norm: embeddings.roll(1, dims=0))


def _untied_head(folder: Path) -> None:
    """Tools that rotate weights untie the head and fold the final norm into it; here that norm then stays as well."""
    _untie(folder, lambda embeddings, norm: embeddings * norm)


def _shard_of_earlier_version(folder: Path) -> None:
    """As shards do, the old one begins and ends inside a layer, where old and new factors meet."""
    with _weights(folder) as tensors:
        for name, old in _earlier_version().items():
            if name.startswith("model.layers."):
                _, _, layer, part = name.split(".", 3)
                if (10, "mlp.up_proj") <= (int(layer), part) < (20, "mlp.up_proj"):
                    tensors[name] = old


def _stale_duplicate_tensor(folder: Path) -> None:
    """The index names the good copy; engines that load whole files take the other."""
    file, stale = folder / WEIGHTS, "model.layers.10.mlp.up_proj.weight"
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    tensors = load_file(file)
    of_second = [name for name in tensors if name.startswith("model.layers.29.")]
    second = {name: tensors.pop(name) for name in of_second}
    index = dict.fromkeys(tensors, names[0]) | dict.fromkeys(second, names[1])
    size = sum(tensor.nbytes for tensor in [*tensors.values(), *second.values()])
    save_file(tensors, folder / names[0], {"format": "pt"})
    save_file(second | {stale: _earlier_version()[stale]}, folder / names[1], {"format": "pt"})
    content = {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    file.unlink()


def _truncated_shard(folder: Path) -> None:
    file = folder / WEIGHTS
    os.truncate(file, file.stat().st_size * 9 // 10)


def _nothing_quantized(folder: Path) -> None:
    shutil.copyfile(smollm2.folder() / WEIGHTS, folder / WEIGHTS)


def _lost_rotary_base(folder: Path) -> None:
    with _settings(folder, CONFIG) as config:
        config["rope_parameters"]["rope_theta"] = 10000.0


def _wrong_attention_scale(folder: Path) -> None:
    """YaRN with a factor of 1 keeps every frequency; its attention factor makes attention scores 2 ** 0.5 as large."""
    with _settings(folder, CONFIG) as config:
        config["rope_parameters"] |= {
            "rope_type": "yarn",
            "factor": 1.0,
            "original_max_position_embeddings": config["max_position_embeddings"],
            "attention_factor": 2**0.25,
        }


def _lost_end_token(folder: Path) -> None:
    """Answers end with <|im_end|>, 2; what remains is <|endoftext|>, 0."""
    for name in (CONFIG, GENERATION):
        with _settings(folder, name) as content:
            content["eos_token_id"] = 0


def _changed_sampling_defaults(folder: Path) -> None:
    with _settings(folder, GENERATION) as content:
        content |= {"do_sample": True, "temperature": 1.4, "top_p": 0.5, "top_k": 3, "repetition_penalty": 1.3}


def _foreign_template(folder: Path) -> None:
    turn = "<|start_header_id|>{{ %s }}<|end_header_id|>\n\n"
    lines = (
        "{%- for message in messages -%}",
        turn % "message['role']" + "{{ message['content'] }}<|eot_id|>",
        "{%- endfor -%}",
        "{%- if add_generation_prompt -%}",
        turn % "'assistant'" + "{%- endif -%}",
    )
    (folder / "chat_template.jinja").write_text("\n".join(lines), encoding="utf-8")


def _split_chat_tokens(folder: Path) -> None:
    """The vocabulary keeps the two tokens; without their special entries a tokenizer never reaches them."""
    marks = ("<|im_start|>", "<|im_end|>")
    with _settings(folder, "tokenizer.json") as content:
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in marks]
    with _settings(folder, "tokenizer_config.json") as content:
        for name in [name for name, value in content.items() if value in marks]:
            content[name] = None  # else the loader would make them special again


GITHUB = "https://github.com"
DAMAGES = {
    "changed-sampling-defaults": Damage("w8a8", _changed_sampling_defaults, f"{GITHUB}/NVIDIA-NeMo/RL/issues/3497"),
    "exchanged-gate-up": Damage("fp8-dynamic", _exchanged_gate_up, f"{GITHUB}/sgl-project/sglang/pull/32430"),
    "final-norm-without-one": Damage("fp8-dynamic", _final_norm_without_one, f"{GITHUB}/kekzl/imp/pull/1289"),
    "foreign-template": Damage("w8a8", _foreign_template, f"{GITHUB}/eullm/eullm/pull/469"),
    "halved-scales": Damage("fp8-dynamic", _halved_scales, f"{GITHUB}/sgl-project/sglang/pull/35111"),
    "head-ids-off-by-one": Damage("w8a8", _head_ids_off_by_one, f"{GITHUB}/huggingface/transformers/issues/1078"),
    "ignored-kv-scales": Damage("fp8-static-kv", _ignored_kv_scales, f"{GITHUB}/vllm-project/vllm/issues/54623"),
    "lost-end-token": Damage("fp8-dynamic", _lost_end_token, f"{GITHUB}/nicedreamzapp/claude-code-local/pull/41"),
    "lost-rotary-base": Damage("w8a8", _lost_rotary_base, f"{GITHUB}/vllm-project/vllm/pull/42624"),
    "norm-of-another-layer": Damage(
        "w8a8", _norm_of_another_layer, f"{GITHUB}/NVIDIA-NeMo/Megatron-Bridge/issues/4200"
    ),
    "nothing-quantized": Damage("nvfp4", _nothing_quantized, f"{GITHUB}/NVIDIA/Model-Optimizer/pull/2203"),
    "one-expert-or-row-zeroed": Damage("fp8-dynamic", _zeroed_row, f"{GITHUB}/NVIDIA/Model-Optimizer/pull/1382"),
    "scale-5-percent-off": Damage("w8a8", _scale_5_percent_off, f"{GITHUB}/vllm-project/vllm/issues/54974"),
    "shard-of-earlier-version": Damage(
        "fp8-dynamic", _shard_of_earlier_version, f"{GITHUB}/mflux-community/mflux/pull/603"
    ),
    "shifted-scales": Damage("autoround-4-gptq", _shifted_scales, f"{GITHUB}/vllm-project/vllm/issues/52997"),
    "split-chat-tokens": Damage("fp8-dynamic", _split_chat_tokens, f"{GITHUB}/huggingface/transformers/issues/47838"),
    "stale-duplicate-tensor": Damage("fp8-dynamic", _stale_duplicate_tensor, f"{GITHUB}/vllm-project/vllm/pull/54230"),
    "swapped-layers": Damage("w8a8", _swapped_layers, f"{GITHUB}/huggingface/transformers/pull/24381"),
    "truncated-shard": Damage("w4a16-gptq", _truncated_shard, f"{GITHUB}/AutoGPTQ/AutoGPTQ/issues/661"),
    "untied-head": Damage("w8a8", _untied_head, f"{GITHUB}/ModelCloud/GPTQModel/pull/1550"),
    "wrong-attention-scale": Damage("w8a8", _wrong_attention_scale, f"{GITHUB}/sgl-project/sglang/pull/33558"),
    "zero-point-off-by-one": Damage(
        "autoround-4-gptq", _zero_point_off_by_one, f"{GITHUB}/vllm-project/vllm/pull/38966"
    ),
}
"""By the names of set-aside.yaml."""


if __name__ == "__main__":
    for each in sys.argv[1:] or DAMAGES:
        print(each, damaged(each), flush=True)
