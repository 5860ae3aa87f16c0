"""A Hugging Face folder, opened without pickle and without remote code, and its tokenizer.

Sizes that config.json gives are checked before anything is as large as they say: a file of a kilobyte can call for a
billion layers or experts, and whoever lists them does not come to an end.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.gguf.checkpoint import open_gguf
from q36eval.checkpoints.gguf.files import HeldGguf, is_gguf, model_files
from q36eval.checkpoints.header import TensorEntry, read_header
from q36eval.checkpoints.names import left_out_as
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.scheme import Scheme, check_method
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, UsageError

if TYPE_CHECKING:
    import torch

MOST_LAYERS = 4096
MOST_EXPERTS = 65_536
MOST_WEIGHTS = 2**20
"""Layers times experts: Qwen3.6-35B-A3B has 10,240."""
MOST = 2**31
LAYER_COUNTS = ("num_hidden_layers", "n_layer")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""The names that transformers' architectures give to the numbers of layers, and of the experts of a layer."""
_SIZES = (
    *LAYER_COUNTS,
    *EXPERT_COUNTS,
    "conv_L_cache",
    "full_attention_interval",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "intermediate_size_mlp",
    "kv_lora_rank",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "mamba_d_conv",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_n_heads",
    "max_position_embeddings",
    "moe_intermediate_size",
    "n_embd",
    "n_head",
    "n_positions",
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "shared_expert_intermediate_size",
    "v_head_dim",
    "vocab_size",
)
_MAY_BE_ZERO = ("num_local_experts",)
"""Granite's dense hybrids say so."""
_LIMITS = dict.fromkeys(LAYER_COUNTS, MOST_LAYERS) | dict.fromkeys(EXPERT_COUNTS, MOST_EXPERTS)


def experts_of(settings: Mapping[str, Any]) -> int | None:
    """The number of routed experts of a layer; None where a text model's settings do not give it."""
    return next((settings[name] for name in EXPERT_COUNTS if settings.get(name) is not None), None)


def sizes_fault(config: Mapping[str, Any]) -> str | None:
    """What makes a size of config.json one that no model has, None where all can be; sizes not given are no fault."""
    settings = config.get("text_config") or config
    if not isinstance(settings, dict):
        return "text_config is not a table"
    for name in _SIZES:
        size, least, most = settings.get(name), int(name not in _MAY_BE_ZERO), _LIMITS.get(name, MOST)
        if size is not None and (type(size) is not int or not least <= size <= most):
            return f"{name} is {_shown(size)}, a whole number from {least} to {most} is needed"
    kinds = settings.get("layer_types")
    if isinstance(kinds, list) and len(kinds) > MOST_LAYERS:
        return f"layer_types has {len(kinds)} entries, {MOST_LAYERS} at most are possible"
    layers, experts = (
        max((settings.get(name) or 1 for name in names), default=1) for names in (LAYER_COUNTS, EXPERT_COUNTS)
    )
    if layers * experts > MOST_WEIGHTS:
        return f"the number of layers is {layers} and that of experts {experts}, which no model has"
    return None


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"


__all__ = ["Checkpoint", "TensorEntry", "open_checkpoint"]

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """An opened folder: its configuration and where every stored tensor lies. Tensor data are read on demand."""

    held: HeldFolder
    config: dict[str, Any]
    tensors: dict[str, TensorEntry]
    schemes: Mapping[str, Scheme] | None = None
    """How every quantized module is stored, where the files themselves say it and no configuration does."""

    @property
    def path(self) -> Path:
        """The folder."""
        return self.held.path

    def read(self, name: str) -> "torch.Tensor":
        """One stored tensor, exactly as stored, on the CPU.

        Raises:
            CorruptCheckpointError: no such tensor.
        """
        entry = self.tensors.get(name)
        if entry is None:
            raise CorruptCheckpointError("tensor-missing", f"{self.path}: tensor {name!r} is missing.")
        return self.read_entry(entry)

    def read_entry(self, entry: TensorEntry) -> "torch.Tensor":
        """What lies where `entry` says, exactly as stored, on the CPU: a tensor, or some rows of one.

        Raises:
            CorruptCheckpointError: the file ends before it.
            EngineError: the system cannot read it.
        """
        # Read by offset: the headers were parsed once, and a large checkpoint holds a hundred thousand tensors, most of
        # them small.
        data = bytearray(entry.n_bytes)
        self.read_into(entry, memoryview(data))
        return entry.tensor(data)

    def read_into(self, entry: TensorEntry, target: memoryview) -> None:
        """Fill `target` with the bytes that lie where `entry` says; raises as `read_entry`."""
        at = 0
        for source in entry.sources:
            place = target[at : at + source.n_bytes]
            if self.held.files[source.file.name].read_into(place, source.begin) < source.n_bytes:
                raise CorruptCheckpointError(
                    "file-truncated", f"{source.file}: truncated at {source.name!r}; download the file again."
                )
            at += source.n_bytes


def check_folder(folder: Path) -> None:
    """Refuse what nobody would call a checkpoint: a wrong path is no damaged file; and what is not decoded.

    Raises:
        UsageError: no such folder, nothing of a checkpoint in it, or a quantization that is not decoded.
    """
    if is_gguf(folder):
        model_files(folder)
        return
    _need_folder(folder)
    if (folder / "config.json").is_file():
        with suppress(CorruptCheckpointError, EngineError):  # reported by those who read the checkpoint
            check_method(folder, read_json(folder / "config.json"))
    elif not (folder / "config.json").exists() and not any(folder.glob("*.safetensors*")):
        raise UsageError(
            "not-a-checkpoint",
            f"{folder} holds no checkpoint: there is neither config.json nor a safetensors file in it.",
        )


def _need_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UsageError(
            "folder-missing",
            f"{folder} is not a folder: name one with config.json and safetensors files, or a .gguf file.",
        )


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint folder; raises as `HeldFolder.json`."""
    return hold(file.parent).json(file.name)


def open_checkpoint(path: str | Path | HeldFolder) -> Checkpoint:
    """Open a folder and check the headers of all its weight files.

    Raises:
        UsageError: the folder, its config.json or one of its weight files is missing, or its quantization is not
            decoded.
        CorruptCheckpointError: a header is wrong, a tensor is stored twice, index and files disagree, or config.json
            gives sizes that no model has.
    """
    held = hold(path)
    if isinstance(held, HeldGguf):
        return _open_gguf(held)
    folder = held.path
    _need_folder(folder)
    config = held.json("config.json")
    fault = sizes_fault(config)
    if fault is not None:
        raise CorruptCheckpointError(
            "config-invalid", f"{folder / 'config.json'}: {fault}; correct it or download it again."
        )
    check_method(folder, config)
    weight_map = held.json(INDEX_FILE).get("weight_map", {}) if INDEX_FILE in held else {}
    if not is_weight_map(weight_map):
        raise CorruptCheckpointError(
            "index-malformed", f"{folder / INDEX_FILE}: weight_map does not map tensors to files of its folder."
        )
    tensors, faults = read_weights(held, weight_map)
    if faults:
        raise faults[0].error
    return Checkpoint(held, config, tensors)


@dataclass(frozen=True)
class Fault:
    """What is wrong with a file or a stored tensor: rule and subject of a finding, and what a strict reader raises."""

    rule: str
    subject: str
    error: Q36Error


def read_weights(held: HeldFolder, weight_map: Mapping[str, str]) -> tuple[dict[str, TensorEntry], list[Fault]]:
    """The tensors of the index's files or the single file, with all faults of files and index.

    Other files are sidecars: of them only what is no part of the text model is read, such as a draft head, and only a
    second copy of a tensor is a fault, since engines differ in which of the two they load.
    """
    named, present = set(weight_map.values()) or {SINGLE_FILE}, set(held.weight_files)
    faults = [
        Fault("missing-file", name, UsageError("file-missing", f"{held.path / name} is missing: {_AGAIN}"))
        for name in sorted(named - present)
    ]
    tensors: dict[str, TensorEntry] = {}
    for file in sorted(present, key=lambda name: (name not in named, name)):
        try:
            entries = read_header(held.files[file])
        except CorruptCheckpointError as error:
            faults.append(Fault("unreadable-file", file, error))
            continue
        twice = [name for name in entries if name in tensors or weight_map.get(name, file) != file]
        if file not in named:
            faults += [_twice(min(twice), entries, tensors, weight_map)] if twice else []
            entries = {name: entry for name, entry in entries.items() if left_out_as(name) is not None}
        else:
            faults += [_twice(name, entries, tensors, weight_map) for name in twice if name in tensors]
        tensors = {**entries, **tensors}
    if weight_map and not any(fault.rule == "unreadable-file" for fault in faults):
        faults += _index_faults(held.path / INDEX_FILE, weight_map, tensors)
    return tensors, faults


def _twice(
    name: str,
    here: Mapping[str, TensorEntry],
    there: Mapping[str, TensorEntry],
    weight_map: Mapping[str, str],
) -> Fault:
    first = there[name].file if name in there else here[name].file.with_name(weight_map[name])
    message = f"tensor {name!r} is stored in both {first} and {here[name].file}, and engines differ in which they load."
    return Fault("stored-twice", name, CorruptCheckpointError("tensor-duplicate", message))


_AGAIN = "download the checkpoint again (only safetensors are read)."


def _mismatch(rule: str, subject: str, message: str) -> Fault:
    return Fault(rule, subject, CorruptCheckpointError("index-mismatch", message))


def _index_faults(index: Path, weight_map: Mapping[str, str], tensors: Mapping[str, TensorEntry]) -> Iterator[Fault]:
    """Every tensor the index names is in the file it says, and every tensor of those files is in the index."""
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].file.name != file:
            yield _mismatch("index", name, f"{index} names tensor {name!r} in {file}, which lacks it.")
    for name, entry in tensors.items():
        if name not in weight_map and left_out_as(name) is None:
            yield _mismatch("index", name, f"{entry.file}: tensor {name!r} is not named in {INDEX_FILE}.")


def _open_gguf(held: HeldGguf) -> Checkpoint:
    opened = open_gguf(held)
    fault = sizes_fault(opened.config)
    if fault is not None:
        raise CorruptCheckpointError("config-invalid", f"{held.path}: {fault}; download the file again.")
    if opened.faults:
        raise CorruptCheckpointError("tensor-unexpected", opened.faults[0][1])
    return Checkpoint(held, opened.config, opened.tensors, opened.schemes)


def is_weight_map(weight_map: Any) -> bool:
    """Whether an index's entry maps names to files beside it."""
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        return False
    return all(Path(file).name == file for file in set(weight_map.values()))


def one_line(error: Exception) -> str:
    """What a library raised, for the end of a sentence."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")
