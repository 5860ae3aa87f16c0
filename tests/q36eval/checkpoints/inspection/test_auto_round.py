"""AutoRound's checkpoints: its scales have a sign, which is a fault elsewhere; AWQ's words are looked into."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.checkpoints.inspection import inspect_checkpoint

from .damage import edit_json

GOLDEN = Path(__file__).parents[3] / "assets" / "golden"
EXPERT = "model.layers.0.mlp.experts.0.up_proj"


def blocking(folder: Path, reference: Path | None = None) -> set[tuple[str, str]]:
    found = inspect_checkpoint(folder, reference).blocking
    return {(finding.rule, finding.subject) for finding in found if finding.section != "configuration"}


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def test_scales_below_zero_are_auto_rounds_alone(copy: Callable[[str], Path]) -> None:
    folder = copy("autoround-gptq")
    assert not blocking(folder)
    edit_json(folder, "config.json", lambda config: config["quantization_config"].pop("provider"))
    assert {rule for rule, _ in blocking(folder)} == {"negative-scale"}


def test_a_layer_left_unquantized_in_the_entry_alone_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("autoround-sym")
    edit_json(
        folder,
        "config.json",
        lambda config: config["quantization_config"]["extra_config"].update({EXPERT: {"bits": 16}}),
    )
    assert ("not-as-declared", EXPERT) in blocking(folder)


def test_declared_bits_and_groups_are_held_against_what_is_stored(copy: Callable[[str], Path]) -> None:
    folder = copy("autoround-awq")
    inspection = inspect_checkpoint(folder)
    assert {(row.declared, row.stored) for row in inspection.coverage if row.declared != "unquantized"} == {
        ("INT4 g16", "INT4 g16")
    }
    assert inspection.schemes == {"W4A16": 13}
    edit_json(folder, "config.json", lambda config: config["quantization_config"].update({"group_size": 32}))
    assert "declared-against-stored" in {rule for rule, _ in blocking(folder)}
