"""The gate: policy, decision and report. `decide` is pure: no I/O, no clock, no random state."""

from q36eval.gate.attempts import Attempts, EarlierGate, ReusedAnswers, Tried, attempts_of
from q36eval.gate.decide import decide
from q36eval.gate.policy import NON_FINITE, Criterion, Informative, Margin, Policy, SchemeFigure
from q36eval.gate.report import (
    RULES,
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
    "RULES",
    "Attempts",
    "Circumstances",
    "Criterion",
    "CriterionResult",
    "CriterionVerdict",
    "EarlierGate",
    "GateReport",
    "HeldMargin",
    "Informative",
    "LaneResult",
    "Margin",
    "Policy",
    "PolicyRule",
    "ReusedAnswers",
    "SchemeFigure",
    "SignOff",
    "Stage",
    "StageState",
    "Tried",
    "Waiver",
    "attempts_of",
    "decide",
    "failed_lanes",
]
