"""The gate: policy, decision and report. `decide` is pure: no I/O, no clock, no random state."""

from q36eval.gate.decide import decide
from q36eval.gate.integrity import NON_FINITE
from q36eval.gate.policy import Criterion, Informative, Margin, Policy
from q36eval.gate.report import (
    RULES,
    Circumstances,
    CriterionResult,
    CriterionVerdict,
    GateReport,
    LaneResult,
    SignOff,
    Stage,
    StageState,
    Waiver,
)
from q36eval.gate.sequential import PolicyRule, failed_lanes

__all__ = [
    "NON_FINITE",
    "RULES",
    "Circumstances",
    "Criterion",
    "CriterionResult",
    "CriterionVerdict",
    "GateReport",
    "Informative",
    "LaneResult",
    "Margin",
    "Policy",
    "PolicyRule",
    "SignOff",
    "Stage",
    "StageState",
    "Waiver",
    "decide",
    "failed_lanes",
]
