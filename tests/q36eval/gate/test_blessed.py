"""Margins against the blessed run: the same questions, paired by name, whatever the reference answered."""

import random

import numpy as np
import pytest

from q36eval.gate import CriterionResult, CriterionVerdict, decide
from q36eval.gate.blessed_run import against_blessed
from q36eval.gate.policy import MarginKind
from q36eval.records import Measurement, ProbeName
from q36eval.stats import margin_test
from tests.q36eval.gate.evidence import HIGHER, accuracy, divergence, in_blocks, measurement, named, only, perplexity
from tests.q36eval.stats.evidence import items, taken

N = 400


def names(count: int = N) -> list[str]:
    return [f"item-{number}" for number in range(count)]


def answers(branch: list[int], reference: list[int] | None = None, asked: list[str] | None = None) -> Measurement:
    return named(accuracy(branch, reference or [1] * len(branch)), asked or names(len(branch)))


def with_columns(found: Measurement, columns: dict[str, object]) -> Measurement:
    return found.model_copy(update={"clusters": found.clusters.model_copy(update=columns)})


def shuffled(found: Measurement, seed: int = 0) -> Measurement:
    """The same evidence in another order, as another run may have asked it."""
    rows = list(range(len(found.clusters.units)))
    random.Random(seed).shuffle(rows)
    return found.model_copy(update={"clusters": taken(found.clusters, rows)})


def judged(
    now: Measurement, then: list[Measurement], kind: MarginKind = "min_recovery", value: float = 0.9
) -> CriterionResult:
    of = {"probe": now.probe, "metric": now.metric, "slice": now.slice}
    return decide(only(kind, value, id="asked", margin={"against": "blessed"}, **of), [now], blessed=then).criteria[0]


def test_what_was_accepted_counts_and_not_the_reference() -> None:
    half = [0] * (N // 2) + [1] * (N // 2)
    assert judged(answers(half), [shuffled(answers(half))]).verdict is CriterionVerdict.PASS
    theirs = [1] * (N * 3 // 5) + [0] * (N * 2 // 5)  # enough to be evidence at all
    fell = judged(answers(half, theirs), [shuffled(answers([1] * N, theirs))])
    assert (fell.verdict, fell.figure, fell.value, fell.reference_value) == (CriterionVerdict.FAIL, 0.5, 0.5, 1.0)


@pytest.mark.parametrize("lost", [0, 12, 25, 200])
def test_the_test_is_that_of_columns_paired_by_hand(lost: int) -> None:
    now, then = answers([0] * lost + [1] * (N - lost)), answers([1] * (N - 3) + [0] * 3)
    result = judged(now, [shuffled(then)])
    by_hand = items(now.clusters.branch, then.clusters.branch)
    expected = margin_test(by_hand, "paired_mean", result.margin, direction=HIGHER)
    assert (result.p_pass, result.p_fail, result.loss) == (expected.p_pass, expected.p_fail, expected.loss)


def test_divergences_perplexities_and_ratios_pair_too() -> None:
    rng = np.random.default_rng(5)
    kl = rng.lognormal(-6, 1, 60)
    steady, risen = (named(divergence((kl + more).tolist()), names(60)) for more in (0.0, 0.01))
    blessed = shuffled(named(divergence(kl.tolist()), names(60)))
    for now, verdict in ((steady, CriterionVerdict.PASS), (risen, CriterionVerdict.FAIL)):
        result = judged(now, [blessed], "max_increase", 0.002)
        assert (result.verdict, result.reference_value) == (verdict, blessed.value)
    nll = 1.5 + rng.random(60)
    reference = (nll + 3).tolist()
    worse, same = (named(perplexity((nll + more).tolist(), reference), names(60)) for more in (0.05, 0.0))
    assert judged(same, [shuffled(same)], "min_retention", 0.98).verdict is CriterionVerdict.PASS
    assert judged(worse, [shuffled(same)], "min_retention", 0.98).verdict is CriterionVerdict.FAIL
    margins = [items(scale * nll, [100.0] * 60, bounds=None, names=tuple(names(60))) for scale in (1.0, 0.5)]
    strong, weak = (measurement(ProbeName.CANARIES, "margin", each, "ratio", HIGHER) for each in margins)
    assert judged(weak, [strong], "min_recovery", 0.8).verdict is CriterionVerdict.FAIL
    assert judged(weak, [shuffled(weak)], "min_recovery", 0.8).verdict is CriterionVerdict.PASS


@pytest.mark.parametrize(
    ("then", "code", "named"),
    [
        ([], "blessed-missing", "evals.accuracy[mmlu]"),
        ([with_columns(answers([1] * N), {"names": None})], "items-unnamed", "the blessed run's"),
        ([answers([1] * N, asked=[f"old-{name}" for name in names()])], "other-items", "400 clusters"),
        ([answers([1] * (N + 1))], "other-items", "1 clusters"),
        ([in_blocks(answers([1] * N), first=1)], "other-blocks", ""),
        ([answers([1] * N), answers([0] * N)], "blessed-ambiguous", "2 times"),
        ([answers([1] * N, asked=["item-0"] * N)], "items-unnamed", "the blessed run's"),
    ],
)
def test_what_cannot_be_paired_is_not_measured_and_says_what_to_do(
    then: list[Measurement], code: str, named: str
) -> None:
    result = judged(in_blocks(answers([1] * N)), then)
    assert (result.verdict, result.infrastructure) == (CriterionVerdict.NOT_MEASURED, False)
    assert result.code == code
    assert named in result.reason
    assert "bless" in result.reason


def test_other_counts_weights_units_and_kinds_are_not_compared() -> None:
    now = named(divergence([0.01] * 60), names(60))
    longer = named(divergence([0.01] * 60, tokens=201), names(60))
    counted = judged(now, [longer], "max_increase", 0.01)
    assert counted.code == "counted-otherwise"
    assert "60 of 60 clusters" in counted.reason
    weighed = with_columns(now, {"bounds": (0.0, 9.0)})
    assert judged(now, [weighed], "max_increase", 0.01).code == "weighed-otherwise"
    bits = now.model_copy(update={"unit": "bits/token"})
    assert judged(now, [bits], "max_increase", 0.01).code == "measured-otherwise"
    greatest = now.model_copy(update={"estimator": "maximum"})
    assert judged(greatest, [greatest], "max_increase", 1).code == "no-sum-over-clusters"


def test_what_errored_in_either_run_is_errored() -> None:
    """One item in four hundred each: its other half says nothing, and at its worst it counts against PASS."""
    whole, now, then = answers([1] * N), named(accuracy([1] * N, [1] * N, errored=1), names()), names()[::-1]
    blessed = named(accuracy([1] * N, [1] * N, errored=1), then)
    for pair, errored in (((now, whole), 1), ((whole, blessed), 1), ((now, blessed), 2)):
        paired = against_blessed(pair[0], [pair[1]])
        assert (paired.counts.total, paired.counts.errored) == (N, errored)
        assert judged(pair[0], [pair[1]]).p_pass > judged(whole, [whole]).p_pass
    tokens = items([1, 1], units=[90, 100], errored=[10, 0], bounds=None, names=("a", "b"))
    partly = measurement(ProbeName.KL, "kl_divergence", tokens, "mean")
    paired = against_blessed(partly, [partly])
    assert (paired.clusters.units, paired.clusters.errored) == ((0, 100), (100, 0)), "the whole document"


def test_a_run_that_stopped_early_is_compared_as_far_as_it_went() -> None:
    whole, start = in_blocks(answers([1] * N)), in_blocks(answers([1] * 150))
    for now, then in ((whole, start), (start, whole)):
        result = judged(now, [shuffled_in_blocks(then)], value=0.8)
        assert (result.verdict, result.counts.total) == (CriterionVerdict.PASS, 150)
        paired = against_blessed(now, [shuffled_in_blocks(then)])
        assert paired.clusters.schedule == start.clusters.schedule, "bets stay those of the blocks"
    middle = in_blocks(answers([1] * 150, asked=names()[50:200]), first=1)
    assert judged(whole, [middle]).code == "other-items"
    half_a_block = in_blocks(answers([1] * 125))
    assert judged(whole, [half_a_block]).code == "other-items"
    unplanned, shorter = (with_columns(each, {"schedule": None}) for each in (whole, start))
    assert judged(unplanned, [shorter]).code == "other-items"


def shuffled_in_blocks(found: Measurement) -> Measurement:
    """Other order within the last block, which a run may have."""
    blocks = found.clusters.schedule.blocks
    start = blocks.index(max(blocks))
    rows = [*range(start), *reversed(range(start, len(blocks)))]
    return found.model_copy(update={"clusters": taken(found.clusters, rows)})
