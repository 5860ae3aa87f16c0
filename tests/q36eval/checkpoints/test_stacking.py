"""Weights decoded together into one parameter are those of each alone, whichever of them are alike."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from q36eval.checkpoints import open_checkpoint, stored_groups
from q36eval.checkpoints.expert_stacks import Place, covers, decode_stack, finite_each, read_ahead, stacks_of
from q36eval.checkpoints.formats.stacked import can_be_stacked
from q36eval.checkpoints.stored_groups import read_alike
from q36eval.checkpoints.weights import LogicalWeight, index_weights

from .test_golden import GOLDEN, NAMES

EXPERTS = 2
ALONE = ("ct-fp8-block", "modelopt-fp8-block", "ct-w4a16-ordered")
"""Lower than a block of scales, or with an order of columns of its own."""


def experts_of(folder: Path) -> list[tuple[Place, LogicalWeight]]:
    """The gate and up projections of the first layer, in the order of their names."""
    weights = index_weights(open_checkpoint(folder)).weights
    first = min(name.partition(".mlp.experts.")[0] for name in weights if ".mlp.experts." in name)
    placed: list[tuple[Place, LogicalWeight]] = []
    for name, weight in weights.items():
        layer, marker, rest = name.partition(".mlp.experts.")
        if marker and layer == first and not rest.endswith("down_proj.weight"):
            expert, projection, _ = rest.split(".")
            half = weight.decode(weight.read_parts()).shape[0]
            rows = slice(0, half) if projection == "gate_proj" else slice(half, None)
            placed.append(((int(expert), rows), weight))
    return placed


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left_out", ["none", "an expert", "gates"])
@pytest.mark.parametrize("at_once", [1, 2**13])
def test_into_their_places_together_as_alone(name: str, left_out: str, at_once: int) -> None:
    placed = experts_of(GOLDEN / name)
    if left_out == "an expert":
        placed = [(place, weight) for place, weight in placed if place is not None and place[0] != 1]
    if left_out == "gates":
        placed = [(place, weight) for place, weight in placed if place is not None and place[1].start]
    alone = {
        place[0] * 2 + bool(place[1].start): weight.decode(weight.read_parts()) for place, weight in placed if place
    }
    rows, columns = next(iter(alone.values())).shape
    target = torch.full((EXPERTS, 2 * rows, columns), torch.nan, dtype=torch.bfloat16)
    expected = target.clone()
    for at, weight in alone.items():
        expected[at // 2, at % 2 * rows : (at % 2 + 1) * rows] = weight.bfloat16()
    for stack in stacks_of(list(reversed(placed))):
        parts = stack.read(pinned=False)
        if not can_be_stacked(parts, stack.scheme, rows):
            assert name in ALONE
            return
        in_order = covers(stack.places, target.shape)
        decode_stack(parts, stack.scheme, stack.places, target, at_once, in_order)
        assert in_order is (left_out == "none" and len(stack.places) == 2 * EXPERTS)
        assert finite_each(stack.places, target).tolist() == [True] * len(stack.places)
    assert torch.equal(target.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("least", [1, 200, 2**26])
def test_several_threads_read_what_one_reads(least: int, pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into page-locked memory too, or into plain memory where none can be locked."""
    weights = [weight for _, weight in experts_of(GOLDEN / "ct-nvfp4")]
    monkeypatch.setattr(stored_groups, "READ_BYTES", least)
    read = read_alike(weights, pinned=pinned)
    for part in read:
        assert torch.equal(
            read[part].view(torch.uint8),
            torch.stack([weight.read_parts()[part] for weight in weights]).view(torch.uint8),
        )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_the_weight_that_is_not_finite_is_found(bad: float) -> None:
    target = torch.zeros(3, 4, 5, dtype=torch.bfloat16)
    target[1, 2, 3] = bad
    halves: list[Place] = [(expert, rows) for expert in range(3) for rows in (slice(0, 2), slice(2, None))]
    assert finite_each(halves, target).tolist() == [True, True, True, False, True, True]
    assert finite_each([(1, slice(2, None)), (2, slice(0, 2))], target).tolist() == [False, True]
    assert finite_each([None], target).tolist() == [False]


@dataclass
class Sized:
    """A stack of that size, which notes when it is read."""

    stored_bytes: int
    begun: list[int]

    def read(self, *, pinned: bool) -> int:
        self.begun.append(self.stored_bytes)
        return self.stored_bytes


def test_what_is_ahead_stays_under_its_budget_and_comes_in_order() -> None:
    begun: list[int] = []
    done: list[int] = []
    sizes = [3, 2, 50, 4, 1, 60, 70, 2]
    for stack, result in read_ahead([Sized(size, begun) for size in sizes], 10, pinned=False):  # type: ignore[misc]
        assert result() == stack.stored_bytes
        done.append(stack.stored_bytes)
        assert sum(begun) - sum(done) <= 10
    assert done == sizes
    assert sorted(begun) == sorted(sizes)
