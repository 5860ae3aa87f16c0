"""Weights alike examined together come out as each alone, whole or some rows at a time."""

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.inspection import comparison, inspect_checkpoint
from q36eval.checkpoints.inspection.comparison import WeightError
from q36eval.checkpoints.inspection.error import Examined, Pass, examine
from q36eval.checkpoints.inspection.stacks import examine_all
from q36eval.checkpoints.weights import LogicalWeight, index_weights

from . import tiny
from .damage import one
from .tiny import GOLDEN

NAMES = sorted(tiny.MANIFEST)


def units_in(folder: Path) -> dict[str, LogicalWeight]:
    return index_weights(open_checkpoint(folder)).weights


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The references of all golden checkpoints, each in the folder of its name."""
    place = tmp_path_factory.mktemp("references")
    for name in NAMES:
        tiny.golden(name, place / "golden" / name)
        (place / name).symlink_to(place / "golden" / name / "reference")
    return place


def alike(one: Sequence[Examined], other: Sequence[Examined], tolerance: float = 1e-5) -> None:
    """Figures may differ by the order of summation: float32 over a row, some square roots of which are subtracted."""
    for mine, theirs in zip(one, other, strict=True):
        assert mine.findings == theirs.findings
        assert (mine.error is None) == (theirs.error is None)
        if mine.error is not None and theirs.error is not None:
            assert figures(mine.error) == pytest.approx(figures(theirs.error), rel=tolerance, nan_ok=True)
            assert (mine.error.name, mine.error.stored) == (theirs.error.name, theirs.error.stored)


def figures(error: WeightError) -> list[float]:
    used = [] if error.usage is None else [error.usage.share, error.usage.row, error.usage.column]
    return [error.relative_error, error.gain, error.honest or 0.0, error.honest_gain, *used]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_together_or_by_rows_the_figures_are_those_of_each_alone(
    name: str, references: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units, how = units_in(GOLDEN / name), Pass({}, units_in(references / name))
    all_of_them = list(units.values())
    alone = [examine(unit, how) for unit in all_of_them]
    assert all(one.error is not None for one in alone)
    alike(examine_all(all_of_them, how, 2), alone)
    monkeypatch.setattr(comparison, "SLAB", 2**10)  # the least number of rows at once
    monkeypatch.setattr(comparison, "ROWS_MULTIPLE", 32)
    alike(examine_all(all_of_them, how, 2), alone)
    without = Pass({}, {})
    alike(examine_all(all_of_them, without, 2), [examine(unit, without) for unit in all_of_them])


UP = "model.layers.0.mlp.experts.1.up_proj"


def _zero_in_one_row(scale: Tensor) -> Tensor:
    changed = scale.float().clone()
    changed[3] = 0
    return changed.to(scale.dtype)


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda scale: (scale.float() * factor).to(scale.dtype)


@pytest.mark.long
@pytest.mark.parametrize("change", [_zero_in_one_row, *map(_times, (math.nan, 0, 4, -1))])
def test_damage_to_one_of_a_stack_is_told_of_that_one(
    change: Callable[[Tensor], Tensor], references: Path, tmp_path: Path
) -> None:
    folder, stored = Path(shutil.copytree(GOLDEN / "ct-nvfp4", tmp_path / "copy")), f"{UP}.weight_scale"
    one(stored, change)(folder)
    units, how = units_in(folder), Pass({}, units_in(references / "ct-nvfp4"))
    alone = [examine(unit, how) for unit in units.values()]
    alike(examine_all(list(units.values()), how, 2), alone)
    damaged = inspect_checkpoint(folder, references / "ct-nvfp4")
    assert any(finding.subject.startswith(stored.removesuffix("_scale")) for finding in damaged.blocking)


@pytest.mark.parametrize("name", ["ct-nvfp4", "ct-w8a16-channel", "modelopt-fp8-default"])
def test_errors_are_those_of_a_plain_computation_in_float64(name: str, references: Path) -> None:
    units, theirs = units_in(GOLDEN / name), units_in(references / name)
    for unit, outcome in zip(units.values(), examine_all(list(units.values()), Pass({}, theirs), 1), strict=True):
        branch, wanted = (one.decode(one.read_parts()).double() for one in (unit, theirs[unit.name]))
        relative = float((branch - wanted).norm() / wanted.norm())
        assert math.isclose(outcome.error.relative_error, relative, rel_tol=1e-6)
        if unit.is_plain:
            assert math.isclose(
                outcome.error.gain, float((branch * wanted).sum() / wanted.square().sum()), rel_tol=1e-6
            )
