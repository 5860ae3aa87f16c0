"""`--plan` says what would be computed and measures nothing; its batches are those of the run that follows."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.targets import load_family, resolve
from q36eval.config import Paths
from q36eval.engines import EngineSettings, open_engine, resident
from q36eval.engines.resident import OUT_OF_MEMORY_SAID, ResidentEngine
from q36eval.errors import UsageError
from q36eval.history import EventKind, History
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.records import ProbeName
from q36eval.run import workload
from q36eval.run.branch import Running
from q36eval.run.memory_report import BATCHES
from q36eval.run.pack import Estimate, Size
from q36eval.run.request import Request
from q36eval.run.workload import planned_run
from tests.app.sandbox_gates import Heard
from tests.commands import q36eval
from tests.raising import raises


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*arguments: Any, **named: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("q36eval.engines.in_process.load_model", loaded)


@pytest.mark.long
@pytest.mark.usefixtures("nothing_computed")
@pytest.mark.parametrize(
    "command",
    [
        ("kl", "--branch", "fp8-head"),
        ("gate", "--branch", "fp8-head", "--branch", "bf16", "--skip", "canaries", "--skip", "evals"),
        ("reference", "capture", "--probe", "kl"),
    ],
    ids=lambda command: command[0],
)
def test_a_plan_is_printed_and_nothing_is_measured_or_written(command: tuple[str, ...], tmp_path: Path) -> None:
    done = q36eval(*command, "--plan", state=tmp_path / "state")
    assert done.returncode == 0, done.stderr
    assert "2,048 tokens scored and 192 answers at a time" in done.stdout
    assert "decoded weights take 12 MiB" in done.stdout
    assert "140 texts of" in done.stdout
    assert "time unknown" in done.stdout
    assert "Not known yet: the reference's own answers" in done.stdout
    assert not (tmp_path / "state").exists()


@pytest.mark.long
@pytest.mark.usefixtures("nothing_computed")
def test_a_plan_for_programs_has_every_part_in_bytes(tmp_path: Path) -> None:
    done = q36eval("kl", "--branch", "fp8-head", "--engine-arg", "placement=packed", "--plan", "--json", state=tmp_path)
    (plan,) = json.loads(done.stdout)["plans"]
    own = plan["batches"]["fp8-head"]
    assert own["placement"] == "packed"
    assert 0 < own["bytes"]["weights"] < plan["batches"]["reference"]["bytes"]["weights"]
    assert own["bytes"]["decoded_at_a_time"] > 0
    assert [stage["seconds"] for stage in plan["stages"]] == [None, None]
    assert plan["unknown"]


def test_reports_of_an_earlier_gate_stay_where_only_a_plan_is_wanted(tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.json"
    report.parent.mkdir()
    report.write_text("{}")
    done = q36eval(
        "gate", "--branch", "bf16", "--skip", "kl", "--skip", "evals", "--skip", "canaries", "--plan",
        "--out", str(report.parent), state=tmp_path / "state",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert report.read_text() == "{}"


@pytest.fixture
def request_of(some_documents: list[CorpusDocument], monkeypatch: pytest.MonkeyPatch) -> Callable[[Paths], Request]:
    """The KL of a part of the corpus, in this process."""
    probes = lambda *_: [KLProbe(some_documents)]  # noqa: E731
    monkeypatch.setattr(workload, "build_probes", probes)
    monkeypatch.setattr("q36eval.run.preflight.build_probes", probes)
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)

    def made(paths: Paths) -> Request:
        family = load_family(None, paths)
        target, reference = (resolve(name, family, paths) for name in ("fp8-head", "bf16"))
        return Request(family, target, reference, "sandbox", None, probes=(ProbeName.KL,))

    return made


@pytest.mark.long
def test_the_batches_are_those_that_are_computed_and_times_are_known_afterwards(
    request_of: Callable[[Paths], Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from q36eval.run.measure import measure

    monkeypatch.setenv("Q36EVAL_STATE", str(tmp_path))
    paths = Paths.default()
    request = request_of(paths)
    history = History.open(paths.history_url)
    plan = planned_run(request, paths, history)
    assert [(stage.deployment, stage.seconds) for stage in plan.stages] == [("reference", None), ("fp8-head", None)]
    counted: list[int] = []
    own = ResidentEngine._score_batch

    def score_batch(self: ResidentEngine, batch: Any) -> Any:
        counted.append(sum(len(request.token_ids) for request in batch))
        return own(self, batch)

    heard = Heard()
    monkeypatch.setattr(ResidentEngine, "_score_batch", score_batch)
    run = measure(request, paths, history, heard)
    assert [sentence.partition(";")[0] for sentence in heard.said] == [
        "Batches on the CPU: 2,048 tokens scored and 192 answers at a time",
        "The reference: Batches on the CPU: 2,048 tokens scored and 192 answers at a time",
    ]
    reference, branch = plan.stages
    # the noise floor comes between, by engines of its own; the first batches are the reference's, the last the branch's
    assert sum(counted[: reference.scoring_batches]) == reference.scored_tokens
    assert counted[-branch.scoring_batches :] == counted[: reference.scoring_batches]
    assert run.provenance[BATCHES] == "2,048 tokens scored, 16,384 read and 192 answers at a time"
    after = planned_run(request, paths, history)
    (stage,) = after.stages
    assert stage.deployment == "fp8-head", "the reference is captured"
    assert stage.seconds == history.get_run(run.id).timings["kl"]


def test_a_resumed_run_with_other_batches_says_so(tmp_path: Path) -> None:
    history = History.open(f"sqlite:///{tmp_path}/history.sqlite")
    run = history.start_run(
        family="f", branch="b", identity=None, reference_identity=None, policy=None, suites={}, provenance={}
    )
    engine = open_engine(EngineSettings(Path(__file__).parents[2] / "data" / "sandbox" / "bf16"))
    assert isinstance(engine, ResidentEngine)
    heard, running = Heard(), object.__new__(Running)
    running.history, running.run, running.progress = history, run, heard
    running._note_batches(engine)
    running._note_batches(engine)
    assert len(heard.said) == 2, "the same again is no news"
    engine.__dict__["plan"] = replace(engine.plan, rows=48, short=True)
    running._note_batches(engine)
    assert "Memory is short here" in heard.said[2]
    assert heard.said[3].startswith(
        "The run was begun with 2,048 tokens scored, 16,384 read and 192 answers at a time; from"
    )
    assert [(event.kind, event.message) for event in history.events(run.id)] == [(EventKind.RETRY, heard.said[3])]


@pytest.mark.long
def test_what_ran_out_of_memory_is_said_and_judged_as_ever(
    request_of: Callable[[Paths], Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from q36eval.run.measure import measure

    own = ResidentEngine._score_batch

    def score_batch(self: ResidentEngine, batch: Any) -> Any:
        if len(batch) > 2:
            raise torch.OutOfMemoryError("as if")
        return own(self, batch)

    heard = Heard()
    monkeypatch.setattr(ResidentEngine, "_score_batch", score_batch)
    monkeypatch.setenv("Q36EVAL_STATE", str(tmp_path))
    paths = Paths.default()
    history = History.open(paths.history_url)
    run = measure(request_of(paths), paths, history, heard)
    assert heard.said.count(OUT_OF_MEMORY_SAID) == 2  # of the reference and of the branch
    assert not history.failures(run.id)
    assert all(figure.counts.errored == 0 for figure in history.measurements(run.id))
    assert OUT_OF_MEMORY_SAID in {event.message for event in history.events(run.id)}


def test_no_room_is_refused_before_the_work() -> None:
    estimate = Estimate(Path("/there"), (), present=0, free=10)
    estimate.check()
    size = Size(ProbeName.KL, "hidden-states", 1, 5, 2, 0, total=11)
    with raises(UsageError, "disk-insufficient", "/there"):
        replace(estimate, sizes=(size,)).check()
    replace(estimate, sizes=(size,), present=1).check()
