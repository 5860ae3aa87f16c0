"""In a gate what only an endpoint shows is one more probe: its figures are kept and decide, or are not measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from q36eval.engines import Engine, EngineOptions
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.records import ProbeName, Verdict
from q36eval.run.request import ALL_PROBES, probes_for
from q36eval.run.served_lane import alone, too_few_asked
from q36eval.served.declared_server import Plan
from tests.q36eval.served.chat_server import Chatting, Faults, chatting
from tests.q36eval.served.judging import REPOSITORY, Judged, kept_below, request_of

POLICY = """
name: own
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform]}
  - {id: arguments, probe: served, metric: parser_faults, slice: arguments,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform]}
"""
FEW = Plan(items=2, conversations=1, turns=2, load_requests=2, pressure_tokens=0)


def own_policy(folder: Path) -> Policy:
    """One criterion of the weights and one of what is served, as a file of that folder."""
    (folder / "policy.yaml").write_text(POLICY, encoding="utf-8")
    return read_policy(folder / "policy.yaml")


def gated(tmp_path: Path, engine: EngineOptions) -> Judged:
    request = request_of(engine, own_policy(tmp_path), FEW)
    probes = (ProbeName.WEIGHTS, ProbeName.SERVED)
    return kept_below(tmp_path / "state", replace(request, reference=request.branch, probes=probes))


def test_only_a_policy_that_judges_it_makes_a_gate_measure_it() -> None:
    shipped = {name: read_policy(REPOSITORY / "data" / "policies" / f"{name}.yaml") for name in ("release", "served")}
    assert probes_for(shipped["release"]) == ALL_PROBES
    assert probes_for(shipped["served"]) == (*ALL_PROBES, ProbeName.SERVED)
    assert {each.id for each in shipped["release"].criteria} < {each.id for each in shipped["served"].criteria}


@pytest.mark.long
@pytest.mark.parametrize(("broken", "verdict"), [(False, Verdict.PASS), (True, Verdict.FAIL)])
def test_an_endpoints_parser_decides_a_gate(local: Engine, tmp_path: Path, broken: bool, verdict: Verdict) -> None:
    served = Chatting(local, faults=Faults(truncated_arguments=broken), max_logprobs=20)
    with chatting(served) as address:
        found = gated(tmp_path, EngineOptions(kind="openai", base_url=address, batch_rows=2))
    assert found.report.verdict is verdict, found.report
    measured = {each.key: each.value for each in found.history.measurements(found.run.id)}
    assert measured["served.parser_faults[arguments]"] == (2.0 if broken else 0.0)
    assert [reason.partition(":")[0] for reason in found.troubles] == ["eviction"]


def test_what_is_no_endpoint_is_not_measured(tmp_path: Path) -> None:
    report = gated(tmp_path, EngineOptions()).report
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert "is no endpoint" in next(each.reason for each in report.criteria if each.id == "arguments")


@pytest.mark.parametrize(
    ("items", "conversations", "most"), [(64, 16, None), (60, 15, None), (59, 15, 64), (64, 14, 64)]
)
def test_so_few_prompts_that_nothing_can_pass_are_told(items: int, conversations: int, most: int | None) -> None:
    """Before a server is asked for minutes."""
    policy = alone(read_policy(REPOSITORY / "data" / "policies" / "served.yaml"), against=True)
    engine = EngineOptions(kind="openai", base_url="http://127.0.0.1:1/v1")
    told = too_few_asked(request_of(engine, policy, Plan(items=items, conversations=conversations)))
    assert (told == "") == (most is None)
    assert most is None or f"ask --items {most}." in told
