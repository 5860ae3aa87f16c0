"""Fewer prompts than the criteria require are told before a server is asked for minutes."""

import pytest

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.gate.policy_file import read_policy
from q36eval.records import ProbeName
from q36eval.run.request import Request, Target
from q36eval.run.served_lane import alone, too_few_asked
from q36eval.served.declared_server import Plan
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.served.judging import REPOSITORY


def request(items: int, conversations: int) -> Request:
    paths = Paths(REPOSITORY, REPOSITORY)
    return Request(
        family=load_family(None, paths),
        branch=Target("bf16", SANDBOX),
        reference=None,
        suite="sandbox",
        policy=alone(read_policy(REPOSITORY / "data" / "policies" / "served.yaml"), against=True),
        probes=(ProbeName.SERVED,),
        engine=EngineOptions(kind="openai", base_url="http://127.0.0.1:1/v1"),
        served=Plan(items=items, conversations=conversations),
    )


@pytest.mark.parametrize(
    ("items", "conversations", "most"), [(64, 16, None), (60, 15, None), (59, 15, 64), (64, 14, 64)]
)
def test_so_few_prompts_that_nothing_can_pass_are_told(items: int, conversations: int, most: int | None) -> None:
    told = too_few_asked(request(items, conversations))
    assert (told == "") == (most is None)
    assert most is None or f"ask --items {most}." in told
