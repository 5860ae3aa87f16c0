"""A served model with one fault is failed by the criterion that names it, and one without any passes them all."""

from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.engines import Engine
from q36eval.gate import CriterionVerdict
from tests.q36eval.served.chat_server import BLOCK, Chatting, Faults, chatting
from tests.q36eval.served.judging import Judged, judged

CACHE_BLOCKS = 48
"""Four long prompts, fewer than are asked."""


Judge = Callable[..., Judged]


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts are four blocks of this server's cache, or tests of a small model would take minutes."""
    monkeypatch.setattr("q36eval.served.prompts.LONG_TOKENS", 4 * BLOCK)
    monkeypatch.setattr("q36eval.served.prompts.ANSWER_TOKENS", 20)


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
