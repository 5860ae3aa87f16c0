"""One run, put together: targets, engines, probes, history, decision."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.floors import FloorKeeper, refuse_known
from app.material import check_suite, corpus_of, material_of
from app.targets import Target
from q36eval.checkpoints.inspection import Section
from q36eval.config import Family, Paths
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, UsageError
from q36eval.gate import GateReport, Policy, decide
from q36eval.history import History, RunRecord, RunState
from q36eval.locks import exclusive
from q36eval.probes import KeepsFiles, Probe
from q36eval.provenance import provenance
from q36eval.records import DeploymentIdentity, ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.runner import AskedDifferentlyError, Captures, MutedSink, Progress, Work, captured, plan_probes, run_probes

if TYPE_CHECKING:
    from kl.floor_file import ReferenceFloor
    from kl.planning import Material
    from q36eval.checkpoints.inspection import Inspection
    from q36eval.engines.in_process import InProcessEngine

ALL_PROBES = (ProbeName.WEIGHTS, ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)


@dataclass(frozen=True)
class Request:
    """What a person asked for: one branch against one reference."""

    family: Family
    branch: Target
    reference: Target
    suite: str
    policy: Policy | None
    probes: tuple[ProbeName, ...] = ALL_PROBES
    device: str = "cpu"
    emulate_activations: bool = True
    kv_cache_dtype: str | None = None
    """Of the branch; None is what it declares. The reference keeps the model's own dtype (`auto`)."""
    resume: str | None = None
    corpus: Path | None = None
    """A corpus file to measure the divergence on, instead of the suite's own corpus."""
    context: int | None = None
    """At most so many tokens are fed at a time, when a divergence is measured; None is the family's context length."""


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


def build_probes(
    names: Sequence[ProbeName], suite: str, paths: Paths, material: "Callable[[], Material]"
) -> list[Probe]:
    """The probes that ask something, for that suite; `material` is what divergences are measured on.

    Raises:
        UsageError: an unknown suite, or data that is not what its manifest says.
    """
    check_suite(suite, paths)
    found: list[Probe] = []
    if ProbeName.CANARIES in names:
        from app.on_policy import shipped_canaries
        from canaries.probe import CanaryProbe

        found.append(CanaryProbe(shipped_canaries()))
    if ProbeName.KL in names:
        from kl.probe import KLProbe

        scored = material()
        found.append(KLProbe(scored.documents, scored.context, scored.overlap, answers=scored.answers, notify=_tell))
    if ProbeName.EVALS in names:
        import evals
        from evals.probe import EvalsProbe

        suites = Path(evals.__file__).parent / "suites"
        found.append(EvalsProbe(suites / f"{suite}.yaml", data=paths.data / "tasks" / suite))
    return found


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def material(
    request: Request,
    reference: Callable[[], DeploymentIdentity],
    load_reference: "Callable[[], InProcessEngine]",
    paths: Paths,
    progress: Progress,
) -> "Material":
    """What divergences are measured on, for that request; the reference is loaded when it has not answered yet.

    Raises:
        UsageError: a corpus that cannot be used.
        EngineError: the reference could not answer.
    """
    corpus = corpus_of(request.suite, request.corpus, paths)
    limits = (request.family.context_length, request.context)
    return material_of(corpus, limits, reference(), load_reference, paths.captures, paths, progress)


def measure(request: Request, paths: Paths, history: History, progress: Progress) -> RunRecord:
    """Measure the branch anew (or continue the run to resume) and decide, if a policy was given.

    A checkpoint that cannot be what it says is a proven fault and is judged as one; trouble of the engine becomes a
    failed probe. The run is closed in every case but an interruption, which leaves it to be resumed.

    Raises:
        UsageError: the request cannot be met; the run to resume is finished, asked other things, or is being measured
            by another process.
    """
    reference = cache(partial(_reference_identity, request))
    load_reference = cache(partial(_load_reference, request))
    scored = partial(material, request, reference, load_reference, paths, progress)
    failures = []
    try:
        probes = build_probes(request.probes, request.suite, paths, scored)
    except EngineError as error:  # the reference gave no answers to score; what else was asked for is still measured
        failures.append(ProbeFailure(probe=ProbeName.KL, reason=str(error), kind="crashed"))
        rest = [name for name in request.probes if name is not ProbeName.KL]
        probes = build_probes(rest, request.suite, paths, scored)
    identity = reference()
    suites = {probe.name.value: probe.suite_sha256 for probe in probes}
    resume = request.resume
    run = _start(request, suites, paths, history) if resume is None else history.get_run(resume)
    with _held(run.id, paths):
        if resume is not None:
            run = _reopen(run.id, request, suites, history)
        for failure in failures:
            history.add_failure(run.id, failure)
        return _measure_run(request, identity, load_reference, probes, paths, history, run, progress)


class _LoadReference(Protocol):
    """Loads the reference, once until it is forgotten."""

    def __call__(self) -> "InProcessEngine": ...

    def cache_clear(self) -> None: ...


def _measure_run(
    request: Request,
    reference: DeploymentIdentity,
    load_reference: "_LoadReference",
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
            _run(request, reference, load_reference, probes, paths, RunSink(history, run.id), history, run, progress)
        except UsageError:
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


def _start(request: Request, suites: dict[str, str], paths: Paths, history: History) -> RunRecord:
    return history.start_run(
        family=request.family.name,
        branch=request.branch.name,
        identity=None,
        reference_identity=None,
        policy=request.policy,
        suites=suites,
        provenance=provenance(paths.repository),
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
    except BaseException:
        history.finish_run(run.id, state=RunState.INTERRUPTED)
        raise


def _run(
    request: Request,
    reference_identity: DeploymentIdentity,
    load_reference: "_LoadReference",
    probes: Sequence[Probe],
    paths: Paths,
    sink: RunSink,
    history: History,
    run: RunRecord,
    progress: Progress,
) -> None:
    from app.weights import integrity, measurements
    from q36eval.engines.in_process import load_tokenizer

    refuse_known(request.policy, reference_identity, probes, paths.captures)
    progress.stage("inspecting the checkpoint", 1)
    inspection = _inspect(request)
    damage = [] if inspection is None else inspection.blocking_in(Section.INTEGRITY)
    if inspection is not None and damage:
        for measurement in measurements(inspection):
            sink.add_measurement(measurement)
        _skip(probes, f"the checkpoint is damaged: {damage[0].message}", sink)
        return
    progress.stage("reading the checkpoint", 1)
    try:
        branch = _load(request.branch.folder, request, request.kv_cache_dtype)
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
    not_as_served = branch.ignores_activation_quantization
    if inspection is not None:
        for measurement in measurements(inspection, faults):
            # a fault is one whatever is emulated; that there is none is no statement about what is served
            if measurement.value > 0 or not not_as_served:
                sink.add_measurement(measurement)
    if faults:
        _skip(probes, faults[0], sink)
        return
    if not_as_served and inspection is not None:
        reason = "activation quantization was switched off, so this is not the deployment that is served"
        sink.add_failure(ProbeFailure(probe=ProbeName.WEIGHTS, reason=reason, kind="skipped"))
    floors = FloorKeeper(reference_identity, paths.captures, load_reference, request.policy, sink, progress)

    def on_captured(works: Sequence[Work], captures: Captures) -> None:
        floors.settle(works, captures)
        load_reference.cache_clear()  # its memory is the branch's from here on

    try:
        run_probes(
            branch,
            load_tokenizer(request.reference.folder),
            reference_identity,
            load_reference,
            probes,
            paths.captures,
            sink,
            progress,
            on_captured,
        )
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

    return inspect_checkpoint(request.branch.folder, request.reference.folder)


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


def _load(folder: Path, request: Request, kv_cache_dtype: str | None) -> "InProcessEngine":
    from q36eval.engines.in_process import InProcessEngine

    return InProcessEngine.load(
        folder,
        device=request.device,
        emulate_activations=request.emulate_activations,
        kv_cache_dtype=kv_cache_dtype,
    )


REFERENCE_KV_CACHE_DTYPE = "auto"


def _reference_identity(request: Request) -> DeploymentIdentity:
    from q36eval.engines.in_process import InProcessEngine

    try:
        return InProcessEngine.identity_of(
            request.reference.folder,
            device=request.device,
            emulate_activations=request.emulate_activations,
            kv_cache_dtype=REFERENCE_KV_CACHE_DTYPE,
        )
    except CorruptCheckpointError as error:
        raise UsageError(f"The reference cannot be used: {error}") from error


def _load_reference(request: Request) -> "InProcessEngine":
    try:
        return _load(request.reference.folder, request, REFERENCE_KV_CACHE_DTYPE)
    except CorruptCheckpointError as error:
        raise UsageError(f"The reference cannot be used: {error}") from error


def reference_floor(
    family: Family, reference: Target, suite: str, device: str, paths: Paths, progress: Progress
) -> "ReferenceFloor":
    """The noise floor of a reference on a suite, captured and measured first where it is not yet.

    Raises:
        UsageError: the reference or the suite cannot be used.
    """
    from q36eval.engines.in_process import load_tokenizer
    from q36eval.references import Capture

    request = Request(family, reference, reference, suite, policy=None, device=device)
    identity = _reference_identity(request)
    load_reference = cache(partial(_load_reference, request))
    scored = partial(material, request, lambda: identity, load_reference, paths, progress)
    probes = build_probes([ProbeName.KL], suite, paths, scored)
    works = plan_probes(probes, load_tokenizer(reference.folder), MutedSink())
    captures = captured(
        works,
        lambda probe: Capture(paths.captures, identity, probe.name, probe.suite_sha256),
        load_reference,
        progress,
    )
    keeper = FloorKeeper(identity, paths.captures, load_reference, None, MutedSink(), progress)
    found = keeper.floor(works[0], captures)
    if found is None:
        raise EngineError("The noise floor could not be measured: the KL probe planned nothing.")
    return found
