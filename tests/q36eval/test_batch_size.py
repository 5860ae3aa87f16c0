"""How many answers are generated together: within the limit, told with every answer, part of who answered."""

from pathlib import Path

import pytest

from q36eval.engines import resident
from q36eval.engines.base import EngineSettings, GenerationRequest
from q36eval.engines.in_process import InProcessEngine
from q36eval.errors import UsageError

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"


def requests(engine: InProcessEngine, count: int, group: str = "") -> list[GenerationRequest]:
    text = "Text, který má pokračovat, a pak ještě kousek. "
    ids = tuple(engine.tokenizer.encode(text, add_special_tokens=False))
    return [GenerationRequest(f"{group}/{at}", ids[at % 4 :], 2, group=group) for at in range(count)]


def test_a_batch_holds_at_most_so_many_rows_and_an_answer_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    engine = InProcessEngine.load(EngineSettings(SANDBOX, batch_rows=4))
    found = list(engine.generate([*requests(engine, 9), *requests(engine, 1, "alone"), *requests(engine, 3, "b")]))
    assert [a.error for a in found] == [None] * 13
    rows = {a.request.key: a.rows for a in found}
    assert sorted(rows[f"/{at}"] for at in range(9)) == [1, 4, 4, 4, 4, 4, 4, 4, 4]
    assert rows["alone/0"] == 1
    assert {rows[f"b/{at}"] for at in range(3)} == {3}


def test_only_a_batch_size_that_is_asked_for_is_part_of_the_identity() -> None:
    own, four = (InProcessEngine.identity_of(EngineSettings(SANDBOX, batch_rows=rows)) for rows in (None, 4))
    assert "batch_rows" not in own.settings
    assert four.settings == own.settings | {"batch_rows": "4"}
    assert own.differing_fields(four) == ["settings"]
    with pytest.raises(UsageError, match="at least 1"):
        InProcessEngine.identity_of(EngineSettings(SANDBOX, batch_rows=0))
