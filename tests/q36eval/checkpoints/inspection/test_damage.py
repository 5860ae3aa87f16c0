"""Every damage of the table is found, named and blocks; every undamaged branch is clean."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from q36eval.app.cli.inspect import inspect
from q36eval.app.sandbox import NAMES
from q36eval.checkpoints import checkpoint_sha256
from q36eval.checkpoints.inspection import Finding, Promise, Section, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.examination import not_judged
from q36eval.checkpoints.inspection.extra_modules import SHIPPED
from q36eval.checkpoints.inspection.findings import OF_ITSELF
from tests.branches import folder_of

from . import damages, tiny
from .conftest import Copy, Whole
from .damage import SANDBOX, Damage, Tensors, config, edit_json, edit_tensors, inspected, one, truncated
from .damages import CASES, LINEAR, MEASURED, MINE, UNSEEN, Case, nested, without

SHIPS = tuple(Promise(tensors=part, stored="unquantized", source="the card") for part in SHIPPED.values())


def command(*arguments: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """`q36eval inspect` as the program runs it: (exit code, what it printed)."""
    monkeypatch.setenv("Q36EVAL_STATE", str(state))
    program = typer.Typer()
    program.command()(lambda: None)
    program.command("inspect")(inspect)
    done = CliRunner().invoke(program, ["inspect", *arguments], standalone_mode=False)
    if done.exception:
        raise done.exception
    return int(done.return_value), done.stdout


def promised(name: str) -> tuple[Promise, ...]:
    return SHIPS if name == "tiny-nvfp4" else ()


@pytest.mark.sized
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.id, marks=[] if case.checkpoint.startswith("tiny") else [pytest.mark.long])
        for case in CASES
    ],
)
def test_damage_is_named_and_blocks(case: Case, copy_of: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reference = copy_of(case.checkpoint, case.damage)
    if reference == SANDBOX / "bf16":
        exit_code, output = command(str(folder), "--json", state=tmp_path / "state", monkeypatch=monkeypatch)
        assert exit_code == 1
        findings = [Finding.model_validate(found) for found in json.loads(output)["findings"]]
    else:
        found = inspect_checkpoint(folder, reference, weights_workers=1, promises=promised(case.checkpoint))
        findings = list(found.findings)
    blocking = [one for one in findings if one.severity is Severity.BLOCKING]
    assert not [one for one in blocking if one.message.startswith(f"{folder}/{one.subject}: ")], "named once"
    needed = {*case.rules.split()}
    if case.at_least:
        assert needed <= {one.rule for one in blocking if one.subject.startswith(case.subject)}
    else:
        assert needed == {one.rule for one in blocking if one.subject == case.subject}


@pytest.mark.parametrize(("what", "damage", "rules"), damages.OF_ITSELF)
def test_entries_that_contradict_each_other_block_without_a_reference(
    what: str, damage: Damage, rules: str, copy_of: Copy
) -> None:
    folder, _ = copy_of("tiny-nvfp4", damage)
    assert {*rules.split()} - {damages.COMPUTED} <= {one.rule for one in inspect_checkpoint(folder).blocking}


HARMLESS: list[Damage] = [
    config(**MEASURED),
    nested(),
    config(dtype="float16"),  # as exporters of INT4 declare
    without("rms_norm_eps"),
    one(f"{LINEAR}.A_log", torch.Tensor.float),  # the same numbers in another dtype
    config(mamba_ssm_dtype="float32", output_gate_type="swish"),  # published, and unknown to transformers
]


@pytest.mark.parametrize("change", HARMLESS)
def test_entries_that_change_nothing_do_not_block(change: Damage, copy_of: Copy) -> None:
    folder, reference = copy_of("tiny-nvfp4", change)
    found = inspect_checkpoint(folder, reference, weights_workers=1)
    assert not found.blocking
    told = [one.message.split()[0] for one in found.findings if one.rule == "computation-differs"]
    assert told == (["mamba_ssm_dtype", "output_gate_type"] if change is HARMLESS[-1] else [])


def test_a_group_of_zeros_has_the_least_exponent_by_right(copy_of: Copy) -> None:
    def empty(tensors: Tensors) -> None:
        tensors[f"{MINE}.up_proj.weight"].view(torch.uint8)[5] = 0
        tensors[f"{MINE}.up_proj.weight_scale"][5] = 0

    folder, _ = copy_of("ct-mxfp8", lambda folder: edit_tensors(folder, empty))
    assert not inspect_checkpoint(folder).blocking_in(Section.INTEGRITY)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({case.checkpoint for case in CASES} | {*NAMES}))
def test_no_false_alarm_on_any_branch_nor_on_what_was_damaged(name: str, whole: Whole) -> None:
    branch, reference = (folder_of(name), SANDBOX / "bf16") if name in NAMES else whole(name)
    found = inspect_checkpoint(branch, reference, weights_workers=1, promises=promised(name))
    assert not found.blocking
    assert set(found.measured) == set(Section)
    assert found.unbounded_weights == 0
    assert max([row.worst_bound_usage or 0.0 for row in found.errors], default=0.0) < 0.9, "what rounding can cost"


@pytest.mark.long
@pytest.mark.parametrize(("what", "checkpoint", "damage"), UNSEEN)
def test_what_files_do_not_show_is_not_called_damage(
    what: str, checkpoint: str, damage: Damage, whole: Whole, copy_of: Copy
) -> None:
    """Damage to inputs and caches is what `tests/kl/test_long_contexts.py` measures."""
    folder, reference = copy_of(checkpoint, damage)
    assert checkpoint_sha256(folder) != checkpoint_sha256(whole(checkpoint)[0])
    assert not inspect_checkpoint(folder, reference, weights_workers=1).blocking


def test_cases_have_ids_of_their_own_and_cover_every_format() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.checkpoint for case in CASES} >= {*tiny.MANIFEST}, "every format is damaged"


def test_an_undamaged_copy_is_clean_and_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "[bold]copy"
    shutil.copytree(folder_of("main"), folder)
    exit_code, output = command(str(folder), state=tmp_path, monkeypatch=monkeypatch)
    assert exit_code == 0
    assert "[bold]copy" in output.replace("\n", "")


HOSTILE = "model.x\n::error file=a::passed\x1b[31m\u202e.weight"


@pytest.mark.long
def test_what_a_checkpoint_calls_its_tensors_moves_no_cursor_and_is_no_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline's log a line that begins with `::` is a command to its runner."""
    edit_tensors(folder, lambda tensors: tensors.update({HOSTILE: torch.zeros(2)}))
    edit_json(folder, "config.json", lambda config: config.update(architectures=["Own\n::error::passed\x1b[2J"]))
    _, output = command(str(folder), state=tmp_path / "state", monkeypatch=monkeypatch)
    assert "unexpected-tensor" in output
    assert "::passed" not in output.replace(":: ", "")
    assert not [line for line in output.splitlines() if line.startswith("::")]
    assert not {"\x1b", "\u202e"} & set(output)


def test_code_that_comes_with_a_checkpoint_is_told(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("raise SystemExit")
    edit_json(folder, "tokenizer_config.json", lambda own: own.update(auto_map={"AutoTokenizer": ["own.T", None]}))
    inspection = inspected(folder)
    told = next(finding for finding in inspection.findings if finding.rule == "own-code")
    assert told.severity is Severity.ADVISORY
    assert told.subject == "modeling_own.py"


def test_what_cannot_be_judged_is_not_measured(folder: Path, bf16_folder: Path) -> None:
    truncated(folder)
    assert set(inspected(folder).measured) == {Section.INTEGRITY, Section.CONFIGURATION}
    assert Section.WEIGHTS not in inspect_checkpoint(folder_of("main")).measured
    other_sizes = inspect_checkpoint(folder_of("main"), bf16_folder)
    assert other_sizes.blocking
    assert set(other_sizes.measured) == {*OF_ITSELF, Section.CONFIGURATION}


@pytest.mark.parametrize("text", ["{", "[]", '{"text_config": 3}', '{"layer_types": 3, "num_hidden_layers": []}'])
def test_a_configuration_of_any_kind_is_reported_and_never_raised(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    (folder / "generation_config.json").write_text("[]")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": 3}}')
    assert inspected(folder).blocking


def test_a_section_left_unjudged_without_a_reason_is_no_pass() -> None:
    judged = [*OF_ITSELF, Section.CONFIGURATION]
    assert [finding.rule for finding in not_judged(judged, True, [])] == ["not-judged"]
    assert not not_judged(judged, False, [])
    assert not not_judged(list(Section), True, [])
