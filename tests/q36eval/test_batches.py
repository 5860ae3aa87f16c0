"""What shares a batch depends on a probe's own requests alone; its limit is kept and is part of who answered."""

import random
from pathlib import Path

import pytest

from q36eval.engines import Engine, EngineSettings, GenerationRequest, identity_of, open_engine, resident
from q36eval.engines.batches import batches_by_length, with_news
from q36eval.errors import UsageError
from tests.raising import raises

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"


def requests(group: str, count: int) -> list[GenerationRequest]:
    rng = random.Random(group)
    return [
        GenerationRequest(f"{group}/{i}", tuple(rng.choices(range(9), k=rng.randint(1, 40))), 8, group=group)
        for i in range(count)
    ]


def test_other_groups_change_no_batch_and_no_limit_is_exceeded() -> None:
    mine, others = requests("canaries", 60), requests("evals", 45)
    alone = list(batches_by_length(mine, 200, 16))
    together = list(batches_by_length(others + mine[::-1], 200, 16))
    assert [batch for batch in together if batch[0].group == "canaries"] == alone
    assert {len({request.group for request in batch}) for batch in together} == {1}
    assert sorted(request.key for batch in together for request in batch) == sorted(r.key for r in mine + others)
    assert all(len(batch) * len(batch[0].token_ids) <= 200 and len(batch) <= 16 for batch in together)
    assert max(map(len, together)) > 1


def test_work_that_was_interrupted_continues_in_the_batches_it_would_have_had() -> None:
    whole = list(batches_by_length(requests("kl", 60), 200, 16))
    known = {request.key for request in whole[0]} | {whole[1][0].key}
    rest = list(with_news(batches_by_length(requests("kl", 60), 200, 16), known))
    assert rest == whole[1:]


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
    with raises(UsageError, "option-value"):
        identity_of(EngineSettings(SANDBOX, batch_rows=0))
