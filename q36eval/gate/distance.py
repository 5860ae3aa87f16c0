"""How far a verdict was from another one: of a criterion, and of a lane. Pure."""

import math
from collections.abc import Iterable, Sequence

from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Verdict


def to_turn(result: CriterionResult, found: CriterionVerdict) -> float | None:
    """How far, in the unit of the loss, the bound that decided lies from the limit; None where there is no such bound.

    `found` is what the evidence showed, before a policy refused what is not proven. A count is its own bound: 0 says
    that one more fault turns it. A FAIL was decided after Holm, whose bound is wider than the one shown, so that its
    distance is what the evidence of that criterion alone would have to move by.
    """
    interval, limit = result.loss_interval, result.limit
    if interval is None or limit is None:
        return None
    if found is CriterionVerdict.PASS:
        distance = limit - interval.upper
    elif found is CriterionVerdict.FAIL:
        distance = interval.lower - limit
    else:
        distance = interval.upper - limit
    # bounds are found by bisection or on a ladder, p-values are not: they may cross by a step
    return max(0.0, distance) if math.isfinite(distance) else None


def share_of_limit(result: CriterionResult) -> float | None:
    """`to_turn` as a share of the limit, by which criteria of different units compare; None of counts."""
    if result.to_turn is None or not result.limit or result.margin.kind == "max_count":
        return None
    return result.to_turn / result.limit


def clearest_first(results: Iterable[CriterionResult]) -> tuple[str, ...]:
    """Ids, those that were furthest from turning first; counted faults and what has no bound before them all."""

    def distance(result: CriterionResult) -> float:
        share = share_of_limit(result)
        return math.inf if share is None else share

    return tuple(result.id for result in sorted(results, key=lambda result: (-distance(result), result.id)))


def nearest(verdict: Verdict, standing: Sequence[CriterionResult], decisive: Sequence[str]) -> tuple[str, ...]:
    """The criterion on which a lane's verdict turns first; several where they are equally far, none where none can.

    A PASS turns with the one nearest to its limit. Any other verdict turns only when all that decided it have turned:
    with the furthest of them, and with no movement of a bound where one is a count or has none.
    """
    if verdict is Verdict.PASS:
        known = {result.id: share_of_limit(result) for result in standing}
        shares = {name: share for name, share in known.items() if share is not None}
        turning = min(shares.values(), default=None)
    else:
        known = {result.id: share_of_limit(result) for result in standing if result.id in decisive}
        shares = {name: share for name, share in known.items() if share is not None}
        turning = max(shares.values(), default=None) if len(shares) == len(known) else None
    return tuple(sorted(name for name, share in shares.items() if share == turning))
