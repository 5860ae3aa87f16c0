"""Two answers differ beyond near ties alone; a share of differences is judged over what the endpoint does by itself."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from q36eval.engines.openai.endpoint import Continuation
from q36eval.gate import Criterion, CriterionVerdict, Policy, decide
from q36eval.gate.policy_file import read_policy
from q36eval.records import Counts, ProbeFailure, ProbeName
from q36eval.served.comparison import (
    MOVED_NATS,
    NEAR_TIE_NATS,
    Compared,
    counted_faults,
    difference,
    measured_differences,
)
from q36eval.served.declared_server import Plan
from q36eval.served.differentials import CannotBeMeasuredError, told_apart

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
        (said((7,), {7: -0.1, 5: -4.0}), said((8,), {8: -0.1, 5: -4.0}), True),  # the other's is not even listed
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


def verdict(changed: int, repeated: int = 0, errored: int = 0, both: int = 0) -> tuple[CriterionVerdict, int]:
    """Of cache hits of which so many differ, are repeated otherwise, both, or errored; and the exit code."""
    kinds = [Compared("", "x", None)] * changed + [Compared("", None, "x")] * repeated + [Compared("", "x", "x")] * both
    kinds += [Compared("", error="timeout")] * errored
    items = [*kinds, *[Compared("")] * (ITEMS - len(kinds))]
    measurement = measured_differences(
        "cache-hit", [Compared(str(n), *_parts(each)) for n, each in enumerate(items)], ""
    )
    only = only_cache_hit()
    report = decide(only, [measurement])
    return report.criteria[0].verdict, report.exit_code


def _parts(each: Compared) -> tuple[str | None, str | None, str | None]:
    return each.changed, each.repeated, each.error


def only_cache_hit() -> Policy:
    criterion = next(each for each in POLICY.criteria if each.id == "served-cache-hit")
    return POLICY.model_copy(update={"criteria": (criterion,)})


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


JUDGED = [each for each in POLICY.criteria if each.probe is ProbeName.SERVED and each.margin.kind == "max_count"]
DIFFERENCES = [each for each in POLICY.criteria if each.metric == "answer_differences"]


@pytest.mark.parametrize("criterion", DIFFERENCES, ids=lambda each: each.id)
def test_at_the_shipped_sizes_every_difference_can_pass_and_can_fail(criterion: Criterion) -> None:
    """By the shipped margins, of as many items as are asked by default: none that differs, and all of them."""
    count = Plan().conversations if criterion.slice == "conversation" else Plan().items
    only = POLICY.model_copy(update={"criteria": (criterion,)})
    for changed, expected in ((None, CriterionVerdict.PASS), ("another", CriterionVerdict.FAIL)):
        measured = measured_differences(criterion.slice, [Compared(str(n), changed) for n in range(count)], "")
        report = decide(only, [measured])
        assert report.criteria[0].verdict is expected


@pytest.mark.parametrize("criterion", JUDGED, ids=lambda each: each.id)
def test_one_counted_fault_fails_and_none_passes(criterion: Criterion) -> None:
    only = POLICY.model_copy(update={"criteria": (criterion,)})
    least = criterion.min_scored or Plan().items
    counts = Counts(total=least, scored=least, errored=0)
    for faults, expected in (([], CriterionVerdict.PASS), (["one"], CriterionVerdict.FAIL)):
        measured = counted_faults(criterion.metric, criterion.slice, faults, counts)
        report = decide(only, [measured])
        assert report.criteria[0].verdict is expected


def test_the_endpoints_own_noise_is_not_its_fault() -> None:
    """As many differ with nothing changed: the increase is none, and what it cannot show does not fail it."""
    assert verdict(0, both=10)[0] is not CriterionVerdict.FAIL
    assert verdict(10)[0] is not CriterionVerdict.PASS


def test_what_was_not_measured_does_not_pass() -> None:
    failure = ProbeFailure(probe=ProbeName.SERVED, reason="cache-hit: the prefix cache was not tried", kind="skipped")
    report = decide(only_cache_hit(), [], failures=[failure])
    assert report.criteria[0].verdict is CriterionVerdict.NOT_MEASURED
    assert "the prefix cache was not tried" in report.criteria[0].reason
    assert report.exit_code == 3


def test_an_engine_that_died_is_exit_4() -> None:
    failure = ProbeFailure(probe=ProbeName.SERVED, reason="While it was asked: gone", kind="crashed")
    measurement = measured_differences("cache-hit", [Compared(str(n)) for n in range(ITEMS)], "")
    report = decide(only_cache_hit(), [measurement], failures=[failure])
    assert (report.criteria[0].verdict, report.exit_code) == (CriterionVerdict.NOT_MEASURED, 4)


def test_without_log_probabilities_a_difference_is_no_fault_and_no_pass() -> None:
    """A batch of another shape turns near ties of any engine, and such a server does not say what was one."""
    same, other = Compared("a"), Compared("b", "ends otherwise")
    blind: Any = SimpleNamespace(gives_log_probs=False)
    assert told_apart(blind, [same]) == [same]
    with pytest.raises(CannotBeMeasuredError, match="1 of 2 answers differ"):
        told_apart(blind, [same, other])
    seeing: Any = SimpleNamespace(gives_log_probs=True)
    assert told_apart(seeing, [same, other]) == [same, other]
