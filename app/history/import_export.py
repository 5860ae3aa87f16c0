"""Whole runs from one history into another: an export writes them into an archive, an import adds them.

An import overwrites nothing, and adds each run completely or not at all. A run is decided here by its evidence, never
by people's decisions elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.gate import Circumstances, GateReport
from q36eval.history import History, RunRecord, RunState, WholeRun
from q36eval.history.archive import RUN_ID, Reader, reading, writing
from q36eval.history.attempts import tried_before
from q36eval.history.decisions import Evidence, blessed_beside, decided, policy_of, report_sha256
from q36eval.history.records import Decision
from q36eval.history.run_transfer import check_dates, put_run, whole_run
from q36eval.locks import is_held
from q36eval.records import Record


def export(history: History, paths: Paths, run_ids: Sequence[str], file: Path) -> None:
    """Write those runs into the archive `file`; what is there is replaced once the new one is whole.

    Signatures, blessings and waivers stay behind.

    Raises:
        UsageError: a run is being measured.
        StorageError: the disk refuses it.
    """
    with writing(file) as writer:
        for run_id in dict.fromkeys(run_ids):
            writer.add_run(_settled(whole_run(history, run_id), paths), paths.tokens(run_id))


def _settled(whole: WholeRun, paths: Paths) -> WholeRun:
    """The run as it stays: one whose process died may be resumed where it is taken."""
    run = whole.run
    if not RUN_ID.fullmatch(run.id):
        raise UsageError("run-id-invalid", f"The id of run {run.id!r} is one that no archive accepts.")
    if run.state is not RunState.RUNNING:
        return whole
    if is_held(paths.run_lock(run.id)):
        raise UsageError("run-unfinished", f"Run {run.id} is being measured; export it once it has ended.")
    return whole.model_copy(update={"run": run.model_copy(update={"state": RunState.INTERRUPTED})})


@dataclass(frozen=True)
class Imported:
    """What an import did: runs that it added, and runs that were there already.

    `says` is a sentence on every added run whose evidence gives another verdict than its archive. The decision over a
    known run stays.
    """

    added: tuple[str, ...]
    known: tuple[str, ...]
    says: tuple[str, ...]


def take_in(history: History, paths: Paths, file: Path) -> Imported:
    """Import an archive with the files of its runs.

    Every run of the archive is read and compared with what is here before anything is written. Its runs are decided
    here by their evidence. After an interruption the import is repeated.

    Raises:
        UsageError: it is damaged or not an archive of ours, a run in it is dated in the future, or is here with another
            content.
        StorageError: the disk refuses it.
    """
    with reading(file) as archive:
        every = {run.id for run in history.summaries()}
        known = tuple(run_id for run_id in archive.runs if run_id in every)
        for run_id in archive.runs:
            whole = archive.run(run_id)
            if run_id in known:
                _check_same(archive, whole_run(history, run_id), whole)
            else:
                decided_here(history, whole)
        now, says = datetime.now(UTC), []
        for run_id in archive.runs:
            archive.keep_files(run_id, paths.tokens(run_id))
            if run_id not in known:
                arrival = decided_here(history, archive.run(run_id))
                put_run(history, arrival.whole, imported=now)
                says += [] if arrival.says is None else [arrival.says]
        return Imported(tuple(run_id for run_id in archive.runs if run_id not in known), known, tuple(says))


def _check_same(archive: Reader, ours: WholeRun, theirs: WholeRun) -> None:
    """Refuse a run that is here with another content. A decision is no content.

    Raises:
        UsageError: it is; says what differs.
    """
    parts = {
        "what it was": (_measured(ours.run), _measured(theirs.run)),
        "its measurements": (_lines(ours.measurements), _lines(theirs.measurements)),
        "its items": (_lines(ours.items), _lines(theirs.items)),
        "what failed": (_lines(ours.about.failures), _lines(theirs.about.failures)),
    }
    differing = [what for what, (mine, other) in parts.items() if mine != other]
    if differing:
        raise UsageError(
            "run-differs",
            f"Run {ours.run.id} is in this history with another content than in {archive.file} "
            f"({', '.join(differing)}); nothing was imported.",
        )


def _measured(run: RunRecord) -> list[str]:
    """The run's record without its decision, by its JSON, in which no NaN differs from itself."""
    return [run.model_copy(update={"verdict": None, "report": None, "circumstances": None}).model_dump_json()]


def _lines(records: Sequence[Record]) -> list[str]:
    return sorted(record.model_dump_json() for record in records)


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
    """Those of the archive, without people's decisions elsewhere."""
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
    return report.verdict, report.exit_code, lanes, tuple((c.id, c.verdict) for c in report.criteria)
