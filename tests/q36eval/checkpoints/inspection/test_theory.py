"""What an inspection takes as theory: rounding bounds against real rounding."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from q36eval.checkpoints.inspection.comparison import LEAST_INSIDE
from q36eval.checkpoints.inspection.grids import Usage, sums_of
from tests.profiles import sized

from .roundings import absmax, honest_rounding, rounding_of, under, usage


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
    decoded = weight.float() * scale.repeat_interleave(32, 1)
    return usage(decoded - original, original, rounding)


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
        assert sums.on_grid is not None
        assert sums.on_grid.inside is not None
        count, signal, across = sums.on_grid.inside.sum((0, 1)).tolist()
        assert count / original.numel() >= LEAST_INSIDE
        return whole, 1 + across / signal

    whole, inside = gain(scale)
    assert whole < 0.97
    assert abs(inside - 1) < 0.01
    assert gain(scale * 0.95)[1] < 0.96
    assert gain(scale * 1.05)[1] > 1.04
