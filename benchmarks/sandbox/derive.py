"""Turn what the producers wrote into the sandbox's branches.

`python -m benchmarks.sandbox.derive WORK SANDBOX`, or `--manifest SANDBOX` to hash its files anew after a deliberate
change.

SANDBOX holds `bf16/`; WORK holds `fp8-head`, `w4a16`, `gptq-experts`, `nvfp4-modelopt` and `nvfp4-mixed` as their
producers wrote them. Runs in the llm-compressor environment.

- What a recipe leaves in BF16 is taken from the reference, byte for byte. (llm-compressor 0.14.0.1 adds one to the
  RMSNorm weights for calibration and subtracts it again, both in BF16, which costs them 1.7 %.)
- `main` is `fp8-head` with the reference's head put back, as its card does it: the inner weights are the same bytes.
- `fp8-head-embed` is `fp8-head` with FP8_BLOCK embeddings.
- `gptq-int4` is `gptq-experts` in GPTQ serialization.
- `nvfp4-mixed` is made what `nvidia/Qwen3.6-35B-A3B-NVFP4` is: config.json says nothing of the KV cache, and experts
  still have the scales of inputs that a weight-only algorithm does not use (those of `nvfp4-modelopt`).
- All but the reference and `fp8-head` are kept as overlays; `int2-experts` is computed on first use.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.sandbox.quantize import copy_tokenizer
from q36eval.app.sandbox import (
    NAMES,
    OVERLAY_FILE,
    OVERLAY_PLAN,
    SHARED_FILES,
    RawTensor,
    build_into,
    hashes,
    kind_of,
    read_raw,
    tensor_bytes,
    tensors_of,
    write_raw,
)
from q36eval.files import canonical_json

if TYPE_CHECKING:
    import torch

Tensors = dict[str, RawTensor]
COMPLETE = ("fp8-head",)
OVERLAYS = {
    "main": "fp8-head",
    "w4a16": "bf16",
    "gptq-int4": "bf16",
    "fp8-head-embed": "fp8-head",
    "nvfp4-modelopt": "bf16",
    "nvfp4-mixed": "nvfp4-modelopt",
}
"""Each with the branch it is kept over, which stands before it."""


def restore_unquantized(tensors: Tensors, reference: Tensors) -> Tensors:
    """The branch's tensors with every unquantized one replaced by the reference's.

    Raises:
        SystemExit: an unquantized tensor has another dtype or shape than in the reference.
    """
    restored = dict(tensors)
    for name, original in reference.items():
        stored = tensors.get(name)
        if stored is None or stored.dtype not in ("BF16", "F16", "F32"):
            continue
        if (stored.dtype, stored.shape) != (original.dtype, original.shape):
            raise SystemExit(f"{name}: {stored.dtype} {stored.shape} is not the reference's {original.dtype}")
        restored[name] = original
    return restored


def write_branch(folder: Path, source: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    """A complete folder: the tensors, the configuration, and the producer's other documents from `source`."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name in ("recipe.yaml", "hf_quant_config.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    write_json(folder / "config.json", config)
    write_raw(folder / "model.safetensors", tensors)


def with_reference_head(tensors: Tensors, reference: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """`fp8-head` with the BF16 head back: tensors and configuration of `main`."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_head.")}
    quantization = dict(config["quantization_config"])
    groups = {
        name: group
        for name, group in quantization["config_groups"].items()
        if not any("lm_head" in target for target in group["targets"])
    }
    quantization |= {"config_groups": groups, "format": "nvfp4-pack-quantized"}
    quantization["ignore"] = [*quantization["ignore"], "lm_head"]
    head = {"lm_head.weight": reference["lm_head.weight"]}
    return kept | head, config | {"quantization_config": quantization}


def with_fp8_embeddings(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """`fp8-head` with FP8_BLOCK [128, 128] embeddings: tensors and configuration of `fp8-head-embed`."""
    quantization = dict(config["quantization_config"])
    head = next(group for group in quantization["config_groups"].values() if "re:.*lm_head$" in group["targets"])
    group = head | {"targets": ["re:.*embed_tokens$"], "input_activations": None}
    quantization["config_groups"] = quantization["config_groups"] | {"group_2": group}
    quantization["ignore"] = [name for name in quantization["ignore"] if not name.endswith("embed_tokens")]
    name = "model.embed_tokens.weight"
    return tensors | _fp8_blocks(name, tensors[name]), config | {"quantization_config": quantization}


def _fp8_blocks(name: str, tensor: RawTensor) -> Tensors:
    """FP8 E4M3 weight and BF16 scales of a BF16 matrix, by compressed-tensors' own quantizer."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, maybe_pad_tensor_for_block_quant

    scheme = preset_name_to_scheme("FP8_BLOCK", ["Embedding"])
    weight = torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16).reshape(tensor.shape)
    padded = maybe_pad_tensor_for_block_quant(weight, (128, 128))
    blocks = padded.reshape(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
    scale, zero = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), scheme.weights)
    compressor = BaseCompressor.get_value_from_registry("float-quantized")
    packed = compressor.compress({"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, scheme)
    stored = packed["weight"]
    return {
        name: RawTensor("F8_E4M3", tuple(stored.shape), tensor_bytes(stored)),
        f"{name}_scale": RawTensor("BF16", tuple(scale.shape), tensor_bytes(scale)),
    }


def as_published_mixed(tensors: Tensors, experts: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """`nvfp4-mixed` in its published layout (sglang PR 27906): tensors and configuration; `experts` are those of
    `nvfp4-modelopt`."""
    left_over = {name: scale for name, scale in experts.items() if name.endswith(".input_scale")}
    quantization = {key: value for key, value in config["quantization_config"].items() if key != "kv_cache_scheme"}
    return tensors | left_over, config | {"quantization_config": quantization}


GPTQ_BITS = 4
GPTQ_GROUP_SIZE = 128
GPTQ_ZERO = 2 ** (GPTQ_BITS - 1)


def write_gptq(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Tensors and configuration of the branch, from pack-quantized tensors and the reference's configuration."""
    modules = {name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")}
    packed_parts = {
        f"{module}.{part}" for module in modules for part in ("weight_packed", "weight_scale", "weight_shape")
    }
    branch = {name: tensor for name, tensor in tensors.items() if name not in packed_parts}
    for module in modules:
        parts = _serialize(tensors[f"{module}.weight_packed"], tensors[f"{module}.weight_scale"])
        branch |= {f"{module}.{part}": raw for part, raw in parts.items()}
    quantization = {
        "quant_method": "gptq",
        "bits": GPTQ_BITS,
        "group_size": GPTQ_GROUP_SIZE,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "pack_dtype": "int32",
        "dynamic": {rf"-:.*\.{kept}.*": {} for kept in ("self_attn", "linear_attn", "shared_expert", r"mlp\.gate")},
        "meta": {"quantizer": ["llmcompressor:0.14.0.1"]},
    }
    return branch, config | {"quantization_config": quantization}


def _serialize(packed: RawTensor, scale: RawTensor) -> Tensors:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    rows, groups = scale.shape
    columns = packed.shape[1] * 32 // GPTQ_BITS
    words = torch.frombuffer(bytearray(packed.data), dtype=torch.int32).reshape(packed.shape)
    unsigned = unpack_from_int32(words, GPTQ_BITS, torch.Size((rows, columns))).int() + GPTQ_ZERO
    scales = torch.frombuffer(bytearray(scale.data), dtype=torch.bfloat16).reshape(rows, groups).T
    if not torch.equal(scales.half().bfloat16(), scales):
        raise SystemExit("a scale does not fit FP16")
    stored_zeros = torch.full((rows, groups), GPTQ_ZERO - 1, dtype=torch.int32)
    arrays = {
        "qweight": ("I32", pack_rows(unsigned.T, GPTQ_BITS)),
        "qzeros": ("I32", pack_rows(stored_zeros, GPTQ_BITS).T),
        "scales": ("F16", scales.half()),
        "g_idx": ("I32", torch.arange(columns, dtype=torch.int32) // GPTQ_GROUP_SIZE),
    }
    return {part: RawTensor(dtype, tuple(array.shape), tensor_bytes(array)) for part, (dtype, array) in arrays.items()}


def pack_rows(values: "torch.Tensor", bits: int) -> "torch.Tensor":
    """Int32 words [n · bits / 32, m] from unsigned integers [n, m], lowest bits first."""
    import torch

    per_word = 32 // bits
    grouped = values.long().reshape(-1, per_word, values.shape[1])
    shifts = torch.arange(0, 32, bits).reshape(1, -1, 1)
    return (grouped << shifts).sum(1).to(torch.int32)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Indented JSON with a final newline, keys in the order given."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_manifest(sandbox_dir: Path) -> None:
    """Hash every committed file, and every file of the branches built from them, into the manifest."""
    branches: dict[str, dict[str, str]] = {}
    overlays: dict[str, dict[str, str]] = {}
    for name in NAMES:
        if kind_of(name, sandbox_dir) == "committed":
            branches[name] = hashes(sandbox_dir / name)
            continue
        if kind_of(name, sandbox_dir) == "overlay":
            overlays[name] = hashes(sandbox_dir / "overlays" / name)
        with tempfile.TemporaryDirectory() as scratch:
            build_into(Path(scratch) / name, name, sandbox_dir)
            branches[name] = hashes(Path(scratch) / name)
    document = canonical_json({"branches": branches, "overlays": overlays}, indent=2)
    (sandbox_dir / "manifest.json").write_text(document + "\n", encoding="utf-8")


def write_overlay(branch: Path, base: str, sandbox_dir: Path) -> None:
    """Keep a complete branch folder as an overlay over the branch `base`."""
    under, tensors = tensors_of(base, sandbox_dir), read_raw(branch)
    target = sandbox_dir / "overlays" / branch.name
    target.mkdir(parents=True, exist_ok=True)
    for file in branch.iterdir():
        if file.suffix != ".safetensors" and file.name not in SHARED_FILES:
            shutil.copyfile(file, target / file.name)
    changed = {name: tensor for name, tensor in tensors.items() if under.get(name) != tensor}
    write_raw(target / OVERLAY_FILE, changed)
    dropped = sorted(set(under) - set(tensors))
    document = json.dumps({"base": base, "dropped": dropped}, indent=1)
    (target / OVERLAY_PLAN).write_text(document + "\n", encoding="utf-8")


def derive(work: Path, sandbox: Path) -> None:
    """Write every branch and the manifest into `sandbox`."""
    reference_folder = sandbox / "bf16"
    reference = read_raw(reference_folder)
    ready = work / "ready"
    fp8 = restore_unquantized(read_raw(work / "fp8-head"), reference)
    config = read_json(work / "fp8-head" / "config.json")
    write_branch(ready / "fp8-head", work / "fp8-head", fp8, config)
    write_branch(ready / "main", work / "fp8-head", *with_reference_head(fp8, reference, config))
    write_branch(ready / "fp8-head-embed", work / "fp8-head", *with_fp8_embeddings(fp8, config))
    for name in ("w4a16", "nvfp4-modelopt"):
        tensors = restore_unquantized(read_raw(work / name), reference)
        write_branch(ready / name, work / name, tensors, read_json(work / name / "config.json"))
    mixed = restore_unquantized(read_raw(work / "nvfp4-mixed"), reference)
    experts, mixed_config = read_raw(ready / "nvfp4-modelopt"), read_json(work / "nvfp4-mixed" / "config.json")
    write_branch(ready / "nvfp4-mixed", work / "nvfp4-mixed", *as_published_mixed(mixed, experts, mixed_config))
    tensors = restore_unquantized(read_raw(work / "gptq-experts"), reference)
    write_branch(
        ready / "gptq-int4", work / "gptq-experts", *write_gptq(tensors, read_json(reference_folder / "config.json"))
    )
    for name in COMPLETE:
        copy_tokenizer(reference_folder, ready / name)
        shutil.rmtree(sandbox / name, ignore_errors=True)
        shutil.copytree(ready / name, sandbox / name)
    for name, base in OVERLAYS.items():
        shutil.rmtree(sandbox / "overlays" / name, ignore_errors=True)
        write_overlay(ready / name, base, sandbox)
    write_manifest(sandbox)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--manifest"]:
        write_manifest(Path(sys.argv[2]))
    else:
        derive(Path(sys.argv[1]), Path(sys.argv[2]))
