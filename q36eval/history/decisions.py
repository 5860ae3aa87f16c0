"""Decisions on a run's stored evidence, and the signatures that belong to them. Nothing is measured."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime

from pydantic import ValidationError

from q36eval.errors import UsageError
from q36eval.files import canonical_json
from q36eval.gate import Circumstances, GateReport, Policy, SignOff, Stage, Waiver, decide
from q36eval.history.attempts import tried_before
from q36eval.history.records import RunRecord
from q36eval.history.store import History
from q36eval.records import DeploymentIdentity, Measurement, ProbeFailure, ProbeName

OMITTED_WHEN_EMPTY = ("attempts",)
"""Fields that a report's hash omits if empty."""

PLANNED = "items_planned"
"""The figure for the planned number of a task's items."""

EVALUATED = "accuracy"
"""The figure whose counts give the evaluated number."""

WHOLE_SUITE = "suite"
"""The slice that holds the items of all tasks."""

CUT_SHORT = (
    "some tasks were evaluated only until the run's own policy was resolved, and of those another policy can judge "
    "only what was laid out for early looks: gate --exhaustive evaluates them in full"
)

Task = tuple[ProbeName, str]


@dataclass(frozen=True)
class WaiverSource:
    """Waivers that replace history's own, and their file."""

    file: str
    waivers: tuple[Waiver, ...]


def circumstances_on(
    history: History,
    run: RunRecord,
    on: date,
    *,
    source: WaiverSource | None = None,
    require_sign_off: bool = False,
) -> Circumstances:
    """The inputs of a decision over `run` on that day, besides its evidence.

    They include all waivers that are not revoked, even expired ones, so that the report can list them; with a `source`
    only its own. A run that was decided before keeps its blessed run (if blessed itself since then, it would be
    compared with itself) and its earlier gates.
    """
    waivers = history.waivers(run.family, run.branch).values() if source is None else source.waivers
    then = run.circumstances
    newest_blessings = history.blessings(run.branch, run.family)[:1]
    return Circumstances(
        on=on,
        waivers=tuple(waivers),
        waivers_from=None if source is None else source.file,
        blessed_run=next((b.run_id for b in newest_blessings), None) if then is None else then.blessed_run,
        require_sign_off=require_sign_off,
        tried=tried_before(history, run) if then is None else then.tried,
        supplies=None if then is None else then.supplies,
    )


def circumstances_then(history: History, run: RunRecord) -> Circumstances:
    """The stored inputs of the run's decision, besides its evidence.

    For a run that only measured they follow from its dates: the day it ended and the run blessed by then; no waivers.

    Raises:
        UsageError: the run was decided, and the circumstances are missing.
    """
    if run.circumstances is not None:
        return run.circumstances
    if run.report is not None:
        raise UsageError(
            "history-damaged",
            f"history holds run {run.id} without the circumstances of its verdict: the database is damaged.",
        )
    ended = run.finished or run.started
    earlier = (b for b in history.blessings(run.branch, run.family) if b.at <= ended and b.run_id != run.id)
    return Circumstances(on=ended.date(), blessed_run=next((b.run_id for b in earlier), None))


@dataclass(frozen=True)
class Blessed:
    """The measurements of a blessed run that others may be compared with; `refused` gives reasons for the rest."""

    measurements: tuple[Measurement, ...] = ()
    refused: Mapping[ProbeName, str] = field(default_factory=dict)


def blessed_beside(
    history: History, blessed_run: str | None, suites: Mapping[str, str], reference: DeploymentIdentity | None
) -> Blessed:
    """The blessed run's measurements that are comparable with a run of these suites and this reference.

    With another reference a divergence is another figure, and another version of a suite is another list of items: such
    measurements are left out, probe by probe. The branch itself may have changed, which is the question.
    """
    if blessed_run is None:
        return Blessed()
    then = history.get_run(blessed_run)
    measured = history.measurements(then.id)
    reasons = ((probe, _why_apart(then, probe, suites, reference)) for probe in sorted({m.probe for m in measured}))
    refused = {probe: why for probe, why in reasons if why is not None}
    return Blessed(tuple(m for m in measured if m.probe not in refused), refused)


def _why_apart(
    then: RunRecord, probe: ProbeName, suites: Mapping[str, str], reference: DeploymentIdentity | None
) -> str | None:
    again = "accept a run of today's with `q36eval review bless RUN`, then measure again"
    if then.suites.get(probe.value) != suites.get(probe.value):
        return f"the blessed run {then.id} evaluated another suite of {probe.value} (its hash differs); {again}"
    known = then.reference_identity
    if known == reference:
        return None
    fields = ["unknown"] if known is None or reference is None else known.differing_fields(reference)
    return f"the blessed run {then.id} was measured against another reference ({', '.join(fields)}); {again}"


@dataclass(frozen=True)
class Evidence:
    """All evidence in history for a decision over one run, without its circumstances."""

    measurements: tuple[Measurement, ...]
    failures: tuple[ProbeFailure, ...]
    stages: tuple[Stage, ...]
    sign_offs: tuple[SignOff, ...]
    blessed: "Blessed"


def evidence_of(
    history: History, run: RunRecord, circumstances: Circumstances, stages: Sequence[Stage] | None = None
) -> Evidence:
    """The evidence under a run; its stages are those of its report, unless they are given."""
    kept = () if run.report is None else run.report.stages
    return Evidence(
        measurements=tuple(history.measurements(run.id)),
        failures=tuple(history.failures(run.id)),
        stages=tuple(kept if stages is None else stages),
        sign_offs=tuple(history.sign_offs(run.id)),
        blessed=blessed_beside(history, circumstances.blessed_run, run.suites, run.reference_identity),
    )


def unsigned_report(policy: Policy, evidence: Evidence, circumstances: Circumstances) -> GateReport:
    """The report without any signature: the document that a reviewer signs."""
    return _decided(policy, evidence, circumstances, False, ())


def decided(policy: Policy, evidence: Evidence, circumstances: Circumstances) -> GateReport:
    """The report with the signatures for exactly this report; signatures under others do not count."""
    if not circumstances.require_sign_off and not evidence.sign_offs:
        return unsigned_report(policy, evidence, circumstances)
    sha256 = report_sha256(unsigned_report(policy, evidence, circumstances))
    valid = tuple(signature for signature in evidence.sign_offs if signature.report_sha256 == sha256)
    return _decided(policy, evidence, circumstances, circumstances.require_sign_off, valid)


def _decided(
    policy: Policy,
    evidence: Evidence,
    circumstances: Circumstances,
    require_sign_off: bool,
    sign_offs: tuple[SignOff, ...],
) -> GateReport:
    return decide(
        policy,
        evidence.measurements,
        circumstances.waivers,
        evidence.failures,
        on=circumstances.on,
        blessed=evidence.blessed.measurements,
        blessed_refused=evidence.blessed.refused,
        stages=evidence.stages,
        require_sign_off=require_sign_off,
        sign_offs=sign_offs,
        tried=circumstances.tried,
    )


def report_sha256(report: GateReport) -> str:
    """SHA-256 of a report's JSON with sorted keys and no white space.

    Empty `OMITTED_WHEN_EMPTY` fields are omitted, and so is every `code`, which repeats the kind of a stated reason: a
    signature under a report from before codes existed stays valid.
    """
    body = json.loads(report.model_dump_json())
    for coded in body["criteria"]:
        coded.pop("code", None)
    body = {name: value for name, value in body.items() if name not in OMITTED_WHEN_EMPTY or value}
    return hashlib.sha256(canonical_json(body, compact=True).encode()).hexdigest()


def policy_of(run: RunRecord) -> Policy:
    """The policy that a run was decided by, as it was kept.

    Raises:
        UsageError: the run was measured without a policy, is not decided yet, or its policy says what this version does
            not know.
    """
    if run.report is None or run.policy is None:
        what = f"it is {run.state}" if run.policy is not None else "it only measured"
        raise UsageError("run-without-verdict", f"Run {run.id} has no verdict: {what}.")
    try:
        return Policy.model_validate(run.policy)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UsageError(
            "policy-unreadable",
            f"The policy kept with run {run.id} cannot be read by this version (at {where}): replay it with the one "
            f"that decided it, commit {run.provenance.get('git_commit') or 'unknown'}.",
        ) from error


def replayed(history: History, run: RunRecord) -> GateReport:
    """The run's decision repeated, from its stored circumstances and the signatures of that time.

    Raises:
        UsageError: the run has no verdict.
    """
    policy = policy_of(run)
    circumstances = circumstances_then(history, run)
    evidence = evidence_of(history, run, circumstances)
    signed_by = () if run.report is None else run.report.signed_by
    known = tuple(signature for signature in evidence.sign_offs if signature in signed_by)
    return decided(policy, replace(evidence, sign_offs=known), circumstances)


def under(history: History, run: RunRecord, policy: Policy) -> GateReport:
    """Another policy's decision on the same evidence in the same circumstances, so that only the policy differs.

    No signature is requested: it belongs to the original verdict. In a task that the run's own policy stopped, another
    policy judges only the criteria that may be stopped, too.
    """
    circumstances = circumstances_then(history, run).model_copy(update={"tried": None})  # the own policy's attempts
    evidence = evidence_of(history, run, circumstances)
    tasks = tasks_cut_short(evidence.measurements)
    # when asking ended was decided by what was answered, and a test takes the number of items for fixed; what was laid
    # out in blocks may be stopped at any of them
    fit = tuple(m for m in evidence.measurements if m.laid_out or not of_cut_short(m, tasks))
    left_out = [
        ProbeFailure(probe=probe, reason=CUT_SHORT, kind="skipped") for probe in sorted({probe for probe, _ in tasks})
    ]
    return unsigned_report(
        policy, replace(evidence, measurements=fit, failures=(*evidence.failures, *left_out)), circumstances
    )


def sign(history: History, run: RunRecord, owner: str, reason: str) -> SignOff:
    """Sign a run as it was found.

    Raises:
        UsageError: it has no verdict; what this version finds is not what was reported; owner or reason is blank; or
            this owner has signed it before.
    """
    policy = policy_of(run)
    if run.report is None or report_sha256(replayed(history, run)) != report_sha256(run.report):
        raise UsageError(
            "report-outdated",
            f"Run {run.id} was decided by another version, and this one reaches another report: decide it again with "
            f"`q36eval gate --branch {run.branch} --resume {run.id} --require-sign-off`, then sign that report.",
        )
    if not owner.strip() or not reason.strip():
        raise UsageError("reason-required", "A sign-off needs an owner and a reason.")
    circumstances = circumstances_then(history, run)
    sha256 = report_sha256(unsigned_report(policy, evidence_of(history, run, circumstances), circumstances))
    signature = SignOff(owner=owner, reason=reason, at=datetime.now(UTC), report_sha256=sha256)
    history.add_sign_off(run.id, signature)
    return signature


def tasks_cut_short(measurements: Iterable[Measurement]) -> frozenset[Task]:
    """The tasks with fewer evaluated than planned items, by probe and slice."""
    figures = list(measurements)
    evaluated = {(m.probe, m.slice): m.counts.total for m in figures if m.metric == EVALUATED}
    planned = {(m.probe, m.slice): m.value for m in figures if m.metric == PLANNED}
    return frozenset(task for task, value in planned.items() if task in evaluated and evaluated[task] < value)


def of_cut_short(measurement: Measurement, tasks: Collection[Task]) -> bool:
    """Whether a figure belongs to such a task, or to several tasks including one."""
    if measurement.metric == PLANNED:
        return False
    if measurement.slice == WHOLE_SUITE or (measurement.probe, "all") in tasks:
        return any(probe == measurement.probe for probe, _ in tasks)
    return (measurement.probe, measurement.slice.partition("/")[0]) in tasks
