"""The gate: policy, decision and report. `decide` is pure: no I/O, no clock, no random state.

`policy` is what is asked of a branch, `margins` which margin holds for its schemes. `evidence` gathers the measurements
of each criterion, `judge` tests one criterion (`blessed`: against the blessed run, `competence`: where the reference
can do the task, `noise`: above the noise floor), `integrity` adds what no policy may allow, `decide` combines all of it
with `waivers` into the `report`. `headroom` says how far a verdict is from another, `sequential` when enough was
evaluated, `attempts` how often a PASS was tried for. `policy_file` reads what a
person writes; it alone touches files, and nothing that decides imports it.

It may import `q36eval.records`, `q36eval.stats`, `q36eval.schemes` and, to read files, `q36eval.config`.

To add a kind of criterion: its name in `stats.MarginKind` with its estimators and its test in `stats._margin`, its
meaning, range and words in `policy.Margin`.
"""

from q36eval.gate.attempts import EarlierGate, Tried
from q36eval.gate.decision import decide
from q36eval.gate.integrity import with_integrity
from q36eval.gate.policy import NON_FINITE, Criterion, Margin, Policy
from q36eval.gate.report import (
    Circumstances,
    CriterionResult,
    CriterionVerdict,
    GateReport,
    SignOff,
    Stage,
    StageState,
    Waiver,
)
from q36eval.gate.sequential import PolicyRule

__all__ = [
    "NON_FINITE",
    "Circumstances",
    "Criterion",
    "CriterionResult",
    "CriterionVerdict",
    "EarlierGate",
    "GateReport",
    "Margin",
    "Policy",
    "PolicyRule",
    "SignOff",
    "Stage",
    "StageState",
    "Tried",
    "Waiver",
    "decide",
    "with_integrity",
]
