"""What the rehearsal at the full shape rests on: answers that end where they are forced to, and what its log tells."""

from pathlib import Path

import pytest

from benchmarks.rehearsal.engine import EndingBudget, ForcedLengths, ending_budget
from benchmarks.rehearsal.running import silences
from q36eval.engines import open_engine
from q36eval.engines.base import EngineSettings, GenerationRequest
from q36eval.engines.opening import KINDS

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"


def requests(count: int, budget: int = 64) -> list[GenerationRequest]:
    return [GenerationRequest(f"request {n}", (5, 6, 7 + n), budget) for n in range(count)]


def test_whoever_plans_with_a_budget_sees_all_of_it_and_answers_end_before() -> None:
    budget = EndingBudget(100)
    budget.ends = 7
    assert (max(3 + budget, 50), budget + 1, repr(budget)) == (103, 101, "100")
    assert [tokens >= budget for tokens in (6, 7, 100)] == [False, True, True]


def test_an_answer_is_as_long_as_its_key_says_and_counts_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_ANSWERS", "0.2")
    engine = ForcedLengths.load(EngineSettings(SANDBOX))
    for answer in engine.generate(requests(6)):
        ends = ending_budget(answer.request, thinking=False).ends
        assert len(answer.token_ids) <= ends < 64
        assert answer.finish_reason == "stop"
    assert "forced_lengths" in engine.identity.settings
    assert "forced_lengths" not in open_engine(SANDBOX).identity.settings, "the product's own engine forces nothing"
    assert all("benchmarks" not in kind.engine for kind in KINDS.values())


def test_the_longest_pause_between_lines_comes_first(tmp_path: Path) -> None:
    log = tmp_path / "gate.log"
    log.write_text("# 100.0 q36eval gate\n101.0 err one\n113.5 out two\n# 114.0 exit 3\n")
    assert [pause["seconds"] for pause in silences(log)] == [12.5, 1.0, 0.5]
    assert silences(log)[0]["after"] == "err one"
