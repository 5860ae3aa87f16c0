"""FP8 of other producers: rounded to nearest it is clean, and damage that no weight stands out by is found in each."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from q36eval.checkpoints.inspection import Inspection, Section, inspect_checkpoint

from . import written
from .damage import edit_tensors

pytestmark = pytest.mark.long

REFERENCE = Path(__file__).parents[4] / "data" / "sandbox" / "bf16"
WRITERS: dict[str, Callable[[Path, written.Round], list[str]]] = {
    "fp8-block": lambda folder, rounding: written.fine_grained(REFERENCE, folder, (128, 128), rounding),
    "fp8-odd-block": lambda folder, rounding: written.fine_grained(REFERENCE, folder, (96, 80), rounding),
    "fp8-tensor": lambda folder, rounding: written.fine_grained(REFERENCE, folder, None, rounding),
    **{
        f"modelopt-{algorithm}": lambda folder, rounding, algorithm=algorithm: written.modelopt(
            REFERENCE, folder, algorithm, rounding
        )
        for algorithm in written.MODELOPT
    },
}
LABELS = {
    "fp8-block": "FP8 block 128x128",
    "fp8-odd-block": "FP8 block 96x80",
    "fp8-tensor": "FP8 tensor",
    "modelopt-FP8": "FP8 tensor",
    "modelopt-FP8_PER_CHANNEL_PER_TOKEN": "FP8 channel",
    "modelopt-FP8_PB_WO": "FP8 block 128x128",
}
every_format = pytest.mark.parametrize("name", WRITERS)


def inspected(folder: Path) -> Inspection:
    return inspect_checkpoint(folder, REFERENCE, weights_workers=2)


def beyond(inspection: Inspection) -> list[str]:
    return sorted(finding.subject for finding in inspection.blocking if finding.rule == "beyond-scheme")


def times(folder: Path, only: str, factor: float, *where: int) -> None:
    """Multiply the scales of the weights whose name contains `only`, or one of them at `where`."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if only in name and name.rpartition(".")[2] in ("weight_scale", "weight_scale_inv"):
                tensors[name][where] *= factor

    edit_tensors(folder, change)


@every_format
def test_what_was_rounded_to_nearest_is_clean(name: str, tmp_path: Path) -> None:
    written_names = WRITERS[name](tmp_path / "copy", written.same)
    inspection = inspected(tmp_path / "copy")
    assert not inspection.blocking
    assert inspection.unbounded_weights == 0
    assert set(inspection.measured) == set(Section)
    rows = [row for row in inspection.coverage if row.stored.startswith("FP8")]
    assert sum(row.count for row in rows) == len(written_names)
    assert {(row.declared, row.stored) for row in rows} == {(LABELS[name], LABELS[name])}
    usages = [row.worst_bound_usage for row in inspection.errors if row.stored.startswith("FP8")]
    assert all(0.5 < usage < 1 for usage in usages if usage is not None)


@every_format
def test_uniform_poison_is_found_in_every_weight(name: str, tmp_path: Path) -> None:
    """On a coarser grid, and a little too large: the first leaves the bound, the second changes the size."""
    coarse = WRITERS[name](tmp_path / "coarse", written.two_mantissa_bits)
    assert beyond(inspected(tmp_path / "coarse")) == coarse
    larger = WRITERS[name](tmp_path / "larger", written.same)
    times(tmp_path / "larger", "", 1.03)
    assert beyond(inspected(tmp_path / "larger")) == larger


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("fp8-block", (0, 1)),
        ("fp8-odd-block", (1, 2)),
        ("modelopt-FP8_PB_WO", (0, 0, 1)),
        ("modelopt-FP8_PER_CHANNEL_PER_TOKEN", (17,)),
    ],
)
def test_one_wrong_scale_is_found_where_it_is(name: str, where: tuple[int, ...], tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "copy", written.same)
    times(tmp_path / "copy", "layers.3.mlp.experts.4.up_proj", 1.25, *where)
    inspection = inspected(tmp_path / "copy")
    assert {finding.subject for finding in inspection.blocking} == {"model.layers.3.mlp.experts.4.up_proj.weight"}
    assert "beyond-scheme" in {finding.rule for finding in inspection.blocking}


@pytest.mark.parametrize(("value", "found"), [(0.02, False), (None, True), (0.0, True), (-1.0, True), (1e-12, True)])
def test_static_input_scales_are_examined(value: float | None, found: bool, tmp_path: Path) -> None:
    written.fine_grained(REFERENCE, tmp_path / "copy", (128, 128), static=True)
    name = "model.layers.3.mlp.experts.4.up_proj.activation_scale"

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]
        if value is not None:
            tensors[name] = torch.tensor(value)

    edit_tensors(tmp_path / "copy", change)
    blocking = inspected(tmp_path / "copy").blocking
    assert [(finding.rule, finding.subject) for finding in blocking] == [("activation-scale", name)] * found
