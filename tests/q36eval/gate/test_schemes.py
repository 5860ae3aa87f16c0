"""Margins by scheme: which holds for what the weights probe found, under one ceiling, and never by a declared name."""

import math
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from q36eval.gate import CriterionVerdict, GateReport, Policy, decide
from q36eval.gate.margins import QUANTIZED_TENSORS, margins_for, schemes_found
from q36eval.gate.sequential import failed_lanes
from q36eval.records import Lane, Measurement, ProbeName, Verdict
from q36eval.schemes import parts_of, scheme_name
from tests.q36eval.gate.evidence import FINITE, census, criterion, divergence, measurement, only
from tests.q36eval.stats.evidence import items

CEILING = 0.1
FIGURES = {"W4A16": 0.014, "FP8_BLOCK": 0.004, "NVFP4 + FP8_BLOCK": 0.05}


def policy(figures: dict[str, float] = FIGURES, ceiling: float = CEILING) -> Policy:
    schemes = [{"scheme": name, "value": value, "source": f"the {name} card"} for name, value in figures.items()]
    return only("max_value", ceiling, margin={"source": "ours", "schemes": schemes}, id="kl")


def found(**counts: int) -> list[Measurement]:
    """The census of the weights probe: `NVFP4=3` for three tensors."""
    told = {"all": sum(counts.values()), **counts}
    return [census(ProbeName.WEIGHTS, QUANTIZED_TENSORS, count, name) for name, count in told.items()]


def kl(mean: float) -> Measurement:
    return divergence([mean * (1 + 0.05 * (i % 5 - 2)) for i in range(120)])


def judged(mean: float, weights: Iterable[Measurement], rules: Policy | None = None) -> GateReport:
    return decide(rules or policy(), [FINITE, kl(mean), *weights])


@pytest.mark.parametrize(
    ("weights", "holds"),
    [
        (found(W4A16=5), 0.014),
        (found(NVFP4=5, FP8_BLOCK=1), 0.05),  # the figure of exactly this mixture
        (found(NVFP4=5, FP8_BLOCK=1, W8A16=2), 0.004),  # of another mixture its strictest part's
        (found(NVFP4=5, W4A16=1), 0.014),
        (found(NVFP4=5), CEILING),
        (found(NVFP4=5, W4A16=0), CEILING),  # counted, and none of it
        (found(), 0.004),  # nothing is quantized, so nothing may be lost
    ],
)
def test_the_margin_is_that_of_the_schemes_found(weights: list[Measurement], holds: float) -> None:
    inside, outside = (judged(factor * holds, weights).criteria[0] for factor in (0.9, 1.1))
    assert (inside.verdict, outside.verdict) == (CriterionVerdict.PASS, CriterionVerdict.FAIL)
    assert inside.margin.value == inside.limit == holds
    assert (inside.held.ceiling, inside.held.ceiling_source) == (CEILING, "ours")
    assert (inside.held.accepted is None) == (holds == CEILING)


def test_weights_that_were_not_inspected_pass_the_strictest_and_fail_the_ceiling() -> None:
    verdicts = [judged(mean, []).verdict for mean in (0.003, 0.03, 0.11)]
    assert verdicts == [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]
    assert "not inspected" in judged(0.03, []).criteria[0].reason


def test_what_counts_in_the_margins_of_another_fails_by_its_ceiling_too_where_the_scheme_is_not_known() -> None:
    """A threshold of ten W4A16 margins failed every NVFP4 branch whose weights were not inspected."""
    share = {"beyond_margins": 10, "of": "kl"}
    worst = criterion("max_share", 0.01, margin=share, id="worst", metric="kl_document_max")
    rules = Policy(name="p", criteria=(*policy().criteria, worst))
    documents = items([0.03] * 460 + [0.3] * 40, units=[300] * 500, bounds=(0.0, math.inf))
    mean, tail = [FINITE, kl(0.03)], measurement(ProbeName.KL, "kl_document_max", documents, "maximum")
    unknown = decide(rules, [*mean, tail])
    assert {c.id for c in unknown.criteria if c.verdict is CriterionVerdict.INCONCLUSIVE} == {"kl", "worst"}
    assert failed_lanes(rules, [*mean, tail], {ProbeName.KL}) == {}
    assert decide(rules, [*mean, tail, *found(NVFP4=5)]).verdict is Verdict.PASS
    assert decide(rules, [*mean, tail, *found(W4A16=5)]).verdict is Verdict.FAIL


def test_more_bits_may_lose_no_more_and_a_census_that_lost_a_part_is_no_inspection() -> None:
    for scheme, holds in (("W8A16", 0.014), ("W2A16", CEILING), ("W4A8", CEILING)):
        held = margins_for(policy({"W4A16": 0.014}), frozenset({scheme})).policy.criteria[0].margin.value
        assert held == holds
    whole = found(NVFP4=3, W4A16=2)
    assert schemes_found(whole) == {"NVFP4", "W4A16"}
    for lost in range(len(whole)):
        assert schemes_found(whole[:lost] + whole[lost + 1 :]) is None


SETS = st.none() | st.frozensets(st.sampled_from(["NVFP4", "NVFP4_A16", "FP8_BLOCK", "W4A16", "W8A16"]))
SOME_FIGURES = st.dictionaries(
    st.frozensets(st.sampled_from(["NVFP4", "FP8_BLOCK", "W4A16"]), min_size=1).map(" + ".join),
    st.floats(0.001, CEILING),
    max_size=4,
).filter(lambda figures: len({parts_of(name) for name in figures}) == len(figures))


@given(schemes=SETS, more=st.sampled_from(["NVFP4", "FP8_BLOCK", "W4A16"]), figures=SOME_FIGURES)
def test_no_figure_allows_more_than_the_ceiling_and_no_unknown_part_eases_one(
    schemes: frozenset[str] | None, more: str, figures: dict[str, float]
) -> None:
    def limit(parts: frozenset[str] | None) -> float:
        return margins_for(policy(figures), parts).policy.criteria[0].margin.value

    assert limit(schemes) <= CEILING
    assert limit(None) == min([*figures.values(), CEILING])
    if schemes and not any(parts_of(name) == schemes | {more} for name in figures):
        exact = [value for name, value in figures.items() if parts_of(name) == schemes]
        # one part more makes no mixture laxer, unless it loses the figure that was set for exactly the old one
        assert limit(schemes | {more}) <= limit(schemes) or exact


@given(mean=st.sampled_from([0.003, 0.012, 0.03, 0.12]), told=st.booleans())
def test_what_failed_before_the_weights_were_known_fails_after(mean: float, told: bool) -> None:
    early = [kl(mean), *(found(W4A16=1) if told else [])]
    failed = failed_lanes(policy(), early, set(ProbeName))
    for rest in ([], found(NVFP4=1), found(W4A16=1), found()):
        report = decide(policy(), early if told else [*early, *rest])
        assert not failed or report.verdict is Verdict.FAIL
    assert (Lane.FREEFORM in failed) == (mean > (0.014 if told else CEILING))


def test_consequences_have_one_margin_for_all() -> None:
    figure = {"scheme": "NVFP4", "value": 0.05, "source": "a card"}
    for probe, metric in (("evals", "accuracy"), ("canaries", "decisive_margin_ratio"), ("weights", "x")):
        with pytest.raises(ValidationError, match="margin") as refused:
            criterion("max_increase", 0.1, margin={"schemes": [figure]}, probe=probe, metric=metric)
        assert len(refused.value.errors()) == 1


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"NVPF4": 0.05}, "'NVPF4'"),
        ({"NVFP4": 0.11}, "0.11 of NVFP4"),
        ({"NVFP4 + W4A16": 0.05, "W4A16+NVFP4": 0.06}, "more than one figure"),
        ({"NVFP4 + NVFP4": 0.05}, "names a part twice"),
        ({"NVFP4": -0.1}, "is not negative"),
    ],
)
def test_a_figure_that_could_never_hold_is_refused(figures: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        policy(figures)


def test_every_name_that_inspection_gives_may_stand_in_a_policy() -> None:
    names = {
        ("NVFP4", "nvfp4"): "NVFP4",
        ("NVFP4", None): "NVFP4_A16",
        ("NVFP4", "fp8"): "NVFP4_AFP8",
        ("FP8_BLOCK", "fp8"): "FP8_BLOCK",
        ("FP8_BLOCK", None): "FP8_BLOCK_A16",
        ("INT4", None): "W4A16",
        ("INT8", "int8-asymmetric"): "W8A8",
        ("INT4", "fp8"): "W4AFP8",
    }
    assert {pair: scheme_name(*pair) for pair in names} == names
    assert all(parts_of(name) == {name} for name in names.values())
