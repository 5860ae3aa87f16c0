"""Greedy answers held to the server's own log-probabilities: near ties are none, one less likely token is a fault."""

from q36eval.engines.openai.endpoint import Continuation
from q36eval.served.comparison import NEAR_TIE_NATS
from q36eval.served.greedy_check import cut_in_half, greedy_measured
from q36eval.served.prompts import Prompt


def prompt(name: str, *ids: int) -> Prompt:
    return Prompt(name, (), (), False, 4, ids)


def answer(*rows: dict[int, float], tokens: tuple[int, ...]) -> Continuation:
    return Continuation("x", tokens, "length", rows)


SURE = {7: -0.1, 8: -3.0}
PROMPTS = [prompt(name, 1, 2, 3, 4) for name in ("sure", "tied", "behind", "unlisted")]
ANSWERS: dict[str, "Continuation | str"] = {
    "sure": answer(SURE, SURE, tokens=(7, 7)),
    "tied": answer(SURE, {7: -0.6, 8: -0.6 - NEAR_TIE_NATS / 2}, tokens=(7, 8)),
    "behind": answer(SURE, {7: -0.5, 8: -0.5 - 2 * NEAR_TIE_NATS}, tokens=(7, 8)),
    "unlisted": answer({7: -0.1, 8: -3.0}, tokens=(9,)),
}


def test_a_token_that_is_less_likely_than_another_is_a_fault_of_its_answer() -> None:
    measured = greedy_measured(PROMPTS, ANSWERS)
    assert measured.value == 2
    assert (measured.counts.total, measured.counts.scored, measured.counts.errored) == (4, 4, 0)
    assert measured.note is not None
    assert "behind: token 1 is 0.50 nats less likely than another" in measured.note


def test_an_answer_without_log_probabilities_or_none_at_all_is_not_scored() -> None:
    bare = Continuation("x", (7,), "length")
    measured = greedy_measured(PROMPTS, {**ANSWERS, "behind": bare, "unlisted": "the server: 500"})
    assert measured.value == 0
    assert (measured.counts.scored, measured.counts.errored) == (2, 2)


def test_rows_that_say_nothing_are_not_scored() -> None:
    """A server may leave them out, or give no more than the token that it took: that proves nothing."""
    silent = {
        "sure": answer(tokens=(7, 7)),
        "tied": answer(SURE, tokens=(7, 8)),
        "behind": answer({7: -0.1}, tokens=(7,)),
        "unlisted": answer({7: float("nan"), 8: -1.0}, tokens=(7,)),
    }
    counts = greedy_measured(PROMPTS, silent).counts
    assert (counts.scored, counts.errored) == (0, 4)


def test_prompts_are_cut_in_the_middle_and_one_token_stays() -> None:
    assert [each.token_ids for each in cut_in_half([prompt("a", 1, 2, 3, 4, 5), prompt("b", 1)])] == [(1, 2), (1,)]
