"""How far a loss lies from its limit: the headroom of a verdict, and gains that no quantization explains. Pure.

Rounding weights adds noise, which may improve some answers and must not improve their mean by much. A branch that is
convincingly better than the reference by more than its margin was tuned, saw the items, or was asked something else: a
person looks before it counts.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from q36eval.gate.report import CriterionResult, CriterionVerdict, SignOff
from q36eval.records import Verdict

POWER = 0.8
"""The chance of PASS that the items needed are given for."""

BEYOND_ALONE = "beyond-margin-alone"
"""The code of what would fail if no other criterion was judged."""


def to_turn(result: CriterionResult, verdict: CriterionVerdict) -> float | None:
    """How far, in the unit of the loss, the bound that decided lies from the limit; None where there is no such bound.

    `verdict` is what the evidence showed, before a policy refused what is not proven. A count is its own bound: 0 says
    that one more fault turns it. A FAIL was decided after Holm, whose bound is wider than the one shown, so that its
    distance is what the evidence of that criterion alone would have to move by.
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
    # bounds are verdict by bisection or on a ladder, p-values are not: they may cross by a step
    return max(0.0, distance) if math.isfinite(distance) else None


def share_of_limit(result: CriterionResult) -> float | None:
    """`to_turn` as a share of the limit, by which criteria of different units compare; None of counts."""
    if result.to_turn is None or not result.limit or result.margin.kind == "max_count":
        return None
    return result.to_turn / result.limit


def clearest_first(results: Iterable[CriterionResult]) -> tuple[str, ...]:
    """Ids, those that were furthest from PASS first; counted faults and what has no bound before them all."""
    return tuple(result.id for result in sorted(results, key=lambda result: (-from_pass(result), result.id)))


def from_pass(result: CriterionResult) -> float:
    """`share_of_limit` of what does not pass; infinite without one, and where Holm's correction alone prevents FAIL."""
    share = None if result.code == BEYOND_ALONE else share_of_limit(result)
    return math.inf if share is None else share


def nearest(verdict: Verdict, standing: Sequence[CriterionResult], decisive: Sequence[str]) -> tuple[str, ...]:
    """The criterion on which a lane's verdict turns first; several where they are equally far, none where none can.

    A PASS turns with the one nearest to its limit, and so does what only Holm's correction keeps from FAIL. Any other
    verdict turns only when all that decided it have turned: with the furthest of them, and with no movement of a bound
    where one is a count or has none.
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
    """How many times the items a criterion needs to pass 4 times in 5 at the loss that was found; infinite where no
    number does, None where its evidence is not merely too little.

    A normal approximation: the bound lies `arm` above the loss and shrinks with the root of the items.
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
"""Kinds of margin over a figure that the reference has as well, so that one may gain."""


def is_anomalous(result: CriterionResult) -> bool:
    """Whether H0 "the gain is at most the margin" is rejected at the criterion's confidence.

    The loss' interval is made of one-sided bounds at that confidence, so it is where the upper one, which bounds the
    gain from below, lies beyond the margin. Against the blessed run a gain is progress.
    """
    if result.margin.kind not in GAINING or result.margin.against == "blessed":
        return False
    return result.loss_interval is not None and result.limit is not None and result.loss_interval.upper < -result.limit


def may_be_anomalous(result: CriterionResult) -> bool:
    """Whether more items may show it to be: it is found to gain more than the margin, and nothing is proven yet."""
    gaining = result.margin.kind in GAINING and result.margin.against == "reference"
    beyond = gaining and result.loss is not None and result.limit is not None and result.loss < -result.limit
    return beyond and not is_anomalous(result)


def held_back(result: CriterionResult) -> CriterionResult:
    """What passes by an implausible gain, INCONCLUSIVE until somebody signs; anything else as it is."""
    if result.verdict is not CriterionVerdict.PASS or not is_anomalous(result):
        return result
    reason = (
        "anomalous gain: the branch beats the reference by more than the margin, which quantization does not explain"
    )
    update = {"verdict": CriterionVerdict.INCONCLUSIVE, "reason": reason, "code": "anomalous-gain"}
    return result.model_copy(update=update | {"anomalous": True, "to_turn": None})


def accepted(result: CriterionResult, sign_offs: Sequence[SignOff]) -> CriterionResult:
    """The anomalous criterion as PASS where the report was signed; anything else as it is."""
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
