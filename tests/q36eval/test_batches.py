"""What shares a batch depends on a probe's own requests alone; its limit is kept and is part of who answered."""

from pathlib import Path

import pytest

from q36eval.engines import Engine, EngineSettings, GenerationRequest, identity_of, open_engine, resident

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"


def short_prompts(engine: Engine, count: int, group: str = "") -> list[GenerationRequest]:
    text = "Text, který má pokračovat, a pak ještě kousek. "
    ids = tuple(engine.tokenizer.encode(text, add_special_tokens=False))
    return [GenerationRequest(f"{group}/{at}", ids[at % 4 :], 2, group=group) for at in range(count)]


def test_a_batch_holds_at_most_so_many_rows_and_an_answer_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    engine = open_engine(EngineSettings(SANDBOX, batch_rows=4))
    answers = list(
        engine.generate([*short_prompts(engine, 9), *short_prompts(engine, 1, "alone"), *short_prompts(engine, 3, "b")])
    )
    assert [a.error for a in answers] == [None] * 13
    rows = {a.request.key: a.rows for a in answers}
    assert sorted(rows[f"/{at}"] for at in range(9)) == [1, 4, 4, 4, 4, 4, 4, 4, 4]
    assert rows["alone/0"] == 1
    assert {rows[f"b/{at}"] for at in range(3)} == {3}


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_that_is_resumed_tells_what_its_known_rows_took(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: workers)
    engine = open_engine(EngineSettings(SANDBOX, batch_rows=4))
    (*known, new) = short_prompts(engine, 4)
    (answer,) = engine.generate([*known, new], known={request.key for request in known})
    assert answer.request == new
    assert answer.repeated_seconds > answer.seconds, "three rows of four"
    assert all(answer.repeated_seconds == 0 for answer in engine.generate([*known, new]))


def test_only_a_batch_size_that_is_asked_for_is_part_of_the_identity() -> None:
    own, four = (identity_of(EngineSettings(SANDBOX, batch_rows=rows)) for rows in (None, 4))
    assert "batch_rows" not in own.settings
    assert four.settings == own.settings | {"batch_rows": "4"}
    assert own.differing_fields(four) == ["settings"]
