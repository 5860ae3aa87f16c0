"""One run, assembled: targets, engines, probes, history, decision."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from q36eval.chat.declared_template import TEMPLATE, DeclaredTemplate, recorded_template
from q36eval.checkpoints.open_checkpoints import OpenFolders, opened_once
from q36eval.config import Paths
from q36eval.errors import ChangedError, EngineError, Q36Error, StorageError, UsageError
from q36eval.gate import Circumstances, GateReport, Policy, PolicyRule, Stage
from q36eval.gate.declaration import DECLARED, declaration
from q36eval.history import EventKind, History, RunRecord, RunState
from q36eval.history.attempts import tried_before
from q36eval.history.decisions import blessed_beside, circumstances_on, decided, evidence_of
from q36eval.interrupts import closing
from q36eval.kl.corpus import CorpusDocument
from q36eval.locks import exclusive
from q36eval.probes import Probe, Progress
from q36eval.provenance import CHANGED, OPTIONS, provenance
from q36eval.records import DeploymentIdentity, ProbeFailure, ProbeName
from q36eval.run.branch import Running, RunSink
from q36eval.run.preflight import Prepared, all_probes, prepare, refuse
from q36eval.run.probe_set import published_facts, unsuited_probes
from q36eval.run.progress import Followed, note
from q36eval.run.request import ALL_PROBES, Request, another_request, run_finished
from q36eval.run.served_lane import ServedAlone, served_suite
from q36eval.run.suites import suite_place, supplies_of
from q36eval.run.templates import family_template

LOST = ("history-deleted", "history-replaced")
"""Codes of errors after which a run's measurements can no longer be read."""


def measure(request: Request, paths: Paths, history: History, progress: Progress) -> RunRecord:
    """Measure the branch (or continue the run to resume) and decide, if a policy was given.

    A checkpoint that contradicts its description is a proven fault and is judged as one; an engine error becomes a
    failed probe. The run is closed in every case but an interruption, which leaves it resumable.

    Raises:
        UsageError: the request cannot be met; the run to resume is finished, had another request, saw its checkpoint
            change, or is being measured by another process.
        ChangedError: a checkpoint changed meanwhile. There is no verdict, and the run is not resumed.
    """
    with opened_once() as folders:
        folders.measure_against(None if request.reference is None else request.reference.folder)
        with suppress(EngineError):  # the run reports it if it cannot be read
            folders.hold(request.branch.folder)  # its present state, however long the reference takes
        return _measure(request, folders, paths, history, progress)


def _measure(request: Request, folders: OpenFolders, paths: Paths, history: History, progress: Progress) -> RunRecord:
    prepared = prepare(request, paths)
    for hint in (problem for problem in prepared.problems if not problem.blocks):
        progress.note(hint.message)
    refuse(prepared.problems)
    template = prepared.template
    probes, failures = _probes(prepared, request, paths, progress)
    suites = {probe.name.value: probe.suite_sha256 for probe in probes} | served_suite(request)
    resume = request.resume
    facts = published_facts(request, probes)
    facts |= {} if template is None else {TEMPLATE: template.model_dump(mode="json")}
    run = _start(request, suites, facts, paths, history) if resume is None else history.get_run(resume)
    with _held(run.id, paths):
        if resume is not None:
            run = _reopen(run.id, request, suites, template, history)
            if run.policy is not None:  # titles may differ: judged as it will be replayed
                request = replace(request, policy=Policy.model_validate(run.policy))
        with _interruptible(history, run, resumable=not request.stands_alone):
            begun = EventKind.BEGUN if resume is None else EventKind.RESUMED
            note(history, run.id, begun, f"by process {os.getpid()}")
            for failure in (*failures, *unsuited_probes(request)):
                history.add_failure(run.id, failure)
            followed = Followed(progress, history, run.id)
            return _measure_run(request, prepared, probes, folders, paths, history, run, followed)


def _probes(
    prepared: Prepared, request: Request, paths: Paths, progress: Progress
) -> tuple[Sequence[Probe], Sequence[ProbeFailure]]:
    """The probes, before a run is begun, and why one is missing; the reference may have to answer for its texts."""
    if prepared.reference is None or prepared.reference.pack is not None:
        return prepared.probes, ()
    try:
        return all_probes(prepared, request, paths, progress), ()
    except KeyboardInterrupt as error:
        error.add_note("No run was begun yet: give the same command again.")
        raise
    except ChangedError:
        raise
    except EngineError as error:  # the reference gave no answers to score; the other probes are still measured
        failure = ProbeFailure(probe=ProbeName.KL, reason=str(error), kind="crashed")
        rest = [name for name in request.probes if name is not ProbeName.KL]
        return all_probes(prepared, request, paths, progress, rest), (failure,)


def _measure_run(
    request: Request,
    prepared: Prepared,
    probes: Sequence[Probe],
    folders: OpenFolders,
    paths: Paths,
    history: History,
    run: RunRecord,
    progress: Progress,
) -> RunRecord:
    for probe in probes:
        probe.keep_in(paths.tokens(run.id))
    source, sign_off = request.waivers_from, request.require_sign_off
    now = circumstances_on(history, run, datetime.now(UTC).date(), source=source, require_sign_off=sign_off)
    reference = prepared.reference
    running: Running | ServedAlone
    if reference is None:
        running = ServedAlone(request, history, run.id, RunSink(history, run.id), progress)
    else:
        rule = stopping_rule(request, history, run, reference.identity, now)
        texts = partial(_texts, request, paths)
        generates = prepared.generates
        running = Running(request, reference, probes, history, run, progress, rule, paths.state, texts, generates)
    try:
        running.measure()
    except (UsageError, StorageError, ChangedError):
        raise
    except Exception as error:  # the verdict must report missing measurements, whatever failed
        reason = str(error) if isinstance(error, Q36Error) else f"{type(error).__name__}: {error}"
        note(history, run.id, EventKind.ERROR, reason)
        for name in request.probes:
            history.add_failure(run.id, ProbeFailure(probe=name, reason=reason, kind="crashed"))
    folders.verify()
    # the deployment and the origin of its answers are known only now
    tried = tried_before(history, history.get_run(run.id))
    now = now.model_copy(update={"tried": tried, "supplies": supplies_of(request, probes, paths)})
    history.update_run(run.id, circumstances=now, timings=running.timings)
    report = None
    if request.policy is not None:
        report = judge(request.policy, request, history, run, now, running.stages)
    finished = history.finish_run(run.id, report)
    note(history, run.id, EventKind.FINISHED, "measured" if report is None else report.headline)
    return finished


def _texts(request: Request, paths: Paths) -> Sequence[CorpusDocument]:
    """The texts for the KL, whichever probes are part of the run; general texts if the suite has none."""
    from q36eval.run.materials import corpus_of

    corpus = request.corpus
    if corpus is None and suite_place(request.suite, paths).corpus is None:
        corpus = paths.data / "corpus" / "general.yaml"
    return corpus_of(request.suite, corpus, paths)[1]


def stopping_rule(
    request: Request, history: History, run: RunRecord, reference: DeploymentIdentity, now: Circumstances
) -> PolicyRule | None:
    """The rule for enough evidence; None if everything is to be evaluated.

    A run that began exhaustively stays exhaustive when resumed: its record and its model card say so.
    """
    if request.policy is None or request.exhaustive or run.provenance.get("exhaustive") is True:
        return None
    blessed = blessed_beside(history, now.blessed_run, run.suites, reference)
    return PolicyRule(request.policy, now.waivers, now.on, blessed.measurements)


def judge(
    policy: Policy,
    request: Request,
    history: History,
    run: RunRecord,
    now: Circumstances,
    stages: Sequence[Stage],
) -> GateReport:
    """The decision on the measurements in history."""
    for name in (each for each in ALL_PROBES if each not in request.probes):
        reason = f"the {name} probe is not part of this run"
        history.add_failure(run.id, ProbeFailure(probe=name, reason=reason, kind="skipped"))
    run = history.get_run(run.id)  # the reference's identity is known only now
    return decided(policy, evidence_of(history, run, now, stages), now)


def _start(
    request: Request, suites: dict[str, str], facts: dict[str, Any], paths: Paths, history: History
) -> RunRecord:
    made_with = provenance(paths.repository)
    return history.start_run(
        family=request.family.name,
        branch=request.branch.name,
        identity=None,
        reference_identity=None,
        policy=request.policy,
        suites=suites,
        provenance=made_with
        | facts
        | {"exhaustive": request.exhaustive or request.policy is None, "max_items": request.max_items or "all"}
        | _declaration(request)
        | ({OPTIONS: dict(request.options)} if request.options else {}),
    )


def _declaration(request: Request) -> dict[str, Any]:
    """The family's declaration of the branch, as stored; empty if its policy cannot be read."""
    if request.policy is None or request.declared is None:
        return {}
    against = "" if request.reference is None else request.reference.name
    declared = declaration(
        request.declared,
        lanes=request.family.lanes_of(request.branch.name),
        is_reference=request.branch.name == request.family.reference,
        against=against if against in request.family.branches and against != request.family.reference else "",
        template=family_template(request.family, request.branch.name) or "",
    )
    return {DECLARED: declared.model_dump(mode="json")}


@contextmanager
def _held(run_id: str, paths: Paths) -> Iterator[None]:
    """Lock the run for this process."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(paths.run_lock(run_id)))
        except BlockingIOError as error:
            raise UsageError(
                "already-running",
                f"Run {run_id} is being measured by another process; resume it when that one has ended.",
            ) from error
        yield


def _reopen(
    run_id: str, request: Request, suites: dict[str, str], template: DeclaredTemplate | None, history: History
) -> RunRecord:
    """The run to resume, read again under its lock: another process may have finished it meanwhile."""
    run = history.get_run(run_id)
    if run.state is RunState.FINISHED:
        raise run_finished(run.id)
    # without titles, which decide nothing
    kept = None if run.policy is None else Policy.model_validate(run.policy).untitled
    mine = (request.family.name, request.branch.name, suites, request.policy and request.policy.untitled)
    if (run.family, run.branch, run.suites, kept) != mine:
        raise another_request(run.id, run.branch)
    if run.provenance.get("max_items", "all") != (request.max_items or "all"):
        raise UsageError(
            "run-of-another-request", f"Run {run.id} was begun with another number of items; start a new run."
        )
    begun = recorded_template(run.provenance)
    if (None if begun is None else begun.sha256) != (None if template is None else template.sha256):
        named = "none" if begun is None else begun.sha256
        raise UsageError(
            "run-of-another-template",
            f"Run {run.id} was begun with another declared chat template ({named}); resume it with the same, or start "
            f"a new run.",
        )
    if CHANGED in run.provenance:
        raise UsageError("run-changed", f"Run {run.id} cannot be resumed, start a new one. {run.provenance[CHANGED]}")
    history.clear_failures(run.id)
    return history.update_run(run.id, state=RunState.RUNNING)


@contextmanager
def _interruptible(history: History, run: RunRecord, *, resumable: bool) -> Iterator[None]:
    """Leave the run resumable after any interruption; a run that had already ended keeps its verdict.

    One that is not `resumable` stays unchanged, for people to see.
    """
    try:
        yield
    except BaseException as error:
        _leave(history, run, error, resumable=resumable)
        raise


def _leave(history: History, run: RunRecord, error: BaseException, *, resumable: bool) -> None:
    ended = False
    if isinstance(error, ChangedError):
        history.update_run(run.id, provenance=history.get_run(run.id).provenance | {CHANGED: str(error)})
    with closing(), suppress(StorageError, UsageError):  # on a full disk it stays unchanged, and can be resumed, too
        ended = history.finish_run(run.id, state=RunState.INTERRUPTED).state is RunState.FINISHED
        if not ended:
            note(history, run.id, EventKind.INTERRUPTED, " ".join(str(error).split()) or type(error).__name__)
    if ended and isinstance(error, KeyboardInterrupt):
        error.add_note(f"Run {run.id} had ended, and keeps its verdict: q36eval history show {run.id}.")
    elif isinstance(error, StorageError) and error.code in LOST:
        error.add_note("What this run measured is lost with it; gate the branch again.")
    elif not ended and resumable and isinstance(error, KeyboardInterrupt | StorageError) and run.policy is not None:
        error.add_note(f"What was measured is kept; continue it with --resume {run.id}.")
