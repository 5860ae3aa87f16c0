"""The sandbox's branches: their places, building those that are not committed as a whole, and verification.

A branch is committed as a complete Hugging Face folder `data/sandbox/<branch>/`, or as an overlay
`data/sandbox/overlays/<branch>/` (its configuration, and its tensors that differ from another branch), or it is
computed from the reference. Overlays and computed branches are built on first use into `.q36eval/sandbox/`; the bytes
must match `data/sandbox/manifest.json`, so tensors are copied as bytes. The code that made them is in
`benchmarks/sandbox/`.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from q36eval.checkpoints.hashing import file_sha256
from q36eval.checkpoints.header import DTYPE_BYTES, TensorEntry, read_header
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    import torch

SANDBOX_DIR = Path(__file__).resolve().parents[1] / "data" / "sandbox"
REFERENCE = "bf16"
SHARED_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
OVERLAY_FILE, OVERLAY_PLAN = "overlay.safetensors", "overlay.json"
SAFETENSORS_ALIGNMENT = 8
INT2_GROUP_SIZE = 32
INT2_BITS = 2
INT2_TARGET = r"re:.*mlp\.experts\.\d+\.(gate|up|down)_proj$"
Kind = Literal["committed", "overlay", "computed"]


NAMES = (
    *(REFERENCE, "main", "fp8-head", "fp8-head-embed", "w4a16", "gptq-int4"),
    *("nvfp4-modelopt", "nvfp4-mixed", "int2-experts"),
)
"""The branches, the reference first; `data/families/sandbox.yaml` describes them."""


@dataclass(frozen=True)
class RawTensor:
    """One stored tensor: safetensors dtype name, shape, little-endian row-major data."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def build(name: str, sandbox_dir: Path = SANDBOX_DIR, build_dir: Path | None = None) -> Path:
    """The complete folder of a branch, built first if need be, its bytes checked against the manifest.

    Raises:
        UsageError: no such branch, or its source or the manifest is missing.
        CorruptCheckpointError: a file's bytes are not those of the manifest.
    """
    if name not in NAMES:
        raise UsageError("branch-unknown", f"The sandbox has no branch {name!r}; it has {', '.join(NAMES)}.")
    expected = read_manifest(sandbox_dir)["branches"].get(name)
    if expected is None:
        raise UsageError(
            "sandbox-not-built",
            f"{sandbox_dir / 'manifest.json'} does not list branch {name!r}; build the sandbox first.",
        )
    folder = sandbox_dir / name
    if kind_of(name, sandbox_dir) != "committed":
        folder = (build_dir or sandbox_dir.parent.parent / ".q36eval" / "sandbox") / name
        if _differences(folder, expected):
            build_into(folder, name, sandbox_dir)
    differences = _differences(folder, expected)
    if differences:
        raise CorruptCheckpointError(
            "sandbox-damaged", f"{folder / differences[0]} is not what {sandbox_dir / 'manifest.json'} says it is."
        )
    return folder


def verify(sandbox_dir: Path = SANDBOX_DIR) -> list[str]:
    """The errors of the committed files, one sentence each; empty if every byte matches the manifest.

    Raises:
        UsageError: the manifest does not exist.
    """
    manifest = read_manifest(sandbox_dir)
    problems = []
    for name in NAMES:
        kind = kind_of(name, sandbox_dir)
        listed = manifest["overlays"].get(name, {}) if kind == "overlay" else manifest["branches"].get(name, {})
        folder = sandbox_dir / "overlays" / name if kind == "overlay" else sandbox_dir / name
        if kind == "computed":
            continue
        if not listed:
            problems.append(f"{folder} is not listed in the manifest.")
        problems += [
            f"{folder / file} differs from the manifest or is missing." for file in _differences(folder, listed)
        ]
        strays = sorted({file.name for file in folder.iterdir()} - set(listed)) if listed else []
        problems += [f"{folder / file} is not listed in the manifest." for file in strays]
    return problems


def kind_of(name: str, sandbox_dir: Path = SANDBOX_DIR) -> Kind:
    """The form in which a branch is stored."""
    if (sandbox_dir / name / "config.json").is_file():  # a checkout may contain an empty folder of a moved branch
        return "committed"
    return "overlay" if (sandbox_dir / "overlays" / name).is_dir() else "computed"


def read_manifest(sandbox_dir: Path) -> dict[str, Any]:
    """`{"branches": {name: {file: sha256}}, "overlays": {name: {file: sha256}}}`.

    Raises:
        UsageError: it does not exist.
    """
    file = sandbox_dir / "manifest.json"
    if not file.is_file():
        raise UsageError("sandbox-not-built", f"{file} is missing: the sandbox has not been built there.")
    manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return manifest


def build_into(folder: Path, name: str, sandbox_dir: Path) -> None:
    """Build next to the final place, then move, so that an interrupted build leaves no partial folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch) / name
        fresh.mkdir()
        for shared in SHARED_FILES:
            if (sandbox_dir / REFERENCE / shared).is_file():
                shutil.copyfile(sandbox_dir / REFERENCE / shared, fresh / shared)
        if kind_of(name, sandbox_dir) == "overlay":
            for file in (sandbox_dir / "overlays" / name).iterdir():
                if file.name not in (OVERLAY_FILE, OVERLAY_PLAN):
                    shutil.copyfile(file, fresh / file.name)
            write_raw(fresh / "model.safetensors", tensors_of(name, sandbox_dir))
        elif name == "int2-experts":
            write_int2_experts(sandbox_dir / REFERENCE, fresh)
        else:
            raise UsageError(
                "sandbox-incomplete",
                f"{sandbox_dir / name} is missing and cannot be computed: check the data out again.",
            )
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)


def tensors_of(name: str, sandbox_dir: Path) -> dict[str, RawTensor]:
    """Every stored tensor of a committed or overlay branch, through all its base branches."""
    if kind_of(name, sandbox_dir) != "overlay":
        return read_raw(sandbox_dir / name)
    overlay = sandbox_dir / "overlays" / name
    plan = json.loads((overlay / OVERLAY_PLAN).read_text(encoding="utf-8"))
    tensors = tensors_of(plan["base"], sandbox_dir) | _read(read_header(overlay / OVERLAY_FILE))
    for dropped in plan["dropped"]:
        del tensors[dropped]
    return tensors


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder, by name."""
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir()) if file.is_file()}


def _differences(folder: Path, expected: dict[str, str]) -> list[str]:
    """The files of `expected` that are missing in `folder` or have other bytes."""
    return [
        name
        for name, sha256 in sorted(expected.items())
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256
    ]


def write_int2_experts(bf16: Path, target: Path) -> None:
    """Write `config.json` and `model.safetensors` of the branch into `target`.

    Symmetric round-to-nearest in groups of 32 columns, as the damage ladder's INT2: values in {-2, -1, 0, 1} times a
    BF16 scale of max |w| / 1.5, packed as compressed-tensors packs them.
    """
    tensors = read_raw(bf16)
    branch: dict[str, RawTensor] = {}
    for name, tensor in tensors.items():
        if ".mlp.experts." in name:
            module = name.removesuffix(".weight")
            branch |= {f"{module}.{part}": raw for part, raw in _rounded(tensor).items()}
        else:
            branch[name] = tensor
    config: dict[str, Any] = json.loads((bf16 / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = _quantization_config()
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_raw(target / "model.safetensors", branch)


def _rounded(tensor: RawTensor) -> dict[str, RawTensor]:
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    rows, columns = tensor.shape
    weight = torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16).reshape(rows, -1, INT2_GROUP_SIZE).float()
    scale = (weight.abs().amax(-1) / 1.5).clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16()
    q = torch.round(weight / scale.float().unsqueeze(-1)).clamp(-(2 ** (INT2_BITS - 1)), 2 ** (INT2_BITS - 1) - 1)
    packed = pack_to_int32(q.reshape(rows, columns).to(torch.int8), INT2_BITS).contiguous()
    return {
        "weight_packed": RawTensor("I32", tuple(packed.shape), tensor_bytes(packed)),
        "weight_scale": RawTensor("BF16", tuple(scale.shape), tensor_bytes(scale)),
        "weight_shape": RawTensor("I64", (2,), tensor_bytes(torch.tensor([rows, columns]))),
    }


def tensor_bytes(tensor: "torch.Tensor") -> bytes:
    """A tensor's data, row-major."""
    import torch

    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def _quantization_config() -> dict[str, Any]:
    weights = {
        "num_bits": INT2_BITS,
        "type": "int",
        "strategy": "group",
        "group_size": INT2_GROUP_SIZE,
        "symmetric": True,
    }
    group = {"targets": [INT2_TARGET], "weights": weights, "input_activations": None, "format": "pack-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def read_raw(folder: Path) -> dict[str, RawTensor]:
    """All tensors of a checkpoint folder, by name."""
    return _read(open_checkpoint(folder).tensors)


def _read(entries: dict[str, TensorEntry]) -> dict[str, RawTensor]:
    tensors: dict[str, RawTensor] = {}
    for name, entry in entries.items():
        with entry.file.open("rb") as stream:
            stream.seek(entry.begin)
            tensors[name] = RawTensor(entry.dtype, entry.shape, stream.read(entry.n_bytes))
    return tensors


def write_raw(file: Path, tensors: dict[str, RawTensor]) -> None:
    """Write one safetensors file: widest dtypes first (so that all data stay aligned), then by name."""
    order = sorted(tensors, key=lambda name: (-DTYPE_BYTES[tensors[name].dtype], name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    blob = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    blob += b" " * (-len(blob) % SAFETENSORS_ALIGNMENT)
    with file.open("wb") as stream:
        stream.write(len(blob).to_bytes(8, "little"))
        stream.write(blob)
        for name in order:
            stream.write(tensors[name].data)
