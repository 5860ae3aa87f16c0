"""In a gate what only an endpoint shows is one more probe: its figures are kept and decide, or are not measured."""

from pathlib import Path

import pytest

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.engines import Engine, EngineOptions
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.probes import Progress
from q36eval.records import ProbeName, Verdict
from q36eval.run.measure import measure
from q36eval.run.request import ALL_PROBES, Request, Target, probes_for
from q36eval.served.declared_server import Plan
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.served.chat_server import Chatting, Faults, chatting

REPOSITORY = Path(__file__).parents[3]
POLICY = """
name: own
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform]}
  - {id: arguments, probe: served, metric: parser_faults, slice: arguments,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform]}
"""
FEW = Plan(items=2, conversations=1, turns=2, load_requests=2, pressure_tokens=0)


def gated(tmp_path: Path, engine: EngineOptions) -> tuple[RunRecord, History]:
    (tmp_path / "policy.yaml").write_text(POLICY, encoding="utf-8")
    paths = Paths(REPOSITORY, tmp_path / "state")
    paths.state.mkdir(exist_ok=True)
    history, policy = History.open(paths.history), read_policy(tmp_path / "policy.yaml")
    sandbox = Target("bf16", SANDBOX)
    request = Request(
        family=load_family(None, paths),
        branch=sandbox,
        reference=sandbox,
        suite="sandbox",
        policy=policy,
        probes=(ProbeName.WEIGHTS, ProbeName.SERVED),
        engine=engine,
        served=FEW,
    )
    return measure(request, paths, history, Progress()), history


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
        run, history = gated(tmp_path, EngineOptions(kind="openai", base_url=address, batch_rows=2))
    report = history.get_run(run.id).report
    assert report is not None
    assert report.verdict is verdict, report
    measured = {each.key: each.value for each in history.measurements(run.id)}
    assert measured["served.parser_faults[arguments]"] == (2.0 if broken else 0.0)
    skipped = [each.reason for each in history.failures(run.id) if each.probe is ProbeName.SERVED]
    assert [reason.partition(":")[0] for reason in skipped] == ["eviction"]


def test_what_is_no_endpoint_is_not_measured(tmp_path: Path) -> None:
    run, history = gated(tmp_path, EngineOptions())
    report = history.get_run(run.id).report
    assert report is not None
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert "is no endpoint" in next(each.reason for each in report.criteria if each.id == "arguments")
