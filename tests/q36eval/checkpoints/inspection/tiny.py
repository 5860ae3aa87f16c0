"""Tiny whole checkpoints that an inspection takes hundredths of a second for, each beside the reference it was made of.

Those of the producers are the golden files; the hybrid ones are written here, so that linear attention, a multi-token
head and a vision tower are among what can be damaged.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.weights import index_weights

from .damage import WEIGHTS, Tensors, fp4_bytes, fused

GOLDEN = Path(__file__).parents[3] / "assets" / "golden"
MANIFEST: dict[str, Any] = json.loads((GOLDEN / "MANIFEST.json").read_text())
_DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CONFIG, NVFP4 = _DATA["config"], _DATA["nvfp4"]
"""The hybrid model's configuration, and its quantization as llm-compressor writes it."""
BESIDE: dict[str, list[int]] = _DATA["beside"]
"""What is shipped beside the text model, and its shapes."""
FROM_OTHERS = ("ct-awq", "ct-w4a16-ordered", "gptq", "tf-fp8", "ct-fp8-embeddings")
"""Golden files whose start is not kept: their reference is what their producer's code decodes them to."""


def write_texts(folder: Path) -> None:
    for name, content in _DATA["texts"].items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("{{ messages }}\n")


def _save(folder: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(config))
    write_texts(folder)


def golden(name: str, folder: Path) -> None:
    """`folder/branch` as the producer wrote it, and `folder/reference`, of which it keeps what it left unquantized."""
    shutil.copytree(GOLDEN / name, folder / "branch")
    write_texts(folder / "branch")
    decoded = load_file(GOLDEN / "decoded" / f"{MANIFEST[name]['decoded']}.safetensors")
    start = decoded if name.startswith(FROM_OTHERS) else _start(name)
    weights = index_weights(open_checkpoint(GOLDEN / name)).weights
    tensors = {
        key: start[key].bfloat16() if key in decoded else weight.decode(weight.read_parts())
        for key, weight in weights.items()
    }
    config = json.loads((GOLDEN / name / "config.json").read_text())
    config.pop("quantization_config", None)
    _save(folder / "reference", tensors, config)


def _start(name: str) -> Tensors:
    """What a producer was given, experts one by one."""
    from golden_base import MICROSCALED, SMALL, THIRTY_TWO, base_model

    later = name.startswith("modelopt") and name not in ("modelopt-nvfp4", "modelopt-fp8", "modelopt-mixed")
    sizes = THIRTY_TWO if name.startswith("autoround") else MICROSCALED if "mxfp" in name else SMALL if later else {}
    return _stored(base_model(**sizes))


def _stored(model: Any) -> Tensors:
    """As transformers stores them."""
    with TemporaryDirectory() as place:
        model.save_pretrained(place)
        return load_file(Path(place, WEIGHTS))


FULL_LAYER = "model.layers.1.self_attn"


def hybrid_reference(folder: Path) -> Tensors:
    """Random weights of two kinds of attention, a multi-token head and a vision tower; in BF16, written to `folder`."""
    from golden_base import randomized
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    generator = torch.Generator().manual_seed(5)
    tensors = _stored(randomized(lambda: Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**CONFIG))))
    tensors |= {name: (torch.randn(shape, generator=generator) * 0.05).bfloat16() for name, shape in BESIDE.items()}
    _save(folder, tensors, CONFIG)
    return tensors


def hybrid(layout: str, folder: Path) -> None:
    """`plain`, `fused` (plain, experts as one tensor), or `nvfp4` as llm-compressor writes it, with an FP8 KV cache."""
    tensors = hybrid_reference(folder / "reference")
    config = dict(CONFIG)
    if layout == "fused":
        tensors = fused(tensors)
    elif layout == "nvfp4":
        tensors, config = _nvfp4(tensors), config | {"quantization_config": NVFP4}
        tensors |= {f"{FULL_LAYER}.k_scale": torch.tensor(0.02), f"{FULL_LAYER}.v_scale": torch.tensor(0.01)}
    _save(folder / "branch", tensors, config)


def _nvfp4(tensors: Tensors) -> Tensors:
    """Experts, shared expert and self-attention rounded to nearest; fused modules share a global scale."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if name.startswith("mtp.") or not module.endswith("_proj") or ".linear_attn." in name:
            stored[name] = tensor
            continue
        unit = (6.0 * 448.0) / _largest(tensors, module)
        scale = (tensor.float().unflatten(1, (-1, 16)).abs().amax(-1) * unit / 6.0).to(torch.float8_e4m3fn)
        values = tensor.float() / (scale.float() / unit).repeat_interleave(16, 1).clamp(min=1e-20)
        stored |= {
            f"{module}.weight_packed": fp4_bytes(values),
            f"{module}.weight_scale": scale,
            f"{module}.weight_global_scale": unit.reshape(1),
            f"{module}.input_global_scale": torch.tensor([6.0 * 448.0 / 10.0]),
        }
    return stored


def _largest(tensors: Tensors, module: str) -> torch.Tensor:
    place, _, part = module.rpartition(".")
    together = next(
        (group for group in (("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj")) if part in group), []
    )
    names = [f"{place}.{other}.weight" for other in together] or [f"{module}.weight"]
    return torch.stack([tensors[name].float().abs().max() for name in names]).max()


def write(name: str, folder: Path) -> None:
    """The checkpoint of that name under `folder`: a golden file's, or `tiny-plain`, `tiny-fused`, `tiny-nvfp4`."""
    if name.startswith("tiny-"):
        hybrid(name.removeprefix("tiny-"), folder)
    else:
        golden(name, folder)
