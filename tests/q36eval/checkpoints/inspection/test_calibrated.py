"""Rounding bounds against real rounding, and what they find.

Rounding to nearest never leaves its bound; honest calibration stays within, also with heavy tails; poison leaves it,
and the more the worse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from q36eval.checkpoints.inspection.comparison import LEAST_INSIDE
from q36eval.checkpoints.inspection.error import WeightError, beyond_scheme, grouped, outliers
from q36eval.checkpoints.inspection.grids import Rounding, Usage, stored_grid, sums_of, usages
from q36eval.checkpoints.inspection.stored_schemes import Block
from tests.profiles import sized

from .damage import FP4, fp4_bytes

LARGEST = {"nvfp4": 6.0, "fp8": 448.0, "int8": 127.5, "int4": 7.5, "int3": 3.5, "int2": 1.5}


def honest_rounding(
    parts: Mapping[str, Tensor], original: Tensor, block: Block | None = None, bits: int | None = None
) -> Rounding:
    shape = (original.shape[0], original.shape[1])
    grid = stored_grid({part: tensor[None] for part, tensor in parts.items()}, shape, block, bits)
    return grid.rounding(original[None], grid.whole(original[None]))


def usage(error: Tensor, original: Tensor, rounding: Rounding) -> Usage:
    sums = sums_of(error[None], original[None], rounding)
    return usages(sums, sums.on_grid, rounding)[0]


@dataclass(frozen=True)
class Stored:
    """A weight as it is decoded, and the scales [out, groups] it was stored with."""

    decoded: Tensor
    scale: Tensor


def to_grid(kind: str, values: Tensor, scale: Tensor) -> Tensor:
    """The nearest values of the grid; `scale` broadcasts against `values`."""
    if kind == "fp8":
        return (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    if kind == "nvfp4":
        return FP4[((values / scale).abs().unsqueeze(-1) - FP4).abs().argmin(-1)] * values.sign() * scale
    top = int(LARGEST[kind] + 0.5)
    return (values / scale).round().clamp(-top, top - 1) * scale


def absmax(kind: str, group: int, weight: Tensor) -> Tensor:
    return weight.unflatten(1, (-1, group)).abs().amax(-1) / LARGEST[kind]


def under(kind: str, weight: Tensor, scale: Tensor) -> Stored:
    """The weight rounded to nearest under these scales [out, groups]."""
    groups = weight.unflatten(1, (scale.shape[1], -1))
    return Stored(to_grid(kind, groups, scale.unsqueeze(-1)).flatten(1), scale)


def rounding_of(kind: str, stored: Stored, weight: Tensor) -> Rounding:
    if kind == "nvfp4":
        unit = weight.abs().max() / (6 * 448)
        local = (stored.scale / unit).clamp(max=448).to(torch.float8_e4m3fn)
        packed = torch.zeros(len(weight), weight.shape[1] // 2, dtype=torch.uint8)
        parts = {"weight": packed, "weight_scale": local, "weight_scale_2": unit}
    else:
        dtype = torch.float8_e4m3fn if kind == "fp8" else torch.int8
        parts = {"weight": torch.zeros(weight.shape).to(dtype), "weight_scale": stored.scale}
    return honest_rounding(parts, weight, bits=int(kind[3:]) if kind.startswith("int") else None)


@pytest.mark.parametrize(("kind", "group"), [("nvfp4", 16), ("fp8", 128), ("fp8", 256), ("int4", 32), ("int8", 256)])
@settings(max_examples=sized(15, 40), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0.0, 3.0), size=st.floats(-6, 1))
def test_rounding_to_nearest_never_leaves_its_bound(
    kind: str, group: int, seed: int, spread: float, size: float
) -> None:
    """Whatever the scales: groups up to e^3 apart and more, and of any size."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.exp(spread * torch.randn(8, 256 // group, 1, generator=generator)) * 10**size
    weight = (torch.randn(8, 256 // group, group, generator=generator) * scales).flatten(1)
    scale = absmax(kind, group, weight)
    if kind == "nvfp4":  # local scales are stored in FP8
        unit = weight.abs().max() / (6 * 448)
        scale = (scale / unit).to(torch.float8_e4m3fn).float() * unit
    stored = under(kind, weight, scale)
    rounding = rounding_of(kind, stored, weight)
    assert rounding.width == min(group, 128) if kind == "fp8" else rounding.width == group
    assert bool(((stored.decoded - weight).abs() <= rounding.half_steps * 1.0001).all())
    assert usage(stored.decoded - weight, weight, rounding).share <= 1.0


@pytest.mark.parametrize("block", [(128, 128), (96, 80)])
def test_a_bound_follows_blocks_that_do_not_divide_the_weight(block: tuple[int, int]) -> None:
    """Neighbouring blocks six orders of magnitude apart, so that the neighbour's scale is no bound."""
    generator = torch.Generator().manual_seed(11)
    height, width = block
    size = 10 ** (6 * torch.rand(-(-128 // height), -(-256 // width), generator=generator) - 3)
    spread = size.repeat_interleave(height, 0)[:128].repeat_interleave(width, 1)[:, :256]
    weight, scale = torch.randn(128, 256, generator=generator).clamp(-4, 4) * spread, size * 4 / 448
    steps = scale.repeat_interleave(height, 0)[:128].repeat_interleave(width, 1)[:, :256]
    codes = (weight / steps).to(torch.float8_e4m3fn)
    decoded = codes.float() * steps
    for stored in (scale, scale[:, None, :, None]):
        rounding = honest_rounding({"weight": codes, "weight_scale": stored}, weight, block)
        assert rounding.width == width
        assert bool(((decoded - weight).abs() <= rounding.half_steps * 1.0001).all())
        # the small blocks are held to their own scale, as far as they count beside the large ones
        assert usage(decoded - weight, weight, rounding).share <= 1.0


def integer_usage(weight: torch.Tensor, scale: torch.Tensor, original: torch.Tensor) -> Usage:
    """Of `weight` in INT8 [out, in] under one scale a group of 32."""
    rounding = honest_rounding({"weight": weight, "weight_scale": scale}, original, (1, 32))
    return usage(weight.float() * scale.repeat_interleave(32, 1) - original, original, rounding)


def test_scales_that_are_powers_of_two_are_no_fault_and_twice_those_are() -> None:
    original = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    tight = original.reshape(64, 8, 32).abs().amax(-1) / 127
    for power, clean in ((0, True), (1, False)):
        scale = torch.exp2(tight.log2().ceil() + power)
        codes = (original / scale.repeat_interleave(32, 1)).round().to(torch.int8)
        used = integer_usage(codes, scale, original)
        assert (used.share <= 1) == clean
    coarse = tight * 1.9  # no power of two, and no better for it
    assert (
        integer_usage((original / coarse.repeat_interleave(32, 1)).round().to(torch.int8), coarse, original).share > 1
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_powers_of_two_that_a_search_chose_are_no_fault_and_half_of_one_is(bits: int) -> None:
    """Where the next power is nearly twice what the largest value calls for, clipping that value costs less."""
    top, original = 2 ** (bits - 1), torch.randn(256, 512, generator=torch.Generator().manual_seed(0)) * 0.02
    groups = original.reshape(256, 16, 32)
    ceiling = torch.exp2((groups.abs().amax(-1) / (top - 1)).log2().ceil())

    def coded(scale: torch.Tensor) -> torch.Tensor:
        return (groups / scale.unsqueeze(-1)).round().clamp(-top, top - 1)

    tried = torch.stack([ceiling, ceiling / 2])
    errors = torch.stack([(coded(scale) * scale.unsqueeze(-1) - groups).square().sum(-1) for scale in tried])
    scale = tried.gather(0, errors.argmin(0, keepdim=True))[0]
    assert bool((scale < ceiling).any()), "nothing was clipped"
    wrong = scale.clone()
    wrong[7, 3] /= 2
    for stored, clean in ((scale, True), (wrong, False), (scale / 2, False)):
        codes, decoded = coded(scale), (coded(scale) * stored.unsqueeze(-1)).flatten(1)
        parts = {"weight": codes.flatten(1).to(torch.int8), "weight_scale": stored}
        rounding = honest_rounding(parts, original, (1, 32), bits)
        assert (usage(decoded - original, original, rounding).share <= 1) == clean


def test_a_coarse_grid_on_which_every_value_lies_is_no_fault() -> None:
    """A head whose scales were 1.9 times what its largest values call for, and which equalled the reference."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(-66, 67, (64, 256), generator=generator).to(torch.int8)
    codes[:, ::32] = 66
    scale = torch.rand(64, 8, generator=generator) + 0.5
    original = codes.float() * scale.repeat_interleave(32, 1)
    assert integer_usage(codes, scale, original).share <= 1


def test_clipping_of_the_largest_values_leaves_the_size_of_the_others_and_a_smaller_scale_does_not() -> None:
    """AutoRound learns how much to clip: up to half of a group's range."""
    original = torch.randn(64, 256, generator=torch.Generator().manual_seed(5))
    scale = original.reshape(64, 8, 32).abs().amax(-1) / 7 * 0.6
    each = scale.repeat_interleave(32, 1)
    codes = (original / each).round().clamp(-8, 7)

    def gain(stored: torch.Tensor) -> tuple[float, float]:
        rounding = honest_rounding({"weight": codes.to(torch.int8), "weight_scale": stored}, original, (1, 32), 4)
        decoded = codes * stored.repeat_interleave(32, 1)
        whole = float((decoded * original).sum() / original.square().sum())
        sums = sums_of((decoded - original)[None], original[None], rounding)
        count, signal, across = sums.on_grid.inside.sum((0, 1)).tolist()
        assert count / original.numel() >= LEAST_INSIDE
        return whole, 1 + across / signal

    whole, inside = gain(scale)
    assert whole < 0.97
    assert abs(inside - 1) < 0.01
    assert gain(scale * 0.95)[1] < 0.96
    assert gain(scale * 1.05)[1] > 1.04


# -- calibration

GRIDS = [("int8", 128), ("int4", 128), ("int4", 32), ("int3", 128), ("int2", 32), ("nvfp4", 16), ("fp8", 256)]


def nearest(kind: str, group: int, weight: Tensor, factor: float = 1.0) -> Stored:
    return under(kind, weight, absmax(kind, group, weight) * factor)


def clipped(kind: str, group: int, weight: Tensor) -> Stored:
    """Each group under the one of 25 scales, from 0.4 of the unclipped one, that costs it least (MSE observers)."""
    tries = [nearest(kind, group, weight, float(factor)) for factor in torch.linspace(0.4, 1, 25)]
    costs = torch.stack([(tried.decoded - weight).unflatten(1, (-1, group)).square().sum(-1) for tried in tries])
    best = costs.argmin(0)
    return under(kind, weight, torch.stack([tried.scale for tried in tries]).gather(0, best.unsqueeze(0))[0])


def gptq(kind: str, group: int, weight: Tensor, hessian: Tensor) -> Stored:
    """GPTQ (Frantar et al. 2022, algorithm 1) with 1 % damping; a group's scale is set when its turn comes."""
    columns, left, scales = weight.shape[1], weight.clone(), []
    damped = hessian + 0.01 * hessian.diag().mean() * torch.eye(columns)
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)
    decoded = torch.zeros_like(weight)
    for column in range(columns):
        if column % group == 0:
            scales.append(left[:, column : column + group].abs().amax(1) / LARGEST[kind])
        decoded[:, column] = to_grid(kind, left[:, column], scales[-1])
        error = (left[:, column] - decoded[:, column]) / inverse[column, column]
        left[:, column + 1 :] -= error[:, None] * inverse[column, column + 1 :]
    return Stored(decoded, torch.stack(scales, 1))


def falling(power: float, columns: int) -> Tensor:
    """Inputs whose covariance has the spectrum i^-power, in no particular direction."""
    axes = torch.linalg.qr(torch.randn(columns, columns))[0]
    return (axes * torch.arange(1, columns + 1) ** -power) @ axes.T


def students_t(tail: float, rows: int = 128, columns: int = 256) -> Tensor:
    torch.manual_seed(5)
    return torch.distributions.StudentT(tail).sample((rows, columns))


def measured(kind: str, stored: Stored, weight: Tensor, name: str = "w") -> WeightError:
    rounding = rounding_of(kind, stored, weight)
    error = stored.decoded - weight
    signal = float(weight.norm())
    return WeightError(
        name,
        "routed experts",
        kind,
        float(error.norm()) / signal,
        float((stored.decoded * weight).sum()) / signal**2,
        float(rounding.lost.sum()) ** 0.5 / signal,
        float(rounding.kept.sum() / rounding.signal.sum()),
        usage(error, weight, rounding),
    )


@pytest.mark.long
@pytest.mark.parametrize(("kind", "group"), GRIDS)
@pytest.mark.parametrize("tail", [200.0, 4.0])
def test_honest_calibration_is_clean(kind: str, group: int, tail: float) -> None:
    weight = students_t(tail)
    place = torch.arange(256)
    inputs = [0.95 ** (place[:, None] - place).abs().float(), *(falling(power, 256) for power in (0.5, 1.0, 1.5, 2.0))]
    honest = [nearest(kind, group, weight), clipped(kind, group, weight)]
    honest += [gptq(kind, group, weight, hessian) for hessian in inputs]
    errors = [measured(kind, stored, weight) for stored in honest]
    assert not beyond_scheme(errors)
    # round to nearest and MSE search leave room; what stops short of it is held to less
    assert all(error.usage is not None and error.usage.share < 0.85 for error in errors[:2])


@pytest.mark.parametrize(("kind", "group"), [grid for grid in GRIDS if grid[0] != "fp8"])
def test_scales_too_large_for_the_weight_are_found(kind: str, group: int) -> None:
    """Rounded honestly under a scale that is not: within half a step of the stored grid everywhere.

    (FP8 has the same grid under a larger scale, but for its smallest values.)
    """
    weight = students_t(200.0)
    for factor in (2.0, 4.0, 16.0, 100.0):
        assert beyond_scheme([measured(kind, nearest(kind, group, weight, factor), weight)])


@pytest.mark.parametrize(("kind", "group"), [grid for grid in GRIDS if grid[0] not in ("int2", "int3")])
@pytest.mark.parametrize("factor", [0.0, 0.9, 1.05])
def test_a_weight_that_is_larger_or_smaller_as_a_whole_is_found(kind: str, group: int, factor: float) -> None:
    weight = students_t(200.0)
    stored = nearest(kind, group, weight)
    assert beyond_scheme([measured(kind, Stored(stored.decoded * factor, stored.scale), weight)])


def test_one_mantissa_bit_short_is_found_in_fp8() -> None:
    """Half as fine a grid: no weight is larger or smaller as a whole."""
    weight = students_t(200.0)
    stored = nearest("fp8", 256, weight)
    each = stored.scale.repeat_interleave(256, 1)
    coarse = Stored((weight / each).to(torch.float8_e5m2).float() * each, stored.scale)
    assert not beyond_scheme([measured("fp8", stored, weight)])
    assert beyond_scheme([measured("fp8", coarse, weight)])


EXPONENTS: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "down, as in the specification": lambda largest, top, emax: largest.log2().floor() - emax,
    "near, as in compressed-tensors": lambda largest, top, emax: (largest * 8 / 7).log2().floor() - emax,
    "up, as in Model Optimizer": lambda largest, top, emax: (largest / top).log2().ceil(),
}


@pytest.mark.parametrize("rule", EXPONENTS)
@pytest.mark.parametrize(("top", "emax"), [(6.0, 2), (448.0, 8)])
def test_however_a_shared_exponent_was_rounded_it_is_clean(rule: str, top: float, emax: int) -> None:
    weight = students_t(4.0)
    groups = weight.unflatten(1, (-1, 32))
    power = EXPONENTS[rule](groups.abs().amax(-1), top, emax)
    scale = torch.exp2(power).unsqueeze(-1)
    values = (groups / scale).clamp(-top, top).flatten(1)
    if emax == 2:
        stored, decoded = fp4_bytes(values), to_grid("nvfp4", values, torch.ones(()))
    else:
        stored = values.to(torch.float8_e4m3fn)
        decoded = stored.float()
    decoded = (decoded.unflatten(1, (-1, 32)) * scale).flatten(1)
    rounding = honest_rounding({"weight": stored, "weight_scale": (power + 127).to(torch.uint8)}, weight)
    assert usage(decoded - weight, weight, rounding).share <= 1.0
    wrong = decoded.clone()
    wrong[17, 96:128] *= 2
    assert usage(wrong - weight, weight, rounding).share > 1.0


Damage = Callable[[Tensor, int], Tensor]
"""A decoded weight with that many of its rows damaged."""
ROW_DAMAGES: dict[str, Damage] = {
    "halved": lambda decoded, rows: torch.cat([decoded[:rows] / 2, decoded[rows:]]),
    "doubled": lambda decoded, rows: torch.cat([decoded[:rows] * 2, decoded[rows:]]),
    "dead": lambda decoded, rows: torch.cat([torch.zeros_like(decoded[:rows]), decoded[rows:]]),
    "noise": lambda decoded, rows: torch.cat([torch.randn_like(decoded[:rows]), decoded[rows:]]),
}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "group"), [("int4", 128), ("int4", 32), ("nvfp4", 16), ("fp8", 256)])
@pytest.mark.parametrize("name", ROW_DAMAGES)
@pytest.mark.parametrize("calibrated", [False, True])
def test_more_damage_never_means_fewer_findings(kind: str, group: int, name: str, calibrated: bool) -> None:
    weight = students_t(200.0)
    stored = gptq(kind, group, weight, falling(1.0, 256)) if calibrated else nearest(kind, group, weight)
    for rows in (1, 2, 8, 32, 63, 64, 65, 100, 120, 127, 128):
        damaged = Stored(ROW_DAMAGES[name](stored.decoded, rows), stored.scale)
        assert beyond_scheme([measured(kind, damaged, weight)]), rows


@pytest.mark.parametrize(("kind", "group"), [("int4", 128), ("int4", 32), ("nvfp4", 16)])
def test_one_doubled_group_of_a_calibrated_weight_is_found_where_it_is(kind: str, group: int) -> None:
    weight = students_t(200.0, columns=512)
    stored = gptq(kind, group, weight, falling(1.0, 512))
    stored.decoded[17, group : 2 * group] *= 2
    used = measured(kind, stored, weight).usage
    assert used.share > 1
    assert used.row == 17
    assert used.what == "in a row" or used.column == group


def test_a_row_that_is_no_row_of_the_reference_is_found_with_two_bits() -> None:
    """There the grid itself costs half of what there is, and no multiple of it can be reached."""
    weight = students_t(200.0)
    stored = gptq("int2", 32, weight, falling(1.0, 256))
    for row in (torch.zeros(256), torch.randn(256), -weight[3]):
        decoded = stored.decoded.clone()
        decoded[3] = row
        assert beyond_scheme([measured("int2", Stored(decoded, stored.scale), weight)])


@pytest.mark.parametrize("sigmas", [6.0, 20.0, 60.0])
def test_a_heavy_tailed_weight_that_was_rounded_honestly_is_no_outlier(sigmas: float) -> None:
    """One value of n sigma in every 128: a relative error of twice its neighbours', and the same cost."""
    torch.manual_seed(5)
    weights = torch.randn(36, 64, 256)
    weights[7, :, ::128] = sigmas
    errors = [measured("int4", nearest("int4", 128, w), w, f"w{at}") for at, w in enumerate(weights)]
    assert not outliers(grouped(errors), frozenset())
    assert not beyond_scheme(errors)
    assert abs(errors[7].relative_error / errors[0].relative_error - 1) > 0.5
    larger = Stored(nearest("int4", 128, weights[3]).decoded * 1.25, absmax("int4", 128, weights[3]))
    spoilt = measured("int4", larger, weights[3], "w3")
    found = outliers(grouped([*errors[:3], spoilt, *errors[4:]]), frozenset())
    assert [finding.subject for finding in found] == ["w3"]
