"""The gate: policy, decision and report. `decide` is pure: no I/O, no clock, no random state."""

from q36eval.gate.decide import decide
from q36eval.gate.integrity import NON_FINITE
from q36eval.gate.policy import Criterion, Margin, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, LaneResult, Waiver
from q36eval.gate.sequential import PolicyRule

__all__ = [
    "NON_FINITE",
    "Criterion",
    "CriterionResult",
    "CriterionVerdict",
    "GateReport",
    "LaneResult",
    "Margin",
    "Policy",
    "PolicyRule",
    "Waiver",
    "decide",
]
