"""The gate: policy, decision and report. `decide` is pure: no I/O, no clock, no random state."""

from q36eval.gate.decide import decide
from q36eval.gate.policy import NON_FINITE, Criterion, Margin, Policy, SchemeFigure
from q36eval.gate.report import (
    Circumstances,
    CriterionResult,
    CriterionVerdict,
    GateReport,
    HeldMargin,
    LaneResult,
    SignOff,
    Stage,
    StageState,
    Waiver,
)
from q36eval.gate.sequential import PolicyRule, failed_lanes

__all__ = [
    "NON_FINITE",
    "Circumstances",
    "Criterion",
    "CriterionResult",
    "CriterionVerdict",
    "GateReport",
    "HeldMargin",
    "LaneResult",
    "Margin",
    "Policy",
    "PolicyRule",
    "SchemeFigure",
    "SignOff",
    "Stage",
    "StageState",
    "Waiver",
    "decide",
    "failed_lanes",
]
