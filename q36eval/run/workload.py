"""The planned computation of a run and its batches: known before any weight is read and anything is measured."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from q36eval.checkpoints import load_tokenizer
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.config import Paths
from q36eval.engines import EngineOptions, as_reference, planned
from q36eval.engines.batches import generation_batches, scoring_batches, with_news
from q36eval.engines.memory_plan import MemoryPlan
from q36eval.history import History, RunState
from q36eval.probes import Probe, Progress, Sink
from q36eval.records import ProbeName
from q36eval.run.floor import floor_file
from q36eval.run.items import Work
from q36eval.run.materials import corpus_of, material_of, on_policy_prompts
from q36eval.run.pack import CaptureRequest, reference_to_capture
from q36eval.run.preflight import Prepared, prepare, problems_of_plan, refuse
from q36eval.run.probe_set import Limits, Scored, build_probes, material
from q36eval.run.reference import Reference
from q36eval.run.request import Request
from q36eval.run.rounds import plan_probes

if TYPE_CHECKING:
    from q36eval.kl.planning import Material


@dataclass(frozen=True)
class StagePlan:
    """One deployment's work in one stage: requests, their tokens, and the number of batches.

    `seconds` is the time in the newest run of the same branch, suite and device; None without one.
    """

    deployment: str
    stage: str
    items: int
    scored: int = 0
    scored_tokens: int = 0
    scoring_batches: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    """Maximum."""
    answering_batches: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class RunPlan:
    """The batches of every deployment by its name, its stages, and the unknowns before work begins."""

    batches: dict[str, MemoryPlan]
    stages: tuple[StagePlan, ...]
    unknown: tuple[str, ...]


def planned_run(request: Request, paths: Paths, history: History | None, prepared: Prepared | None = None) -> RunPlan:
    """What `measure` would do for that request, which may be `prepared`.

    Raises:
        UsageError, CorruptCheckpointError: as `measure`.
    """
    with opened_once() as folders:
        folders.measure_against(None if request.reference is None else request.reference.folder)
        prepared = prepared or prepare(request, paths)
        refuse(prepared.problems)
        reference, branch = prepared.reference, request.branch
        assert reference is not None, "without one there is a problem"
        scored = Scored(request.suite, request.family.context_length, request.corpus)
        capturing = CaptureRequest(branch, scored, request.probes)
        works, unknown = _works(capturing, prepared.limits, reference, paths, prepared.probes)
        if request.resume is None:
            # the KL's items depend on the reference's own answers, which are not awaited here
            others = [work for work in works if work.probe.name is not ProbeName.KL]
            refuse(problems_of_plan(request.policy, others, request, reference, generates=prepared.generates))
        batches: dict[str, MemoryPlan] = {}
        own = planned(request.deployment)
        if own is not None:
            batches[branch.name] = own
        stages = [*_of_reference(works, reference, batches, as_reference(request.engine), unknown)]
        seconds = _seconds(request, works, history)
        for work in works:
            for stage in work.stages or [""]:
                asked = replace(work, items=work.of_stage(stage))
                row = _stage(branch.name, stage or work.probe.name.value, asked, own)
                stages.append(replace(row, seconds=seconds.get(row.stage)))
    return RunPlan(batches, tuple(stages), tuple(unknown))


def planned_capture(request: CaptureRequest, paths: Paths) -> RunPlan:
    """What `q36eval.run.pack.capture` would do; raises as it does."""
    with opened_once():
        reference, limits = reference_to_capture(request, paths)
        works, unknown = _works(request, limits, reference, paths)
        batches: dict[str, MemoryPlan] = {}
        own = as_reference(request.engine, by=request.engine.kind)
        stages = tuple(_of_reference(works, reference, batches, own, unknown))
    return RunPlan(batches, stages, tuple(unknown))


def _works(
    request: CaptureRequest, limits: Limits, reference: Reference, paths: Paths, built: Sequence[Probe] = ()
) -> tuple[list[Work], list[str]]:
    """The probes with their items, and the unknown parts."""
    unknown: list[str] = []
    scored_on = partial(_material, request.scored, reference, paths, unknown)
    probes = build_probes(request.probes, request.scored.suite, paths, scored_on, limits, built)
    reference.check(probes)
    folder = request.reference.folder
    tokenizer = load_tokenizer(folder) if reference.tokenizer is None else reference.tokenizer()
    works = plan_probes(probes, tokenizer, Sink())
    unknown += [f"the items of {work.probe.name}: {work.failed}" for work in works if work.failed is not None]
    if any(work.probe.follows_up for work in works):
        unknown.append("texts that follow from the reference's answers, which the branch scores too")
    return works, unknown


def _material(scored: Scored, reference: Reference, paths: Paths, unknown: list[str]) -> "Material":
    """As `q36eval.run.probe_set.material`, but without sampling."""
    from q36eval.kl.on_policy import Sampled, answers_path, prompts_sha256

    config, documents = corpus_of(scored.suite, scored.corpus, paths)
    prompts = [] if config.on_policy is None else on_policy_prompts(config.on_policy, paths)
    if reference.pack is None and prompts and config.on_policy is not None:
        identity, settings = reference.identity, config.on_policy
        sampled = Sampled(identity=identity, prompts_sha256=prompts_sha256(prompts), settings=settings)
        if not answers_path(reference.root, sampled).exists():
            unknown.append(f"the reference's own answers to {len(prompts)} prompts, which it is scored on too")
            without = (config.model_copy(update={"on_policy": None}), documents)
            context, ask = scored.family_context, reference.engine
            return material_of(without, context, identity, ask, reference.root, paths, Progress())
    return material(scored, reference, paths, Progress())


def _of_reference(
    works: Sequence[Work],
    reference: Reference,
    batches: dict[str, MemoryPlan],
    engine: EngineOptions,
    unknown: list[str],
) -> Iterator[StagePlan]:
    """The uncaptured part of the reference, opened by `engine`; its batches are added to `batches` if there is such a
    part."""
    captures = {work.probe.name: reference.open(work.probe) for work in works}
    absent = [replace(work, done=frozenset(captures[work.probe.name])) for work in works]
    absent = [work for work in absent if work.todo]
    if reference.load is None or reference.folder is None or not absent:
        return
    own = planned(engine.of(reference.folder))
    if own is not None:
        batches["reference"] = own
    for work in absent:
        yield _stage("reference", work.probe.name.value, work, own)
    for work in absent:
        is_full = work.probe.name is ProbeName.KL and work.probe.kind == "hidden-states"
        if is_full and not floor_file(reference.root, reference.identity, work.probe).exists():
            unknown.append("the time of the reference's noise floor, which is the KL's texts once more for each way")


def _stage(deployment: str, name: str, work: Work, plan: MemoryPlan | None) -> StagePlan:
    """The stage of a work's remaining items; batches are whole, so finished items may be computed once more."""
    done = [item for item in work.items if item.key in work.done]
    known = {request.key for item in done for request in item.scores}
    known |= {one.key for item in work.items for one in item.generations if item.key in work.done or not one.needed}
    scores = [request for item in work.items for request in item.scores]
    answers = [request for item in work.items for request in item.generations]
    new_scores = [request for request in scores if request.key not in known]
    new_answers = [request for request in answers if request.key not in known]
    scoring, answering = 0, 0
    if plan is not None:
        scoring = len([*with_news(scoring_batches(scores, plan.score_tokens, plan.worth_sharing), known)])
        rows_of: Callable[[int, int], int] | None = None if plan.cache_bytes is None else plan.rows_of
        answering = len([*with_news(generation_batches(answers, plan.prompt_tokens, plan.rows, rows_of), known)])
    return StagePlan(
        deployment,
        name,
        len(work.todo),
        scored=len(new_scores),
        scored_tokens=sum(len(request.token_ids) for request in new_scores),
        scoring_batches=scoring,
        answers=len(new_answers),
        prompt_tokens=sum(len(request.token_ids) for request in new_answers),
        answer_tokens=sum(request.max_new_tokens for request in new_answers),
        answering_batches=answering,
    )


def _seconds(request: Request, works: Sequence[Work], history: History | None) -> dict[str, float]:
    """The time of each stage in the newest finished run of the same branch and suite on the same device."""
    from q36eval.engines import identity_of

    if history is None:
        return {}
    identity = identity_of(request.deployment)
    for run in history.list_runs(
        family=request.family.name, branch=request.branch.name, state=RunState.FINISHED, limit=20
    ):
        same = run.identity is not None and run.identity.settings.get("device") == identity.settings.get("device")
        if same and run.timings:
            alike = [work for work in works if run.suites.get(work.probe.name.value) == work.probe.suite_sha256]
            stages = [stage or work.probe.name.value for work in alike for stage in work.stages]
            return {stage: run.timings[stage] for stage in stages if stage in run.timings}
    return {}
