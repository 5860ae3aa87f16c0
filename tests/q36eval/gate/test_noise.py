"""A margin below the noise floor is refused before the run, and INCONCLUSIVE should history hold one."""

import math
from collections.abc import Sequence

import pytest

from q36eval.gate import GateReport, Policy, decide
from q36eval.gate.noise import NoiseFloor, below_floor, margins_below_floor
from q36eval.records import Measurement, ProbeName, Verdict
from tests.q36eval.gate.evidence import FINITE, census, divergence, only, perplexity

DOCUMENTS = [1e-5 + 1e-7 * (i % 7) for i in range(120)]
"""KL per document of a branch, in nats/token: far inside a margin of 1e-4."""


def floor(value: float, metric: str = "kl_divergence", slice: str = "all") -> Measurement:
    found = census(ProbeName.KL, f"{metric}_noise_floor", 0, slice)
    return found.model_copy(update={"value": value, "note": "left-padding"})


def policy(margin: float = 1e-4, kind: str = "max_value", **changes: object) -> Policy:
    return only(kind, margin, id="kl", **changes)


def decided(floors: Sequence[Measurement], margin: float = 1e-4, **changes: object) -> GateReport:
    return decide(policy(margin, **changes), [FINITE, divergence(DOCUMENTS), *floors])


def test_a_margin_below_the_floor_is_inconclusive_in_replay_whatever_the_branch_shows() -> None:
    assert decided([floor(1e-6)]).verdict is Verdict.PASS
    refused = decided([floor(2e-4)])
    assert (refused.verdict, refused.exit_code) == (Verdict.INCONCLUSIVE, 3)
    reason = refused.criteria[0].reason
    assert refused.criteria[0].code == "below-noise-floor"
    assert "0.0001 nats/token" in reason
    assert "0.0002 nats/token" in reason
    assert "left-padding" in reason
    # nor is a branch failed by a margin that the reference itself could not keep
    assert decided([], margin=1e-7).verdict is Verdict.FAIL
    assert decided([floor(2e-7)], margin=1e-7).verdict is Verdict.INCONCLUSIVE
    # a margin at the floor is judged, and a floor of no number refuses
    assert decided([floor(1e-4)]).verdict is Verdict.PASS
    assert decided([floor(math.nan)]).verdict is Verdict.INCONCLUSIVE
    assert decided([floor(math.inf)]).verdict is Verdict.INCONCLUSIVE


def test_the_floor_is_that_of_the_metric_and_slice_and_for_a_group_of_tokens_that_of_all() -> None:
    report = decided([floor(2e-4, slice="czech"), floor(2e-4, "reverse_kl_divergence")])
    assert report.verdict is Verdict.PASS
    czech = [FINITE, divergence(DOCUMENTS, slice="czech"), floor(2e-4)]
    assert decide(policy(slice="czech"), czech).verdict is Verdict.PASS
    assert decide(policy(slice="czech"), [*czech, floor(2e-4, slice="czech")]).verdict is Verdict.INCONCLUSIVE
    evals = policy(probe=ProbeName.EVALS).criteria[0]
    assert decide(policy(probe=ProbeName.EVALS), [floor(2e-4)]).criteria[0].noise_floor is None
    assert below_floor(evals, None) is None
    # for a group of tokens the floor over all of them stands in, and says so
    asked, figure = policy(slice="kind=json"), divergence(DOCUMENTS, slice="kind=json")
    report = decide(asked, [FINITE, figure, floor(2e-4)])
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.criteria[0].code == "below-noise-floor"
    assert "kind=json" in report.criteria[0].reason
    assert decide(asked, [FINITE, figure, floor(2e-4), floor(5e-5, slice="kind=json")]).verdict is Verdict.PASS


@pytest.mark.parametrize("metric", ["kl_p99", "kl_max"])
def test_every_figure_whose_floor_was_measured_is_held_against_it(metric: str) -> None:
    figure = divergence(DOCUMENTS).model_copy(update={"metric": metric})
    asked = policy(metric=metric)
    assert decide(asked, [FINITE, figure, floor(9e-5, metric)]).verdict is Verdict.PASS
    assert decide(asked, [FINITE, figure, floor(2e-4, metric)]).verdict is Verdict.INCONCLUSIVE
    assert len(margins_below_floor(asked, [floor(2e-4, metric)])) == 1
    assert margins_below_floor(asked, [floor(5e-5, metric)]) == []


def test_perplexity_is_refused_in_its_own_unit() -> None:
    """A retention of 99.99 % allows log(1/0.9999) = 1.00005e-4 nats/token."""
    asked = policy(0.9999, "min_retention", metric="perplexity")
    criterion = asked.criteria[0]
    assert below_floor(criterion, NoiseFloor(loss=1.0e-4, source="decode")) is None
    assert below_floor(criterion, NoiseFloor(loss=1.0001e-4, source="decode")) is not None
    nll = [2.0 + i % 5 for i in range(120)]
    same = perplexity(nll, nll).model_copy(update={"probe": ProbeName.KL})
    assert decide(asked, [FINITE, same, floor(9e-5, "perplexity")]).verdict is Verdict.PASS
    assert decide(asked, [FINITE, same, floor(2e-4, "perplexity")]).verdict is Verdict.INCONCLUSIVE
