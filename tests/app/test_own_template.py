"""A gate on a sandbox branch whose chat template is repaired: undeclared, declared, wrongly so, resumed, moved."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

import q36eval.run.preflight
from q36eval.app.cli.report_formats import FORMATS, document_of
from q36eval.app.targets import load_family
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.chat import renderer
from q36eval.chat.declared_template import recorded_template
from q36eval.chat.rendering import Limits
from q36eval.checkpoints import chat_template_sha256
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.history import RunRecord, RunState
from q36eval.records import ProbeName, Verdict
from q36eval.run.templates import PACKED
from tests.app.sandbox_gates import REPOSITORY, SANDBOX, Gates
from tests.branches import folder_of
from tests.commands import q36eval as command
from tests.raising import raises

pytestmark = pytest.mark.long

SPECS = load_specs(only=["json-flat", "enum-select"], n=4, skills=None)
ITEMS = 8
POLICY = """
name: test
criteria:
  - {id: configuration-equal, probe: weights, metric: configuration_differences,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured]}
  - {id: failures, probe: canaries, metric: failure_rate, slice: json-flat,
     margin: {kind: max_increase, value: 0.9, source: x}, lanes: [structured], min_scored: 2}
"""
REPAIR = "{%- if messages[0].role != 'system' -%}\n<|im_start|>system\nBe exact.<|im_end|>\n{% endif -%}\n"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`main` with a system turn where a conversation has none, and a template for tools of its own."""
    folder = tmp_path_factory.mktemp("branches") / "repaired"
    shutil.copytree(folder_of("main"), folder)
    template = folder / "chat_template.jinja"
    template.write_text(REPAIR + template.read_text())
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(template.read_text())
    return folder


class TemplateGates(Gates):
    """Gates of folders whose template the family may declare."""

    def __call__(self, branch: str | Path, declared: str | None = None, **fields: Any) -> RunRecord:
        if declared is not None:
            fields["family"] = described(Path(branch), self.paths.state, declared)
        return super().__call__(branch, **fields)


@pytest.fixture(scope="module")
def gate(state: Path) -> Iterator[TemplateGates]:
    """`gate(folder, …)`: the inspection and a few canaries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [CanaryProbe(SPECS)])
        yield TemplateGates(state, POLICY, probes=(ProbeName.WEIGHTS, ProbeName.CANARIES))


@pytest.fixture(scope="module")
def judged(gate: TemplateGates, repaired: Path) -> RunRecord:
    """The gate of the branch with its template declared, measured once."""
    return gate(repaired, chat_template_sha256(repaired))


def described(folder: Path, state: Path, sha256: str) -> Family:
    """The sandbox with that folder as a branch of its name, whose template its file declares."""
    body = yaml.safe_load((REPOSITORY / "data" / "families" / "sandbox.yaml").read_text(encoding="utf-8"))
    template = {"sha256": sha256, "source": "repairs the system turn"}
    own = body["branches"]["main"] | {"source": {"path": str(folder)}, "chat_template": template}
    body["branches"][folder.name] = own
    (state / "declared.yaml").write_text(yaml.safe_dump(body))
    return Family.load(state / "declared.yaml")


def test_an_undeclared_template_fails_and_says_how_it_is_declared(
    gate: TemplateGates, repaired: Path, state: Path
) -> None:
    run = gate(repaired)
    assert (run.verdict, run.report.decisive) == (Verdict.FAIL, ("configuration-equal",))
    sha256 = chat_template_sha256(repaired)
    steps = document_of(run, gate.history).next_steps
    assert any(f"chat_template: {{sha256: {sha256}, source: WHY}}" in step.why for step in steps)


def test_a_declared_template_is_judged_by_its_answers(gate: TemplateGates, judged: RunRecord, repaired: Path) -> None:
    figures = {m.key: m for m in gate.history.measurements(judged.id)}
    assert figures["weights.configuration_differences[all]"].value == 0
    assert figures["canaries.failure_rate[json-flat]"].counts.scored == 4
    template = recorded_template(judged.provenance)
    assert (template.sha256, template.by) == (chat_template_sha256(repaired), "the family's file")
    assert template.source == "repairs the system turn"
    assert template.reference_sha256 == chat_template_sha256(SANDBOX / "bf16")
    canaries = template.prompts["canaries"]
    assert (canaries.prompts, canaries.differing, canaries.unwritten) == (ITEMS, ITEMS, 0)
    assert any(line.startswith("+") and "system" in line for line in canaries.diff)
    assert not any(line.startswith("-") for line in canaries.diff)
    assert f"{ITEMS} of {ITEMS} prompts" in FORMATS["markdown"].text(document_of(judged, gate.history))


def test_a_declaration_of_another_template_is_refused_and_lifts_nothing(
    gate: TemplateGates, repaired: Path, state: Path
) -> None:
    other, shipped, runs = "0" * 64, chat_template_sha256(repaired), len(gate.history.list_runs())
    family = described(repaired, state, other)
    with raises(UsageError, "template-declared-differs", other, shipped):
        gate(repaired, family=family)
    assert len(gate.history.list_runs()) == runs, "no run is begun"
    file = ("--family", str(state / "declared.yaml"))
    assert command("gate", "--branch", "repaired", *file, state=state).returncode == 2
    assert command("inspect", "repaired", *file, state=state).returncode == 1


@pytest.mark.parametrize("place", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_an_endless_template_fails_also_where_it_is_declared(
    gate: TemplateGates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(renderer(), "limits", Limits(cpu_seconds=1))
    renderer().close()
    folder = tmp_path / "endless"
    shutil.copytree(folder_of("main"), folder)
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
    run = gate(folder, chat_template_sha256(folder))
    assert (run.verdict, run.report.decisive) == (Verdict.FAIL, ("configuration-equal",))
    figures = {m.key: m for m in gate.history.measurements(run.id)}
    noted = figures["weights.configuration_differences[all]"].note
    assert f"{place}: " in noted
    assert "it takes more than 1 s of CPU time; correct it." in noted
    without = gate(folder, chat_template_sha256(folder), probes=(ProbeName.CANARIES,))
    assert without.verdict is not Verdict.PASS
    if place == "chat_template.jinja":  # conversations without tools are written by it
        failures = [each.reason for each in gate.history.failures(without.id)]
        assert any(f"{place} cannot be used: it takes more than 1 s of CPU time" in reason for reason in failures)
    renderer().close()


def test_a_run_is_resumed_with_the_declaration_it_began_with(
    gate: TemplateGates, repaired: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = chat_template_sha256(repaired)
    with monkeypatch.context() as patch:
        patch.setattr("q36eval.run.branch.run_probes", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            gate(repaired, sha256)
    run = gate.history.list_runs()[0]
    assert run.state is RunState.INTERRUPTED
    with raises(UsageError, "run-of-another-template"):
        gate(repaired, resume=run.id)
    assert gate(repaired, sha256, resume=run.id).state is RunState.FINISHED


def test_where_only_a_pack_is_at_hand_its_template_is_in_it(
    gate: TemplateGates, judged: RunRecord, repaired: Path, state: Path
) -> None:
    (capture,) = Paths(REPOSITORY, state).captures.iterdir()
    changes = {"reference": None, "reference_pack": capture}
    family = described(repaired, state, chat_template_sha256(repaired))
    branches = family.branches | {"bf16": family.branches["bf16"].model_copy(update={"checkpoint_sha256": None})}
    changes["family"] = family.model_copy(update={"branches": branches})
    run = gate(repaired, **changes)
    keys = [{one.item_key for one in gate.history.items(each.id)} for each in (judged, run)]
    assert keys[0] == keys[1]
    with raises(UsageError, "pack-identity", "chat_template_sha256"):
        gate(repaired, **changes | {"family": load_family("sandbox", Paths(REPOSITORY, state))})
    (capture / PACKED).write_text("{}")
    with raises(UsageError, "pack-lacks-template"):
        gate(repaired, **changes)
    (capture / PACKED).unlink()
