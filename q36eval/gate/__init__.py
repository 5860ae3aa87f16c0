"""The gate: policy, decision and report. `decide` is pure: no I/O, no clock, no random state.

`policy` defines the criteria of a branch; `margins` selects the margin for its quantization schemes. `evidence`
collects the measurements of each criterion and `judgement` tests one criterion. `blessed_run` compares with the blessed
run, `competence` checks that the reference can do the task, `noise` that a margin exceeds the noise floor. `integrity`
adds faults that no policy may allow. `decision` combines the results with `waivers` into the `report`. `headroom`
measures the distance to another verdict, `sequential` decides when enough was evaluated, `attempts` counts earlier
gates. `policy_file` reads policy files; only it touches files, and no module that decides imports it.

The package may import `q36eval.records`, `q36eval.stats`, `q36eval.schemes` and, to read files, `q36eval.config`.

To add a kind of criterion: add its name to `stats.MarginKind` with its estimators, its test to `stats._margin`, and its
meaning, range and description to `policy.Margin`.
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
