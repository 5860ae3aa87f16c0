"""Reports by the real `decide`, with text in them that would act if any format let it."""

import math
from datetime import UTC, date, datetime, timedelta

from q36eval.gate import Criterion, GateReport, Policy, Waiver, decide
from q36eval.gate.report import CriterionVerdict, SignOff, Stage, StageState
from q36eval.history.records import RunRecord, RunState
from q36eval.records import Lane, Measurement, ProbeFailure, ProbeName
from tests.app.judged_runs import IDENTITY
from tests.q36eval.gate import evidence
from tests.q36eval.stats.evidence import items

HOSTILE = (
    "\x1b]0;t\x07\x1b[31m[red]a|b</b><script>alert('owned')</script><img src=x onerror=alert(1)>\x00\u202e`x` "
    "![i](http://evil.example/p) [l](javascript:alert(2)) @all #1 ]]> <!-- --> &lt; '\" %0A {{x}}\n"
    "::error::owned\r\n##[error]owned ##vso[task.complete] ##teamcity[x]\n::add-mask::q\u2028# big " + "long " * 5000
)
DAY = date(2026, 5, 1)
N = 400


def census(metric: str, count: float) -> Measurement:
    return evidence.census(ProbeName.CANARIES, metric, count, total=5)


def accuracy(group: str, lost: int, gained: int) -> Measurement:
    """`N` items of which the reference gets all but `gained` right, and the branch loses `lost`."""
    return evidence.accuracy([1] * (N - lost) + [0] * lost, [0] * gained + [1] * (N - gained), group)


def divergence(slice_name: str, value: float, metric: str = "kl_divergence") -> Measurement:
    clusters = items([50 * value * (0.5 + (i % 11) / 10) for i in range(60)], units=[50] * 60, bounds=None)
    found = evidence.measurement(ProbeName.KL, metric, clusters, "mean", slice=slice_name, unit="nats/token")
    return found.model_copy(update={"note": HOSTILE})


def criterion(name: str, tier: str = "blocking", **other: object) -> Criterion:
    known = {"id": name, "probe": ProbeName.CANARIES, "metric": name, "tier": tier, "lanes": (Lane.STRUCTURED,)}
    return evidence.criterion("max_count", 0, **(known | other))


def interval_criteria() -> tuple[Criterion, ...]:
    accurate = {"probe": ProbeName.EVALS, "metric": "accuracy", "lanes": (Lane.FREEFORM,)}
    facts, needles = (
        evidence.criterion("min_recovery", 0.95, id=name, slice=name, **accurate) for name in ("facts", "needles")
    )
    return facts, needles, evidence.criterion("max_value", 0.014, id="kl", lanes=tuple(Lane))


def measured(kl: float = 0.2) -> list[Measurement]:
    return [
        census("good", 0),
        census("bad", 1),
        census("hint", 2),
        accuracy("facts", 100, 10),
        accuracy("needles", 4, 4),
        divergence("all", kl),
        divergence(HOSTILE[:200], 0.001),
        divergence("all", 1e-5, "kl_divergence_noise_floor"),
        evidence.FINITE,
    ]


def stages() -> tuple[Stage, ...]:
    return (
        Stage(name="weights", state=StageState.MEASURED, items=1, planned=1, settled=("bad",)),
        Stage(name="evals", state=StageState.NOT_EVALUATED, items=0, planned=800),
    )


def hostile_report(*, waive: bool = False, name: str = f"p {HOSTILE}") -> GateReport:
    counts = criterion("good"), criterion("bad"), criterion("gone"), criterion("hint", "advisory")
    policy = Policy(name=name, criteria=(*counts, *interval_criteria()))
    waivers = [Waiver(owner=HOSTILE, reason=HOSTILE, criterion="bad", expires=DAY)] if waive else []
    failures = [ProbeFailure(probe=ProbeName.CANARIES, reason=HOSTILE, kind="skipped")]
    judged = decide(policy, measured(), waivers, failures, on=DAY, stages=stages())
    signed = SignOff(owner=HOSTILE, reason=HOSTILE, at=datetime(2026, 5, 2, tzinfo=UTC), report_sha256="0" * 64)
    return judged.model_copy(update={"signed_by": (signed,), "notes": (*judged.notes, HOSTILE)})


def clean_report() -> GateReport:
    """PASS of both lanes."""
    rules = (criterion("good"), *interval_criteria()[1:])
    return decide(Policy(name="p", criteria=rules), [*measured(0.001)[:1], *measured(0.001)[4:]], on=DAY)


def with_distances(report: GateReport) -> GateReport:
    """Every criterion told how far it was from turning, a quarter of its margin."""
    turned = [
        result.model_copy(update={"to_turn": (result.limit or 0.0) / 4})
        if result.verdict is not CriterionVerdict.NOT_MEASURED
        else result
        for result in report.criteria
    ]
    return report.model_copy(update={"criteria": tuple(turned)})


def run_of(branch: str = HOSTILE, **other: object) -> RunRecord:
    run = RunRecord(
        id="20260501-101112-abcdef",
        family="sandbox",
        branch=branch,
        identity=IDENTITY.model_copy(update={"engine": HOSTILE}),
        reference_identity=None,
        provenance={"note": HOSTILE, "word": "w" * 300, "share": math.inf},
        state=RunState.FINISHED,
        started=datetime(2026, 5, 1, 10, 11, 12, tzinfo=UTC),
        finished=datetime(2026, 5, 1, 10, 11, 12, tzinfo=UTC) + timedelta(seconds=90.5),
        timings={"weights": 0.25},
    )
    return run.model_copy(update=other)
