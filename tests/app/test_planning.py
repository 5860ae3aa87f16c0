"""`--plan` says what would be computed and measures nothing; its batches are those of the run that follows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.engines import resident
from q36eval.engines.resident import ResidentEngine
from q36eval.errors import UsageError
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.records import ProbeName
from q36eval.run.memory_report import BATCHES
from q36eval.run.pack import Estimate, Size
from q36eval.run.workload import planned_run
from tests.app.sandbox_gates import Gates, Heard
from tests.commands import q36eval
from tests.raising import failing, raises


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("kl", "--branch", "fp8-head"),
        ("gate", "--branch", "fp8-head", "--branch", "bf16", "--skip", "canaries", "--skip", "evals"),
        ("reference", "capture", "--probe", "kl"),
    ],
    ids=lambda command: command[0],
)
def test_a_plan_is_printed_and_nothing_is_measured_or_written(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("q36eval.engines.in_process.load_model", failing(AssertionError("weights were read")))
    done = q36eval(*command, "--plan", state=tmp_path / "state", code=0)
    assert "2,048 tokens scored and 192 answers at a time" in done.stdout
    assert "decoded weights take 12 MiB" in done.stdout
    assert "140 texts of" in done.stdout
    assert "time unknown" in done.stdout
    assert "Not known yet: the reference's own answers" in done.stdout
    assert not (tmp_path / "state").exists()
    done = q36eval(*command, "--engine-arg", "placement=packed", "--plan", "--json", state=tmp_path / "state")
    for plan in json.loads(done.stdout)["plans"]:
        assert all(batches["bytes"]["weights"] > 0 for batches in plan["batches"].values())
        assert {stage["seconds"] for stage in plan["stages"]} == {None}
        assert plan["unknown"]


@pytest.mark.long
def test_the_batches_are_those_that_are_computed_and_times_are_known_afterwards(
    some_documents: list[CorpusDocument], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the KL of a part of the corpus, in this process."""
    for module in ("workload", "preflight"):
        monkeypatch.setattr(f"q36eval.run.{module}.build_probes", lambda *_: [KLProbe(some_documents)])
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    gates = Gates(tmp_path, probes=(ProbeName.KL,))
    request, paths, history = gates.request("fp8-head"), gates.paths, gates.history
    plan = planned_run(request, paths, history)
    assert [(stage.deployment, stage.seconds) for stage in plan.stages] == [("reference", None), ("fp8-head", None)]
    counted: list[int] = []
    own = ResidentEngine._score_batch

    def score_batch(self: ResidentEngine, batch: Any) -> Any:
        counted.append(sum(len(request.token_ids) for request in batch))
        return own(self, batch)

    heard = Heard()
    monkeypatch.setattr(ResidentEngine, "_score_batch", score_batch)
    run = gates("fp8-head", progress=heard)
    assert [sentence.partition(";")[0] for sentence in heard.said] == [
        "Batches on the CPU: 2,048 tokens scored and 192 answers at a time",
        "The reference: Batches on the CPU: 2,048 tokens scored and 192 answers at a time",
    ]
    reference, branch = plan.stages
    # the noise floor comes between, by engines of its own; the first batches are the reference's, the last the branch's
    assert sum(counted[: reference.scoring_batches]) == reference.scored_tokens
    assert counted[-branch.scoring_batches :] == counted[: reference.scoring_batches]
    assert run.provenance[BATCHES] == "2,048 tokens scored, 16,384 read and 192 answers at a time"
    (stage,) = planned_run(request, paths, history).stages
    assert stage.deployment == "fp8-head", "the reference is captured"
    assert stage.seconds == history.get_run(run.id).timings["kl"]


def test_no_room_is_refused_before_the_work() -> None:
    estimate = Estimate(Path("/there"), (), present=0, free=10)
    estimate.check()
    size = Size(ProbeName.KL, "hidden-states", 1, 5, 2, 0, total=11)
    with raises(UsageError, "disk-insufficient", "/there"):
        replace(estimate, sizes=(size,)).check()
    replace(estimate, sizes=(size,), present=1).check()
