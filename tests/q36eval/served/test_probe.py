"""A served model with one fault is failed by the criterion that names it, and one without any passes them all."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.engines import Engine
from q36eval.engines.base import Generated
from q36eval.engines.openai.client import Limits, NoAnswerError, RefusedError
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError, UsageError
from q36eval.gate import CriterionVerdict, Policy
from q36eval.history import History, RunState
from q36eval.run.served_lane import MAYBE_ONE, SAME_SERVER, alone
from q36eval.served import same_server
from q36eval.served.declared_server import Plan
from q36eval.served.same_server import are_one
from tests import commands
from tests.q36eval.openai.vllm_server import free_port
from tests.q36eval.served.chat_server import BLOCK, Chatting, Faults, chatting
from tests.q36eval.served.judging import Judged, few_prompts_policy, judged
from tests.raising import raises

CACHE_BLOCKS = 48
"""Four long prompts, fewer than are asked."""
Judge = Callable[..., Judged]
ANSWER_TOKENS = 20


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts are four blocks of this server's cache, or tests of a small model would take minutes."""
    monkeypatch.setattr("q36eval.served.prompts.LONG_TOKENS", 4 * BLOCK)
    monkeypatch.setattr("q36eval.served.prompts.ANSWER_TOKENS", ANSWER_TOKENS)


@pytest.fixture
def judge(local: Engine, known: dict[object, object], tmp_path: Path) -> Judge:
    """The verdict on that model, served with these faults."""

    def of(faults: Faults | None = None, **how: object) -> Judged:
        how = {"max_logprobs": 20, "capacity_blocks": CACHE_BLOCKS, "batch": 8} | how
        with chatting(Chatting(local, faults=faults or Faults(), known=known, **how)) as address:  # type: ignore[arg-type]
            return judged(address, tmp_path / "state")

    return of


@pytest.mark.long
def test_a_server_without_fault_passes_every_criterion(judge: Judge) -> None:
    found = judge()
    assert found.troubles == []
    assert {name for name, verdict in found.verdicts.items() if verdict is not CriterionVerdict.PASS} == set()
    assert found.report.exit_code == 0


@pytest.mark.long
def test_a_server_without_fault_fails_no_criterion_whatever_it_answers(judge: Judge) -> None:
    """Its answers are none that a canary wants, so that tool calls are not measured."""
    found = judge(by_rule=True)
    others = {name for name, verdict in found.verdicts.items() if verdict is not CriterionVerdict.PASS}
    assert others == {"served-calls"}
    assert found.failed == set()


@pytest.mark.long
def test_what_is_only_right_when_it_is_asked_again_does_not_pass(judge: Judge) -> None:
    found = judge(Faults(flaky=True), by_rule=True)
    streamed = {name: verdict for name, verdict in found.verdicts.items() if "stream" in name}
    assert set(streamed.values()) == {CriterionVerdict.NOT_MEASURED}
    assert found.report.exit_code == 3


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("stale_cache", {"served-cache-hit", "served-conversation"}),
        pytest.param("stale_eviction", {"served-eviction"}, marks=pytest.mark.long),
        pytest.param("crossed", {"served-concurrency"}, marks=pytest.mark.long),
        pytest.param("worn", {"served-after-load"}, marks=pytest.mark.long),
        pytest.param("duplicated_chunk", {"served-stream-text", "served-stream-chat"}, marks=pytest.mark.long),
        ("other_template", {"served-prompts"}),
        ("truncated_arguments", {"parser-arguments"}),
        pytest.param("wrong_finish", {"parser-finish"}, marks=pytest.mark.long),
        pytest.param("swallowed_thought", {"parser-thought", "parser-content"}, marks=pytest.mark.long),
        pytest.param("leaked_tags", {"parser-tags"}, marks=pytest.mark.long),
        # of raw completions the model's own calls are right, so that those that are served count against the server
        pytest.param("forced_calls", {"served-calls", "parser-calls"}, marks=pytest.mark.long),
    ],
)
def test_a_fault_is_failed_by_the_criterion_that_names_it(judge: Judge, fault: str, named: set[str]) -> None:
    found = judge(Faults(**{fault: True}), by_rule=fault != "forced_calls")
    assert named <= found.failed
    assert found.report.exit_code == 1


# -- two endpoints of the same weights: equal ones pass, another is failed by the criterion that names the two


PLAN = Plan(items=16, conversations=1, turns=2, concurrency=2, load_requests=2, pressure_tokens=0, difference="eager")
CRITERION = "served-endpoints"

Make = Callable[..., Chatting]


def policy() -> Policy:
    """Concurrent requests and, by their margin, the two endpoints."""
    few = few_prompts_policy()
    return few.model_copy(update={"criteria": tuple(each for each in few.criteria if each.slice == "concurrency")})


@pytest.fixture
def server(local: Engine, known: dict[object, object]) -> Callable[..., Chatting]:
    """That model, served by rule with log-probabilities."""

    def of(kind: type[Chatting] = Chatting, **how: object) -> Chatting:
        return kind(local, known=known, **{"max_logprobs": 20, "by_rule": True} | how)  # type: ignore[arg-type]

    return of


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Judged]:
    """What a run finds of two servers."""

    def of(first: Chatting, second: Chatting, **plan: Any) -> Judged:
        with chatting(first) as one, chatting(second) as other:
            return judged(one, tmp_path, replace(PLAN, **plan), policy(), against=other)

    return of


class Halved(Chatting):
    """A server that reads half of every prompt that it answers, once it has shown what it can do."""

    def continued(self, ids: tuple[int, ...], budget: int) -> Generated:
        return super().continued(ids[: len(ids) // 2] if budget == ANSWER_TOKENS else ids, budget)


def test_an_equal_server_passes_and_is_kept_beside_the_first(server: Make, compared: Judge) -> None:
    found = compared(server(), server(version="0.26.1"))
    assert found.verdicts == {"served-concurrency": CriterionVerdict.PASS, CRITERION: CriterionVerdict.PASS}
    (figure,) = [each for each in found.history.measurements(found.run.id) if each.slice == "endpoints"]
    assert (figure.counts.scored, figure.value) == (16, 0.0)
    assert found.run.identity.engine_version == "vllm 0.26.0"
    assert found.run.provenance["served"]["second_endpoint"]["engine_version"] == "vllm 0.26.1"


@pytest.mark.long
def test_a_server_that_answers_otherwise_is_failed_by_the_criterion_of_the_two(server: Make, compared: Judge) -> None:
    found = compared(server(), server(Halved))
    assert found.failed == {CRITERION}
    assert found.report.exit_code == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "second",
    [
        {"kind": Halved, "shape": "llama.cpp"},  # without log-probabilities: rounding is not told from a fault
        {"faults": Faults(stumbling=True)},  # right at the second attempt
    ],
)
def test_a_second_server_that_cannot_be_judged_does_not_pass(
    server: Make, compared: Judge, second: dict[str, Any]
) -> None:
    found = compared(server(), server(**second))
    assert found.verdicts["served-concurrency"] is CriterionVerdict.PASS
    assert found.verdicts[CRITERION] is CriterionVerdict.NOT_MEASURED
    assert any(trouble.startswith("endpoints: ") for trouble in found.troubles)


@pytest.mark.parametrize("spelt", ["{0}", "{0}/"])
def test_the_same_address_twice_is_refused_before_a_run_is_begun(local: Engine, tmp_path: Path, spelt: str) -> None:
    with chatting(Chatting(local, max_logprobs=20)) as address:
        command = ("served", "--branch", "bf16", "--base-url", address, "--against", spelt.format(address))
        done = commands.q36eval(*command, state=tmp_path, code=2)
    assert SAME_SERVER in " ".join(done.stderr.split())
    assert History.open(tmp_path / "history.sqlite").list_runs() == []


@pytest.mark.long
def test_the_same_server_by_another_name_is_refused_by_its_start(server: Make, tmp_path: Path) -> None:
    with chatting(server()) as address, raises(UsageError, "same-server"):
        judged(address, tmp_path, PLAN, policy(), against=address.replace("127.0.0.1", "localhost"))
    (run,) = History.open(tmp_path / "history.sqlite").list_runs()
    assert run.state is RunState.INTERRUPTED


@pytest.mark.long
@pytest.mark.parametrize(("counts", "tells"), [(True, True), (False, True), (False, False)])
def test_servers_with_one_start_are_two_where_they_count_and_refused_where_nothing_shows_it(
    server: Make, compared: Judge, counts: bool, tells: bool
) -> None:
    pair = [server(started=1.75e9, counts_prompts=counts, tells_start=tells) for _ in range(2)]
    if tells and not counts:
        with raises(UsageError, "same-server"):
            compared(*pair, items=2)
        return
    found = compared(*pair, items=2)
    (figure,) = [each for each in found.history.measurements(found.run.id) if each.slice == "endpoints"]
    assert (MAYBE_ONE in figure.note) is not tells


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


# -- whether two addresses lead to one server, by counts as they may come


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same_server, "COUNTED_SECONDS", 0.3)


def told(*counts: int | None, answer: Exception | None = None) -> Any:
    """An endpoint whose page tells these counts, one at a time, and the last one from then on."""

    def each() -> Iterator[int | None]:
        yield from counts
        while True:
            yield counts[-1]

    page = each()

    def complete(prompt: list[int], budget: int) -> None:
        if answer is not None:
            raise answer

    return SimpleNamespace(
        name="server",
        server=SimpleNamespace(started="1"),
        tokenizer=SimpleNamespace(encode=lambda text, add_special_tokens: [1]),
        prompt_tokens=lambda: next(page),
        complete=complete,
    )


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ((5, 6), (7,), False),
        ((5, 6), (7, 7, 8, 8, 9, 9, 10), True),
        ((5, None, 5), (7, 7, 7), None),  # a lost page is no count
        ((5, None, 6), (7, 7, 7), False),  # counted late
        ((5, 6), (7, 7, None), None),  # lost while watched
        ((None,), (7,), False),  # a gateway, which shows no counts
        ((None,), (7, 7, 8, 8, 9, 9, 10), True),
        ((None,), (None,), None),
    ],
)
def test_what_counts_say(first: tuple[int | None, ...], second: tuple[int | None, ...], one: bool | None) -> None:
    assert are_one(told(*first), told(*second)) is one


@pytest.mark.usefixtures("soon")
def test_who_does_not_answer_is_not_taken_for_the_other() -> None:
    assert are_one(told(5, answer=RefusedError(400, "no")), told(7)) is None
    with raises(EngineError, "server-silent"):
        are_one(told(5, answer=NoAnswerError("gone")), told(7))
