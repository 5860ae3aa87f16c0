"""What a suite can show, said before it is run."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.app.cli.evals_report import print_plan
from q36eval.engines import open_engine
from q36eval.engines.base import Scored
from q36eval.errors import EngineError
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import Criterion, Margin, Policy
from q36eval.records import Lane, ProbeName
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.eval_plan import EvalPlan, plan_evals
from q36eval.run.items import Work
from tests.evals.small_suite import ROOT, Silent, write_small_suite

COUNTS = {f"mmlu{kind}/{name}.jsonl": 15 for kind in ("", "_dev") for name in ("geology", "law", "botany", "music")}


def policy(*recoveries: float) -> Policy:
    criteria = tuple(
        Criterion(
            id=f"mmlu-{recovery:g}",
            probe=ProbeName.EVALS,
            metric="accuracy",
            slice="mmlu",
            margin=Margin(kind="min_recovery", value=recovery, source="for this test"),
            lanes=(Lane.FREEFORM,),
        )
        for recovery in recoveries
    )
    return Policy(name="test", criteria=criteria)


def odd_policy() -> Policy:
    """What a person may write: margins of nothing, of all and of another kind, and slices that are not asked."""
    asked = [
        ("accuracy", "mmlu", "min_recovery", 1.0),
        ("accuracy", "mmlu", "max_increase", 0.0),
        ("accuracy", "mmlu", "max_increase", 1.0),
        ("accuracy", "mmlu", "max_value", 0.1),
        ("accuracy", "mmlu/none", "min_recovery", 0.9),
        ("macro_accuracy", "mmlu", "min_recovery", 0.9),
        ("perplexity", "all", "min_retention", 0.97),
    ]
    (like,) = policy(0.9).criteria
    criteria = [
        like.model_copy(
            update={
                "id": f"c{number}",
                "metric": metric,
                "slice": part,
                "margin": Margin(kind=kind, value=value, source="for this test"),
            }
        )
        for number, (metric, part, kind, value) in enumerate(asked)
    ]
    return Policy(name="odd", criteria=tuple(criteria))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalPlan, EvalPlan]:
    """Of 60 questions, before and after the reference answered them; one margin is wide and one is narrow."""
    folder = tmp_path_factory.mktemp("plan")
    engine = open_engine(ROOT / "data" / "sandbox" / "bf16")
    probe = EvalsProbe(write_small_suite(folder, COUNTS, block_items=20))
    work = Work(probe, probe.plan(engine.tokenizer))

    def opened(_: Any = None) -> Capture:
        return Capture(folder / "captures", engine.identity, probe.name, probe.suite_sha256)

    asked = policy(0.6, 0.97)
    before = plan_evals(asked, work, opened(), engine)
    captured([work], opened, lambda: engine, Silent())
    return before, plan_evals(asked, work, opened(), engine)


def test_sixty_items_can_show_a_wide_margin_and_not_a_narrow_one(plans: tuple[EvalPlan, EvalPlan]) -> None:
    for plan in plans:
        wide, narrow = plan.criteria
        assert (wide.can_show, narrow.can_show) == (True, False)
        assert wide.tightest is None or 0.03 < wide.tightest <= 0.4
        found = wide.powers[0.02]
        assert found.passes > 0.9
        assert found.detected[0.95] is None or found.detected[0.95] > wide.limit
        assert narrow.powers[0.02].passes == 0.0


def test_what_the_items_weigh_stands_beside_what_they_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every subject as one cluster: 15 and 5 questions weigh as one and a half."""
    engine = open_engine(ROOT / "data" / "sandbox" / "bf16")
    counts = {"mmlu/geology.jsonl": 15, "mmlu/law.jsonl": 5} | {f"mmlu_dev/{s}.jsonl": 5 for s in ("geology", "law")}
    suite = write_small_suite(tmp_path, counts)
    body = yaml.safe_load(suite.read_text(encoding="utf-8"))
    body["groups"][0]["cluster_fields"] = ["subject"]
    suite.write_text(yaml.safe_dump(body), encoding="utf-8")
    probe = EvalsProbe(suite)
    work = Work(probe, probe.plan(engine.tokenizer))
    nothing = Capture(tmp_path / "captures", engine.identity, probe.name, probe.suite_sha256)
    plan = plan_evals(policy(0.6), work, nothing, engine)
    (found,) = plan.criteria
    assert (found.items, found.clusters, found.effective_clusters, found.largest_cluster) == (20, 2, 1, 15)
    print_plan(plan)
    assert "mmlu-0.6 20 2 1 15 not known" in " ".join(capsys.readouterr().out.split())


def test_what_the_reference_answered_replaces_what_was_assumed(plans: tuple[EvalPlan, EvalPlan]) -> None:
    before, after = plans
    assert [plan.criteria[0].assumed for plan in plans] == [True, False]
    assert (before.captured, after.captured) == (False, True)
    assert before.criteria[0].informative is None
    assert after.criteria[0].informative == pytest.approx(after.criteria[0].reference_score * 60)
    assert after.criteria[0].reference_score != before.criteria[0].reference_score == pytest.approx(0.8, abs=0.01)


class OutOfMemory:
    """An engine that answers nothing."""

    tokenizer = None

    def score(self, requests: Any, known: Any = ()) -> Any:
        for request in requests:
            yield Scored(request, None, error="out of memory", permanent=True)

    def generate(self, requests: Any, known: Any = ()) -> Any:
        yield from ()


def test_odd_criteria_are_said_to_have_no_power_and_stop_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = open_engine(ROOT / "data" / "sandbox" / "bf16")
    probe = EvalsProbe(write_small_suite(tmp_path, COUNTS, block_items=20), max_items=20)
    work = Work(probe, probe.plan(engine.tokenizer))
    nothing = Capture(tmp_path / "captures", engine.identity, probe.name, probe.suite_sha256)
    plan = plan_evals(odd_policy(), work, nothing, engine)
    assert plan.criteria == ()
    assert [note.partition(":")[0] for note in plan.notes] == [f"c{number}" for number in range(7)]
    assert "[mmlu/none] is no accuracy of this suite's groups and slices" in plan.notes[4]
    print_plan(plan)
    assert "the power is known" in capsys.readouterr().out
    with pytest.raises(EngineError, match="out of memory"):
        plan_evals(odd_policy(), work, nothing, OutOfMemory())  # type: ignore[arg-type]


def test_every_task_is_timed_by_some_of_its_items(plans: tuple[EvalPlan, EvalPlan], tmp_path: Path) -> None:
    plan = plans[1]
    assert dict(plan.items) == {"mmlu": 60}
    assert 0.0 < plan.seconds["mmlu"] < 600.0
    assert plan.as_json()["criteria"][0]["powers"][0]["flips"] == 0.02
