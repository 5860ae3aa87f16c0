"""What tests of served models share: few prompts, the shipped criteria with margins that so few can show, and a run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from q36eval.engines import EngineOptions
from q36eval.gate import CriterionVerdict, GateReport, Policy
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.records import ProbeName
from q36eval.run.served_lane import alone
from q36eval.served.declared_server import Plan
from tests.app.sandbox_gates import REPOSITORY, Gates

PLAN = Plan(items=16, conversations=16, turns=2, concurrency=32, load_requests=32, pressure_tokens=200_000)
MARGIN = 0.3
"""What sixteen prompts can show: of none that differs the bound is 21 %, and all that differ lie outside after Holm."""


@dataclass(frozen=True)
class Judged:
    """A run that asked an endpoint alone, as history keeps it."""

    run: RunRecord
    history: History

    @cached_property
    def report(self) -> GateReport:
        """Its verdict."""
        return self.run.report

    @property
    def verdicts(self) -> dict[str, CriterionVerdict]:
        """By criterion."""
        return {result.id: result.verdict for result in self.report.criteria}

    @property
    def failed(self) -> set[str]:
        """The criteria that FAIL."""
        return {name for name, verdict in self.verdicts.items() if verdict is CriterionVerdict.FAIL}

    @property
    def troubles(self) -> list[str]:
        """Why something of it was not measured."""
        return [each.reason for each in self.history.failures(self.run.id) if each.probe is ProbeName.SERVED]


def judged(
    address: str, state: Path, plan: Plan = PLAN, policy: Policy | None = None, against: str | None = None, **more: Any
) -> Judged:
    """What is found of the server at that address, which serves that branch of the sandbox, and kept below `state`."""
    judges = alone(policy or few_prompts_policy(), against=against is not None)
    fields = {"engine": EngineOptions(kind="openai", base_url=address), "served": plan, "second_endpoint": against}
    state.mkdir(exist_ok=True)
    gates = Gates(state, reference=None, probes=(ProbeName.SERVED,), **fields)
    return Judged(gates(more.pop("branch", "bf16"), policy=judges, **more), gates.history)


def few_prompts_policy() -> Policy:
    """The shipped criteria with margins that so few prompts can show."""
    shipped = read_policy(REPOSITORY / "data" / "policies" / "served.yaml")
    criteria = []
    for each in shipped.criteria:
        counted = each.margin.kind == "max_count"
        margin = each.margin if counted else each.margin.model_copy(update={"value": MARGIN})
        criteria.append(each.model_copy(update={"margin": margin, "min_scored": 4}))
    return shipped.model_copy(update={"criteria": tuple(criteria)})
