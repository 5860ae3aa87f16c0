"""Judges one criterion on its own evidence, before Holm and waivers."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from q36eval.gate.blessed_run import against_blessed, measured
from q36eval.gate.competence import Remaining, compares_answers, remaining
from q36eval.gate.noise import NoiseFloor, below_floor
from q36eval.gate.policy import Criterion
from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.metrics import metric_of
from q36eval.records import Clusters, Estimator, Interval, Measurement, ProbeFailure, Reason
from q36eval.stats import (
    ESTIMATORS_OF_KIND,
    MAX_ERRORED_SHARE,
    MarginTest,
    least_clusters,
    margin_test,
    point_figures,
    unseen_share,
    why_missing,
    why_untrusted,
)

_margin_test = lru_cache(maxsize=256)(margin_test)
"""Cached by all its inputs: a page decides one run several times, with and without a waiver or signature."""

ROUNDING = 1e-5
"""Nats per token by which rounding may make a divergence negative; one computed in float32 may be -1e-6."""

LEAST_CLUSTERS = 30
"""The mean of lognormal divergences (sigma 1.2) exceeds a 97.5 % bound 9 times in 100 with 8 clusters, 5 with 40."""


def judge(
    criterion: Criterion,
    measurements: Sequence[Measurement],
    failures: Sequence[ProbeFailure],
    floor: NoiseFloor | None = None,
    blessed: Sequence[Measurement] | str = (),
) -> CriterionResult:
    """The criterion's figures and p-values, with verdict NOT_MEASURED or (for now) INCONCLUSIVE.

    `measurements` are the distinct measurements with the criterion's key, `failures` those of its probe. `blessed`
    holds the measurements with that key in the run for a margin `against: blessed`, or the reason why they cannot be
    compared. A margin below its `floor` proves nothing: both p-values are 1, and the reason explains it.
    """
    if len(measurements) != 1:
        return _missing(criterion, len(measurements), failures).model_copy(update={"noise_floor": floor})
    described = _with_figures(_blank(criterion), measurements[0]).model_copy(update={"noise_floor": floor})
    if not _already_proven(criterion, measurements[0]) and any(failure.of_the_engine for failure in failures):
        crashed = "its probe broke off, so the figure may be incomplete: " + _reasons(failures)
        return _because(described, Reason(_failure_code(failures), crashed), infrastructure=True)
    malformed = _why_malformed(criterion, measurements[0])
    if malformed is not None:
        return _because(described, malformed)
    able = None  # the part of a comparison of answers that the reference can do
    if criterion.informative is not None and compares_answers(criterion, measurements[0]):
        able = remaining(criterion.informative, measurements[0])
        described = described.model_copy(update={"competence": able.competence, "causes": measurements[0].causes})
        missing = why_missing(measurements[0].counts, measurements[0].estimator)
        refusal = missing if missing is not None and missing.code == "errored" else able.refusal
        if refusal is not None:
            return _because(described, refusal, infrastructure=refusal is missing)
    if criterion.margin.against == "reference":
        return _compared(criterion, measurements[0], described, floor, able)
    if isinstance(blessed, str):
        paired: Measurement | Reason = Reason("blessed-of-another", blessed)
    else:
        paired = against_blessed(measurements[0], blessed)
    if isinstance(paired, Reason):
        # the other figure is the reference's, which this criterion does not judge
        return _because(described, paired, reference_value=None)
    return _compared(criterion, paired, described, floor, able)


def _compared(
    criterion: Criterion,
    measurement: Measurement,
    described: CriterionResult,
    floor: NoiseFloor | None,
    able: Remaining | None,
) -> CriterionResult:
    """All items together and, if the policy asks for it, `each_family` that the reference can do.

    Each of the two tests uses half the error rate; the families divide theirs (Bonferroni).
    """
    result, clusters = _together(criterion, measurement, described, floor, able), measurement.clusters
    if not criterion.each_family or able is None or result.loss is None or clusters is None or not clusters.families:
        return result
    few = criterion.model_copy(update={"min_scored": 1})
    p_fail = {
        name: _tested(
            few, measured(measurement, clusters.of_families({name}), measurement.estimator), result, floor
        ).p_fail
        for name in sorted(able.kept & {*clusters.families})
    }
    worst = min(p_fail, key=lambda name: p_fail[name])
    of_families = len(p_fail) * p_fail[worst]
    lost = worst if of_families < result.p_fail else ""
    update = {"p_fail": min(1.0, 2 * min(result.p_fail, of_families)), "lost_family": lost}
    return result.model_copy(update=update)


def _together(
    criterion: Criterion,
    measurement: Measurement,
    described: CriterionResult,
    floor: NoiseFloor | None,
    able: Remaining | None,
) -> CriterionResult:
    """The test of the remaining families. It passes only if all items together pass, so leaving out cannot help."""
    if able is None or able.all_kept or measurement.clusters is None:
        return _tested(criterion, measurement, _with_figures(described, measurement), floor)
    try:
        kept = measured(measurement, able.of(measurement.clusters), measurement.estimator)
    except ValueError as error:
        return _because(described, Reason("families-not-separable", str(error)))
    result = _tested(criterion, kept, _with_figures(described, kept), floor)
    needed = 1.0 - criterion.confidence
    if result.p_pass > needed:
        return result
    whole = _tested(criterion, measurement, _with_figures(described, measurement), floor)
    if whole.p_pass <= needed:
        return result
    reason = "it is inside the margin for the remaining families, but not with the families that were left out"
    return _because(result, Reason("inside-margin-in-part", reason), p_pass=whole.p_pass)


def _tested(
    criterion: Criterion, measurement: Measurement, described: CriterionResult, floor: NoiseFloor | None
) -> CriterionResult:
    """`described` with the result of its margin test, or the reason for the missing test."""
    problem = None if _already_proven(criterion, measurement) else _why_unfit(criterion, measurement)
    if problem is not None:
        reason, infrastructure = problem
        return _because(described, reason, infrastructure=infrastructure)
    try:
        test = _margin_test(
            _evidence(measurement),
            measurement.estimator,
            criterion.margin,
            direction=measurement.direction,
            level=2 * criterion.confidence - 1,
            shares=criterion.look_shares,
        )
    except ValueError as error:
        return _because(described, Reason("margin-unsuited", str(error)))
    if test.not_measured is not None:
        return _because(described, test.not_measured, infrastructure=sum(_evidence(measurement).errored) > 0)
    judged = _with_test(described, test)
    doubt = _why_untrusted(criterion, measurement, test)
    if doubt is not None:
        judged = _because(judged, doubt, p_pass=1.0)
    refusal = below_floor(criterion, floor)
    if refusal is not None:
        return _because(judged, refusal, p_pass=1.0, p_fail=1.0, p_fail_adjusted=1.0)
    return judged


def is_unable(result: CriterionResult) -> bool:
    """Whether a figure was not measured because the reference cannot do the task, by its answers or its template."""
    if result.code == "too-few-scored":  # fixed prompts that the reference fails are not counted
        return result.margin.kind == "max_count" and result.counts is not None and not result.counts.errored
    return result.code in ("reference-fails", "reference-unsuited")


def _because(result: CriterionResult, reason: Reason, **update: object) -> CriterionResult:
    return result.model_copy(update={"code": reason.code, "reason": reason.text} | update)


def _why_untrusted(criterion: Criterion, measurement: Measurement, test: MarginTest) -> Reason | None:
    """Why this evidence cannot pass: too few clusters for a share, or a heavy tail with a bound within 15 % of the
    margin. FAIL stays possible."""
    if criterion.margin.kind == "max_share":
        return _too_few_for_share(criterion, measurement, test)
    if test.p_pass > 1.0 - criterion.confidence:
        return None
    return why_untrusted(_evidence(measurement), measurement.estimator, test.loss_interval.upper, test.limit)


def _too_few_for_share(criterion: Criterion, measurement: Measurement, test: MarginTest) -> Reason | None:
    clusters = _evidence(measurement)
    evaluated = sum(units + errored > 0 for units, errored in zip(clusters.units, clusters.errored, strict=True))
    least = least_clusters(criterion.margin.value, criterion.confidence)
    # outside the margin, more clusters would not help
    if evaluated >= least or test.p_fail <= 1.0 - criterion.confidence:
        return None
    unseen = unseen_share(evaluated, criterion.confidence)
    return Reason(
        "too-few-clusters",
        f"{evaluated:,} clusters cannot show a share below {unseen:.2%}, even if none exceeds the threshold; "
        f"the policy's {criterion.margin.value:.2%} needs {least:,}",
    )


def _already_proven(criterion: Criterion, measurement: Measurement) -> bool:
    """Whether a fault was counted; later failures do not remove it."""
    counted = criterion.margin.kind == "max_count" and measurement.estimator == "census"
    return counted and math.isfinite(measurement.value) and measurement.value > criterion.margin.value


def why_unfinished(
    criterion: Criterion, measurements: Sequence[Measurement], failures: Sequence[ProbeFailure]
) -> str | None:
    """Why more faults may exist than were counted: the reason for which a count of zero could not be judged."""
    if len(measurements) != 1 or not _already_proven(criterion, measurements[0]):
        return None
    if any(failure.of_the_engine for failure in failures):
        return "its probe broke off"
    unfit = _why_unfit(criterion, measurements[0])
    return None if unfit is None else unfit[0].text


def _missing(criterion: Criterion, count: int, failures: Sequence[ProbeFailure]) -> CriterionResult:
    if count > 1:
        reason = Reason("figures-differ", f"{criterion.key} was measured {count} times with different figures")
    elif failures:
        reason = Reason(_failure_code(failures), _reasons(failures))
    else:
        reason = Reason("not-measured", f"the run holds no measurement {criterion.key}")
    return _because(_blank(criterion), reason, infrastructure=any(failure.of_the_engine for failure in failures))


def _reasons(failures: Sequence[ProbeFailure]) -> str:
    return "; ".join(failure.sentence for failure in failures)


def _failure_code(failures: Sequence[ProbeFailure]) -> str:
    """The code of the most severe failure: `probe-crashed`, `probe-unmeasurable`, `probe-skipped`,
    `reference-unsuited`, or of single figures `models-unsuited`."""
    kinds = {failure.kind for failure in failures}
    gravest = next((kind for kind in ("crashed", "unmeasurable", "skipped") if kind in kinds), None)
    unsuited = f"{'models' if all(failure.figures for failure in failures) else 'reference'}-unsuited"
    return unsuited if gravest is None else f"probe-{gravest}"


def _blank(criterion: Criterion) -> CriterionResult:
    return CriterionResult(
        **criterion.model_dump(include={"id", "title", "probe", "metric", "slice", "lanes", "tier", "confidence"}),
        margin=criterion.margin,
        unit=metric_of(criterion.probe, criterion.metric).unit or None,
        verdict=CriterionVerdict.NOT_MEASURED,
        reason="",
    )


def _with_figures(described: CriterionResult, measurement: Measurement) -> CriterionResult:
    update = {
        "unit": measurement.unit,
        "direction": measurement.direction,
        "value": measurement.value,
        "reference_value": measurement.reference_value,
        "counts": measurement.counts,
    }
    return described.model_copy(update=update)


def _why_malformed(criterion: Criterion, measurement: Measurement) -> Reason | None:
    """A contradiction between a record and its clusters, or a value impossible for a divergence; None if valid."""
    clusters, estimator = measurement.clusters, measurement.estimator
    if clusters is None or estimator not in ESTIMATORS_OF_KIND[criterion.margin.kind]:
        return None
    stated = (measurement.value, measurement.reference_value, measurement.effect)
    differing = [
        f"{one:g} for {other:g}"
        for one, other in zip(stated, point_figures(clusters, estimator), strict=True)
        if one is not None and other is not None and not np.isclose(one, other, 1e-6, 1e-9, equal_nan=True)
    ]
    if differing or measurement.counts != clusters.counts():
        said = f"it states {', '.join(differing) or 'other numbers of items'}, and its clusters have another total"
        return Reason("evidence-malformed", said)
    divergence = estimator == "mean" and metric_of(criterion.probe, criterion.metric).floor_unit == "nats/token"
    sums = zip(clusters.units, clusters.branch, clusters.reference or clusters.branch, strict=True)
    if (divergence or estimator == "perplexity") and any(min(row[1:]) < -ROUNDING * row[0] for row in sums):
        return Reason("evidence-malformed", "a divergence or a negative log-likelihood lies below zero")
    return None


def _why_unfit(criterion: Criterion, measurement: Measurement) -> tuple[Reason, bool] | None:
    """Why a measurement cannot be judged, and whether the engine is the cause; None if it can."""
    counts = measurement.counts
    missing = why_missing(counts, measurement.estimator)
    if missing is not None:
        errored = missing.code == "errored"
        named = "" if errored or measurement.causes is None else "; ".join(measurement.causes.unread)
        return Reason(missing.code, f"{missing.text}: {named}" if named else missing.text), errored
    if counts.scored < criterion.min_scored:
        too_few = f"{counts.scored} items were scored; the policy requires {criterion.min_scored}"
        return Reason("too-few-scored", too_few), counts.errored > 0
    if not math.isfinite(measurement.value) or not math.isfinite(measurement.effect):
        return Reason("not-finite", "the figure is not a finite number"), False
    if measurement.clusters is None:
        if measurement.estimator != "census":
            return Reason("no-clusters", "the measurement holds no evidence by cluster"), False
        return None
    bounded = measurement.clusters.bounds is not None
    needed = criterion.min_clusters or clusters_of_kind(measurement.estimator, bounded=bounded)
    scored = effective_clusters(measurement.clusters.units)
    if scored < needed:
        whose = "the policy requires" if criterion.min_clusters else "a figure of this kind requires"
        too_few = f"the scored items count as {scored} equal clusters; {whose} {needed}"
        return Reason("too-few-clusters", too_few), False
    return None


def effective_clusters(units: Sequence[int]) -> int:
    """The equivalent number of equal clusters: (sum u)^2 / sum u^2 (Kish, "Survey Sampling", 1965, section 8.2).

    A bound from a hundred documents, ten of which hold most of the tokens, is a bound from ten.
    """
    squares = sum(count * count for count in units)
    return 0 if squares == 0 else int(sum(units) ** 2 / squares + 1e-9)


def most_effective_clusters(units: Sequence[int]) -> int:
    """An upper bound on `effective_clusters` of the scored clusters, whichever units error.

    Removing part of the largest clusters raises the weight of the others. At most `MAX_ERRORED_SHARE` of all units may
    error, else nothing is judged. Let e be those units: a cluster of u units that loses r of them loses r (2 u - r) of
    the sum of squares; all clusters lose at most 2 e times the largest.
    """
    whole, squares = sum(units), sum(count * count for count in units)
    errored = MAX_ERRORED_SHARE * whole
    kept = squares - 2 * errored * max(units, default=0)
    clusters = sum(count > 0 for count in units)
    return min(clusters, int(whole**2 / kept + 1e-9)) if kept > 0 else clusters


def clusters_of_kind(estimator: Estimator, *, bounded: bool) -> int:
    """The required number of equal clusters for a figure if the policy does not set one.

    Unbounded values are skewed, and a few of them do not show the tail. `bounded` says whether a unit's value has
    bounds at all, even infinite ones.
    """
    if estimator == "ratio":
        return LEAST_CLUSTERS
    return 1 if bounded or estimator == "census" else LEAST_CLUSTERS


def _evidence(measurement: Measurement) -> Clusters:
    """The clusters; for a census without clusters, one cluster made of its counts."""
    if measurement.clusters is not None:
        return measurement.clusters
    counts = measurement.counts
    return Clusters(units=(counts.scored,), branch=(measurement.value,), errored=(counts.errored,))


def _with_test(described: CriterionResult, test: MarginTest) -> CriterionResult:
    figure, figure_interval = _in_margin_terms(described.margin.kind, test.loss, test.loss_interval)
    update = {
        "verdict": CriterionVerdict.INCONCLUSIVE,
        "figure": figure,
        "figure_interval": figure_interval,
        "loss": test.loss,
        "loss_interval": test.loss_interval,
        "limit": test.limit,
        "p_pass": test.p_pass,
        "p_fail": test.p_fail,
        "p_fail_adjusted": test.p_fail,
    }
    return described.model_copy(update=update)


def _in_margin_terms(kind: str, loss: float, interval: Interval) -> tuple[float, Interval]:
    """Loss and interval in the margin's own terms: recovery = 1 - loss, retention = exp(-loss)."""
    if kind == "min_recovery":
        bounds = (1.0 - interval.upper, 1.0 - interval.lower)
        figure = 1.0 - loss
    elif kind == "min_retention":
        bounds = (math.exp(-interval.upper), math.exp(min(-interval.lower, 700.0)))
        figure = math.exp(-loss)
    else:
        return loss, interval
    return figure, interval.model_copy(update={"lower": bounds[0], "upper": bounds[1]})
