"""Two endpoints of the same weights: equal ones pass, another is failed by the criterion that names the two."""

from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from q36eval.engines import Engine, Generated
from q36eval.engines.openai.client import Limits
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import UsageError
from q36eval.gate import CriterionVerdict, Policy
from q36eval.history import History, RunState
from q36eval.run.served_lane import MAYBE_ONE, SAME_SERVER, alone
from q36eval.served.declared_server import Plan
from tests import commands
from tests.q36eval.openai.vllm_server import free_port
from tests.q36eval.served.chat_server import Chatting, Faults, chatting
from tests.q36eval.served.judging import few_prompts_policy, judged
from tests.raising import raises

PLAN = Plan(items=16, conversations=1, turns=2, concurrency=2, load_requests=2, pressure_tokens=0, difference="eager")
ANSWER_TOKENS = 20
CRITERION = "served-endpoints"


@pytest.fixture(autouse=True)
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test takes seconds."""
    monkeypatch.setattr("q36eval.served.prompts.LONG_TOKENS", 256)
    monkeypatch.setattr("q36eval.served.prompts.ANSWER_TOKENS", ANSWER_TOKENS)


def policy() -> Policy:
    """Concurrent requests and, by their margin, the two endpoints."""
    few = few_prompts_policy()
    return few.model_copy(update={"criteria": tuple(each for each in few.criteria if each.slice == "concurrency")})


def server(local: Engine, known: dict[object, object], **how: object) -> Chatting:
    return Chatting(local, known=known, **{"max_logprobs": 20, "by_rule": True} | how)  # type: ignore[arg-type]


class Halved(Chatting):
    """A server that reads half of every prompt that it answers, once it has shown what it can do."""

    @override
    def continued(self, ids: tuple[int, ...], budget: int) -> Generated:
        return super().continued(ids[: len(ids) // 2] if budget == ANSWER_TOKENS else ids, budget)


def test_an_equal_server_passes_and_is_kept_beside_the_first(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    with chatting(server(local, known)) as one, chatting(server(local, known, version="0.26.1")) as other:
        found = judged(one, tmp_path, PLAN, policy(), against=other)
    assert found.verdicts == {"served-concurrency": CriterionVerdict.PASS, CRITERION: CriterionVerdict.PASS}
    (figure,) = [each for each in found.history.measurements(found.run.id) if each.slice == "endpoints"]
    assert (figure.counts.scored, figure.value) == (16, 0.0)
    assert "vllm 0.26.0 against" in figure.note
    assert "vllm 0.26.1: eager" in figure.note
    assert found.run.identity is not None
    assert found.run.identity.engine_version == "vllm 0.26.0"
    assert found.run.provenance["served"]["second_endpoint"]["engine_version"] == "vllm 0.26.1"


@pytest.mark.long
def test_a_server_that_answers_otherwise_is_failed_by_the_criterion_of_the_two(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    with chatting(server(local, known)) as one, chatting(Halved(local, max_logprobs=20, by_rule=True)) as other:
        found = judged(one, tmp_path, PLAN, policy(), against=other)
    assert found.failed == {CRITERION}
    assert found.report.exit_code == 1


def test_where_the_first_differs_the_second_is_asked_alike_which_tells_what_is_at_fault(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    crossed = server(local, known, faults=Faults(crossed=True))
    with chatting(crossed) as one, chatting(server(local, known)) as other:
        found = judged(one, tmp_path, replace(PLAN, concurrency=16), policy(), against=other)
    notes = {each.slice: each.note for each in found.history.measurements(found.run.id)}
    assert "of the second server, asked alike, 0 of 16 differ, and 0 when nothing is changed" in notes["concurrency"]
    assert "served-concurrency" in found.failed
    assert "asked alike" not in notes["streaming"]


@pytest.mark.long
def test_a_second_server_that_cannot_be_asked_alike_takes_nothing_from_the_first(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    crossed = server(local, known, faults=Faults(crossed=True))
    second = Chatting(
        local, shape="llama.cpp", by_rule=True, faults=Faults(crossed=True)
    )  # which gives no log-probabilities
    with chatting(crossed) as one, chatting(second) as other:
        found = judged(one, tmp_path, replace(PLAN, concurrency=16), policy(), against=other)
    notes = {each.slice: each.note for each in found.history.measurements(found.run.id)}
    assert "the second server, asked alike, could not be measured: " in notes["concurrency"]
    assert "served-concurrency" in found.failed


@pytest.mark.long
def test_attempts_that_the_second_server_fails_leave_the_first_ones_figure(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    crossed, stumbling = (server(local, known, faults=Faults(**{fault: True})) for fault in ("crossed", "stumbling"))
    with chatting(crossed) as one, chatting(stumbling) as other:
        found = judged(one, tmp_path, replace(PLAN, concurrency=16), policy(), against=other)
    assert "served-concurrency" in found.failed


@pytest.mark.long
def test_a_second_server_that_tells_no_near_ties_is_not_judged_by_them(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    """It differs, and gives no log-probabilities: rounding is not told from a fault."""
    silent = Halved(local, shape="llama.cpp", by_rule=True)
    with chatting(server(local, known)) as one, chatting(silent) as other:
        found = judged(one, tmp_path, PLAN, policy(), against=other)
    assert found.verdicts[CRITERION] is CriterionVerdict.NOT_MEASURED
    assert any("near ties are not told from faults" in trouble for trouble in found.troubles)


@pytest.mark.long
def test_a_second_server_that_answers_at_the_second_attempt_does_not_pass(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    stumbling = server(local, known, faults=Faults(stumbling=True))
    with chatting(server(local, known)) as one, chatting(stumbling) as other:
        found = judged(one, tmp_path, PLAN, policy(), against=other)
    assert found.verdicts["served-concurrency"] is CriterionVerdict.PASS
    assert found.verdicts[CRITERION] is CriterionVerdict.NOT_MEASURED
    assert any(trouble.startswith("endpoints: ") for trouble in found.troubles)


@pytest.mark.long
def test_a_second_server_that_drafts_is_refused_where_it_was_said_to_draft_nothing(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    floor = alone(policy(), against=True, least_acceptance=0.1, second_drafts=False)
    drafting = {"draft_length": 2}
    with chatting(server(local, known, **drafting)) as one, chatting(server(local, known, **drafting)) as other:
        with raises(UsageError, "comparison-left-out"):
            judged(one, tmp_path, PLAN, floor, against=other)
        with chatting(server(local, known)) as silent:
            found = judged(one, tmp_path / "silent", PLAN, floor, against=silent)
    assert "served-drafts-against" not in found.verdicts
    assert found.verdicts[CRITERION] is CriterionVerdict.PASS
    (figure,) = [each for each in found.history.measurements(found.run.id) if each.metric == "rejected_drafts"]
    assert "the second server shows no counters of drafts" in figure.note


def test_that_the_second_server_drafts_nothing_is_said_of_two_servers_whose_drafts_are_judged(tmp_path: Path) -> None:
    command = ("served", "--branch", "bf16", "--base-url", "http://127.0.0.1:9/v1", "--against-without-drafts")
    done = commands.q36eval(*command, state=tmp_path)
    assert done.returncode == 2
    assert "--draft-acceptance" in done.stderr


@pytest.mark.parametrize("spelt", ["{0}", "{0}/"])
def test_the_same_address_twice_is_refused_before_a_run_is_begun(local: Engine, tmp_path: Path, spelt: str) -> None:
    with chatting(Chatting(local, max_logprobs=20)) as address:
        command = ("served", "--branch", "bf16", "--base-url", address, "--against", spelt.format(address))
        done = commands.q36eval(*command, state=tmp_path)
    assert done.returncode == 2
    assert SAME_SERVER in " ".join(done.stderr.split())
    assert History.open(tmp_path / "history.sqlite").list_runs() == []


@pytest.mark.long
def test_the_same_server_by_another_name_is_refused_by_its_start(local: Engine, tmp_path: Path) -> None:
    with (
        chatting(Chatting(local, max_logprobs=20)) as address,
        raises(UsageError, "same-server"),
    ):
        judged(address, tmp_path, PLAN, policy(), against=address.replace("127.0.0.1", "localhost"))
    (run,) = History.open(tmp_path / "history.sqlite").list_runs()
    assert run.state is RunState.INTERRUPTED


@pytest.mark.long
def test_servers_that_were_started_together_are_two_where_they_count(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    alike = [server(local, known, started=1.75e9) for _ in range(2)]
    with chatting(alike[0]) as one, chatting(alike[1]) as other:
        assert judged(one, tmp_path, replace(PLAN, items=2), policy(), against=other).run.provenance["served"]


@pytest.mark.long
def test_where_nothing_is_counted_one_start_is_refused_and_none_is_said(
    local: Engine, known: dict[object, object], tmp_path: Path
) -> None:
    silent = [server(local, known, started=1.75e9, counts_prompts=False) for _ in range(2)]
    with chatting(silent[0]) as one, chatting(silent[1]) as other:
        with raises(UsageError, "same-server"):
            judged(one, tmp_path, PLAN, policy(), against=other)
        for each in silent:
            each.tells_start = False
        found = judged(one, tmp_path, replace(PLAN, items=2), policy(), against=other)
    (figure,) = [each for each in found.history.measurements(found.run.id) if each.slice == "endpoints"]
    assert f"eager; {MAYBE_ONE}" in figure.note


def test_a_second_server_that_nobody_started_is_a_run_that_was_not_measured(
    local: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "limits", Limits(attempts=1))
    with chatting(Chatting(local, max_logprobs=20)) as address:
        nobody = f"http://127.0.0.1:{free_port()}/v1"
        found = judged(address, tmp_path, replace(PLAN, items=2), policy(), against=nobody)
    assert found.report.exit_code == 4
    assert any(nobody in trouble for trouble in found.troubles)


def test_a_policy_may_have_a_criterion_of_its_own_for_two_endpoints() -> None:
    own = alone(policy(), against=True)
    assert [each.id for each in own.criteria] == ["served-concurrency", CRITERION]
    assert alone(own, against=True) == own
    assert [each.id for each in alone(policy(), against=False).criteria] == ["served-concurrency"]
