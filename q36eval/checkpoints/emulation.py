"""Activation quantization, emulated: what a W4A4 or W8A8 kernel does to its input before the product.

All arithmetic is float32, as in the kernels that serve these formats, and the result is rounded once to the input's
dtype. It equals compressed-tensors' fake quantization of the same input in float32.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from q36eval.checkpoints import experts as on_gpu
from q36eval.checkpoints.architecture import Place
from q36eval.checkpoints.formats.parts import WHOLE_ROW, ActivationScheme
from q36eval.checkpoints.gpu import has_triton
from q36eval.errors import CorruptCheckpointError, UsageError

FP4_MAX = 6.0
FP8_MAX = 448.0
INT8_HALF_RANGE = 127.5
SMALLEST_LOCAL_SCALE = 0.125
"""What an all-zero group's FP8 scale becomes, so that nothing is divided by zero (compressed-tensors' choice)."""


def round_to_fp4(values: Tensor) -> Tensor:
    """Nearest E2M1 value (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), ties to even; float32 `values` within ±6."""
    # The spacing is half the power of two below |value|, and 0.5 under 1: exponent bits give it without branches.
    # Adding 1.5 * 2**23 spacings leaves no bits below the spacing, so the addition itself rounds to nearest even.
    power = (values.view(torch.int32) & 0x7F800000).clamp_(min=0x3F800000).view(torch.float32)
    offset = power.mul_(0.75 * 2**23)
    return (values + offset).sub_(offset)


def _in_groups(x: Tensor, group_size: int) -> Tensor:
    """Float32 [..., D / group_size, group_size]."""
    return x.float().reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)


def _largest(groups: Tensor) -> Tensor:
    """The greatest magnitude of every group [..., D / group_size]; on a CPU by halves, which is twice as fast."""
    magnitudes = groups.abs()
    if magnitudes.is_cuda:
        return magnitudes.amax(-1)
    while magnitudes.shape[-1] > 1 and magnitudes.shape[-1] % 2 == 0:
        half = magnitudes.shape[-1] // 2
        magnitudes = torch.maximum(magnitudes[..., :half], magnitudes[..., half:])
    return magnitudes.amax(-1)


def fake_quantize_nvfp4(x: Tensor, global_scale: Tensor, group_size: int = 16) -> Tensor:
    """`x` [..., D] after NVFP4 under `global_scale`, which broadcasts against [..., D / group_size]."""
    groups = _in_groups(x, group_size)
    local = global_scale * (_largest(groups) / FP4_MAX)
    local = local.clamp(max=FP8_MAX).to(torch.float8_e4m3fn).float()
    local = torch.where(local == 0, SMALLEST_LOCAL_SCALE, local)
    scale = (local / global_scale).unsqueeze(-1)
    quantized = round_to_fp4((groups / scale).clamp_(-FP4_MAX, FP4_MAX)).mul_(scale)
    return quantized.flatten(-2).to(x.dtype)


def fake_quantize_fp8(x: Tensor, group_size: int = 128) -> Tensor:
    """`x` [..., D] after dynamic FP8 E4M3 with one float32 scale per token and group.

    A short last group is filled up with zeros, as in vLLM's `QuantFP8`; compressed-tensors does not define it.
    """
    width = x.shape[-1]
    groups = _in_groups(nn.functional.pad(x, (0, -width % group_size)), group_size)
    scale = _largest(groups).unsqueeze(-1) / FP8_MAX
    scale = torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)
    values = (groups / scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float()
    return values.mul_(scale).flatten(-2)[..., :width].to(x.dtype)


def fake_quantize_fp8_static(x: Tensor, scale: Tensor) -> Tensor:
    """`x` [..., D] after FP8 E4M3 under a static `scale` that broadcasts against it; saturates at ±448."""
    values = (x.float() / scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float()
    return values.mul_(scale).to(x.dtype)


def fake_quantize_int8(x: Tensor, group_size: int) -> Tensor:
    """`x` [..., D] after dynamic symmetric INT8 with one float32 scale per token and group.

    The scale is |x|max / 127.5, compressed-tensors' choice, so that the largest negative value uses −128.
    """
    groups = _in_groups(x, group_size)
    scale = _largest(groups).unsqueeze(-1) / INT8_HALF_RANGE
    scale = torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)
    return _round_to_int8(groups / scale).mul_(scale).flatten(-2).to(x.dtype)


def fake_quantize_int8_static(x: Tensor, scale: Tensor) -> Tensor:
    """`x` [..., D] after symmetric INT8 under a static `scale` that broadcasts against it."""
    return _round_to_int8(x.float() / scale).mul_(scale).to(x.dtype)


def fake_quantize_int8_asymmetric(x: Tensor, group_size: int) -> Tensor:
    """`x` [..., D] after dynamic INT8 with a float32 scale and an integer zero-point per token and group."""
    groups = _in_groups(x, group_size)
    least, greatest = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    scale = (greatest - least) / (2 * INT8_HALF_RANGE)
    zero = -128 - least / scale
    scale = torch.where(scale == 0, torch.finfo(torch.float32).eps, scale)
    zero = zero.nan_to_num(nan=0.0).clamp_(-128, 127).round_()
    return _round_to_int8(groups / scale + zero).sub_(zero).mul_(scale).flatten(-2).to(x.dtype)


def _round_to_int8(values: Tensor) -> Tensor:
    return values.clamp(-128, 127).round_()


_MX_MAX = {"mxfp4": (FP4_MAX, 2), "mxfp8": (FP8_MAX, 8)}
"""The largest value of each element format, and the exponent of the largest power of two in it."""


def fake_quantize_mx(x: Tensor, kind: str, exponent: str, group_size: int = 32) -> Tensor:
    """`x` [..., D] after dynamic microscaling: `kind` values under a power of two per group.

    OCP Microscaling Formats 1.0 (section 6.3) takes 2^(floor(log2 |x|max) − emax), which clips what lies above the
    format's largest value. `near` goes up already from 1.75 · 2^n (compressed-tensors' `round_to_power_2`); `up` takes
    2^ceil(log2(|x|max / largest value)), under which nothing is clipped (Model Optimizer's `compute_scale_e8m0_NV`).
    Ties go to even elements.
    """
    top, emax = _MX_MAX[kind]
    groups = _in_groups(x, group_size)
    largest = _largest(groups)
    # exponent bits alone, after what carries into them: a quarter of a power, or anything at all
    if exponent == "near":
        power = ((largest.view(torch.int32) + 2**21) & 0x7F800000).view(torch.float32) * 2.0**-emax
    else:
        power = (((largest / top).view(torch.int32) + (2**23 - 1)) & 0x7F800000).view(torch.float32)
    scale = power.clamp_(min=2.0**-127).unsqueeze(-1)
    values = (groups / scale).clamp_(-top, top)
    rounded = round_to_fp4(values) if kind == "mxfp4" else values.to(torch.float8_e4m3fn).float()
    return rounded.mul_(scale).flatten(-2).to(x.dtype)


VALUES_A_PROGRAM = 1024
"""So many values one program of the kernel takes."""


class InputQuantizer(nn.Module):
    """Quantizes rows, each under the static scale of its own expert (or of the one module it feeds), if it has one.

    `schemes` are all of one kind and group size; a None among them leaves the rows of that expert as they are.
    """

    scale: Tensor
    active: Tensor
    suspended = False
    """Whether inputs stay as they are for now."""

    def __init__(self, schemes: list[ActivationScheme | None], width: int, device: Any) -> None:
        super().__init__()
        known = [scheme for scheme in schemes if scheme is not None]
        kinds = {(scheme.kind, scheme.group_size, scheme.static_scale is None, scheme.exponent) for scheme in known}
        if len(kinds) != 1:
            raise CorruptCheckpointError(
                "quantization-mixed", "experts of one layer mix kinds of activation quantization"
            )
        self.kind, self.static, self.exponent = known[0].kind, known[0].static_scale is not None, known[0].exponent
        self.group_size = width if known[0].group_size == WHOLE_ROW else known[0].group_size
        if width % self.group_size and self.kind != "fp8":
            what = f"quantized inputs ({self.kind}) of {width} features in groups of {self.group_size}"
            raise UsageError("activations-unsupported", f"Emulation does not support {what}: the last group is short.")
        # the divisor of a row (for NVFP4, of its local scales), a positive number wherever it is stored
        scales = [1.0 if one is None else one.global_scale or one.static_scale or 1.0 for one in schemes]
        active = [scheme is not None for scheme in schemes]
        self.register_buffer("scale", torch.tensor(scales, device=device), persistent=False)
        self.register_buffer("active", torch.tensor(active, device=device), persistent=False)
        self.all_active = all(active)

    def extra_repr(self) -> str:
        """The settings that are no buffers, by which two quantizers are told apart."""
        return f"{self.kind}, group_size={self.group_size}, static={self.static}, exponent={self.exponent}"

    def same_as(self, other: "InputQuantizer") -> bool:
        """Whether both do the same to every row."""
        settings, others = ((one.kind, one.group_size, one.static, one.exponent) for one in (self, other))
        return settings == others and torch.equal(self.scale, other.scale) and torch.equal(self.active, other.active)

    def forward(self, x: Tensor, expert: Tensor | None = None, source: Tensor | None = None) -> Tensor:
        """`x` [..., D] of one module; or rows [N, D] of the experts `expert` [N], row n being `x[source[n]]`."""
        if self.suspended:
            return x if source is None else x[source]
        if x.is_cuda and self._in_one_pass:
            return self._by_kernel(x.contiguous(), expert, source)
        if source is not None:
            x = x[source]
        index = expert if expert is not None else torch.zeros((), dtype=torch.long, device=x.device)
        quantized = self._quantize(x, self.scale[index].unsqueeze(-1))
        return quantized if self.all_active else torch.where(self.active[index].unsqueeze(-1), quantized, x)

    @property
    def _in_one_pass(self) -> bool:
        """Whether the kernel knows this quantization: it reads each value once, where plain operations do ten times."""
        known = self.kind == "nvfp4" or (self.kind == "fp8" and self.exponent is None) or self.kind == "int8"
        if not known or (self.static and self.kind != "fp8"):
            return False
        return has_triton() and (self.static or self.group_size & (self.group_size - 1) == 0)

    def _by_kernel(self, x: Tensor, expert: Tensor | None, source: Tensor | None) -> Tensor:
        from q36eval.checkpoints._quantization_kernels import quantize_rows

        width = x.shape[-1]
        rows = x.view(-1, width)
        count = len(rows) if source is None else len(source)
        out = torch.empty(count, width, dtype=x.dtype, device=x.device)
        group = min(VALUES_A_PROGRAM, width) if self.static else self.group_size
        group = 1 << (group - 1).bit_length()
        block = max(1, VALUES_A_PROGRAM // group)
        nothing = self.scale
        if count:
            quantize_rows[count, -(-width // (group * block))](
                rows,
                nothing if source is None else source,
                nothing if expert is None else expert,
                self.scale,
                self.active,
                out,
                width,
                rows.stride(0),
                kind=f"{self.kind}-static" if self.static and self.kind == "fp8" else self.kind,
                group=group,
                block=block,
                gathers=source is not None,
                by_expert=expert is not None,
                all_active=self.all_active,
            )
        return out.view(*x.shape[:-1], width) if source is None else out

    def _quantize(self, x: Tensor, scale: Tensor) -> Tensor:
        if self.kind == "nvfp4":
            return fake_quantize_nvfp4(x, scale, self.group_size)
        if self.exponent is not None:
            return fake_quantize_mx(x, self.kind, self.exponent, self.group_size)
        if self.static:
            return (fake_quantize_fp8_static if self.kind == "fp8" else fake_quantize_int8_static)(x, scale)
        return _DYNAMIC[self.kind](x, self.group_size)


_DYNAMIC = {
    "fp8": fake_quantize_fp8,
    "int8": fake_quantize_int8,
    "int8-asymmetric": fake_quantize_int8_asymmetric,
}


class QuantizedInputLinear(nn.Linear):
    """A linear layer whose input is quantized first."""

    def __init__(self, linear: nn.Linear, scheme: ActivationScheme) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.input_quantizer = InputQuantizer([scheme], linear.in_features, linear.weight.device)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.quantize_input(input))

    def quantize_input(self, x: Tensor) -> Tensor:
        """What reaches the product, for callers that multiply by `weight` themselves (logits in float32)."""
        quantized: Tensor = self.input_quantizer(x)
        return quantized


class QuantizedInputExperts(nn.Module):
    """Routed experts with quantized inputs, each expert under its own scales.

    Same parameters and results as transformers' grouped experts, apart from the quantization: rows are sorted by
    expert, quantized all at once, and multiplied expert by expert.
    """

    def __init__(self, experts: nn.Module, gate: InputQuantizer, up: InputQuantizer, down: InputQuantizer) -> None:
        super().__init__()
        self.gate_up_proj: nn.Parameter = experts.gate_up_proj  # type: ignore[assignment]
        self.down_proj: nn.Parameter = experts.down_proj  # type: ignore[assignment]
        self.act_fn: Any = experts.act_fn
        self.gate_input, self.up_input, self.down_input = gate, up, down
        self.one_input = gate.same_as(up)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[N, H] from [N, H], the chosen experts [N, K] and their weights [N, K]."""
        if hidden_states.is_cuda and has_triton():
            up = self.gate_input if self.one_input else self.up_input
            inputs = (self.gate_input, up, self.down_input)
            return on_gpu.forward(self, hidden_states, top_k_index, top_k_weights, *inputs)
        top_k = top_k_index.shape[-1]
        expert, order = torch.sort(top_k_index.reshape(-1), stable=True)
        counts = torch.bincount(expert, minlength=self.gate_up_proj.shape[0]).tolist()
        rows = hidden_states[order // top_k]
        inner = self.down_input(self._gated(rows, expert, counts), expert)
        output = _multiply_by_expert(inner, self.down_proj, counts) * top_k_weights.reshape(-1)[order].unsqueeze(-1)
        restored = torch.empty_like(output)
        restored[order] = output
        return restored.view(-1, top_k, output.shape[-1]).sum(dim=1).to(hidden_states.dtype)

    def reads_packed(self, arguments: Any, weight: Any) -> bool:
        """Whether a weight stays packed in a forward pass with these arguments."""
        return on_gpu.stays_packed(weight, arguments)

    def _gated(self, rows: Tensor, expert: Tensor, counts: list[int]) -> Tensor:
        if self.one_input:
            gate_up = _multiply_by_expert(self.gate_input(rows, expert), self.gate_up_proj, counts)
            gate, up = gate_up.chunk(2, dim=-1)
        else:
            gate_weight, up_weight = self.gate_up_proj.chunk(2, dim=1)
            gate = _multiply_by_expert(self.gate_input(rows, expert), gate_weight, counts)
            up = _multiply_by_expert(self.up_input(rows, expert), up_weight, counts)
        gated: Tensor = self.act_fn(gate) * up
        return gated


def _multiply_by_expert(rows: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    """Rows sorted by expert, `counts[e]` of them for expert e, times `weight` [E, out, in]: [N, out]."""
    blocks = torch.split(rows, counts)
    return torch.cat([nn.functional.linear(block, weight[e]) for e, block in enumerate(blocks) if len(block)])


@contextmanager
def inputs_as_they_are(model: nn.Module) -> Iterator[None]:
    """Until the block ends, no module quantizes its inputs."""
    quantizers = [module for module in model.modules() if isinstance(module, InputQuantizer)]
    for quantizer in quantizers:
        quantizer.suspended = True
    try:
        yield
    finally:
        for quantizer in quantizers:
            quantizer.suspended = False


def install(model: nn.Module, schemes: Mapping[str, ActivationScheme], places: Mapping[str, Place]) -> int:
    """Wrap every module named in `schemes` (per expert, by stored name); returns how many schemes were used.

    `places` says where in the model the weight of each lies.

    Raises:
        CorruptCheckpointError: a scheme belongs to a module that cannot quantize its input.
        UsageError: it belongs to experts, or to a router, that compute otherwise than is emulated.
    """
    by_experts: dict[str, dict[tuple[int, str], ActivationScheme]] = {}
    for stored, scheme in schemes.items():
        place = places[f"{stored}.weight"]
        name, _, parameter = place.parameter.rpartition(".")
        if place.part is not None:
            index, rows = place.part
            projection = "up" if rows.start else parameter.removesuffix("_proj").partition("_")[0]
            by_experts.setdefault(name, {})[index, f"{projection}_proj"] = scheme
            continue
        linear = model.get_submodule(name)
        if not isinstance(linear, nn.Linear):
            raise CorruptCheckpointError(
                "quantization-invalid", f"{stored} has quantized activations but is not a linear layer"
            )
        if type(linear).forward is not nn.Linear.forward:
            raise UsageError(
                "activations-unsupported", f"{name}: quantized inputs of {type(linear).__name__} are not emulated."
            )
        model.set_submodule(name, QuantizedInputLinear(linear, scheme))
    for name, chosen in by_experts.items():
        experts = model.get_submodule(name)
        _check_experts(name, experts)
        model.set_submodule(name, _wrap_experts(experts, chosen))
    return len(schemes)


def _check_experts(name: str, experts: nn.Module) -> None:
    """Refuse experts that are not gate, up and down projections with silu between them.

    Raises:
        UsageError: they compute anything else.
    """
    from transformers.activations import SiLUActivation
    from transformers.integrations.moe import _default_apply_gate

    kind: Any = type(experts)
    plain = getattr(kind, "_apply_gate", None) is _default_apply_gate
    plain = plain and isinstance(experts.act_fn, nn.SiLU | SiLUActivation)
    if not plain or experts.has_bias or experts.is_transposed or not experts.has_gate:
        raise UsageError(
            "activations-unsupported",
            f"{name}: quantized inputs of {type(experts).__name__} are not emulated; known are experts of a gate, an "
            f"up and a down projection without biases and with silu.",
        )


def _wrap_experts(experts: nn.Module, chosen: Mapping[tuple[int, str], ActivationScheme]) -> QuantizedInputExperts:
    gate_up: Any = experts.gate_up_proj
    down: Any = experts.down_proj
    count, device = gate_up.shape[0], gate_up.device

    def quantizer(projection: str, width: int) -> InputQuantizer:
        return InputQuantizer([chosen.get((index, projection)) for index in range(count)], width, device)

    gate, up = (quantizer(projection, gate_up.shape[2]) for projection in ("gate_proj", "up_proj"))
    return QuantizedInputExperts(experts, gate, up, quantizer("down_proj", down.shape[2]))
