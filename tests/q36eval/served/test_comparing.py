"""Two answers differ beyond near ties alone; a share of differences is judged over what the endpoint does by itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from q36eval.engines.openai.endpoint import Continuation
from q36eval.gate import Criterion, CriterionVerdict, decide
from q36eval.gate.policy_file import read_policy
from q36eval.records import Measurement
from q36eval.served.comparison import (
    MOVED_NATS,
    NEAR_TIE_NATS,
    NOISY_NATS,
    Compared,
    cut_in_half,
    difference,
    greedy_measured,
    measured_differences,
)
from q36eval.served.declared_server import Plan
from q36eval.served.differentials import Alone, CannotBeMeasuredError, told_apart
from q36eval.served.prompts import Prompt

POLICY = read_policy(Path(__file__).parents[3] / "data" / "policies" / "served.yaml")
ITEMS = 64


def said(ids: tuple[int, ...], *rows: dict[int, float], text: str = "", finish: str = "stop") -> Continuation:
    return Continuation(text, ids, finish, rows or None)


def row(first: int, other: int, gap: float) -> dict[int, float]:
    """A place at which `first` is likelier by so much."""
    return {first: -0.5, other: -0.5 - gap}


NEAR, SURE = 0.01, 3.0


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (said((1, 2, 3)), said((1, 2, 3)), False),
        (said((7,), row(7, 8, 0.0)), said((8,), row(8, 7, 0.0)), False),
        (said((7,), row(7, 8, NEAR_TIE_NATS - NEAR)), said((8,), row(8, 7, NEAR_TIE_NATS - NEAR)), False),
        (said((7,), row(7, 8, NEAR)), said((8,), row(8, 7, SURE)), True),
        (said((7,), {7: -0.1, 5: -0.2}), said((8,), {8: -0.1, 5: -0.2}), True),  # the other's is not even listed
        (said((7, 8), {7: -0.1}, {8: -0.1}), said((7, 8), {7: -0.1}, {8: -0.1 - MOVED_NATS + NEAR}), False),
        (said((7, 8), {7: -0.1}, {8: -0.1}), said((7, 8), {7: -0.1}, {8: -0.2 - MOVED_NATS}), True),
        (said((1, 2, 3)), said((1, 2), finish="length"), True),
        (said((1, 2)), said((1, 3)), True),  # nothing tells a near tie
        (Continuation("ab", None, "stop"), Continuation("ab", None, "stop"), False),
        (Continuation("ab", None, "stop"), Continuation("ax", None, "stop"), True),
        (Continuation("ab", None, "stop"), Continuation("ab", None, "length"), True),
    ],
)
def test_answers_differ_beyond_rounding_alone(one: Continuation, other: Continuation, differ: bool) -> None:
    assert (difference(one, other) is not None) == differ
    assert (difference(other, one) is not None) == differ


@pytest.mark.parametrize(("copies", "differing"), [(0.01, {1.0, 3.0}), (1.0, {3.0}), (3.0, {1.0, 3.0})])
def test_copies_of_a_prompt_show_what_a_batch_moves_and_a_fault_is_more(copies: float, differing: set[float]) -> None:
    """An engine that decides by another token among others, by this much for copies of one prompt."""
    prompts = [Prompt(str(n), (), (), False, 1, (n,)) for n in range(8)]
    asked: list[tuple[int, ...]] = []

    def complete(ids: tuple[int, ...], budget: int, **_: object) -> Continuation:
        asked.append(ids)
        return moved(copies) if len(asked) > 2 * len(prompts) else said((7,), row(7, 8, 0.01))

    endpoint: Any = SimpleNamespace(complete=complete)
    alone = Alone.of(endpoint, cast(Any, SimpleNamespace(short=lambda _: prompts)), Plan())
    gaps = (0.01, 1.0, 3.0)
    found = alone.against({prompt.name: moved(gaps[at % 3]) for at, prompt in enumerate(prompts)}, alone.tie)
    assert {gaps[at % 3] for at, each in enumerate(found) if each.changed} == differing
    assert (alone.tie, bool(alone.how)) == ((NOISY_NATS, True) if copies == 1 else (NEAR_TIE_NATS, False))
    sampled = said((7,), row(8, 7, 1.0))
    assert difference(said((8,), row(8, 7, 1.0)), sampled, NOISY_NATS), "another token than its own likeliest"


def moved(gap: float) -> Continuation:
    return said((8,), row(8, 7, gap))


CACHE_HIT = next(each for each in POLICY.criteria if each.id == "served-cache-hit")


def judged(criterion: Criterion, measurement: Measurement) -> tuple[CriterionVerdict, int]:
    """What that criterion of the shipped policy alone decides, and the exit code."""
    report = decide(POLICY.model_copy(update={"criteria": (criterion,)}), [measurement])
    return report.criteria[0].verdict, report.exit_code


def verdict(changed: int, repeated: int = 0, errored: int = 0, both: int = 0) -> tuple[CriterionVerdict, int]:
    """Of cache hits of which so many differ, are repeated otherwise, both, or errored; and the exit code."""
    kinds = [("x", None)] * changed + [(None, "x")] * repeated + [("x", "x")] * both
    kinds += [(None, None)] * (ITEMS - errored - len(kinds))
    items = [Compared(str(n), *kind) for n, kind in enumerate(kinds)]
    items += [Compared(f"errored {n}", error="timeout") for n in range(errored)]
    return judged(CACHE_HIT, measured_differences("cache-hit", items, ""))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"changed": 0}, (CriterionVerdict.PASS, 0)),
        ({"changed": 1}, (CriterionVerdict.PASS, 0)),
        ({"changed": 6}, (CriterionVerdict.INCONCLUSIVE, 3)),
        ({"changed": 32}, (CriterionVerdict.FAIL, 1)),
        ({"changed": 0, "both": 40}, (CriterionVerdict.NOT_MEASURED, 4)),  # it does not repeat itself
        ({"changed": 0, "errored": 4}, (CriterionVerdict.NOT_MEASURED, 4)),
    ],
)
def test_a_share_of_64_decides(found: dict[str, int], expected: tuple[CriterionVerdict, int]) -> None:
    assert verdict(**found)[0] is expected[0]
    if "both" not in found:
        assert verdict(**found) == expected


def test_without_log_probabilities_a_difference_is_no_fault_and_no_pass() -> None:
    """A batch of another shape turns near ties of any engine, and such a server does not say what was one."""
    same, other = Compared("a"), Compared("b", "ends otherwise")
    blind: Any = SimpleNamespace(gives_log_probs=False)
    assert told_apart(blind, [same]) == [same]
    with pytest.raises(CannotBeMeasuredError, match="1 of 2 answers differ"):
        told_apart(blind, [same, other])
    seeing: Any = SimpleNamespace(gives_log_probs=True)
    assert told_apart(seeing, [same, other]) == [same, other]


# -- greedy answers and the server's own log-probabilities: one less likely token is a fault


def prompt(name: str, *ids: int) -> Prompt:
    return Prompt(name, (), (), False, 4, ids)


SURE = {7: -0.1, 8: -3.0}
PROMPTS = [prompt(name, 1, 2, 3, 4) for name in ("sure", "tied", "behind", "unlisted")]
ANSWERS: dict[str, "Continuation | str"] = {
    "sure": said((7, 7), SURE, SURE),
    "tied": said((7, 8), SURE, {7: -0.6, 8: -0.6 - NEAR_TIE_NATS / 2}),
    "behind": said((7, 8), SURE, {7: -0.5, 8: -0.5 - 2 * NEAR_TIE_NATS}),
    "unlisted": said((9,), {7: -0.1, 8: -3.0}),
}


@pytest.mark.parametrize(
    ("changed", "faults", "scored"),
    [
        ({}, 2, 4),
        ({"behind": Continuation("x", (7,), "length"), "unlisted": "the server: 500"}, 0, 2),
        # a server may leave rows out, or give no more than the token that it took: that proves nothing
        ({"behind": said((7,), {7: -0.1}), "unlisted": said((7,), {7: float("nan"), 8: -1.0})}, 0, 2),
        ({"sure": Continuation("x", (7, 7), "length", ()), "tied": said((7, 8), SURE)}, 2, 2),
    ],
)
def test_a_token_that_is_less_likely_than_another_is_a_fault_where_log_probabilities_tell(
    changed: dict[str, "Continuation | str"], faults: int, scored: int
) -> None:
    measured = greedy_measured(PROMPTS, {**ANSWERS, **changed})
    assert (measured.value, measured.counts.scored, measured.counts.errored) == (faults, scored, 4 - scored)


def test_prompts_are_cut_in_the_middle_and_one_token_stays() -> None:
    assert [each.token_ids for each in cut_in_half([prompt("a", 1, 2, 3, 4, 5), prompt("b", 1)])] == [(1, 2), (1,)]
