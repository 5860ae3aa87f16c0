"""The logical weights of a checkpoint: every stored tensor accounted for, each weight decodable on its own.

Experts may be stored fused, as transformers 5 holds them, and then some rows of a fused tensor are an expert's weight:
`experts.gate_up_proj` [E, 2I, H] has the gate projections above the up projections, `experts.down_proj` is [E, H, I].
Fine-grained FP8 adds `…_scale_inv` [E, 2I / block, H / block] (per tensor: [E, 1, 1], or [E, 2, 1] with one scale per
half) and, with static inputs, `…_activation_scale` [E]: the parameters of transformers' `FP8Experts`, written by
`save_pretrained(save_original_format=False)`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.formats import FORMATS, ROWS_MULTIPLE, ActivationScheme
from q36eval.checkpoints.names import canonical, fused_experts, left_out_as, part_name, split_part, tensor_class
from q36eval.checkpoints.reader import MOST_EXPERTS, Checkpoint, TensorEntry
from q36eval.checkpoints.scheme import FLOATS, PLAIN, Scheme, SchemeOf
from q36eval.checkpoints.schemes import scheme_resolver
from q36eval.errors import CorruptCheckpointError, Q36Error, UsageError

if TYPE_CHECKING:
    import torch

Entries = Mapping[str, TensorEntry]


def expert_entries(module: str, entries: Entries, scheme: Scheme) -> dict[str, dict[str, TensorEntry]]:
    """Where the parts of every expert's weight lie, by canonical weight name.

    A scale that gate and up share belongs to both.

    Raises:
        CorruptCheckpointError: the parts are not of as many experts, or do not divide into gate and up.
        UsageError: the gate and up projections of an expert share blocks of scales.
    """
    fused = fused_experts(module)
    if fused is None:
        raise ValueError(f"{module} is no fused expert parameter")
    experts, projections = fused
    count = _expert_count(entries)
    _check_halves(entries, scheme, len(projections))
    return {
        f"{experts}.{expert}.{projection}_proj.weight": {
            part: _cut(entry.row(expert), position, len(projections)) for part, entry in entries.items()
        }
        for expert in range(count)
        for position, projection in enumerate(projections)
    }


def _expert_count(entries: Entries) -> int:
    values = entries["weight"]
    if len(values.shape) != 3:
        raise CorruptCheckpointError(
            "tensor-shape",
            f"{values.file}: tensor {values.name!r} has shape {list(values.shape)}, "
            f"[experts, rows, columns] is needed.",
        )
    if 0 in values.shape or values.shape[0] > MOST_EXPERTS:
        raise CorruptCheckpointError(
            "tensor-shape",
            f"{values.file}: tensor {values.name!r} has shape {list(values.shape)}, which no layer's experts have.",
        )
    for entry in entries.values():
        if entry.shape[:1] != values.shape[:1]:
            raise CorruptCheckpointError(
                "tensor-shape",
                f"{entry.file}: tensor {entry.name!r} has shape {list(entry.shape)}, {values.name!r} has "
                f"{values.shape[0]} experts.",
            )
    return values.shape[0]


def _check_halves(entries: Entries, scheme: Scheme, halves: int) -> None:
    """Both halves have the same number of rows and, where several rows share a scale, scales of their own."""
    for entry in entries.values():
        rows = entry.shape[1] if len(entry.shape) > 1 else 1
        if rows % halves and rows != 1:
            raise CorruptCheckpointError(
                "tensor-shape", f"{entry.file}: the {rows} rows of {entry.name!r} are no gate and up halves."
            )
    block, rows = scheme.setting("block"), entries["weight"].shape[1]
    if block is not None and rows > block[0] and (rows // halves) % block[0]:
        raise UsageError(
            "scheme-unsupported",
            f"{entries['weight'].file}: gate and up of {entries['weight'].name!r} ({rows // halves} rows each) share "
            f"blocks of {block[0]} rows, which is not decoded; store the experts one by one.",
        )


def _cut(entry: TensorEntry, position: int, halves: int) -> TensorEntry:
    """One half of an expert's rows; what is a single value or row belongs to both."""
    if halves == 1 or not entry.shape or entry.shape[0] == 1:
        return entry
    size = entry.shape[0] // halves
    return entry.rows(position * size, (position + 1) * size)


INPUT_PARTS = ("input_global_scale", "input_scale", "input_zero_point", "activation_scale")
UNDECODABLE = (Q36Error, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What decoders raise of parts that they cannot make sense of."""
SLAB_ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
"""About how many values are decoded at once: decoding takes several float32 copies of them beside the stored tensor."""


@dataclass(frozen=True)
class LogicalWeight:
    """One weight of the model and the stored tensors that hold it, or the rows of them that do.

    `name` is the canonical parameter name, such as `model.layers.3.mlp.experts.7.gate_proj.weight`, also where experts
    are stored fused; `parts` maps part names to where they lie.
    """

    checkpoint: Checkpoint
    name: str
    parts: tuple[tuple[str, TensorEntry], ...]
    scheme: Scheme

    @property
    def tensor_class(self) -> str:
        """The class of tensor, as recipes speak of them."""
        return tensor_class(self.name)

    @property
    def stored_bytes(self) -> int:
        """What the weight takes in the checkpoint, scales included."""
        return sum(source.n_bytes for source in {source for _, entry in self.parts for source in entry.sources})

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The tensors it is stored in."""
        return tuple(entry.name for _, entry in self.parts)

    @property
    def is_plain(self) -> bool:
        """Stored as it is, not quantized."""
        return self.plain_shape is not None

    @property
    def plain_shape(self) -> tuple[int, ...] | None:
        """The shape of a plain weight, from the header alone; None for a quantized one."""
        parts = dict(self.parts)
        return parts["weight"].shape if parts.keys() == {"weight"} and self.scheme.format == "plain" else None

    def read(self, device: "torch.device | str" = "cpu") -> "tuple[torch.Tensor, ActivationScheme | None]":
        """The weight, decoded on `device` in its decoder's precision, and the quantization of its module's input.

        Raises:
            CorruptCheckpointError: the stored parts do not fit together.
            UsageError: the activation quantization is of a kind that is not emulated.
        """
        tensors = self.read_parts(device)
        with self.named_faults():
            return self.decode(tensors), FORMATS[self.scheme.format].activations(tensors, self.scheme)

    def read_parts(self, device: "torch.device | str" = "cpu") -> "dict[str, torch.Tensor]":
        """The stored tensors by part name, on `device`."""
        return {part: self.checkpoint.read_entry(entry).to(device) for part, entry in self.parts}

    def decode(self, tensors: "Mapping[str, torch.Tensor]") -> "torch.Tensor":
        """The weight alone, from parts that were read already.

        Raises:
            CorruptCheckpointError: the stored parts do not fit together.
        """
        with self.named_faults():
            return FORMATS[self.scheme.format].decode(tensors, self.scheme)

    def activations(self) -> ActivationScheme | None:
        """The quantization of its module's input, from the small tensors that describe it; None where there is none.

        Raises:
            CorruptCheckpointError: a stored scale is missing or no positive number.
            UsageError: it is of a kind that is not emulated.
        """
        if self.tensor_class == "embeddings":  # they look rows up: their inputs are token ids
            return None
        tensors = {part: self.checkpoint.read_entry(entry) for part, entry in self.parts if part in INPUT_PARTS}
        with self.named_faults():
            return FORMATS[self.scheme.format].activations(tensors, self.scheme)

    def check_shape(self, stored: "Mapping[str, torch.Tensor]", needed: tuple[int, ...]) -> None:
        """Refuse parts that do not fit together, or not into what is `needed`.

        Raises:
            CorruptCheckpointError: they do not.
        """
        with self.named_faults():
            shape = FORMATS[self.scheme.format].shape(stored, self.scheme)
            if shape != needed:
                raise CorruptCheckpointError("tensor-shape", f"shape {list(shape)} is stored, {list(needed)} is needed")

    @contextmanager
    def named_faults(self) -> Iterator[None]:
        """Faults of the decoders, told with the weight's name."""
        try:
            yield
        except Q36Error as error:
            is_named = str(error).startswith(f"{self.checkpoint.path}: {self.name}")
            raise (
                error if is_named else type(error)(error.code, f"{self.checkpoint.path}: {self.name}: {error}.")
            ) from error
        except UNDECODABLE as error:
            if lacks_memory(error):
                raise
            raise CorruptCheckpointError(
                "tensor-not-decoded", f"{self.checkpoint.path}: {self.name} cannot be decoded: {error}"
            ) from error


def decode_parts(parts: "Mapping[str, torch.Tensor]", scheme: Scheme, target: "torch.Tensor") -> None:
    """Decode parts that are known to fit into `target`, rounded once to its dtype, some rows at a time."""
    layout = FORMATS[scheme.format]
    for start, stop in _slabs(target):
        whole = (start, stop) == (0, len(target) if target.dim() else 1)
        place = target if whole else target[start:stop]
        place.copy_(layout.decode(parts if whole else layout.rows(parts, scheme, start, stop), scheme))


def lacks_memory(error: Exception) -> bool:
    """Whether torch says, in a `RuntimeError`, that this machine's memory does not suffice: no fault of a file."""
    return "out of memory" in str(error) or "can't allocate" in str(error)


def all_finite(weight: "torch.Tensor") -> "torch.Tensor":
    """Whether there is no NaN or infinity: its extremes are finite, and a NaN is an extreme to torch."""
    import torch

    if not weight.numel():
        return torch.ones((), dtype=torch.bool, device=weight.device)
    return torch.isfinite(torch.stack(torch.aminmax(weight.reshape(-1)))).all()


def _slabs(target: "torch.Tensor") -> "Iterator[tuple[int, int]]":
    """Runs of rows of about `SLAB_ELEMENTS` values that begin on multiples of `ROWS_MULTIPLE`; of experts, any runs."""
    if target.dim() == 0:
        yield 0, 1
        return
    rows, width = len(target), max(target[0].numel(), 1) if len(target) else 1
    wanted = SLAB_ELEMENTS["cpu" if target.device.type == "cpu" else "cuda"] // width
    multiple = ROWS_MULTIPLE if target.dim() < 3 else 1
    step = max(wanted // multiple, 1) * multiple
    for start in range(0, max(rows, 1), step):
        yield start, min(start + step, rows)


@dataclass(frozen=True)
class WeightIndex:
    """All logical weights by canonical name, and the stored tensors left out, by reason."""

    weights: dict[str, LogicalWeight]
    left_out: dict[str, tuple[str, ...]]


def index_weights(
    checkpoint: Checkpoint, faults: dict[str, Q36Error] | None = None, part: str | None = None
) -> WeightIndex:
    """Group the stored tensors of the text model into logical weights; nothing is decoded yet.

    With `part` those that are left out of it for that reason (`names.left_out_as`), such as the draft head.

    With `faults`, what is wrong with a module's weight is put there, under its canonical name, and not raised.

    Raises:
        CorruptCheckpointError: a part is missing, unexpected, or two stored tensors mean the same part.
        UsageError: a quantization method or format that is not decoded.
    """
    modules: dict[str, dict[str, str]] = defaultdict(dict)
    stored_module: dict[str, str] = {}
    left_out: dict[str, list[str]] = defaultdict(list)
    for stored in checkpoint.tensors:
        reason = left_out_as(stored)
        if reason is not None:
            left_out[reason].append(stored)
        if reason != part:
            continue
        module, stored_part = split_part(stored)
        is_transposed = stored_part == "weight" and f"{module}_bias" in checkpoint.tensors  # GPT-OSS's experts
        if is_transposed:
            module, stored_part = stored, ""
        name = canonical(module) if part is None else canonical(module).removeprefix("model.")
        if stored_part in modules[name]:
            twice = f"{checkpoint.path}: {modules[name][stored_part]!r} and {stored!r} are the same tensor."
            _fault(name, CorruptCheckpointError("tensor-duplicate", twice), faults)
        modules[name][stored_part] = stored
        stored_module[name] = module
    resolve = scheme_resolver(checkpoint)
    weights: dict[str, LogicalWeight] = {}
    for module, parts in modules.items():
        try:
            scheme = _scheme(resolve, stored_module[module], parts)
            if part is not None and _is_plain(checkpoint, parts):
                scheme = PLAIN  # recipes speak of the text model, and forget to except what is beside it
            of_module = _logical(checkpoint, module, parts, scheme)
        except CorruptCheckpointError as error:
            _fault(module, error, faults)
            continue
        for weight in of_module:
            if weight.name in weights:
                both = f"{weight.stored_names[0]!r} and {weights[weight.name].stored_names[0]!r}"
                twice = f"{checkpoint.path}: {weight.name} is stored both fused and per expert ({both})."
                _fault(weight.name.removesuffix(".weight"), CorruptCheckpointError("tensor-duplicate", twice), faults)
            weights[weight.name] = weight
    return WeightIndex(weights, {reason: tuple(names) for reason, names in left_out.items()})


def _is_plain(checkpoint: Checkpoint, parts: dict[str, str]) -> bool:
    return parts.keys() == {"weight"} and checkpoint.tensors[parts["weight"]].dtype in FLOATS


def _fault(module: str, error: Q36Error, faults: dict[str, Q36Error] | None) -> None:
    if faults is None:
        raise error
    faults[module] = error


def _scheme(resolve: SchemeOf, stored_module: str, parts: dict[str, str]) -> Scheme:
    """How a module is stored.

    Only fine-grained FP8 and GPT-OSS's MXFP4 know fused experts: the other methods quantize linear layers, and what
    they leave is plain.
    """
    scheme = resolve(stored_module, frozenset(parts))
    return scheme if fused_experts(stored_module) is None or scheme.format in ("fp8", "mxfp4") else PLAIN


def _logical(checkpoint: Checkpoint, module: str, parts: dict[str, str], scheme: Scheme) -> list[LogicalWeight]:
    """Check that exactly the parts of the scheme's format are stored; fused experts give a weight each."""
    entries = {part: checkpoint.tensors[stored] for part, stored in parts.items()}
    if set(parts) == {""} and scheme.format != "mxfp4":  # a bare parameter: A_log, dt_bias, a bias
        return [LogicalWeight(checkpoint, module, (("weight", entries[""]),), PLAIN)]
    layout = FORMATS.get(scheme.format)
    if layout is None:
        raise CorruptCheckpointError(
            "format-unknown", f"{checkpoint.path}: {module} has the unknown format {scheme.format!r}."
        )
    missing = sorted(layout.required - set(parts))
    if missing and _is_plain(checkpoint, parts):
        raise CorruptCheckpointError(
            "stored-unquantized",
            f"{checkpoint.path}: {module} is stored unquantized ({entries['weight'].dtype}), and the configuration "
            f"declares it as {scheme.format}. Engines such as vLLM build a quantized module and find no "
            f"{part_name(module, missing[0])}; add the module to the list of what stays unquantized, or quantize it.",
        )
    if missing:
        raise CorruptCheckpointError(
            "tensor-missing",
            f"{checkpoint.path}: {part_name(module, missing[0])} is missing ({scheme.format}; stored: "
            f"{', '.join(parts)}).",
        )
    unexpected = sorted(set(parts) - layout.required - layout.optional)
    if unexpected:
        raise CorruptCheckpointError(
            "tensor-unexpected",
            f"{checkpoint.path}: {parts[unexpected[0]]} is unexpected: {module} is stored as {scheme.format}.",
        )
    if scheme.format == "mxfp4":  # one parameter of the model
        return [LogicalWeight(checkpoint, module, tuple(sorted(entries.items())), scheme)]
    if fused_experts(module) is None:
        return [LogicalWeight(checkpoint, f"{module}.weight", tuple(sorted(entries.items())), scheme)]
    by_weight = expert_entries(module, entries, scheme).items()
    return [LogicalWeight(checkpoint, name, tuple(sorted(cut.items())), scheme) for name, cut in by_weight]
