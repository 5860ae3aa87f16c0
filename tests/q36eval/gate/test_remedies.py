"""What would help an INCONCLUSIVE criterion: the chances told are those that the gate's own tests show."""

import numpy as np
import pytest

from q36eval.gate import Criterion, GateReport, Policy, decide
from q36eval.gate.remedies import remedies
from q36eval.gate.report import ItemSource, Remedy, Supplies
from q36eval.records import Clusters, Direction, Measurement, ProbeFailure, ProbeName, Verdict
from q36eval.stats._pairs import PairedProportions, pairs_of
from tests.q36eval.gate.evidence import criterion, measurement

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def tools(kind: str = "max_increase", value: float = 0.03, **changed: object) -> Criterion:
    return criterion(kind, value, **({"probe": "canaries", "metric": "failure_rate", "slice": "tools"} | changed))


def pairs(lost: int, gained: int, both: int, neither: int) -> tuple[Array, Array]:
    """Failures of branch and reference, item by item."""
    counts = (lost, gained, both, neither)
    return np.repeat([1.0, 0.0, 1.0, 0.0], counts), np.repeat([0.0, 1.0, 1.0, 0.0], counts)


def answers(branch: Array, reference: Array) -> Clusters:
    ones = (1,) * len(branch)
    columns = {"branch": tuple(branch), "reference": tuple(reference), "errored": (0,) * len(ones)}
    return Clusters(units=ones, bounds=(0.0, 1.0), **columns)


def failures(branch: Array, reference: Array) -> Measurement:
    clusters = answers(branch, reference)
    return measurement(ProbeName.CANARIES, "failure_rate", clusters, "paired_proportions", slice="tools")


def judged(rule: Criterion, *found: Measurement, failed: tuple[ProbeFailure, ...] = ()) -> tuple[Policy, GateReport]:
    policy = Policy(name="p", criteria=(rule,))
    return policy, decide(policy, found, (), failed)


def remedy(rule: Criterion, *found: Measurement, supplies: Supplies | None = None) -> Remedy:
    policy, report = judged(rule, *found)
    assert report.verdict is Verdict.INCONCLUSIVE
    (told,) = remedies(report, policy, found, supplies)
    return told


def simulated(rule: Criterion, seen: Measurement, total: int, rates: tuple[float, float], gates: int = 200) -> float:
    """The share of PASS, by the exact test, of gates that ask further items: lost and gained at these rates."""
    assert seen.clusters is not None
    asked = len(seen.clusters.units)
    before = np.subtract(seen.clusters.branch, seen.clusters.reference or ())
    counts = np.array([np.sum(before == 1), np.sum(before == -1), np.sum(before == 0)])
    rng = np.random.default_rng(7)
    drawn = rng.multinomial(total - asked, [*rates, 1 - sum(rates)], size=gates) + counts
    kinds, number = np.unique(drawn, axis=0, return_counts=True)
    passed = 0
    for (lost, gained, same), times in zip(kinds.tolist(), number, strict=True):
        branch, reference = pairs(lost, gained, 0, same)
        exact = pairs_of(answers(branch, reference))
        assert isinstance(exact, PairedProportions)
        passed += int(times) * (exact.p_at_least(rule.margin.value) <= 1 - rule.confidence)
    return passed / gates


@pytest.mark.long
@pytest.mark.parametrize(("lost", "gained"), [(10, 6), (13, 7)])
def test_the_chances_with_more_draws_are_those_of_the_exact_test(lost: int, gained: int) -> None:
    rule, asked, total = tools(), 300, 900
    seen = failures(*pairs(lost, gained, 5, asked - lost - gained - 5))
    supplies = Supplies(draws=60, most_draws=180)
    (option,) = remedy(rule, seen, supplies=supplies).options
    assert (option.option, option.items) == ("--draws 180", total)
    assert option.chance_lossless is not None
    flips = (lost + gained) / asked
    # 200 gates know a share to 3.5 points; the exact test and the normal differ by a few points at 900 items
    assert option.chance == pytest.approx(simulated(rule, seen, total, (lost / asked, gained / asked)), abs=0.1)
    assert option.chance_lossless == pytest.approx(simulated(rule, seen, total, (flips / 2, flips / 2)), abs=0.1)


@pytest.mark.long
def test_the_items_needed_pass_four_times_in_five() -> None:
    rule = tools()
    seen = failures(*pairs(10, 6, 5, 279))
    told = remedy(rule, seen)
    assert told.needed is not None
    assert told.needed_lossless is not None
    assert told.items is not None
    assert told.needed > told.needed_lossless > told.items
    nothing = failures(*pairs(0, 0, 0, 1))
    for needed, rates in ((told.needed, (10 / 300, 6 / 300)), (told.needed_lossless, (8 / 300, 8 / 300))):
        assert simulated(rule, nothing, needed, rates) == pytest.approx(0.8, abs=0.1)


def test_a_loss_at_the_margin_passes_with_no_number_of_items() -> None:
    told = remedy(tools(), failures(*pairs(15, 5, 0, 280)))
    assert (told.needed, told.hopeless) == (None, True)
    assert told.needed_lossless is not None


def test_no_flip_seen_is_no_flips_proven() -> None:
    """Else one more item would always do."""
    told = remedy(tools(), failures(*pairs(0, 0, 0, 60)))
    assert told.needed is not None
    assert told.needed > 60


def recovery(lost: int, asked: int, planned: int) -> tuple[Measurement, Measurement]:
    clusters = answers(np.repeat([0.0, 1.0], (lost, asked - lost)), np.ones(asked))
    found = measurement(ProbeName.EVALS, "accuracy", clusters, "paired_mean", Direction.HIGHER_IS_BETTER, "mmlu")
    count = found.model_copy(
        update={"metric": "items_planned", "estimator": "census", "value": float(planned), "clusters": None}
    )
    return found, count


RECOVERY = tools("min_recovery", 0.99, probe=ProbeName.EVALS, metric="accuracy", slice="mmlu")


def test_exhaustive_is_offered_only_where_items_were_left() -> None:
    whole = remedy(RECOVERY, *recovery(2, 500, 500))
    assert whole.options == ()
    part = remedy(RECOVERY, *recovery(2, 500, 4_000))
    assert [(option.option, option.items) for option in part.options] == [("--exhaustive", 4_000)]
    larger = ItemSource(probe=ProbeName.EVALS, option="--suite release", items={"mmlu": 14_042, "ruler": 10})
    smaller = ItemSource(probe=ProbeName.EVALS, option="--suite quick", items={"mmlu": 100})
    told = remedy(RECOVERY, *recovery(2, 500, 500), supplies=Supplies(sources=(larger, smaller)))
    (option,) = told.options
    assert (option.option, option.items) == ("--suite release", 14_042)
    assert option.chance_lossless is not None
    assert option.chance_lossless >= option.chance > 0.99  # 0.4 points of loss against a margin of 1


def test_documents_are_what_a_divergence_needs() -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(50, 400, 100)
    sums = tokens * rng.lognormal(-4.6, 0.8, 100)
    clusters = Clusters(units=tuple(map(int, tokens)), branch=tuple(sums), errored=(0,) * 100)
    found = measurement(ProbeName.KL, "kl_divergence", clusters, "mean")
    value = found.value * 1.1
    told = remedy(tools("max_value", value, probe=ProbeName.KL, metric="kl_divergence", slice="all"), found)
    assert (told.kind, told.items, told.needed_lossless) == ("documents", 100, None)
    assert told.needed is not None
    # bounds of that many documents lie within the margin 4 times in 5: the margin is (z + z80) errors away
    error = float(np.sqrt(np.sum((sums - found.value * tokens) ** 2))) / tokens.sum()
    assert told.needed == pytest.approx(100 * ((1.959964 + 0.841621) * error / (value - found.value)) ** 2, rel=0.01)


def test_what_numbers_do_not_help_says_why() -> None:
    policy, report = judged(tools(), failed=(ProbeFailure(probe=ProbeName.CANARIES, reason="x", kind="crashed"),))
    (crashed,) = remedies(report, policy, ())
    assert (crashed.options, crashed.code) == ((), "errored")
    policy, report = judged(tools())
    assert remedies(report, policy, ())[0].code == "not-measured"


def test_other_verdicts_need_no_help() -> None:
    for lost in (0, 200):
        found = failures(*pairs(lost, 0, 0, 1_000 - lost))
        policy, report = judged(tools(), found)
        assert report.verdict is not Verdict.INCONCLUSIVE
        assert remedies(report, policy, [found]) == ()
