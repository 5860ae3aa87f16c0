"""The missing and impossible parts of a request: all at once, before any work begins.

`prepare` checks before anything is computed. `problems_of_plan` checks what only planned items show, and
`problems_after_capture` what only the reference's captured answers show.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from q36eval.chat.declared_template import DeclaredTemplate
from q36eval.checkpoints.placements import LAYERS
from q36eval.config import Paths
from q36eval.engines import EngineSettings, check_deployment, identity_of, planned
from q36eval.engines.base import IN_PROCESS
from q36eval.engines.comparability import apart_words, engine_words, is_fair
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, UsageError
from q36eval.evals.suite import code_execution_allowed
from q36eval.gate import Criterion, CriterionVerdict, Policy
from q36eval.gate.judgement import is_unable, judge
from q36eval.gate.noise import margins_below_floor
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.planning import Material, refuse_reserved_slices
from q36eval.probes import Digest, Probe, Progress
from q36eval.records import ItemOutcome, Measurement, ProbeName
from q36eval.references import captures_in
from q36eval.run.declared_figures import (
    Declared,
    Subject,
    declared_by,
    declared_for,
    declared_of_corpus,
    never_passes,
    too_few,
)
from q36eval.run.disk import CROWDED, LEAST_BYTES, file_system, lacking_room, size_in
from q36eval.run.floor import known_floor
from q36eval.run.items import MISSING, Work, refuse_unanswerable
from q36eval.run.materials import context_and_overlap, corpus_of, on_policy_prompts
from q36eval.run.pack import size_of, widths
from q36eval.run.probe_set import Limits, Scored, build_probes, limits_of, material
from q36eval.run.reference import Reference, beside_template, reference_of
from q36eval.run.request import Request
from q36eval.run.served_lane import check_alone, too_few_asked
from q36eval.run.suites import suite_place
from q36eval.run.templates import declared_template
from q36eval.run.weights import declared_figures as of_weights
from q36eval.stats import MAX_ERRORED_SHARE

CHARACTERS_PER_TOKEN = 8
"""Above the average characters per token of our texts, so a token count based on it is a lower bound."""


@dataclass(frozen=True)
class Problem:
    """One problem: what, where and what to do. A problem that does not block is a note.

    `of_branch` marks problems that other branches of the same gate may not have.
    """

    code: str
    message: str
    blocks: bool = True
    of_branch: bool = False


class RefusedError(UsageError):
    """A request that cannot be met; `problems` are all blocking ones, `rows` the table of all checks."""

    problems: tuple[Problem, ...] = ()
    rows: tuple[Any, ...] = ()


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one error for all blocking problems; the caller handles notes.

    Raises:
        RefusedError: at least one problem blocks.
    """
    blocking = tuple(problem for problem in problems if problem.blocks)
    if blocking:
        error = RefusedError(blocking[0].code, " ".join(problem.message for problem in blocking))
        error.problems = blocking
        raise error


def refuse_with(code: str, problems: Sequence[Problem]) -> None:
    """Refuse all of them at once if one has that code; raises as `refuse`."""
    if any(problem.code == code for problem in problems):
        refuse(problems)


@contextmanager
def collecting(problems: list[Problem], *, of_branch: bool = False) -> Iterator[None]:
    """A usage error in the block becomes one of the problems."""
    try:
        yield
    except UsageError as error:
        problems.append(Problem(error.code, str(error), of_branch=of_branch))


@dataclass
class Prepared:
    """A request with its opened resources; `problems` are missing or impossible parts, and notes.

    If one blocks, other fields may be missing. `probes` are those whose items do not depend on the reference's answers;
    with a pack, which holds those, all. `reference` is also None for an endpoint alone. `generates` says whether the
    branch generates answers: weights that do not fit the device are run layer by layer and only score. It is None if
    the checkpoint cannot be read, which loading it reports.
    """

    problems: list[Problem]
    limits: Limits = field(default_factory=Limits)
    reference: Reference | None = None
    template: DeclaredTemplate | None = None
    generates: bool | None = True
    probes: list[Probe] = field(default_factory=list)

    def add(self, code: str, message: str | None, *, blocks: bool = True) -> None:
        """Add a problem if `message` is given."""
        if message:
            self.problems.append(Problem(code, message, blocks))


def prepare(request: Request, paths: Paths, found: Iterable[Problem] = ()) -> Prepared:
    """Open a request's resources and collect its problems, before any work begins: a usage error is never raised.

    `found` are the problems from assembling the request.
    """
    prepared = Prepared(list(found))
    if request.stands_alone:
        prepared.add("too-few-prompts", too_few_asked(request), blocks=False)
        with collecting(prepared.problems):
            check_alone(request)
        return prepared
    absent = any(problem.blocks for problem in prepared.problems)
    try:
        suite_place(request.suite, paths)
    except UsageError as error:  # every other check would fail on it again
        prepared.add(error.code, str(error))
        return prepared
    with collecting(prepared.problems):
        prepared.add("policy-cannot-pass", _cannot_pass(request, paths))
    if request.reference is None and request.reference_pack is not None and request.policy is not None:
        prepared.add("reference-weights-missing", without_reference_weights(request.policy), blocks=False)
    if not request.lacking and (request.branch.folder.exists() or not absent):
        with collecting(prepared.problems, of_branch=True):
            check_deployment(request.deployment)
            with suppress(EngineError):  # loading it reports that
                prepared.generates = _generates(request.deployment)
        if request.reference is not None or request.reference_pack is not None or not absent:
            _open_reference(prepared, request, paths)
    prepared.limits = limits_of(request, prepared.reference)
    for name in (ProbeName.CANARIES, ProbeName.EVALS):
        if name in request.probes:
            with collecting(prepared.problems):
                prepared.probes += build_probes([name], request.suite, paths, _no_material, prepared.limits)
    _check_texts(prepared, request, paths)
    reference = prepared.reference
    if reference is not None and reference.pack is not None and not any(each.blocks for each in prepared.problems):
        with collecting(prepared.problems, of_branch=True):
            prepared.probes = all_probes(prepared, request, paths, Progress())
    return prepared


def _generates(deployment: EngineSettings) -> bool | None:
    try:
        plan = planned(deployment)
    except CorruptCheckpointError:
        return None
    except UsageError as error:
        if error.code != "file-missing":  # missing weights are a fault of the branch, which inspection reports
            raise
        return None
    return plan is None or plan.room.placement != LAYERS


def _no_material() -> Material:
    raise AssertionError("only the KL probe scores any")


def _open_reference(prepared: Prepared, request: Request, paths: Paths) -> None:
    """Open the reference, and check that the branch can be compared with it."""
    with collecting(prepared.problems, of_branch=True):
        reference = prepared.reference = reference_of(request, paths)
        with collecting(prepared.problems, of_branch=True):
            apart = answered_apart(request, reference)
            prepared.add("engines-apart", apart and f"{apart}.", blocks=False)
        with collecting(prepared.problems, of_branch=True):
            prepared.template = declared_template(request, reference.identity.chat_template_sha256)
            prepared.reference = beside_template(reference, request.branch.folder, prepared.template)


def _check_texts(prepared: Prepared, request: Request, paths: Paths) -> None:
    """Check the texts of the KL and the perplexities: whether they can be scored and suffice."""
    reference, lacking = prepared.reference, list[str]()
    if ProbeName.KL in request.probes:
        with collecting(prepared.problems):
            corpus = corpus_of(request.suite, request.corpus, paths)
            refuse_reserved_slices(corpus[1])
            context_and_overlap(corpus[0], request.family.context_length)
            prompts = [] if corpus[0].on_policy is None else on_policy_prompts(corpus[0].on_policy, paths)
            if reference is not None:
                prepared.add("disk-room", _capture_room(request, reference, corpus[1]))
            if request.reference_pack is None:  # a pack itself records its content
                texts = request.suite if request.corpus is None else str(request.corpus)
                figures = declared_of_corpus(corpus[1], prompts)
                lacking += _too_few(request, Declared(request.family.name, texts, tuple(figures)), ProbeName.KL)
    evals = next((probe for probe in prepared.probes if probe.name is ProbeName.EVALS), None)
    if evals is not None and reference is not None and reference.tokenizer is not None:
        lacking += _too_few_documents(request, evals, reference.tokenizer)
    if lacking and request.policy is not None:
        prepared.add(
            "too-few-items",
            f"No branch can pass the policy {request.policy.name} over these texts, so nothing is computed. "
            f"{'; '.join(lacking)}. Take more and more even ones, or choose another policy or suite.",
        )


def _too_few_documents(request: Request, probe: Probe, tokenizer: Callable[[], Any]) -> list[str]:
    """The perplexities with too few documents, by the documents' weights."""
    from q36eval.evals.probe import EvalsProbe

    judged = () if request.policy is None else request.policy.criteria
    perplexities = any(each.probe is ProbeName.EVALS and "perplexity" in each.metric for each in judged)
    if not isinstance(probe, EvalsProbe) or not perplexities or request.resume is not None:
        return []
    try:
        figures = probe.declared_of_texts(tokenizer())
    except Exception:  # errors of the data, a task or the tokenizer are reported when it is planned
        return []
    return _too_few(request, Declared(request.family.name, request.suite, tuple(figures)), ProbeName.EVALS)


def _too_few(request: Request, declared: Declared, probe: ProbeName) -> list[str]:
    """Blocking criteria with fewer texts than required; for a resumed run its own beginning decides."""
    lacking = []
    for criterion in () if request.policy is None or request.resume is not None else request.policy.criteria:
        figure = declared.by_key.get(criterion.key)
        of_texts = probe is ProbeName.KL or "perplexity" in criterion.metric
        if criterion.tier == "blocking" and criterion.probe is probe and of_texts and figure is not None:
            why = too_few(criterion, figure, declared)
            demand = f"{criterion.margin.kind} {criterion.margin.value:g} on {criterion.key}"
            lacking += [] if why is None else [f"{criterion.id} ({demand}): {why}"]
    return lacking


def all_probes(
    prepared: Prepared, request: Request, paths: Paths, progress: Progress, names: Sequence[ProbeName] | None = None
) -> list[Probe]:
    """All probes of a request, or those of `names`; the reference now samples missing answers for the KL.

    Raises:
        UsageError: the texts or the stored answers cannot be used, or a margin is below the noise floor.
        EngineError: the reference could not answer.
    """
    reference, names = prepared.reference, request.probes if names is None else names
    assert reference is not None, "it was looked for before"
    scored = Scored(request.suite, request.family.context_length, request.corpus)
    scored_on = partial(material, scored, reference, paths, progress)
    probes = build_probes(names, request.suite, paths, scored_on, prepared.limits, prepared.probes)
    reference.check(probes)
    if request.policy is not None:
        refuse(_below_floor(request.policy, known_floor(reference, probes)))
    return probes


def crowded(places: Iterable[Path]) -> list[Problem]:
    """A note on each nearly full disk, and a problem for one without space for any run."""
    found: dict[int, Problem] = {}
    for place in places:
        disk = file_system(place)
        if disk.free_bytes < LEAST_BYTES:
            message = f"The disk of {place} is {disk.words}, too full to gate on; make room first."
            found[disk.device] = Problem("disk-full", message)
        elif disk.used >= CROWDED:
            message = f"The disk of {place} is {disk.words}; a gate that meets its end stops there, and is resumed."
            found.setdefault(disk.device, Problem("disk-crowded", message, blocks=False))
    return list(found.values())


def problems_of_plan(
    policy: Policy | None, works: Sequence[Work], request: Request, reference: Reference, *, generates: bool | None
) -> list[Problem]:
    """Problems that only planned items show: criteria that none of them can pass, space for their capture, a branch
    that `generates` no answers to them."""
    found = []
    if policy is not None:
        why = _no_branch_passes(policy, declared_by(works, request.family.name, request.suite))
        found += [] if why is None else [Problem("policy-cannot-pass", why)]
    room = _planned_room(works, reference)
    found += [] if room is None else [Problem("disk-room", room)]
    with collecting(found, of_branch=True):
        refuse_unanswerable(generates is not False, works, "branch")
    return found


def problems_after_capture(
    policy: Policy,
    work: Work,
    asked: Collection[str],
    answers: Mapping[str, Digest],
    floor: Sequence[Measurement],
) -> list[Problem]:
    """Problems that only the reference's answers show: margins below its noise `floor`, and criteria that a branch with
    exactly the reference's answers would not pass.

    `asked` are the keys of the items that it answered: a criterion that also covers others is not checked.
    """
    return [*_below_floor(policy, floor), *_unshowable(policy, work, asked, answers)]


def _below_floor(policy: Policy, floor: Sequence[Measurement]) -> list[Problem]:
    return [Problem("margin-below-floor", sentence) for sentence in margins_below_floor(policy, floor)]


def _cannot_pass(request: Request, paths: Paths) -> str | None:
    """Why the policy cannot pass, from the files of the suite and the canaries."""
    if request.policy is None:
        return None
    corpus, code = request.corpus is not None, code_execution_allowed()
    chosen = Subject(
        request.family, request.suite, request.canaries.own, request.canaries.draws, corpus=corpus, code=code
    )
    declared = declared_for(chosen, paths)
    # a probe that a person omits measures nothing
    declared = replace(declared, probes=declared.probes & frozenset(request.probes))
    return _no_branch_passes(request.policy, declared)


SHOWN = 3
"""The number of impossible criteria that a gate explains."""


def _no_branch_passes(policy: Policy, declared: Declared) -> str | None:
    """Blocking criteria that no branch can pass on the declared figures, each with the reason; None without any."""
    # a `where_able` criterion without items is NOT JUDGED
    judged = [c for c in policy.criteria if c.tier == "blocking" and (c.key in declared.by_key or not c.where_able)]
    never = [(each.id, never_passes(each, declared)) for each in judged]
    each = [f"{name}: {why}" for name, why in never if why is not None]
    if not each:
        return None
    more = f"; and {len(each) - SHOWN} more" if len(each) > SHOWN else ""
    return (
        f"No branch can pass the policy {policy.name} over the suite {declared.suite} for the family "
        f"{declared.family}, so nothing is measured. {'; '.join(each[:SHOWN])}{more}. Choose another suite, policy or "
        f"family (--family); q36eval policy check reports everything that is wrong."
    )


def without_reference_weights(policy: Policy) -> str | None:
    """What a gate without the reference's weights leaves undecided, in one sentence; None if it can PASS.

    It can still FAIL, and the comparison of weights can be done elsewhere.
    """
    compared = {f.key for f in of_weights()} - {f.key for f in of_weights(against_reference=False)}
    named = [c.id for c in policy.criteria if c.tier == "blocking" and c.key in compared]
    if not named:
        return None
    return (
        f"The policy requires {', '.join(named)}, which {'needs' if len(named) == 1 else 'need'} the reference's "
        f"weights; with the pack alone the verdict can be FAIL or INCONCLUSIVE, never PASS."
    )


def answered_apart(request: Request, reference: Reference) -> str | None:
    """The engine difference in the figures if another engine answered for the reference.

    Raises:
        UsageError: a policy would judge such figures.
    """
    theirs, kind = reference.identity, request.engine.kind
    if theirs.engine == IN_PROCESS:
        return None
    named = kind
    if kind == theirs.engine:
        try:
            branch = identity_of(request.deployment)
        except CorruptCheckpointError:  # the inspection reports it, and nothing is compared
            return None
        if is_fair(branch, theirs):
            return None
        named = engine_words(branch)
    apart = apart_words(named, theirs)
    if request.policy is None:
        return apart
    raise UsageError(
        "reference-of-another-engine",
        f"{apart}, and a gate would charge that to the branch. Judge it with --engine {theirs.engine} in that "
        f"version, or against a reference that the engine in-process answered, which is what BF16 is to every engine.",
    )


def _capture_room(request: Request, reference: Reference, documents: Sequence[CorpusDocument]) -> str | None:
    """Why the capture surely lacks space, by a lower bound on its size."""
    if reference.load is None or reference.folder is None:
        return None
    try:
        captures = captures_in(reference.root)
        if any(header.probe == ProbeName.KL and manifest is not None for _, header, manifest in captures):
            return None
        hidden, vocabulary = widths(reference.folder)
    except Q36Error:  # reported where it is used
        return None
    characters = sum(len(document.text) for document in documents)
    least = 2 * hidden * (characters // CHARACTERS_PER_TOKEN + vocabulary)
    return lacking_room(least - size_in(reference.root), reference.root)


def _planned_room(works: Sequence[Work], reference: Reference) -> str | None:
    """Why the rest of the capture lacks space, by the plan."""
    if reference.load is None or reference.folder is None:
        return None
    captures = {work.probe.name: reference.open(work.probe) for work in works}
    unfinished = [work for work in works if captures[work.probe.name].manifest is None and work.probe.kind != "answers"]
    if not unfinished:
        return None
    hidden, vocabulary = widths(reference.folder)
    planned = sum(size_of(work, hidden, vocabulary, keep_head=True).total for work in unfinished)
    present = sum(size_in(captures[work.probe.name].folder) for work in unfinished)
    return lacking_room(planned - present, reference.root)


def _unshowable(policy: Policy, work: Work, asked: Collection[str], answers: Mapping[str, Digest]) -> Iterator[Problem]:
    """Blocking criteria that a branch with exactly the reference's answers would not pass."""
    open_tasks = {item.task for item in work.items if item.key not in asked}
    of_probe = [each for each in policy.criteria if each.tier == "blocking" and each.probe == work.probe.name]
    criteria = [each for each in of_probe if not work.probe.tasks_of(each.key) & open_tasks]
    known = replace(work, items=[item for item in work.items if item.key in asked])
    figures = {measurement.key: measurement for measurement in _lossless(known, answers, [c.key for c in criteria])}
    for criterion in criteria:
        why = None if criterion.key not in figures else _not_shown(policy, criterion, figures[criterion.key])
        if why is not None:
            yield Problem("margin-not-shown", why)


def _lossless(work: Work, answers: Mapping[str, Digest], keys: Sequence[str]) -> Iterator[Measurement]:
    """The measurements with those keys for a branch identical to the reference."""
    probe = work.probe
    outcomes = lossless_outcomes(work, answers) if keys and work.failed is None else []
    if not outcomes:
        return
    figures = list(probe.look(outcomes, keys))
    yield from figures
    rest = set(keys) - {measurement.key for measurement in figures}
    if rest:  # a mean of means, a perplexity of too few documents
        yield from (measurement for measurement in work.probe.summarize(outcomes) if measurement.key in rest)


def lossless_outcomes(work: Work, answers: Mapping[str, Digest]) -> list[ItemOutcome]:
    """The outcomes of a branch identical to the reference; none if the probe does not know. Missing answers are
    errored."""
    outcomes = []
    for item in work.items:
        outcome = work.probe.lossless(item, answers.get(item.key, MISSING))
        if outcome is None:
            return []
        outcomes.append(outcome)
    return outcomes


def _not_shown(policy: Policy, criterion: Criterion, measurement: Measurement) -> str | None:
    """Why the reference's own figure does not pass a criterion, and the best that these items can show."""
    counts = measurement.counts
    if counts.errored > MAX_ERRORED_SHARE * counts.total:
        return None  # the verdict must report that the reference could not be measured
    if criterion.where_able and is_unable(judge(criterion, [measurement], [])):
        return None
    result = judge(criterion.model_copy(update={"informative": None}), [measurement], [])
    demand = f"{criterion.id} for {criterion.margin.kind} {criterion.margin.value:g} on {criterion.key}"
    if result.verdict is CriterionVerdict.NOT_MEASURED:
        return (
            f"The policy {policy.name} requires {demand}, which {counts.scored} scored units of these items cannot "
            f"show, not even of the reference itself: {result.reason}."
        )
    if result.p_pass > 1.0 - criterion.confidence:
        return (
            f"The policy {policy.name} requires {demand}, which {counts.scored} scored units of these items cannot "
            f"show, not even of a branch that answers each as the reference does; evaluate more items or widen the "
            f"margin."
        )
    return None
