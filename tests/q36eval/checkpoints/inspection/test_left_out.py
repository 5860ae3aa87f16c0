"""Vision tower and multi-token head against the reference's; synthetic ones, since the sandbox has none."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from q36eval.checkpoints.inspection import Finding, Promise, Section, Severity, inspect_checkpoint
from q36eval.run.weights import measurements

from .damage import SANDBOX, Tensors, edit_tensors

EXPERTS = "mtp.layers.0.mlp.experts"
HEAD = "mtp.fc.weight"
PATCH = "model.visual.patch_embed.proj.weight"
CARD = "the card"
BOTH = tuple(
    Promise(tensors=part, stored="unquantized", source=CARD) for part in ("multi-token prediction", "vision tower")
)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def extras() -> Tensors:
    """As the reference stores them: experts fused."""
    return {
        f"{EXPERTS}.gate_up_proj": random(2, 8, 16),
        f"{EXPERTS}.down_proj": random(2, 16, 4),
        HEAD: random(16, 32),
        "mtp.norm.weight": random(16),
        PATCH: random(16, 3, 2, 2),
        "model.visual.blocks.0.norm1.bias": torch.zeros(16).bfloat16(),
    }


def one_by_one() -> Tensors:
    """As branches store them: per-expert files, in the other layout's names."""
    tensors = {name.removeprefix("model."): tensor for name, tensor in extras().items()}
    gate_up, down = (tensors.pop(f"{EXPERTS}.{which}_proj") for which in ("gate_up", "down"))
    for expert in range(2):
        gate, up = gate_up[expert].chunk(2)
        for which, tensor in (("gate", gate), ("up", up), ("down", down[expert])):
            tensors[f"{EXPERTS}.{expert}.{which}_proj.weight"] = tensor
    return tensors


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(SANDBOX / "bf16", tmp_path_factory.mktemp("reference") / "bf16"))
    edit_tensors(folder, lambda tensors: tensors.update(extras()))
    return folder


@pytest.fixture
def branch(folder: Path) -> Path:
    edit_tensors(folder, lambda tensors: tensors.update(one_by_one()))
    return folder


def found(branch: Path, reference: Path | None, *promises: Promise) -> list[Finding]:
    inspection = inspect_checkpoint(branch, reference, promises=promises)
    ours = [finding for finding in inspection.findings if finding.rule.startswith("shipped-")]
    assert [finding for finding in inspection.blocking if finding not in ours] == []
    return ours


@pytest.mark.long
def test_the_same_numbers_are_no_finding_however_they_are_laid_out(branch: Path, reference: Path) -> None:
    assert found(branch, reference, *BOTH) == []
    wider = {name: tensor.float() for name, tensor in one_by_one().items()}
    edit_tensors(branch, lambda tensors: tensors.update(wider))
    assert found(branch, reference, *BOTH) == [], "the same numbers in another dtype"


def noise(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor.dtype)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (torch.zeros_like, HEAD),
        (torch.neg, f"{EXPERTS}.1.up_proj.weight"),
        (noise, PATCH.removeprefix("model.")),
    ],
)
def test_other_numbers_are_a_finding_that_blocks_what_is_shipped(
    change: Callable[[torch.Tensor], torch.Tensor], name: str, branch: Path, reference: Path
) -> None:
    edit_tensors(branch, lambda tensors: tensors.update({name: change(tensors[name])}))
    (told,) = found(branch, reference)
    assert (told.section, told.rule, told.severity) == (Section.UNQUANTIZED, "shipped-differs", Severity.ADVISORY)
    assert told.subject == name
    (broken,) = found(branch, reference, *BOTH)
    assert (broken.subject, broken.severity) == (name, Severity.BLOCKING)
    counted = {one.metric: one.value for one in measurements(inspect_checkpoint(branch, reference, promises=BOTH))}
    assert counted["unquantized_differences"] == 1


@pytest.mark.long
def test_what_is_shipped_is_there_and_whole(branch: Path, reference: Path) -> None:
    edit_tensors(branch, lambda tensors: [tensors.pop(name) for name in list(tensors) if f"{EXPERTS}.1." in name])
    (partly,) = found(branch, reference, *BOTH)
    assert (partly.rule, partly.section) == ("shipped-incomplete", Section.COVERAGE)
    assert partly.severity is Severity.BLOCKING
    edit_tensors(branch, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")])
    for against in (reference, None):
        (missing,) = found(branch, against, *BOTH)
        assert (missing.rule, missing.severity) == ("shipped-missing", Severity.BLOCKING)
    (told,) = found(branch, reference)
    assert (told.rule, told.severity) == ("shipped-missing", Severity.ADVISORY)
    assert found(branch, None) == []


@pytest.mark.long
def test_quantized_where_the_card_says_unquantized_blocks_and_is_told_elsewhere(branch: Path, reference: Path) -> None:
    def quantize(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[HEAD].to(torch.float8_e4m3fn)
        tensors["mtp.fc.weight_scale"] = torch.ones(1)

    edit_tensors(branch, quantize)
    (told,), (broken,) = found(branch, reference), found(branch, reference, *BOTH)
    assert (told.severity, broken.severity) == (Severity.ADVISORY, Severity.BLOCKING)
    assert broken.rule == told.rule == "shipped-quantized"
    said = Promise(tensors="multi-token prediction", stored="FP8", source=CARD)
    assert found(branch, reference, said) == []


def test_without_the_reference_a_matrix_of_zeros_is_found(branch: Path) -> None:
    assert found(branch, None, *BOTH) == [], "a bias may be zero"
    edit_tensors(branch, lambda tensors: tensors[HEAD].zero_())
    (finding,) = found(branch, None, *BOTH)
    assert (finding.rule, finding.subject) == ("shipped-zero", HEAD)
