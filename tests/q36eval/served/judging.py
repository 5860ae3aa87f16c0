"""What tests of served models share: few prompts, and the shipped criteria with margins that so few can show."""

from collections.abc import Callable
from pathlib import Path

from q36eval.config import Family
from q36eval.engines import EngineOptions
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.run.served import ServedFigures, ServedRequest, measure_endpoint
from q36eval.served.declared import Plan
from tests.q36eval.openai.server import SANDBOX

REPOSITORY = Path(__file__).parents[3]
PLAN = Plan(items=16, conversations=16, turns=2, concurrency=32, load_requests=32, pressure_tokens=200_000)
MARGIN = 0.3
"""What sixteen prompts can show: of none that differs the bound is 21 %, and all that differ lie outside after Holm."""


class Silent:
    """Progress that nobody sees."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_more: None


def asked(address: str, plan: Plan = PLAN) -> ServedFigures:
    """What the server at that address shows of the sandbox's reference."""
    family = Family.load(REPOSITORY / "data" / "families" / "sandbox.yaml")
    request = ServedRequest(SANDBOX, family, EngineOptions(kind="openai", base_url=address), plan)
    return measure_endpoint(request, Silent())  # type: ignore[arg-type]


def few_prompts_policy() -> Policy:
    """The shipped criteria with margins that so few prompts can show."""
    shipped = read_policy(REPOSITORY / "data" / "policies" / "served.yaml")
    criteria = []
    for each in shipped.criteria:
        counted = each.margin.kind == "max_count"
        margin = each.margin if counted else each.margin.model_copy(update={"value": MARGIN})
        criteria.append(each.model_copy(update={"margin": margin, "min_scored": 4}))
    return shipped.model_copy(update={"criteria": tuple(criteria)})
