"""What `q36eval served` finds is a run of history: of which deployment, by what, when, and decided again the same."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from q36eval.engines import Engine, EngineOptions
from q36eval.engines.openai.client import Limits
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.engines.openai.engine import OpenAIEngine
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.history import EventKind, History, RunRecord, RunState
from q36eval.records import ProbeName, Verdict
from q36eval.run.request import ALL_PROBES, probes_for
from q36eval.run.served_lane import NO_ANSWER, alone, too_few_asked
from q36eval.served.declared_server import Plan
from tests import commands
from tests.app.sandbox_gates import Gates
from tests.q36eval.openai.vllm_server import free_port
from tests.q36eval.served.chat_server import Chatting, Faults, chatting
from tests.q36eval.served.judging import REPOSITORY, Judged, judged

POLICY = """
name: own
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform]}
  - {id: arguments, probe: served, metric: parser_faults, slice: arguments,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform]}
"""
FEW = Plan(items=2, conversations=1, turns=2, load_requests=2, pressure_tokens=0)
FEW_ASKED = ("--items", "2", "--concurrency", "2", "--pressure-tokens", "0")


def own_policy(folder: Path) -> Policy:
    """One criterion of the weights and one of what is served, as a file of that folder."""
    (folder / "policy.yaml").write_text(POLICY, encoding="utf-8")
    return read_policy(folder / "policy.yaml")


@pytest.fixture
def policy(tmp_path: Path) -> str:
    own_policy(tmp_path)
    return str(tmp_path / "policy.yaml")


@pytest.fixture(scope="module")
def kept(local: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Path]:
    """A run of a server whose parser cuts arguments, and the state that it is kept in."""
    state = tmp_path_factory.mktemp("kept")
    served = Chatting(local, faults=Faults(truncated_arguments=True), max_logprobs=20)
    with chatting(served) as address:
        found = judged(address, state, FEW, own_policy(state))
    found.history.close()
    return found.run, state


def only_run(state: Path) -> tuple[RunRecord, History]:
    history = History.open(state / "history.sqlite")
    (run,) = history.list_runs()
    return history.get_run(run.id), history


@pytest.mark.long
def test_the_command_keeps_a_run_that_is_listed_shown_and_decided_again(
    local: Engine, tmp_path: Path, policy: str
) -> None:
    with chatting(Chatting(local, max_logprobs=20)) as address:
        command = ("served", "--branch", "bf16", "--base-url", address, "--policy", policy, *FEW_ASKED, "--json")
        done = commands.q36eval(*command, state=tmp_path, code=0)
    said = json.loads(done.stdout)
    run, history = only_run(tmp_path)
    assert (said["run"], run.state, run.verdict) == (run.id, RunState.FINISHED, Verdict.PASS)
    assert run.identity.engine_version == "vllm 0.26.0"
    assert run.identity.settings["served_model"] in said["server"]
    assert run.reference_identity is None
    assert set(run.suites) == {"served"}
    assert run.provenance["served"]["items"] == 2
    assert run.provenance["options"] == {"branch": ["sandbox/bf16"], "family": "sandbox"}  # as its next step names it
    measured = {each.key: each for each in history.measurements(run.id)}
    calls = measured["served.call_failure_rate[all]"]
    assert calls.counts.scored == 2
    assert calls.effect_interval.level > 0.9
    kinds = [event.kind for event in history.events(run.id)]
    assert (kinds[0], kinds[-1]) == (EventKind.BEGUN, EventKind.FINISHED)
    assert run.timings["served"] > 0
    assert run.finished is not None
    assert address.partition("//")[2].partition("/")[0] not in run.model_dump_json()
    for shown in (("history", "list"), ("history", "show", run.id), ("history", "show", run.id, "--replay")):
        again = commands.q36eval(*shown, state=tmp_path, code=0)
        assert "PASS" in again.stdout


def test_an_endpoint_that_nobody_serves_is_a_kept_run_that_says_so(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asking in (Endpoint, OpenAIEngine):
        monkeypatch.setattr(asking, "limits", Limits(attempts=2, first_pause=0.0, longest_pause=0.0))
    address = f"http://127.0.0.1:{free_port()}/v1"
    done = commands.q36eval(
        "served", "--branch", "bf16", "--base-url", address, "--policy", policy, *FEW_ASKED, state=tmp_path
    )
    assert done.returncode == 4
    run, history = only_run(tmp_path)
    assert (run.state, run.verdict) == (RunState.FINISHED, Verdict.INCONCLUSIVE)
    assert run.identity.engine_version == NO_ANSWER
    assert run.report.exit_code == 4
    (failure,) = [each for each in history.failures(run.id) if each.probe is ProbeName.SERVED]
    assert failure.kind == "crashed"
    assert "does not answer" in failure.reason


class Restarted(Chatting):
    """A server that is another process once it is asked for many answers at once."""

    def looked_up(self, salt: str, ids: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        if self.answered > 28:
            self.started = 1.0
        return super().looked_up(salt, ids)


@pytest.mark.long
def test_a_server_that_dies_on_the_way_keeps_what_was_measured(local: Engine, tmp_path: Path, policy: str) -> None:
    with chatting(Restarted(local, max_logprobs=20)) as address:
        found = judged(address, tmp_path, FEW, read_policy(Path(policy)))
    assert found.report.exit_code == 4
    (trouble,) = found.troubles
    assert trouble.startswith("While it was asked for alone and among others: ")
    assert "served.answer_differences[streaming]" in {each.key for each in found.history.measurements(found.run.id)}


@pytest.mark.long
def test_another_amount_is_another_suite(kept: tuple[RunRecord, Path], local: Engine, tmp_path: Path) -> None:
    run, state = kept
    with chatting(Chatting(local, max_logprobs=20)) as address:
        policy = read_policy(state / "policy.yaml")
        same = judged(address, tmp_path / "same", replace(FEW, difference="eager"), policy).run
        other = judged(address, tmp_path / "other", replace(FEW, turns=3), policy).run
    assert same.suites == run.suites
    assert other.suites != run.suites


# -- in a gate what only an endpoint shows is one more probe: its figures are kept and decide, or are not measured


def gated(state: Path, engine: EngineOptions) -> Judged:
    gates = Gates(state, POLICY, probes=(ProbeName.WEIGHTS, ProbeName.SERVED), engine=engine, served=FEW)
    return Judged(gates("bf16"), gates.history)


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
    assert "is not a server" in next(each.reason for each in report.criteria if each.id == "arguments")


@pytest.mark.parametrize(
    ("items", "conversations", "most"), [(64, 16, None), (60, 15, None), (59, 15, 64), (64, 14, 64)]
)
def test_so_few_prompts_that_nothing_can_pass_are_told(
    tmp_path: Path, items: int, conversations: int, most: int | None
) -> None:
    """Before a server is asked for minutes."""
    policy = alone(read_policy(REPOSITORY / "data" / "policies" / "served.yaml"), against=True)
    engine = EngineOptions(kind="openai", base_url="http://127.0.0.1:1/v1")
    served = Plan(items=items, conversations=conversations)
    gates = Gates(tmp_path, probes=(ProbeName.SERVED,), engine=engine, served=served)
    told = too_few_asked(gates.request("bf16", policy=policy))
    assert (told == "") == (most is None)
    assert most is None or f"ask --items {most}." in told
