"""Answers of an earlier run are taken over only where the very same deployment would give them again."""

from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from q36eval.history import History, RunRecord
from q36eval.history.attempts import REUSED, tried_before
from q36eval.history.deciding import circumstances_on, decided, evidence_of
from q36eval.history.records import REFERENCE_ANSWERS
from q36eval.history.run_files import RunFiles
from q36eval.probes import WorkItem
from q36eval.records import Answer, DeploymentIdentity, ItemOutcome, ProbeName
from q36eval.run.items import Work
from q36eval.run.reuse import MEASURED_BY, reuse_answers
from q36eval.token_files import TOKENS
from tests.app.judged_runs import IDENTITY, measured
from tests.q36eval.gate.evidence import small_policy

CPU = IDENTITY.model_copy(update={"settings": {"device": "cpu", "code": "c1"}})
SETUP: dict[str, Any] = {
    "identity": CPU,
    "reference_identity": CPU.model_copy(update={"checkpoint_sha256": "bf16"}),
    "suites": {"canaries": "s"},
    "provenance": {MEASURED_BY: "m", REFERENCE_ANSWERS: {"canaries": "3:aa"}},
    "policy": small_policy(),
    "branch": "main",
}


def outcome(key: str, *, text: str = "yes", error: str | None = None) -> ItemOutcome:
    answer = Answer(score=None if error else 1.0, text=text, error=error)
    reference = Answer(score=1.0, text="yes")
    return ItemOutcome(
        probe=ProbeName.CANARIES, group="g", item_key=key, cluster=key, branch=answer, reference=reference
    )


ASKED = [outcome("a"), outcome("b"), outcome("c", error="timeout"), outcome("of another suite")]


@dataclass
class Probe:
    name: ProbeName = ProbeName.CANARIES
    keeps_files: bool = False


@dataclass
class KeepsTokens(Probe):
    keeps_files: bool = True
    kept: list[Path] = field(default_factory=list)

    def keep_in(self, folder: Path) -> None:
        self.kept.append(folder)


def works(probe: Probe | None = None) -> list[Work]:
    return [Work(probe or Probe(), [WorkItem(key) for key in "abc"])]  # type: ignore[arg-type]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History.open(tmp_path / "history.sqlite")


def started(history: History, **changed: Any) -> RunRecord:
    return history.start_run(family="sandbox", **SETUP | changed)


def gated(history: History, items: list[ItemOutcome], **changed: Any) -> RunRecord:
    """A finished gate."""
    run = started(history, **changed)
    history.add_items(run.id, items)
    for measurement in measured(0):
        history.add_measurement(run.id, measurement)
    now = circumstances_on(history, run, date(2026, 3, 1))
    run = history.update_run(run.id, circumstances=now)
    return history.finish_run(run.id, decided(small_policy(), evidence_of(history, run, now), now))


def test_the_same_deployment_takes_over_what_was_answered_without_error(history: History, tmp_path: Path) -> None:
    earlier = gated(history, ASKED)
    run = started(history)
    found = reuse_answers(history, run, works(), RunFiles(tmp_path))
    assert found is not None
    assert (found.run_id, found.items) == (earlier.id, 2)
    assert history.items(run.id) == [outcome("a"), outcome("b")]
    assert history.get_run(run.id).provenance[REUSED] == {"run_id": earlier.id, "items": 2}


IDENTITY_CHANGES: list[dict[str, Any]] = [
    {name: {"device": "cpu", "code": "c2"} if name == "settings" else "another"}
    for name in DeploymentIdentity.model_fields
]


@pytest.mark.parametrize("whose", ["identity", "reference_identity"])
@pytest.mark.parametrize("changed", IDENTITY_CHANGES, ids=lambda changed: next(iter(changed)))
def test_one_other_field_of_an_identity_and_nothing_is_taken_over(history, tmp_path, whose, changed) -> None:
    gated(history, ASKED)
    run = started(history, **{whose: SETUP[whose].model_copy(update=changed)})
    assert reuse_answers(history, run, works(), RunFiles(tmp_path)) is None
    assert history.items(run.id) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"suites": {"canaries": "t"}},
        {"provenance": SETUP["provenance"] | {MEASURED_BY: "other code or processor"}},
        {"provenance": SETUP["provenance"] | {REFERENCE_ANSWERS: {"canaries": "3:bb"}}},
        {"provenance": SETUP["provenance"] | {REFERENCE_ANSWERS: {}}},
        {"provenance": {REFERENCE_ANSWERS: {"canaries": "3:aa"}}},
    ],
    ids=["suite", "measured by", "reference's answers", "unknown answers", "measured by what is unknown"],
)
def test_other_circumstances_and_nothing_is_taken_over(history, tmp_path, changed) -> None:
    gated(history, ASKED)
    assert reuse_answers(history, started(history, **changed), works(), RunFiles(tmp_path)) is None


def test_what_does_not_repeat_itself_is_asked_again(history: History, tmp_path: Path) -> None:
    gpu = CPU.model_copy(update={"settings": {"device": "NVIDIA H200", "code": "c1"}})
    served = CPU.model_copy(update={"engine": "openai"})
    for identity in (gpu, served):
        gated(history, ASKED, identity=identity)
        run = started(history, identity=identity)
        assert reuse_answers(history, run, works(), RunFiles(tmp_path)) is None


def test_a_run_that_never_finished_gives_nothing(history: History, tmp_path: Path) -> None:
    history.add_items(started(history).id, ASKED)
    assert reuse_answers(history, started(history), works(), RunFiles(tmp_path)) is None


def test_the_run_that_answered_most_is_taken(history: History, tmp_path: Path) -> None:
    whole = gated(history, ASKED)
    gated(history, ASKED[:1])
    found = reuse_answers(history, started(history), works(), RunFiles(tmp_path))
    assert found is not None
    assert found.run_id == whole.id


@pytest.mark.parametrize("damage", ["none", "changed", "gone"])
def test_a_probe_that_keeps_files_takes_them_over_or_nothing(history: History, tmp_path: Path, damage: str) -> None:
    files = RunFiles(tmp_path)
    earlier = gated(history, ASKED)
    files.working(earlier.id).mkdir(parents=True)
    (files.working(earlier.id) / TOKENS).write_bytes(b"every token")
    files.keep_run(history, earlier.id)
    files.drop_working(history, earlier.id)
    kept = files.path(history.artifacts(earlier.id)[0].sha256)
    if damage == "changed":
        kept.write_bytes(b"others")
    elif damage == "gone":
        kept.unlink()
    run = started(history)
    found = reuse_answers(history, run, works(KeepsTokens()), files)
    if damage == "none":
        assert found is not None
        assert (files.working(run.id) / TOKENS).read_bytes() == b"every token"
    else:
        assert found is None
        assert not files.working(run.id).exists()


# -- attempts


def test_gates_of_the_same_deployment_are_counted_whatever_the_branch_and_version(history: History) -> None:
    first = gated(history, ASKED)
    renamed = gated(history, ASKED, branch="release-candidate")
    newer = CPU.model_copy(update={"engine_version": "2", "settings": {"device": "cpu", "code": "c2"}})
    upgraded = gated(history, ASKED, identity=newer)
    corpus = gated(history, ASKED, suites={"canaries": "t"})
    gated(history, ASKED, identity=CPU.model_copy(update={"checkpoint_sha256": "zz"}))
    gated(history, ASKED, identity=CPU.model_copy(update={"kv_cache_dtype": "fp8_e4m3"}))
    gated(history, ASKED, policy=small_policy().model_copy(update={"alpha": 0.01}))
    found = tried_before(history, started(history))
    assert found is not None
    assert [gate.run_id for gate in found.earlier] == [first.id, renamed.id, upgraded.id, corpus.id]
    assert [gate.other_suites for gate in found.earlier] == [(), (), (), ("canaries",)]
    # the same deployment asked the same gives the same answers; another version or suite others
    assert [gate.answers == found.answers for gate in found.earlier] == [True, True, False, False]


def test_to_compute_it_elsewhere_or_in_other_batches_is_to_try_it_again(history: History) -> None:
    elsewhere = {"device": "NVIDIA H200", "machine": "aarch64", "kernels": "none", "batch_rows": "7"}
    other = gated(history, ASKED, identity=CPU.model_copy(update={"settings": {**CPU.settings, **elsewhere}}))
    emulated = CPU.model_copy(update={"settings": {**CPU.settings, "activation_emulation": "off"}})
    gated(history, ASKED, identity=emulated)
    found = tried_before(history, started(history))
    assert found is not None
    assert [gate.run_id for gate in found.earlier] == [other.id]


def test_gates_that_were_broken_off_after_answers_are_told(history: History) -> None:
    silent, answered = started(history), started(history)
    history.add_items(answered.id, [outcome("a")])
    mine = started(history)
    history.add_items(mine.id, [outcome("a")])
    found = tried_before(history, mine)
    assert found is not None
    assert found.unfinished == (answered.id,)
    assert silent.id not in found.unfinished


def test_a_gate_that_left_a_probe_out_tried_for_no_pass(history: History) -> None:
    gated(history, ASKED, suites={})
    found = tried_before(history, started(history))
    assert found is not None
    assert [(gate.answers == found.answers, gate.other_suites) for gate in found.earlier] == [(True, ("canaries",))]


def test_answers_of_a_gpu_are_its_run_s_own(history: History) -> None:
    gpu = CPU.model_copy(update={"settings": {"device": "NVIDIA H200", "code": "c1"}})
    runs = [gated(history, ASKED, identity=gpu) for _ in range(2)]
    found = tried_before(history, started(history, identity=gpu))
    assert found is not None
    assert len({*(gate.answers for gate in found.earlier), found.answers}) == 3
    assert [gate.run_id for gate in found.earlier] == [run.id for run in runs]


def test_a_decision_keeps_the_gates_that_were_earlier_than_it(history: History) -> None:
    first, second = gated(history, ASKED), gated(history, ASKED)
    assert (first.report.attempts, second.report.attempts.answer_sets) == (None, 1)  # type: ignore[union-attr]
    again = circumstances_on(history, first, date(2026, 3, 9))
    assert again.tried == first.circumstances.tried  # type: ignore[union-attr]
