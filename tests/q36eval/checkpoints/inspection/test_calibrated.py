"""Honest calibration stays within its bounds, also with heavy tails; poison leaves them, and the more the worse."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints.inspection.error import WeightError, beyond_scheme, grouped, outliers

from .roundings import LARGEST, Stored, absmax, honest_rounding, rounding_of, to_grid, under, usage
from .tiny import fp4_bytes

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


def autocorrelated(columns: int) -> Tensor:
    place = torch.arange(columns)
    return 0.95 ** (place[:, None] - place).abs().float()


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
    inputs = [autocorrelated(256), *(falling(power, 256) for power in (0.5, 1.0, 1.5, 2.0))]
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
    assert used is not None
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
