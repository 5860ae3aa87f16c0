"""Runs of the sandbox's branch `main` in a history, judged as a gate judges them, without a model."""

from datetime import date
from pathlib import Path

from q36eval.gate import Policy, Stage, StageState
from q36eval.history import History, RunRecord
from q36eval.history.deciding import circumstances_on, decided, evidence_of
from q36eval.records import DeploymentIdentity, Measurement, ProbeName
from tests.q36eval.gate.evidence import accuracy, census, failure_rate, small_policy

ITEMS = 200
STAGES = (Stage(name="weights", state=StageState.MEASURED, items=1, planned=1),)
IDENTITY = DeploymentIdentity(
    checkpoint_sha256="aa", tokenizer_sha256="bb", chat_template_sha256="cc", engine="in-process", engine_version="1"
)


def measured(broken: int) -> list[Measurement]:
    """All that `small_policy` asks for; `broken` of 200 tool calls fail under the branch alone."""
    right = [1] * 180 + [0] * 20
    return [
        accuracy(right, right),
        failure_rate([1] * broken + [0] * (ITEMS - broken), [0] * ITEMS, "tools"),
        census(ProbeName.WEIGHTS, "integrity_faults", 0),
    ]


def open_history(state: Path) -> History:
    state.mkdir(parents=True, exist_ok=True)
    return History.open(state / "history.sqlite")


def judge_run(
    history: History,
    broken: int,
    on: date,
    *,
    branch: str = "main",
    policy: Policy | None = None,
    require_sign_off: bool = False,
) -> RunRecord:
    """A run measured, and judged on that day by the waivers and the blessed run that history knows."""
    rules = policy or small_policy()
    run = history.start_run(
        family="sandbox", branch=branch, identity=IDENTITY, reference_identity=IDENTITY, policy=rules
    )
    for measurement in measured(broken):
        history.add_measurement(run.id, measurement)
    circumstances = circumstances_on(history, run, on, require_sign_off=require_sign_off)
    run = history.update_run(run.id, circumstances=circumstances)
    return history.finish_run(run.id, decided(rules, evidence_of(history, run, circumstances, STAGES), circumstances))
