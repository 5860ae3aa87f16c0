"""Gains that no quantization explains: a branch convincingly better than the reference by more than its margin. Pure.

Rounding weights adds noise, which may improve some answers and must not improve their mean by much. A branch that does
was tuned, saw the items, or was asked something else: a person looks before it counts.
"""

from collections.abc import Sequence

from q36eval.gate.distance import to_turn
from q36eval.gate.report import CriterionResult, CriterionVerdict, SignOff

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
        "anomalous: it gains more over the reference than its margin allows to lose, which rounding does not explain"
    )
    update = {"verdict": CriterionVerdict.INCONCLUSIVE, "reason": reason, "anomalous": True, "to_turn": None}
    return result.model_copy(update=update)


def accepted(result: CriterionResult, sign_offs: Sequence[SignOff]) -> CriterionResult:
    """The anomalous criterion as PASS where the report was signed; anything else as it is."""
    if not result.anomalous or not sign_offs:
        return result
    owners = ", ".join(dict.fromkeys(signature.owner for signature in sign_offs))
    update = {
        "verdict": CriterionVerdict.PASS,
        "reason": f"{result.reason}; accepted by {owners}, who signed the run",
        "to_turn": to_turn(result, CriterionVerdict.PASS),
    }
    return result.model_copy(update=update)
