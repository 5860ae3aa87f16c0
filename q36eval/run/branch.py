"""The branch itself: inspected, loaded and evaluated, cheap evidence first; measurements are written immediately."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.chat import TemplateLimitError
from q36eval.chat.declared_template import TEMPLATE, DeclaredTemplate, prompts_of, recorded_template
from q36eval.checkpoints.inspection import Section
from q36eval.engines import Engine, EngineSettings, identity_of, open_engine
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.files import json_sha256
from q36eval.gate import Policy, PolicyRule, Stage, StageState
from q36eval.gate.margins import QUANTIZED_TENSORS, margins_held
from q36eval.history import EventKind, History, RunRecord
from q36eval.history.records import REFERENCE_ANSWERS
from q36eval.probes import Captures, OwnPrompts, Probe, Progress, Sink
from q36eval.provenance import STORED
from q36eval.records import DeploymentIdentity, ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.run.capture import PASSES, ReferenceAnswers
from q36eval.run.floor import FloorKeeper
from q36eval.run.items import SECOND, Work
from q36eval.run.memory_report import BATCHES, batches_line, limits, other_batches
from q36eval.run.preflight import problems_after_capture, problems_of_plan, refuse
from q36eval.run.progress import note
from q36eval.run.reference import Loader, Reference
from q36eval.run.request import Request, asks_endpoint, judges_serving_kl
from q36eval.run.rounds import Planned, TokenizedDifferentlyError, not_evaluated_after, plan_once, run_probes
from q36eval.run.serving_divergence import ServingAdds
from q36eval.run.templates import shipped_template
from q36eval.run.weights import integrity, measurements, names_of, promises_of
from q36eval.served.declared_server import SERVING_KL

if TYPE_CHECKING:
    from q36eval.checkpoints.inspection import Inspection
    from q36eval.kl.corpus import CorpusDocument

WEIGHTS_STAGE = ProbeName.WEIGHTS.value
SET_UP = "set-up"
"""Work before the first item: loading the branch, planning, and the reference if it was not captured."""
WORKERS = "workers"
"""The key in a run's provenance for the workers that were used, each time it was begun or resumed."""
HOLD_BOTH = frozenset({"cpu"})
"""Devices that hold branch and reference at once: incomparable deployments are found there before the reference is
evaluated. On a GPU the reference alone takes 65 GiB, and vLLM takes all free memory at its start."""


class RunSink(Sink):
    """Writes a run's outcomes, measurements and failures to history immediately."""

    def __init__(self, history: History, run_id: str) -> None:
        self._history, self._run_id = history, run_id

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self._history.add_items(self._run_id, list(outcomes))

    def add_measurement(self, measurement: Measurement) -> None:
        self._history.add_measurement(self._run_id, measurement)

    def add_failure(self, failure: ProbeFailure) -> None:
        self._history.add_failure(self._run_id, failure)
        if failure.kind == "crashed":
            note(self._history, self._run_id, EventKind.ERROR, f"{failure.probe}: {failure.reason}")

    def known_items(self) -> list[ItemOutcome]:
        return list(self._history.items(self._run_id))


@dataclass(frozen=True)
class AskedBefore:
    """The reference's work before the branch is read: its first answers, its noise floor, the seconds."""

    planned: Planned
    answers: ReferenceAnswers
    floor: Sequence[Measurement]
    seconds: float


@dataclass
class Running:
    """One active run. `stages` and `timings` (seconds) record what was evaluated so far, in which order."""

    request: Request
    reference: Reference
    probes: Sequence[Probe]
    history: History
    run: RunRecord
    progress: Progress
    rule: PolicyRule | None
    """Decides when the verdict is final, so that nothing more is evaluated; None evaluates everything."""
    state: Path
    """The folder of the working state."""
    texts: "Callable[[], Sequence[CorpusDocument]]"
    """The texts of the KL probe."""
    generates: bool | None
    """Whether the branch generates answers; None if its checkpoint cannot be read."""
    stages: list[Stage] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)

    _faults: list[str] | None = field(default=None, init=False)

    _asked: ReferenceAnswers | None = field(default=None, init=False)
    _judged_scales: str | None = field(default=None, init=False)
    """The cache scales that this run selected."""

    def __post_init__(self) -> None:
        self.sink = RunSink(self.history, self.run.id)
        self._branch = Loader(self._open)

    @property
    def _one_at_a_time(self) -> bool:
        """Whether the device cannot hold branch and reference at once."""
        return self.request.engine.device not in HOLD_BOTH

    @property
    def deployment(self) -> EngineSettings:
        """The settings to open the branch with; a resumed run keeps its selected cache scales."""
        settings, begun = self.request.deployment, self.run.identity
        judged = self._judged_scales if begun is None else begun.settings.get("kv_scales")
        return settings if judged is None or settings.kv_scales is not None else replace(settings, kv_scales=judged)

    def measure(self) -> None:
        """Inspect, load and evaluate the branch.

        Raises:
            UsageError: the plan or the reference's answers cannot satisfy the policy, or the run to resume began with
                another deployment.
            ChangedError: a checkpoint changed during inspection or loading.
        """
        self.progress.stage("inspecting the checkpoint", 1)
        started = time.monotonic()
        inspection = _inspect(self.request)
        self.timings[WEIGHTS_STAGE] = time.monotonic() - started
        if inspection is not None and inspection.coverage:
            self._record({STORED: inspection.stored})
        damage = [] if inspection is None else inspection.blocking_in(Section.INTEGRITY)
        if inspection is not None and (damage or self._decided_by(inspection)):
            self._stop_at_weights(inspection, damage[0].message if damage else None)
            return
        asked = self._reference_first()
        adding = None
        if judges_serving_kl(self.request):
            of = (self.request, self.history, self.run.id, self.reference.identity, self.sink, self.texts)
            adding = ServingAdds(*of)
            adding.decode_first(self.progress)  # before an engine that takes all free memory
        if self._loaded(inspection):
            self._compare(inspection, asked, adding)

    def _reference_first(self) -> AskedBefore | None:
        """If both models do not fit, have the reference answer each stage's first items, and measure its floor, before
        the branch is read.

        None if both fit, or if the branch is known to fail: that is reported when the branch is loaded and compared,
        without waiting for the reference.

        Raises:
            UsageError: the reference cannot be used, or the branch is refused.
        """
        reference, request = self.reference, self.request
        if not self._one_at_a_time or reference.load is None or reference.tokenizer is None:
            return None
        started = time.monotonic()
        try:
            identity = identity_of(self.deployment)
        except CorruptCheckpointError:
            return None
        if self._incomparable(identity) or self.generates is None:
            return None
        self.progress.stage("preparing the prompts", 1)
        try:
            whole = plan_once(self.probes, reference.tokenizer(), self.sink)
        except TemplateLimitError as error:
            raise UsageError(error.code, f"The reference cannot be used: {error}") from error
        refuse(problems_of_plan(request.policy, whole.works, request, reference, generates=self.generates))
        answers = self._answers(whole.works)
        stages = [(work, work.of_stage(stage)) for work in whole.works for stage in work.stages]
        answers.answer([(work, work.probe.answered_first(items)) for work, items in stages])
        floor = self._floor(whole.works, answers, self.progress)
        reference.load.forget()
        answers.seconds = 0.0
        return AskedBefore(whole, answers, floor, time.monotonic() - started)

    def _answers(self, works: Sequence[Work]) -> ReferenceAnswers:
        """The reference's answers to the plan; if both models do not fit, the branch is unloaded for them."""
        loader = self.reference.load

        def load() -> Engine:
            assert loader is not None, "it is called only where the reference can be loaded"
            if self._one_at_a_time:
                self._branch.forget()
            return loader()

        return self.reference.answers(works, self.progress, load=load, one_at_a_time=self._one_at_a_time)

    def _floor(self, works: Sequence[Work], captures: Captures, progress: Progress) -> list[Measurement]:
        """The reference's noise floor on the planned items, measured now if necessary."""
        reference, most = self.reference, self.request.floor_documents
        keeper = FloorKeeper(reference.identity, reference.root, reference.load, progress, most)
        return keeper.figures(works, captures)

    def _open(self) -> Engine:
        """The branch's engine; if both models do not fit, it owns the reference's memory from here on."""
        if self._one_at_a_time and self.reference.load is not None:
            self.reference.load.forget()
        branch = open_engine(self.deployment)
        branch.report_to(self._told)
        branch.keep_in(self.state / PASSES, self.progress.within)
        return branch

    def _loaded(self, inspection: "Inspection | None") -> bool:
        """Load the branch; False if it cannot be loaded, which is recorded as a proven fault."""
        from q36eval.run.cache_scales import CACHE_SCALES, judge_worse_scales

        self.progress.stage("reading the checkpoint", 1)
        started = time.monotonic()
        try:
            branch = self._branch()
        except CorruptCheckpointError as error:
            self._write([integrity([str(error)])] if inspection is None else measurements(inspection, [str(error)]))
            self._skip(f"the checkpoint could not be loaded: {error}")
            return False
        losses = judge_worse_scales(branch, self.deployment, self.texts)
        if losses is not None:
            self._judged_scales = losses.judged
            self._record({CACHE_SCALES: str(losses)})
            self.progress.stage(str(losses), 0)
        self._note_batches(branch)
        self._note_workers(branch)
        self.progress.advance()
        self.timings[SET_UP] = time.monotonic() - started
        return True

    def _record(self, facts: dict[str, Any]) -> None:
        """Add to the run's provenance."""
        made = self.history.get_run(self.run.id).provenance
        self.history.update_run(self.run.id, provenance=made | facts)

    def _note_batches(self, branch: Engine) -> None:
        """Report the batch limits, and a change of them since the run began."""
        plan = branch.batches()
        if plan is None:
            return
        self.progress.note(batches_line(plan))
        now, begun = limits(plan), self.history.get_run(self.run.id).provenance.get(BATCHES)
        if begun is None:
            self._record({BATCHES: now})
        elif begun != now:
            self._told(other_batches(begun, now))

    def _note_workers(self, branch: Engine) -> None:
        """Record the workers of the branch's engine, each time the run is begun or resumed."""
        if branch.spread is None:
            return
        run = self.history.get_run(self.run.id)
        spread = [*run.provenance.get(WORKERS, ()), dict(branch.spread)]
        self._record({WORKERS: spread})
        nodes = ", ".join(f"{count} on {node}" for node, count in branch.spread["nodes"].items())
        self.progress.note(f"Workers: {nodes}")

    def _told(self, sentence: str) -> None:
        self.progress.note(sentence)
        note(self.history, self.run.id, EventKind.RETRY, sentence)

    def _compare(self, inspection: "Inspection | None", asked: AskedBefore | None, adding: ServingAdds | None) -> None:
        """Everything that needs both deployments."""
        branch = self._branch()
        faults = self._identified(branch.identity)
        known = [] if inspection is None else self._static(inspection, branch.ignores_activation_quantization, faults)
        if faults:
            self._skip(faults[0])
            return
        if adding is not None:
            known += adding.measure(branch, self.progress)
            self.timings[SERVING_KL] = adding.seconds
        if asks_endpoint(self.request):
            known += self._served()
        del branch  # unloaded for the reference if both do not fit
        self._evaluate(known, asked)

    def _template(self) -> DeclaredTemplate | None:
        """The declaration of the branch's own chat template; None if it has the reference's, or no declaration.

        The declaration was checked before the run began.
        """
        declared = recorded_template(self.history.get_run(self.run.id).provenance)
        return declared if declared is not None and declared.is_own else None

    def _identified(self, identity: DeploymentIdentity) -> list[str]:
        """Record which two deployments are compared; returns why they cannot be."""
        faults = self._incomparable(identity)
        self.history.update_run(self.run.id, identity=identity, reference_identity=self.reference.identity)
        return faults

    def _incomparable(self, identity: DeploymentIdentity) -> list[str]:
        """Why the branch cannot be evaluated on the reference's items; checked once, as soon as it is identified.

        Raises:
            UsageError: the run to resume began with another deployment.
        """
        if self._faults is None:
            reference = self.reference.identity
            _check_resumed(self.run, identity, reference)
            compared = {"tokenizer": "tokenizer_sha256"}
            if self._template() is None:  # else its own declared template renders its prompts
                compared["chat template"] = "chat_template_sha256"
            self._faults = [
                f"the branch's {what} differs from the reference's, so it would get other tokens"
                for what, field in compared.items()
                if getattr(identity, field) != getattr(reference, field)
            ]
        return self._faults

    def _decided_by(self, inspection: "Inspection") -> tuple[str, ...]:
        """The criteria that make the verdict final on the weights alone."""
        return () if self.rule is None else self.rule.decided(measurements(inspection), {ProbeName.WEIGHTS})

    def _stop_at_weights(self, inspection: "Inspection", damage: str | None) -> None:
        """Load nothing: the file is damaged, or the weights make the verdict final."""
        figures, stands_by = measurements(inspection), self._decided_by(inspection)
        self._write(figures)
        if damage is None:
            self._identified(identity_of(self.deployment))
            reason = not_evaluated_after(WEIGHTS_STAGE, stands_by)
        else:
            reason = f"the checkpoint is damaged: {damage}"
        self._weights_stage(figures, stands_by)
        self.stages += [
            Stage(name=probe.name.value, state=StageState.NOT_EVALUATED, items=0, planned=0) for probe in self.probes
        ]
        self._skip(reason)

    def _static(self, inspection: "Inspection", not_as_served: bool, faults: list[str]) -> list[Measurement]:
        """Write the inspection's findings, and the reasons for missing ones."""
        figures = [
            measurement
            for measurement in measurements(inspection, faults)
            # a fault is valid whatever is emulated; the absence of faults, and the scheme, are about the served
            # checkpoint
            if not not_as_served or (measurement.value > 0 and measurement.metric != QUANTIZED_TENSORS)
        ]
        self._write(figures)
        self._weights_stage(figures, ())
        reasons = []
        if not_as_served:
            reasons.append("activation quantization was switched off, so this is not the deployment that is served")
        if self.request.reference is None:
            reasons.append("the reference's weights are not on this machine, so nothing is compared with them")
        for reason in [] if faults else reasons:
            self.sink.add_failure(ProbeFailure(probe=ProbeName.WEIGHTS, reason=reason, kind="skipped"))
        return figures

    def _served(self) -> list[Measurement]:
        """Query the endpoint itself, without a reference; nothing for an engine that is not an endpoint."""
        from q36eval.run.served_lane import ServedRequest, measure_served_branch, stage_of

        started = time.monotonic()
        figures = measure_served_branch(ServedRequest.of(self.request), self.sink, self.progress)
        self.timings[ProbeName.SERVED.value] = time.monotonic() - started
        self.stages.append(stage_of(figures))
        return figures

    def _weights_stage(self, figures: Sequence[Measurement], stands_by: tuple[str, ...]) -> None:
        """The inspection as a stage; its items are the inspected tensors."""
        items = max((measurement.counts.total for measurement in figures), default=0)
        self.stages.append(
            Stage(name=WEIGHTS_STAGE, state=StageState.MEASURED, items=items, planned=items, settled=stands_by)
        )

    def _evaluate(self, known: Sequence[Measurement], asked: AskedBefore | None) -> None:
        """Evaluate everything that needs the branch's answers, against the reference's."""
        reference, policy = self.reference, self.request.policy
        if policy is not None:
            policy = margins_held(policy, known).policy

        def keep_prompts(by_probe: Mapping[ProbeName, OwnPrompts]) -> None:
            figures = {
                probe.value: prompts_of(own.prompts, own.differing, own.unwritten, own.first)
                for probe, own in by_probe.items()
            }
            assert template is not None, "it was declared"
            rendered = template.model_copy(update={"prompts": figures})
            self._record({TEMPLATE: rendered.model_dump(mode="json")})

        template = self._template()
        tokenizer = self._branch().tokenizer if reference.tokenizer is None else reference.tokenizer()
        try:
            evaluated = run_probes(
                self._branch,
                tokenizer,
                partial(self._answers_of, policy, asked),
                self.probes,
                self.sink,
                self.progress,
                self.rule,
                known,
                None if template is None else keep_prompts,
                None if asked is None else asked.planned,
                partial(self._answered, policy, asked),
            )
        except (TokenizedDifferentlyError, TemplateLimitError) as error:
            self._write([integrity([str(error)])])
            self._skip(str(error))
            return
        except CorruptCheckpointError as error:  # for a model whose layers are decoded during the evaluation
            self._write([integrity([str(error)])])
            self._skip(f"the checkpoint could not be loaded: {error}")
            return
        finally:
            if reference.load is not None:
                reference.load.forget()
            reference.keep_templates()
        self._keep_reference_answers()
        self.stages += evaluated.stages
        self.timings[SET_UP] += evaluated.seconds.pop("reference") + (0.0 if asked is None else asked.seconds)
        self.timings |= evaluated.seconds

    def _answers_of(self, policy: Policy | None, before: AskedBefore | None, works: Sequence[Work]) -> ReferenceAnswers:
        """The reference's answers to these works, captured as needed."""
        if before is None:
            refuse(problems_of_plan(policy, works, self.request, self.reference, generates=self.generates))
        self._asked = self._answers(works) if before is None else before.answers
        return self._asked

    def _answered(self, policy: Policy | None, before: AskedBefore | None, work: Work) -> None:
        """Check that the reference's first answers of a stage can satisfy the policy; the KL also measures the noise
        floor."""
        assert self._asked is not None, "the reference has answered"
        name, floor = work.probe.name, list[Measurement]()
        if name is ProbeName.KL:
            floor += self._floor([work], self._asked, self._asked.progress) if before is None else before.floor
        if policy is not None:
            asked = self._asked.asked(name).keys()
            refuse(problems_after_capture(policy, work, asked, self._asked[name], floor))
        self._write(floor)

    def _keep_reference_answers(self) -> None:
        """Record which answers of the reference the branch is compared with: a new capture may differ."""
        assert self._asked is not None, "the reference has answered"
        known = {}
        for name, capture in self._asked.items():
            asked = sorted(self._asked.first.get(name, ()))  # the number of later rounds depends on the branch
            keys = [key for item in asked for key in (item, item + SECOND) if key in capture]
            known[name.value] = f"{json_sha256(asked)[:16]}:{capture.content_sha256(keys)}"
        self._record({REFERENCE_ANSWERS: known})

    def _write(self, measurements: Sequence[Measurement]) -> None:
        for measurement in measurements:
            self.sink.add_measurement(measurement)

    def _skip(self, reason: str) -> None:
        for probe in self.probes:
            self.sink.add_failure(ProbeFailure(probe=probe.name, reason=reason, kind="skipped"))


def _check_resumed(run: RunRecord, branch: DeploymentIdentity, reference: DeploymentIdentity) -> None:
    """Refuse to resume a run with other deployments than it began with.

    Raises:
        UsageError: one of them differs; names the fields.
    """
    if run.identity is not None and run.identity != branch:
        differing = ", ".join(run.identity.differing_fields(branch))
        raise UsageError(
            "run-of-another-deployment",
            f"Run {run.id} measured another deployment ({differing} differ); start a new run.",
        )
    if run.reference_identity is not None and run.reference_identity != reference:
        raise UsageError(
            "run-of-another-reference", f"Run {run.id} was measured against another reference; start a new run."
        )


def _inspect(request: Request) -> "Inspection | None":
    """The static probe, before anything is loaded; None if it is not part of the run."""
    if ProbeName.WEIGHTS not in request.probes:
        return None
    from q36eval.checkpoints.inspection import inspect_checkpoint

    return inspect_checkpoint(
        request.branch.folder,
        None if request.reference is None else request.reference.folder,
        promises=promises_of(request.family, request.branch.name),
        named=names_of(request.family, request.branch),
        scheme=request.scheme,
        template=shipped_template(request.family, request.branch, request.template),
    )
