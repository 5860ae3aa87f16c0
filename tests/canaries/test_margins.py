"""Where an answer is decided, by its tokens, and by how much: against figures worked out by hand."""

import math
from typing import Any

import pytest
import torch

from q36eval.canaries.checks import Decision
from q36eval.canaries.margins import DecisiveToken, decisive_tokens, first_difference, taught, token_spans


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _decision(text: str, chosen: str, *wrong: str) -> Decision:
    start = text.rindex(chosen)
    return Decision("member", start, start + len(chosen), wrong)


@pytest.mark.parametrize(
    ("text", "chosen", "others"),
    [
        ("Levnější je obchod A.", "A", ["B", "C"]),
        (
            "<function=get_weather>",
            "get_weather",
            ["get_order", "send_email"],
        ),  # parts later from one than from the other
    ],
)
def test_a_choice_is_decided_at_the_first_token_that_an_alternative_does_not_share(
    text: str, chosen: str, others: list[str], tokenizer: Any
) -> None:
    ids = _encoded(tokenizer, text)
    tokens = decisive_tokens(tokenizer, ids, text, [_decision(text, chosen, *others)])
    assert all(token.right == ids[token.position] for token in tokens)
    alternatives = set()
    for other in others:
        encoded = _encoded(tokenizer, text.replace(chosen, other))
        at = next(at for at, (a, b) in enumerate(zip(ids, encoded, strict=False)) if a != b)
        alternatives.add((at, encoded[at]))
    assert {(token.position, wrong) for token in tokens for wrong in token.wrong} == alternatives


def test_of_two_choices_of_which_one_begins_the_other_the_end_decides(tokenizer: Any) -> None:
    short, long, end = _encoded(tokenizer, "high"), _encoded(tokenizer, "higher"), tokenizer.eos_token_id
    assert long[: len(short)] == short
    for text, ids, other in (("high", short, "higher"), ("higher", long, "high")):
        tokens = decisive_tokens(tokenizer, ids, text, [_decision(text, text, other, "low")], end)
        choices = {token.position: (token.right, token.wrong) for token in tokens}
        parting = (end, (long[len(short)],)) if text == "high" else (long[len(short)], (end,))
        assert choices[len(short)] == parting
        assert choices[0][1] == (_encoded(tokenizer, "low")[0],)
        assert len(choices) == 2


def test_without_alternatives_every_token_of_the_place_decides_against_any_other(tokenizer: Any) -> None:
    text = "CZ78 2382 0124"
    ids = _encoded(tokenizer, text)
    tokens = decisive_tokens(tokenizer, ids, text, [Decision("line", 0, len(text))])
    assert [(token.position, token.right, token.wrong) for token in tokens] == [(n, i, ()) for n, i in enumerate(ids)]


def test_an_answer_in_other_tokens_than_the_tokenizer_would_write_is_decided_against_any_other(tokenizer: Any) -> None:
    """Tokens of a part of a character stand for that character."""
    text = "obchod A."
    ids = [token for character in text for token in _encoded(tokenizer, character)]
    assert ids != _encoded(tokenizer, text)
    spans = token_spans(tokenizer, ids, text)
    assert "".join(text[start:end] for start, end in spans) == text
    (token,) = decisive_tokens(tokenizer, ids, text, [_decision(text, "A", "B")])
    assert (token.right, tokenizer.decode([token.right])) == (ids[token.position], "A")
    text = "a😀b"
    ids = _encoded(tokenizer, text)
    spans = token_spans(tokenizer, ids, text)
    assert len(ids) > len(text)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert {at for start, end in spans for at in range(start, end)} == {0, 1, 2}


def test_margins_are_differences_of_log_probabilities_and_what_is_no_number_stays_none() -> None:
    logits = torch.randn(150, 11, generator=torch.Generator().manual_seed(1)) * 3
    ids = [int(row.argmax()) for row in logits]
    ids[100] = int(logits[100].argsort()[-3])  # an answer that took the third likeliest token there
    tokens = [
        DecisiveToken("open", 0, ids[0]),
        DecisiveToken("closed", 70, ids[70], tuple(i for i in (2, 5) if i != ids[70])),
        DecisiveToken("open", 100, ids[100]),
    ]
    teacher = taught(lambda states: states, logits, ids, tokens)
    for margin, wrong, token in zip(teacher.margins, teacher.best_wrong, tokens, strict=True):
        row = logits[token.position].tolist()
        total = math.fsum(math.exp(value) for value in row)
        allowed = token.wrong or tuple(i for i in range(11) if i != token.right)
        best = max(allowed, key=lambda i: row[i])
        expected = math.log(math.exp(row[token.right]) / total) - math.log(math.exp(row[best]) / total)
        assert wrong == best
        assert margin == pytest.approx(expected, abs=1e-5)  # float32 logits
    assert teacher.margins[0] > 0 > teacher.margins[2]
    assert len(teacher.choices) == 150
    for row, choices in zip(logits, teacher.choices, strict=True):
        assert choices[0][0] == int(row.argmax())
        mass = [math.exp(value) for _, value in choices]
        assert mass == sorted(mass, reverse=True)
        assert len(choices) == 5 or sum(mass) >= 0.999
    logits = torch.full((1, 4), math.nan)
    assert math.isnan(taught(lambda states: states, logits, [1], [DecisiveToken("open", 0, 1)]).margins[0])


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [([1, 2, 3], [1, 2, 3], None), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([], [], None)],
)
def test_the_first_difference(one: list[int], other: list[int], at: int | None) -> None:
    assert first_difference(one, other) == first_difference(other, one) == at
