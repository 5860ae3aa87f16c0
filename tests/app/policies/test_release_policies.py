"""The shipped policies of the real family: sound, shown by the suites they are for, and right about a few branches."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from app.policies.checking import check_policy
from app.policies.files import family_of, shipped_policies
from kl.corpus_plan import plan_of
from q36eval.config import Family, Paths
from q36eval.gate import Criterion, Policy, decide
from q36eval.gate.schemes import margins_for
from q36eval.records import Clusters, Direction, Estimator, Lane, Measurement, ProbeName, Verdict
from q36eval.stats import as_expected, power
from tests.q36eval.gate.evidence import HIGHER, LOWER, census, measurement

REPOSITORY = Path(__file__).parents[3]
PATHS = Paths(REPOSITORY, REPOSITORY / "no-state")
SHIPPED = shipped_policies(PATHS)
REAL = ("release", "release-structured", "release-freeform", "strict")

MMLU, RULER_128K, STRUCTURED = 14_042, 1_300, 3_800
"""Items of the release suite (docs/evals.md) and draws of its canaries."""


def figure(criterion: Criterion, clusters: Clusters, estimator: Estimator, direction: Direction) -> Measurement:
    return measurement(criterion.probe, criterion.metric, clusters, estimator, direction, criterion.slice)


@cache
def lossless(name: str) -> tuple[Measurement, ...]:
    """What a branch that equals the reference shows of a policy, at sizes of the suites that the policies are for."""
    policy = Policy.load(SHIPPED[name])
    found = {}
    sizes = {"mmlu": MMLU, "mmlu_czech": MMLU, "mmlu_pro": 12_032, "ruler/131072": RULER_128K, "ruler": 7_800}
    sizes |= {"gsm8k": 1_319, "ifeval": 541, "math_500": 500, "gpqa_diamond": 198, "humaneval": 164}
    sizes |= {"structured": STRUCTURED, "freeform": 2_200, "all": 1_000}
    for c in policy.criteria:
        n = sizes.get(c.slice, 200)
        if c.margin.kind == "max_count":
            found[c.key] = census(c.probe, c.metric, 0, c.slice)
        elif c.metric == "accuracy":
            found[c.key] = figure(c, as_expected([1] * n, 0.8), "paired_mean", HIGHER)
        elif c.probe is ProbeName.CANARIES and c.margin.kind == "max_increase":
            better = HIGHER if c.metric == "schema_accuracy" else LOWER
            found[c.key] = figure(c, as_expected([1] * n, 0.05), "paired_proportions", better)
        elif c.probe is ProbeName.KL and c.margin.kind == "max_share":
            plan = plan_of("release")
            assert plan is not None
            n = plan.most_clusters
            estimator: Estimator = "perplexity" if c.metric == "perplexity" else "maximum"
            values = tuple(0.001 * (1 + i % 9) for i in range(n))
            same = Clusters(units=(1,) * n, branch=values, reference=values, errored=(0,) * n)
            found[c.key] = figure(c, same, estimator, LOWER)
        elif c.probe is ProbeName.KL:
            kl = Clusters(
                units=(500,) * 120, branch=tuple(0.5 + 0.01 * (i % 9) for i in range(120)), errored=(0,) * 120
            )
            found[c.key] = figure(c, kl, "mean", LOWER)
        elif c.metric == "word_perplexity":
            nll = tuple(2_000.0 + i for i in range(62))
            same = Clusters(units=(1_000,) * 62, branch=nll, reference=nll, errored=(0,) * 62)
            found[c.key] = figure(c, same, "perplexity", LOWER)
    return tuple(found.values())


@pytest.mark.parametrize("name", ["release", "strict"])
def test_a_branch_that_equals_the_reference_passes(name: str) -> None:
    policy = Policy.load(SHIPPED[name])
    report = decide(policy, lossless(name))
    assert report.verdict is Verdict.PASS, report.decisive
    assert {lane.lane for lane in report.lanes} == set(policy.lanes)


def test_one_flipped_czech_discount_fails_every_lane_and_nobody_waives_it() -> None:
    policy = Policy.load(SHIPPED["release"])
    key = "canaries.must_pass_flips[discount-compare-must-pass]"
    rest = [measurement for measurement in lossless("release") if measurement.key != key]
    flipped = census(ProbeName.CANARIES, "must_pass_flips", 1, "discount-compare-must-pass")
    report = decide(policy, [*rest, flipped])
    assert {lane.verdict for lane in report.lanes} == {Verdict.FAIL}
    assert "czech-discount" in report.decisive
    for name in REAL:
        own = {criterion.id: criterion for criterion in Policy.load(SHIPPED[name]).criteria}
        assert not own["czech-discount"].waivable


def test_published_figures_are_kept_with_their_source() -> None:
    """What the cards ask for; whoever changes a margin of release changes what it claims to hold a branch to."""
    w4a16 = margins_for(Policy.load(SHIPPED["release"]), frozenset({"W4A16"})).policy
    margins = {criterion.id: criterion.margin for criterion in w4a16.criteria}
    published = {"kl": (0.014, "88plug"), "mmlu": (0.99, "88plug"), "ruler-128k": (0.97, "88plug")}
    published |= {"perplexity": (0.979, "palmfuture"), "czech-discount": (0, "inferRouter")}
    for name, (value, card) in published.items():
        assert margins[name].value == value
        assert f"{card} " in margins[name].source
        assert "card" in margins[name].source


def test_the_lanes_apart_are_the_lanes_of_release() -> None:
    """So that judging both at once and each alone ask the same of a branch."""
    whole = Policy.load(SHIPPED["release"])
    for name, lane in (("release-structured", Lane.STRUCTURED), ("release-freeform", Lane.FREEFORM)):
        alone = Policy.load(SHIPPED[name])
        expected = [c.model_copy(update={"lanes": (lane,)}) for c in whole.criteria if lane in c.lanes]
        assert list(alone.criteria) == expected


def test_strict_asks_for_no_less_than_release_anywhere() -> None:
    strict = {criterion.id: criterion for criterion in Policy.load(SHIPPED["strict"]).criteria}
    for criterion in Policy.load(SHIPPED["release"]).criteria:
        ours, theirs = strict[criterion.id].margin, criterion.margin
        at_least = theirs.kind in ("min_recovery", "min_retention")
        assert ours.value >= theirs.value if at_least else ours.value <= theirs.value


@pytest.mark.parametrize(
    ("name", "suite"),
    [("sandbox", "sandbox"), ("release", "release"), ("strict", "extended")],
)
def test_shipped_policies_are_sound_for_the_suite_they_are_for(name: str, suite: str) -> None:
    found = check_policy(SHIPPED[name], PATHS, suite=suite)
    assert found.problems == ()
    assert found.checked_for.endswith(f"suite {suite}")
    assert found.remarks == ()


def test_quick_cannot_show_what_a_release_asks() -> None:
    problems = " ".join(check_policy(SHIPPED["release"], PATHS, suite="quick").problems)
    assert "ruler-128k: the suite quick has no accuracy of 'ruler/131072'" in problems
    assert "failures-structured: it asks for 2000 scored, and quick asks 1140 of structured" in problems


def test_the_real_families_are_judged_by_release() -> None:
    for family in ("qwen3.5-35b-a3b", "qwen3.6-35b-a3b"):
        assert Family.load(PATHS.families / f"{family}.yaml").policy == "release"
    assert family_of(Policy.load(SHIPPED["strict"]), None, PATHS).policy == "release"
    assert family_of(Policy.load(SHIPPED["sandbox"]), None, PATHS).name == "sandbox"


@pytest.mark.parametrize(
    ("criterion", "items", "score", "estimator", "flips"),
    [
        ("ruler-128k", RULER_128K, 0.8, "paired_mean", 0.038),
        ("failures-structured", STRUCTURED, 0.05, "paired_proportions", 0.061),
    ],
)
def test_figures_beside_the_margins_are_what_the_items_show(
    criterion: str, items: int, score: float, estimator: str, flips: float
) -> None:
    policy = Policy.load(SHIPPED["release"])
    found = next(each for each in policy.criteria if each.id == criterion)
    assert f"{flips:.1%}".replace("%", " %") in found.note
    direction = LOWER if estimator == "paired_proportions" else HIGHER
    blocks = tuple(np.arange(items) // 300)
    planned = as_expected([1] * items, score)
    if estimator == "paired_mean":
        schedule = {"largest": 1, "blocks": tuple(int(block) for block in blocks)}
        planned = Clusters.model_validate(planned.model_dump() | {"schedule": schedule})
    settings = {"confidence": found.confidence, "alpha": policy.alpha, "criteria": 8, "direction": direction}
    shown = power(planned, found.margin, estimator=estimator, **settings)
    assert shown.can_show
    # seeded, so that only another test or another margin moves it; a point is what the figure's rounding leaves
    assert shown.most_flips == pytest.approx(flips, abs=0.001)
