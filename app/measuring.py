"""One run, put together: targets, engines, probes, history, decision."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.floors import FloorKeeper, refuse_known
from app.measured_on import published_facts
from app.probing import SHIPPED_CANARIES, CanaryChoice, Limits, Scored, build_probes, material
from app.readable import check_readable
from app.referencing import Reference, local_reference, packed_reference
from app.showable import refuse_unshowable
from app.targets import Target
from q36eval.asking import Work
from q36eval.checkpoints.inspection import Section
from q36eval.config import Family, Paths
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, StorageError, UsageError
from q36eval.gate import GateReport, Policy, PolicyRule, decide
from q36eval.history import History, RunRecord, RunState
from q36eval.locks import exclusive
from q36eval.probes import KeepsFiles, Probe
from q36eval.provenance import provenance
from q36eval.records import DeploymentIdentity, ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.runner import AskedDifferentlyError, run_probes
from q36eval.sinks import Captures, Progress

if TYPE_CHECKING:
    from q36eval.checkpoints.inspection import Inspection
    from q36eval.engines.in_process import InProcessEngine

ALL_PROBES = (ProbeName.WEIGHTS, ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)


@dataclass(frozen=True)
class Request:
    """What a person asked for: one branch against one reference."""

    family: Family
    branch: Target
    reference: Target | None
    """None where its weights are not on this machine: then `reference_pack` stands for it."""
    suite: str
    policy: Policy | None
    probes: tuple[ProbeName, ...] = ALL_PROBES
    device: str = "cpu"
    emulate_activations: bool = True
    kv_cache_dtype: str | None = None
    """Of the branch; None is what it declares. The reference keeps the model's own dtype (`auto`)."""
    batch_rows: int | None = None
    """At most so many answers of the branch are generated together; None leaves that to the engine. The reference's
    answers stay what they are."""
    resume: str | None = None
    corpus: Path | None = None
    """A corpus file to measure the divergence on, instead of the suite's own corpus."""
    context: int | None = None
    """At most so many tokens are fed at a time, when a divergence is measured; None is the family's context length."""
    reference_pack: Path | None = None
    """A pack captured before, perhaps elsewhere; otherwise the reference is captured here when need be."""
    exhaustive: bool = False
    """Ask everything, also of a task of which all that the policy judges is settled."""
    max_items: int | None = None
    """Of each eval task at most so many items, in whole blocks."""
    top_k: int | None = None
    """Bound KL from below by so many log-probabilities a position, instead of measuring it."""
    canaries: CanaryChoice = SHIPPED_CANARIES
    allow_code_execution: bool = False
    """Whether task groups that run programs which the model wrote are measured."""


class RunSink:
    """Writes a run's outcomes, measurements and failures to history at once."""

    def __init__(self, history: History, run_id: str) -> None:
        self._history, self._run_id = history, run_id

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self._history.add_items(self._run_id, list(outcomes))

    def add_measurement(self, measurement: Measurement) -> None:
        self._history.add_measurement(self._run_id, measurement)

    def add_failure(self, failure: ProbeFailure) -> None:
        self._history.add_failure(self._run_id, failure)

    def known_items(self) -> list[ItemOutcome]:
        return list(self._history.items(self._run_id))


def measure(request: Request, paths: Paths, history: History, progress: Progress) -> RunRecord:
    """Measure the branch anew (or continue the run to resume) and decide, if a policy was given.

    A checkpoint that cannot be what it says is a proven fault and is judged as one; trouble of the engine becomes a
    failed probe. The run is closed in every case but an interruption, which leaves it to be resumed.

    Raises:
        UsageError: the request cannot be met; the run to resume is finished, asked other things, or is being measured
            by another process.
    """
    reference = reference_of(request, paths)
    scored = Scored(request.suite, request.family.context_length, request.corpus, request.context)
    failures = []
    try:
        probes = _probes(request.probes, request, scored, reference, paths, progress)
    except EngineError as error:  # the reference gave no answers to score; what else was asked for is still measured
        failures.append(ProbeFailure(probe=ProbeName.KL, reason=str(error), kind="crashed"))
        rest = [name for name in request.probes if name is not ProbeName.KL]
        probes = _probes(rest, request, scored, reference, paths, progress)
    suites = {probe.name.value: probe.suite_sha256 for probe in probes}
    resume = request.resume
    facts = published_facts(request, probes)
    run = _start(request, suites, facts, paths, history) if resume is None else history.get_run(resume)
    with _held(run.id, paths):
        if resume is not None:
            run = _reopen(run.id, request, suites, history)
        for failure in failures:
            history.add_failure(run.id, failure)
        return _measure_run(request, reference, probes, paths, history, run, progress)


def reference_of(request: Request, paths: Paths) -> Reference:
    """What the branch is compared with.

    Raises:
        UsageError: it cannot be used, or is not what the branch can be compared with.
    """
    if request.reference_pack is not None:
        return packed_reference(request.reference_pack, request.branch.folder, request.reference, request.family)
    if request.reference is None:
        raise UsageError("There is no reference: name its checkpoint, or a pack that was captured from it.")
    return local_reference(
        request.reference.folder,
        paths.captures,
        device=request.device,
        emulate_activations=request.emulate_activations,
    )


def _probes(
    names: Sequence[ProbeName], request: Request, scored: Scored, reference: Reference, paths: Paths, progress: Progress
) -> list[Probe]:
    asked_on = partial(material, scored, reference, paths, progress)
    limits = limits_of(request, reference)
    return reference.fitted(build_probes(names, request.suite, paths, asked_on, limits), request.top_k)


def limits_of(request: Request, reference: Reference) -> Limits:
    """How much of its suite a request asks."""
    return Limits(
        family=request.family,
        canaries=request.canaries,
        max_items=request.max_items,
        allow_code_execution=request.allow_code_execution,
        tokenizer_sha256=reference.identity.tokenizer_sha256,
    )


def _measure_run(
    request: Request,
    reference: Reference,
    probes: Sequence[Probe],
    paths: Paths,
    history: History,
    run: RunRecord,
    progress: Progress,
) -> RunRecord:
    for probe in probes:
        if isinstance(probe, KeepsFiles):
            probe.keep_in(paths.tokens(run.id))
    with _interruptible(history, run):
        try:
            _run(request, reference, probes, RunSink(history, run.id), history, run, progress)
        except (UsageError, StorageError):
            raise
        except Exception as error:  # the verdict must say what was not measured, whatever broke
            reason = str(error) if isinstance(error, Q36Error) else f"{type(error).__name__}: {error}"
            for name in request.probes:
                history.add_failure(run.id, ProbeFailure(probe=name, reason=reason, kind="crashed"))
        report = None if request.policy is None else judge(request.policy, request, history, run)
        return history.finish_run(run.id, report)


def judge(policy: Policy, request: Request, history: History, run: RunRecord) -> GateReport:
    """The decision over what is in history."""
    waivers = list(history.waivers(request.family.name, request.branch.name).values())
    for name in ALL_PROBES:
        if name not in request.probes:
            history.add_failure(run.id, ProbeFailure(probe=name, reason="it was not asked for", kind="skipped"))
    return decide(policy, history.measurements(run.id), waivers, history.failures(run.id), on=datetime.now(UTC).date())


def _start(
    request: Request, suites: dict[str, str], facts: dict[str, Any], paths: Paths, history: History
) -> RunRecord:
    return history.start_run(
        family=request.family.name,
        branch=request.branch.name,
        identity=None,
        reference_identity=None,
        policy=request.policy,
        suites=suites,
        provenance=provenance(paths.repository)
        | facts
        | {"exhaustive": request.exhaustive or request.policy is None, "max_items": request.max_items or "all"},
    )


@contextmanager
def _held(run_id: str, paths: Paths) -> Iterator[None]:
    """The run is measured by this process only."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(paths.run_lock(run_id)))
        except BlockingIOError as error:
            raise UsageError(
                f"Run {run_id} is being measured by another process; resume it when that one has ended."
            ) from error
        yield


def _reopen(run_id: str, request: Request, suites: dict[str, str], history: History) -> RunRecord:
    """The run to resume, read again now that it is held: another process may have finished it meanwhile."""
    run = history.get_run(run_id)
    if run.state is RunState.FINISHED:
        raise UsageError(f"Run {run.id} is finished; start a new one without --resume.")
    policy = None if request.policy is None else json.loads(request.policy.model_dump_json())
    mine = (request.family.name, request.branch.name, suites, policy)
    if (run.family, run.branch, run.suites, run.policy) != mine:
        raise UsageError(f"Run {run.id} asked other things of {run.branch}; it cannot be resumed for this request.")
    history.clear_failures(run.id)
    return history.update_run(run.id, state=RunState.RUNNING)


@contextmanager
def _interruptible(history: History, run: RunRecord) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with suppress(StorageError):  # on a full disk it stays as it is, which can be resumed just as well
            history.finish_run(run.id, state=RunState.INTERRUPTED)
        if isinstance(error, KeyboardInterrupt | StorageError) and run.policy is not None:
            error.add_note(f"What was measured is kept; continue it with --resume {run.id}.")
        raise


def _run(
    request: Request,
    reference: Reference,
    probes: Sequence[Probe],
    sink: RunSink,
    history: History,
    run: RunRecord,
    progress: Progress,
) -> None:
    from app.weights import integrity, measurements

    reference_identity = reference.identity
    refuse_known(request.policy, reference_identity, probes, reference.root, reference.pack)
    progress.stage("inspecting the checkpoint", 1)
    check_readable(request.branch.folder)
    inspection = _inspect(request)
    damage = [] if inspection is None else inspection.blocking_in(Section.INTEGRITY)
    if inspection is not None and damage:
        for measurement in measurements(inspection):
            sink.add_measurement(measurement)
        _skip(probes, f"the checkpoint is damaged: {damage[0].message}", sink)
        return
    progress.stage("reading the checkpoint", 1)
    try:
        branch = load_branch(request)
    except CorruptCheckpointError as error:
        found = [integrity([str(error)])] if inspection is None else measurements(inspection, [str(error)])
        for measurement in found:
            sink.add_measurement(measurement)
        _skip(probes, f"the checkpoint could not be loaded: {error}", sink)
        return
    progress.advance()
    _check_resumed(run, branch.identity, reference_identity)
    history.update_run(run.id, identity=branch.identity, reference_identity=reference_identity)
    faults = incomparable(branch.identity, reference_identity)
    if inspection is not None:
        _static(inspection, request, branch, faults, sink)
    if faults:
        _skip(probes, faults[0], sink)
        return
    _ask(branch, reference, probes, request, sink, progress)


def _static(
    inspection: "Inspection", request: Request, branch: "InProcessEngine", faults: list[str], sink: RunSink
) -> None:
    """Write what the inspection found, and why it says less than it could."""
    from app.weights import measurements

    not_as_served = branch.ignores_activation_quantization
    for measurement in measurements(inspection, faults):
        # a fault is one whatever is emulated; that there is none is no statement about what is served
        if measurement.value > 0 or not not_as_served:
            sink.add_measurement(measurement)
    reasons = []
    if not_as_served:
        reasons.append("activation quantization was switched off, so this is not the deployment that is served")
    if request.reference is None:
        reasons.append("the reference's weights are not on this machine, so nothing is compared with them")
    for reason in [] if faults else reasons:
        sink.add_failure(ProbeFailure(probe=ProbeName.WEIGHTS, reason=reason, kind="skipped"))


def _ask(
    branch: "InProcessEngine",
    reference: Reference,
    probes: Sequence[Probe],
    request: Request,
    sink: RunSink,
    progress: Progress,
) -> None:
    """Everything that needs an answer of the branch, against what is captured of the reference."""
    from app.weights import integrity

    policy = request.policy
    rule = None if policy is None or request.exhaustive else PolicyRule(policy)
    floors = FloorKeeper(reference.identity, reference.root, reference.load, policy, sink, progress)

    def captures_of(works: Sequence[Work]) -> Captures:
        captures = reference.captures(works, progress)
        floors.settle(works, captures)
        if reference.load is not None:
            reference.load.forget()  # its memory is the branch's from here on
        if policy is not None:
            refuse_unshowable(policy, works, captures)
        return captures

    try:
        tokenizer = branch.tokenizer if reference.tokenizer is None else reference.tokenizer()
        run_probes(branch, tokenizer, captures_of, probes, sink, progress, rule)
    except AskedDifferentlyError as error:
        sink.add_measurement(integrity([str(error)]))
        _skip(probes, str(error), sink)


def _check_resumed(run: RunRecord, branch: DeploymentIdentity, reference: DeploymentIdentity) -> None:
    """A resumed run goes on with the very deployments it began with.

    Raises:
        UsageError: one of them is another; names the fields.
    """
    if run.identity is not None and run.identity != branch:
        differing = ", ".join(run.identity.differing_fields(branch))
        raise UsageError(f"Run {run.id} measured another deployment ({differing} differ); start a new run.")
    if run.reference_identity is not None and run.reference_identity != reference:
        raise UsageError(f"Run {run.id} was measured against another reference; start a new run.")


def _inspect(request: Request) -> "Inspection | None":
    """The static probe, before anything is loaded; None when it was not asked for."""
    if ProbeName.WEIGHTS not in request.probes:
        return None
    from q36eval.checkpoints.inspection import inspect_checkpoint

    return inspect_checkpoint(request.branch.folder, None if request.reference is None else request.reference.folder)


def _skip(probes: Sequence[Probe], reason: str, sink: RunSink) -> None:
    for probe in probes:
        sink.add_failure(ProbeFailure(probe=probe.name, reason=reason, kind="skipped"))


def incomparable(branch: DeploymentIdentity, reference: DeploymentIdentity) -> list[str]:
    """Why the branch cannot be asked the reference's questions, one sentence each."""
    return [
        f"the branch's {what} differs from the reference's, so it is asked other tokens"
        for what, field in (("tokenizer", "tokenizer_sha256"), ("chat template", "chat_template_sha256"))
        if getattr(branch, field) != getattr(reference, field)
    ]


def load_branch(request: Request) -> "InProcessEngine":
    from q36eval.engines.in_process import InProcessEngine

    return InProcessEngine.load(
        request.branch.folder,
        device=request.device,
        emulate_activations=request.emulate_activations,
        kv_cache_dtype=request.kv_cache_dtype,
        batch_rows=request.batch_rows,
    )
