"""What would help an INCONCLUSIVE verdict: how many more items of which kind, and the chance of PASS then. Pure.

Normal approximation throughout: with N items a criterion passes when loss + z(confidence) * sigma / sqrt(N) lies below
its limit. `sigma` comes from the sums per cluster that the criterion was judged on, so it holds the flips that were
seen and how they cluster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from q36eval.gate.noise import below_floor
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, MoreItems, Remedy, Supplies
from q36eval.records import Direction, Measurement, ProbeName, Reason, Verdict
from q36eval.stats import loss_limit

PROBABILITY = 0.8
"""The chance of PASS that the number of items needed is given for."""

OPEN_BOUND = ("the interval reaches across the margin", "the evidence contradicts itself")
"""Reasons of `decide` that more items may change; any other one keeps the evidence itself from being trusted."""

PLANNED, EVALUATED = "items_planned", "accuracy"
"""Figures whose value says how many items of a slice were planned, and whose counts how many were evaluated."""

NORMAL = NormalDist()


def remedies(
    report: GateReport, policy: Policy, measurements: Sequence[Measurement], supplies: Supplies | None = None
) -> tuple[Remedy, ...]:
    """One for every blocking criterion that keeps an INCONCLUSIVE report from PASS; none for any other report."""
    if report.verdict is not Verdict.INCONCLUSIVE:
        return ()
    criteria = {criterion.id: criterion for criterion in policy.criteria}
    by_key = {measurement.key: measurement for measurement in measurements}
    undecided = (CriterionVerdict.INCONCLUSIVE, CriterionVerdict.NOT_MEASURED)
    return tuple(
        _remedy(criteria[result.id], result, by_key, supplies or Supplies())
        for result in report.criteria
        if result.tier == "blocking" and not result.waived and result.verdict in undecided and result.id in criteria
    )


def _remedy(
    criterion: Criterion, result: CriterionResult, by_key: Mapping[str, Measurement], supplies: Supplies
) -> Remedy:
    criterion = criterion.model_copy(update={"margin": result.margin})  # the one that held
    measurement = by_key.get(criterion.key)
    kind = "documents" if criterion.probe is ProbeName.KL else "items"
    scored = None if result.counts is None else result.counts.scored
    plain = Remedy(criterion=criterion.id, kind=kind, items=scored)
    why = _why_no_number(criterion, result, measurement)
    if why is not None:
        return plain.model_copy(update={"code": why.code, "note": why.text})
    assert measurement is not None, "else there is a reason"
    spread = _spread(criterion, result, measurement)
    if spread is None:
        note = "too few items were scored to estimate the spread, so no chance can be estimated"
        return plain.model_copy(update={"code": "too-few-scored", "note": note})
    plain = plain.model_copy(update={"items": spread.items})
    least = criterion.min_scored if kind == "items" else (criterion.min_clusters or 0)
    needed, lossless = (spread.needed(loss, least) for loss in (spread.loss, spread.lossless))
    return plain.model_copy(
        update={
            "needed": needed,
            "needed_lossless": lossless,
            "hopeless": needed is None,
            "options": tuple(_options(criterion, spread, by_key, supplies, needed, lossless)),
        }
    )


def _why_no_number(criterion: Criterion, result: CriterionResult, measurement: Measurement | None) -> Reason | None:
    """Why more items do not help, or why nothing is known of them; None where it can be estimated."""
    if result.infrastructure:
        return Reason("errored", "the errored items must be measured first; more items do not help")
    if criterion.margin.kind == "max_count":
        return Reason("faults-counted", "faults are counted, so every item must be measured; more items do not help")
    if result.anomalous:
        return Reason("anomalous-gain", "the gain is implausibly large: a reviewer must look at it and sign")
    if measurement is None:
        return Reason("not-measured", "it was not measured, so no chance can be estimated")
    if below_floor(criterion, result.noise_floor) is not None:
        return Reason("below-noise-floor", "its margin lies below the noise floor, which more items do not change")
    if result.verdict is CriterionVerdict.INCONCLUSIVE and result.p_pass >= 1.0 and result.reason not in OPEN_BOUND:
        return Reason(result.code, f"no chance can be estimated, since {result.reason}")
    return None


@dataclass(frozen=True)
class _Spread:
    """A criterion's evidence as a normal mean: `loss` per item with deviation `sigma`, held to `limit`.

    `lossless` is the loss of a branch that loses nothing, None where such a branch has no spread either.
    """

    items: int
    loss: float
    sigma: float
    limit: float
    lossless: float | None
    z: float

    def chance(self, total: int, loss: float | None) -> float | None:
        """Of PASS with `total` items of that loss, those evaluated so far among them."""
        if loss is None:
            return None
        kept = self.items
        room = self.limit - self.z * self.sigma / math.sqrt(total) - (kept * self.loss + (total - kept) * loss) / total
        spread = self.sigma * math.sqrt(total - kept) / total
        return NORMAL.cdf(room / spread)

    def needed(self, loss: float | None, least: int) -> int | None:
        """Items with which a new gate passes 4 times in 5; None where no number does."""
        if loss is None or loss >= self.limit:
            return None
        root = (self.z + NORMAL.inv_cdf(PROBABILITY)) * self.sigma / (self.limit - loss)
        return max(math.ceil(root * root), least, 1)


def _spread(criterion: Criterion, result: CriterionResult, measurement: Measurement) -> _Spread | None:
    z = _bound(criterion, measurement)
    limit = loss_limit(criterion.margin)
    clusters, kind = measurement.clusters, criterion.margin.kind
    if clusters is None or sum(clusters.units) == 0:
        return None
    units, branch = np.array(clusters.units, dtype=float), np.array(clusters.branch)
    by_cluster = criterion.probe is ProbeName.KL or clusters.bounds is None
    items = int((units > 0).sum() if by_cluster else units.sum())
    if items < 2:
        return None
    reference = None if clusters.reference is None else np.array(clusters.reference)
    simple = measurement.estimator in ("mean", "paired_mean", "paired_proportions", "perplexity")
    drawn = clusters.schedule is not None and clusters.schedule.weights is not None  # unequally, so no plain mean
    if not simple or drawn or (reference is None and kind != "max_value"):
        return _from_interval(result, items, limit, z, kind in ("max_value", "max_share"))
    lossless: float | None = 0.0
    if kind == "max_value":
        loss, lossless = branch, None
    elif kind == "min_recovery":  # tested as the mean of rho * reference - branch <= 0
        assert reference is not None
        loss, limit = criterion.margin.value * reference - branch, 0.0
        lossless = -(1.0 - criterion.margin.value) * float(reference.sum() / units.sum())
    else:
        assert reference is not None
        lower_is_better = measurement.direction is Direction.LOWER_IS_BETTER or kind == "min_retention"
        loss = branch - reference if lower_is_better else reference - branch
    mean = float(loss.sum() / units.sum())
    error = float(np.sqrt(((loss - mean * units) ** 2).sum())) / float(units.sum())
    sigma = error * math.sqrt(items)
    if clusters.bounds is not None:
        # that no item flipped shows a rate of about one in as many, not of none
        sigma = max(sigma, (clusters.bounds[1] - clusters.bounds[0]) / math.sqrt(items + 1))
    return _Spread(items, mean, sigma, limit, lossless, z) if sigma > 0 and math.isfinite(sigma) else None


def _bound(criterion: Criterion, measurement: Measurement) -> float:
    """Standard errors between a loss and the bound that must lie inside the margin, at the planned end.

    Of evidence that may be looked at early a part of the error rate has paid for the looks.
    """
    spent, schedule = 0.0, None if measurement.clusters is None else measurement.clusters.schedule
    if schedule is not None:
        shares = criterion.look_shares
        spent = shares.bets if schedule.weights is None else shares.bets + shares.midway
    return NORMAL.inv_cdf(1.0 - (1.0 - criterion.confidence) * max(1.0 - spent, 0.1))


def _from_interval(result: CriterionResult, items: int, limit: float, z: float, absolute: bool) -> _Spread | None:
    """Of an estimator without a plain mean: the deviation that its own bound stands for."""
    if result.loss is None or result.loss_interval is None:
        return None
    arm = result.loss_interval.upper - result.loss
    if not (math.isfinite(arm) and arm > 0 and math.isfinite(result.loss)):
        return None
    sigma = arm / NORMAL.inv_cdf((1 + result.loss_interval.level) / 2) * math.sqrt(items)
    return _Spread(items, result.loss, sigma, limit, None if absolute else 0.0, z)


def _options(
    criterion: Criterion,
    spread: _Spread,
    by_key: Mapping[str, Measurement],
    supplies: Supplies,
    needed: int | None,
    lossless: int | None,
) -> list[MoreItems]:
    """What exists or can be generated beyond what was asked, the fewest items first."""
    sources = [source for source in supplies.sources if source.probe is criterion.probe]
    totals = [(each.option, each.items.get(criterion.slice, 0)) for each in sources]
    planned = by_key.get(f"{criterion.probe}.{PLANNED}[{criterion.slice}]")
    accuracy = by_key.get(f"{criterion.probe}.{EVALUATED}[{criterion.slice}]")
    if planned is not None and accuracy is not None and accuracy.counts.total < planned.value:
        # in its own units, which are items here
        totals.append(("--exhaustive", int(planned.value)))
    if criterion.probe is ProbeName.CANARIES and supplies.draws is not None:
        totals += _more_draws(spread, supplies.draws, supplies.most_draws, needed or lossless)
    return [
        MoreItems(
            option=option,
            items=total,
            chance=spread.chance(total, spread.loss) or 0.0,
            chance_lossless=spread.chance(total, spread.lossless),
        )
        for option, total in sorted(totals, key=lambda each: each[1])
        if total > spread.items
    ]


def _more_draws(spread: _Spread, draws: int, most: int, needed: int | None) -> list[tuple[str, int]]:
    """As many draws of every family as the items needed take, or as can be had."""
    wanted = most if needed is None else math.ceil(draws * needed / spread.items)
    several = min(most, max(2 * draws, wanted))
    return [(f"--draws {several}", spread.items * several // draws)] if several > draws else []
