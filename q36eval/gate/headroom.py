"""The distance of a loss from its limit, and gains that quantization cannot explain. Pure.

Rounding weights adds noise, which may improve some answers but should hardly improve their mean. A branch that is
significantly better than the reference by more than its margin was fine-tuned, saw the items, or was evaluated
differently: a person must review it before it counts.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from q36eval.gate.report import CriterionResult, CriterionVerdict, SignOff
from q36eval.records import Verdict

POWER = 0.8
"""The chance of PASS for which the required number of items is computed."""

BEYOND_ALONE = "beyond-margin-alone"
"""The code of a criterion that would fail if no other criterion was judged."""


def to_turn(result: CriterionResult, verdict: CriterionVerdict) -> float | None:
    """The distance of the deciding bound from the limit, in the unit of the loss; None without such a bound.

    `verdict` is that of the evidence, before a policy refused unproven results. A count is its own bound: 0 means that
    one more fault changes the verdict. A FAIL is decided after Holm, with a wider bound than the displayed one; its
    distance is the change needed in that criterion's evidence alone.
    """
    interval, limit = result.loss_interval, result.limit
    if interval is None or limit is None:
        return None
    if verdict is CriterionVerdict.PASS:
        distance = limit - interval.upper
    elif verdict is CriterionVerdict.FAIL:
        distance = interval.lower - limit
    else:
        distance = interval.upper - limit
    # bounds come from bisection or a ladder of thresholds, p-values do not: the two may disagree by one step
    return max(0.0, distance) if math.isfinite(distance) else None


def share_of_limit(result: CriterionResult) -> float | None:
    """`to_turn` as a share of the limit, which is comparable across units; None for counts."""
    if result.to_turn is None or not result.limit or result.margin.kind == "max_count":
        return None
    return result.to_turn / result.limit


def clearest_first(results: Iterable[CriterionResult]) -> tuple[str, ...]:
    """Ids, those furthest from PASS first; counted faults and criteria without a bound precede them."""
    return tuple(result.id for result in sorted(results, key=lambda result: (-from_pass(result), result.id)))


def from_pass(result: CriterionResult) -> float:
    """`share_of_limit` of a criterion without PASS; infinite if undefined or if only Holm prevents FAIL."""
    share = None if result.code == BEYOND_ALONE else share_of_limit(result)
    return math.inf if share is None else share


def nearest(verdict: Verdict, standing: Sequence[CriterionResult], decisive: Sequence[str]) -> tuple[str, ...]:
    """The criterion that would first change a lane's verdict; several if equally near, none if none can.

    A PASS changes with the criterion nearest to its limit, as does a result that only Holm's correction keeps from
    FAIL. Any other verdict changes only when all its deciding criteria change, so the furthest one counts; no movement
    of a bound is enough if one of them is a count or has no bound.
    """
    alone = [result for result in standing if result.id in decisive and result.code == BEYOND_ALONE]
    if verdict is Verdict.PASS or alone:
        known = {result.id: share_of_limit(result) for result in alone or standing}
        shares = {name: share for name, share in known.items() if share is not None}
        turning = min(shares.values(), default=None)
    else:
        known = {result.id: share_of_limit(result) for result in standing if result.id in decisive}
        shares = {name: share for name, share in known.items() if share is not None}
        turning = max(shares.values(), default=None) if len(shares) == len(known) else None
    return tuple(sorted(name for name, share in shares.items() if share == turning))


def times_the_items(result: CriterionResult) -> float | None:
    """The factor on the number of items with which a criterion passes 4 times in 5 at the measured loss; infinite if no
    number is enough, None if a lack of evidence is not the cause.

    A normal approximation: the bound lies `arm` above the loss and shrinks with the root of the number of items.
    """
    interval, loss, limit = result.loss_interval, result.loss, result.limit
    if (
        result.code not in ("across-margin", BEYOND_ALONE, "contradictory")
        or interval is None
        or loss is None
        or limit is None
    ):
        return None
    arm = interval.upper - loss
    if not (math.isfinite(arm) and arm > 0):
        return None
    if loss >= limit:
        return math.inf
    normal = NormalDist()
    errors = 1.0 + normal.inv_cdf(POWER) / normal.inv_cdf(result.confidence)
    return max(1.0, (arm * errors / (limit - loss)) ** 2)


GAINING = ("min_recovery", "min_retention", "max_increase")
"""Kinds of margin over a figure that the reference also has, so that a branch can gain."""


def is_anomalous(result: CriterionResult) -> bool:
    """Whether H0 "the gain is at most the margin" is rejected at the criterion's confidence.

    The loss' interval consists of one-sided bounds at that confidence. The gain is anomalous if the upper bound, which
    bounds the gain from below, lies beyond the margin. A gain over the blessed run is progress.
    """
    if result.margin.kind not in GAINING or result.margin.against == "blessed":
        return False
    return result.loss_interval is not None and result.limit is not None and result.loss_interval.upper < -result.limit


def may_be_anomalous(result: CriterionResult) -> bool:
    """Whether more items may prove an anomaly: the estimated gain exceeds the margin and is not yet proven."""
    gaining = result.margin.kind in GAINING and result.margin.against == "reference"
    beyond = gaining and result.loss is not None and result.limit is not None and result.loss < -result.limit
    return beyond and not is_anomalous(result)


def held_back(result: CriterionResult) -> CriterionResult:
    """INCONCLUSIVE for a PASS by an implausible gain without a signature; any other result unchanged."""
    if result.verdict is not CriterionVerdict.PASS or not is_anomalous(result):
        return result
    reason = (
        "anomalous gain: the branch beats the reference by more than the margin, which quantization does not explain"
    )
    update = {"verdict": CriterionVerdict.INCONCLUSIVE, "reason": reason, "code": "anomalous-gain"}
    return result.model_copy(update=update | {"anomalous": True, "to_turn": None})


def accepted(result: CriterionResult, sign_offs: Sequence[SignOff]) -> CriterionResult:
    """PASS for an anomalous criterion whose report was signed; any other result unchanged."""
    if not result.anomalous or not sign_offs:
        return result
    owners = ", ".join(dict.fromkeys(signature.owner for signature in sign_offs))
    update = {
        "verdict": CriterionVerdict.PASS,
        "code": "anomalous-gain-signed",
        "reason": f"{result.reason}; accepted by {owners}, who signed the run",
        "to_turn": to_turn(result, CriterionVerdict.PASS),
    }
    return result.model_copy(update=update)
