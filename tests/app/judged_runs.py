"""Runs of the sandbox's branch `main` in a history, judged as a gate judges them, without a model."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from q36eval.canaries.outcomes import question_name
from q36eval.gate import Policy, Stage, StageState
from q36eval.gate.declaration import DECLARED, declaration
from q36eval.history import History, RunRecord
from q36eval.history.decisions import circumstances_on, decided, evidence_of
from q36eval.records import (
    Answer,
    Clusters,
    DeploymentIdentity,
    ItemOutcome,
    Lane,
    Measurement,
    ProbeFailure,
    ProbeName,
)
from tests.outcomes import outcome
from tests.q36eval.gate.evidence import accuracy, census, failure_rate, measurement, named, only, small_policy

ITEMS = 200
STAGES = (Stage(name="weights", state=StageState.MEASURED, items=1, planned=1),)
IDENTITY = DeploymentIdentity(
    checkpoint_sha256="aa", tokenizer_sha256="bb", chat_template_sha256="cc", engine="in-process", engine_version="1"
)
REFERENCE = IDENTITY.model_copy(update={"checkpoint_sha256": "dd"})


def measured(broken: int) -> list[Measurement]:
    """All that `small_policy` asks for; `broken` of 200 tool calls fail under the branch alone."""
    right = [1] * 180 + [0] * 20
    return [
        named(accuracy(right, right), [f"mmlu {number}" for number in range(ITEMS)]),
        named(
            failure_rate([1] * broken + [0] * (ITEMS - broken), [0] * ITEMS, "tools"),
            [f"tool-call {number}#tool-cal" for number in range(ITEMS)],
        ),
        census(ProbeName.WEIGHTS, "integrity_faults", 0),
    ]


def items_of(broken: int) -> list[ItemOutcome]:
    """The outcomes that `measured` is of: 200 questions, of which both sides get 180 right, and 200 tool calls."""
    return [
        outcome(
            probe,
            f"{group} {number}",
            Answer(score=score(number), text="!"),
            Answer(score=reference(number), text="!"),
            group=group,
            prompt="?",
        )
        for probe, group, score, reference in (
            (ProbeName.EVALS, "mmlu", lambda n: float(n < 180), lambda n: float(n < 180)),
            (ProbeName.CANARIES, "tool-call", lambda n: float(n >= broken), lambda n: 1.0),
        )
        for number in range(ITEMS)
    ]


def open_history(state: Path) -> History:
    state.mkdir(parents=True, exist_ok=True)
    return History.open(state / "history.sqlite")


def judge_run(
    history: History,
    broken: int,
    on: date,
    *,
    family: str = "sandbox",
    branch: str = "main",
    reference: DeploymentIdentity = IDENTITY,
    policy: Policy | None = None,
    require_sign_off: bool = False,
    items: Sequence[ItemOutcome] = (),
    failures: Sequence[ProbeFailure] = (),
) -> RunRecord:
    """A run measured, and judged on that day by the waivers and the blessed run that history knows.

    Where it is to be imported elsewhere, `items` are `items_of` its figures. Another family than the sandbox declares
    `small_policy` as its own, for both lanes.
    """
    rules = policy or small_policy()
    declared = declaration(small_policy())
    run = history.start_run(
        family=family,
        branch=branch,
        identity=IDENTITY,
        reference_identity=reference,
        policy=rules,
        provenance={} if family == "sandbox" else {DECLARED: declared.model_dump(mode="json")},
    )
    history.add_measurements(run.id, measured(broken))
    history.add_items(run.id, list(items))
    for failure in failures:
        history.add_failure(run.id, failure)
    circumstances = circumstances_on(history, run, on, require_sign_off=require_sign_off)
    run = history.update_run(run.id, circumstances=circumstances)
    return history.finish_run(run.id, decided(rules, evidence_of(history, run, circumstances, STAGES), circumstances))


PARTING = {"position": 7, "said": " A", "top": [[" A", -0.05], [" B", -3.1]]}
OTHER = {"position": 7, "said": " B", "top": [[" B", -0.4], [" A", -1.2]]}


def judge_flips(history: History, flipped: dict[str, int], *, family: str = "sandbox") -> RunRecord:
    """A run that counts flips of required prompts, that many of the 20 of each canary, with their outcomes."""
    rules = only("max_count", 0, id="flips", probe="canaries", metric="must_pass_flips", lanes=tuple(Lane))
    rules = rules.model_copy(update={"criteria": (*rules.criteria, small_policy().criteria[2])})
    run = history.start_run(
        family=family,
        branch="main",
        policy=rules,
        identity=IDENTITY,
        reference_identity=REFERENCE,
        provenance={DECLARED: declaration(rules).model_dump(mode="json")},
    )
    right = Answer(score=1.0, text="Shop A.", detail={"divergence": PARTING, "repeats": [{"score": 1.0}]})
    wrong = Answer(score=0.0, text="Shop B.", detail={"divergence": OTHER, "repeats": [{"score": 0.0}]})
    asked = [
        outcome(
            ProbeName.CANARIES,
            f"{canary}/{number}",
            wrong if number < lost else right,
            right,
            item_key=f"{canary} {number}",
            prompt="Which shop is cheaper?",
            must_pass=True,
        )
        for canary, lost in flipped.items()
        for number in range(20)
    ]
    flips, names = tuple(1.0 - (one.branch.score or 0.0) for one in asked), tuple(map(question_name, asked))
    clusters = Clusters(units=(1,) * len(asked), branch=flips, errored=(0,) * len(asked), names=names)
    history.add_measurement(run.id, measurement(ProbeName.CANARIES, "must_pass_flips", clusters, "census"))
    history.add_measurement(run.id, census(ProbeName.WEIGHTS, "integrity_faults", 0))
    history.add_items(run.id, asked)
    circumstances = circumstances_on(history, run, run.started.date())
    run = history.update_run(run.id, circumstances=circumstances)
    return history.finish_run(run.id, decided(rules, evidence_of(history, run, circumstances), circumstances))
