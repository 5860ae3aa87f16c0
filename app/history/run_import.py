"""A run from another history decided here: by its evidence, and by nothing that people decided elsewhere."""

from dataclasses import dataclass
from datetime import UTC, datetime

from q36eval.errors import UsageError
from q36eval.gate import Circumstances, GateReport
from q36eval.history.attempts import tried_before
from q36eval.history.decisions import Evidence, blessed_beside, decided, policy_of, report_sha256
from q36eval.history.records import Decision, RunRecord, RunState, WholeRun
from q36eval.history.run_transfer import check_dates
from q36eval.history.store import History


@dataclass(frozen=True)
class Arrival:
    """A run as it is kept here; `says` in one sentence where that is another verdict than its archive had."""

    whole: WholeRun
    says: str | None = None


def decided_here(history: History, whole: WholeRun) -> Arrival:
    """The run with the decision that its measurements give here.

    Waivers, signatures and blessings from elsewhere decide nothing; a blessed run counts if it is blessed here too.
    Gates of the same deployment that this history knows count as attempts. If the report is another than the archive's,
    the archive's is kept as an earlier decision, replaced now.

    Raises:
        UsageError: the run is dated in the future, or has a verdict without an end, a report or a policy.
    """
    check_dates(whole)
    run = whole.run
    if run.report is None:
        if run.verdict is not None:
            raise UsageError("archive-inconsistent", f"Run {run.id} has the verdict {run.verdict} and no report.")
        return Arrival(whole)
    if run.state is not RunState.FINISHED:
        raise UsageError("archive-inconsistent", f"Run {run.id} has a verdict, and is {run.state}.")
    policy = policy_of(run)
    circumstances = _circumstances_here(history, run)
    evidence = Evidence(
        measurements=whole.measurements,
        failures=whole.about.failures,
        stages=run.report.stages,
        sign_offs=(),
        blessed=blessed_beside(history, circumstances.blessed_run, run.suites, run.reference_identity),
    )
    report = decided(policy, evidence, circumstances)
    if report_sha256(report) == report_sha256(run.report) and circumstances == run.circumstances:
        return Arrival(whole)
    theirs = Decision(replaced=datetime.now(UTC), report=run.report, circumstances=run.circumstances)
    here = run.model_copy(update={"report": report, "verdict": report.verdict, "circumstances": circumstances})
    about = whole.about.model_copy(update={"earlier_decisions": (*whole.about.earlier_decisions, theirs)})
    return Arrival(whole.model_copy(update={"run": here, "about": about}), _difference(run, run.report, report))


def _circumstances_here(history: History, run: RunRecord) -> Circumstances:
    """Those of the archive, without what people decided elsewhere."""
    then = run.circumstances
    if then is None:
        raise UsageError(
            "archive-inconsistent", f"Run {run.id} has a verdict without the circumstances that it hung on."
        )
    blessed = {blessing.run_id for blessing in history.blessings(run.branch, run.family)}
    ended = run.finished or run.started
    known = tried_before(history, run)
    tried = then.tried
    if known is not None:
        before = [gate for gate in known.earlier if gate.finished <= ended]
        named = set() if tried is None else {gate.run_id for gate in tried.earlier}
        more = [gate for gate in before if gate.run_id not in named]
        if more:
            tried = known.model_copy(update={"earlier": ()}) if tried is None else tried
            earlier = sorted((*tried.earlier, *more), key=lambda gate: (gate.finished, gate.run_id))
            tried = tried.model_copy(update={"earlier": tuple(earlier)})
    return then.model_copy(
        update={
            "waivers": (),
            "waivers_from": None,
            "blessed_run": then.blessed_run if then.blessed_run in blessed else None,
            "tried": tried,
        }
    )


def _difference(run: RunRecord, theirs: GateReport, ours: GateReport) -> str | None:
    """What a person must know of it: nothing where every verdict is the same."""
    if _verdicts(theirs) == _verdicts(ours):
        return None
    then = run.circumstances
    lost = [
        *(["waivers"] if then is not None and then.waivers else []),
        *(["signatures"] if theirs.signed_by else []),
        *(["the blessing"] if then is not None and then.blessed_run is not None else []),
    ]
    why = f"{' and '.join(lost)} of another history do not count here" if lost else "its report is not of its evidence"
    return (
        f"Run {run.id}: the archive says {theirs.headline}, its evidence gives {ours.headline} ({why}); "
        f"{ours.headline} is kept."
    )


def _verdicts(report: GateReport) -> tuple[object, ...]:
    lanes = tuple((lane.lane, lane.verdict, lane.waived) for lane in report.lanes)
    return report.verdict, report.headline, report.exit_code, lanes, tuple((c.id, c.verdict) for c in report.criteria)
