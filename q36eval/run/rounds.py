"""Evaluates a branch with all probes, stage by stage and round by round, against the reference's captures.

Every item is judged and written as it arrives; severe outcomes that may be doubted are evaluated again in other
batches. The only decision here is when enough was evaluated, by a rule from the caller.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from q36eval.chat import TemplateLimitError
from q36eval.engines.base import Engine
from q36eval.errors import EngineError, ExitCode, Q36Error, UsageError
from q36eval.gate.integrity import drifts
from q36eval.gate.report import CERTAIN, Stage, StageState
from q36eval.gate.sequential import PolicyRule
from q36eval.probes import ItemResults, OwnPrompts, Probe, Progress, Sink, Within, WorkItem, in_group
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.run.capture import ReferenceAnswers
from q36eval.run.items import MISSING, BothSteps, Work, finished_items, known_of
from q36eval.run.order_check import check_order

AGAIN = "evaluating again"
"""The displayed name of evaluating doubtful items in other batches."""

ONE_PASS = "all texts, layer by layer"
"""Of the seconds: the share common to several stages."""

REPEATED = "computing known rows of a batch again"
"""Engine work for which no item waits."""

PORTION = 4
"""The number of doubtful items evaluated again before the verdict is checked: one confirmed flip may decide."""

NO_LOG_PROBS = (
    "its server gives no log-probabilities of a prompt's tokens, and a divergence needs them; serve the branch by vLLM "
    "with --max-logprobs -1 and without drafts (MTP), or use --engine vllm or the engine in-process"
)
LIKELIEST_ALONE = (
    "its server gives log-probabilities of the likeliest tokens alone, and a divergence needs those of the whole "
    "vocabulary; start vLLM with --max-logprobs -1, or use --engine vllm or the engine in-process"
)


@dataclass
class Evaluated:
    """The stages of a branch's evaluation, and the seconds of each."""

    stages: list[Stage] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """The items of all probes, and the token ids of every request before any follow-ups."""

    works: list[Work]
    tokens: Mapping[str, tuple[int, ...]]


class TokenizedDifferentlyError(Q36Error):
    """The branch's tokenizer or chat template turns the same questions into other tokens than the reference's."""

    exit_code = ExitCode.FAIL


def run_probes(
    branch: Callable[[], Engine],
    reference_tokenizer: Any,
    answers_of: Callable[[Sequence[Work]], ReferenceAnswers],
    probes: Sequence[Probe],
    sink: Sink,
    progress: Progress,
    rule: PolicyRule | None = None,
    measured: Sequence[Measurement] = (),
    own_template: Callable[[Mapping[ProbeName, OwnPrompts]], None] | None = None,
    planned: Planned | None = None,
    answered: Callable[[Work], None] | None = None,
) -> Evaluated:
    """Measure the branch against its reference with all `probes`; with a `rule`, until the verdict is final.

    `branch` returns its engine, which may be a new object after the reference was evaluated (`one_at_a_time`). With
    `own_template` the branch has its own chat template, which renders its prompts; it is called with the differences.

    `measured` holds earlier measurements. Returns the stages, and the seconds of each and of the "reference".
    `answers_of` returns the reference's answers to the plan: each stage's before the branch begins it, and each later
    round's before the branch reaches it. `answered` is called with each probe as its stages begin. An exception of
    either ends the run. `planned` is an earlier plan, from capturing the reference.

    Raises:
        TokenizedDifferentlyError: the branch's own tokenizer does not give the reference's tokens.
        TemplateLimitError: the branch's own chat template cannot be rendered.
        UsageError: the reference's cannot be rendered.
    """
    started = time.monotonic()
    branch_tokens, own_tokenizer = None, branch().tokenizer
    tokenizer = own_tokenizer
    if own_template is not None:  # only the conversion of text to tokens remains to be compared
        tokenizer = copy(tokenizer)
        tokenizer.chat_template = reference_tokenizer.chat_template
    try:
        if not same_tokenizer(tokenizer, reference_tokenizer):
            branch_tokens = requested_tokens(plan_probes(probes, tokenizer, Sink()))
            if planned is not None:  # probes remember their last plan
                plan_probes(probes, reference_tokenizer, Sink())
        if planned is None:
            planned = plan_once(probes, reference_tokenizer, sink)
    except TemplateLimitError as error:
        raise UsageError(error.code, f"The reference cannot be used: {error}") from error
    works, tokens = planned.works, planned.tokens
    differing = 0 if branch_tokens is None else sum(branch_tokens.get(key) != ids for key, ids in tokens.items())
    if differing:
        raise TokenizedDifferentlyError(
            "tokenized-differently",
            f"the branch's tokenizer or chat template turns {differing} of {len(tokens)} requests into other tokens "
            f"than the reference's",
        )
    _leave_out_unscored(branch(), works, sink)
    answers = answers_of(works)
    done = {
        (outcome.probe, outcome.item_key)
        for outcome in sink.known_items()
        if outcome.branch.error is None and outcome.reference.error is None
    }
    for work in works:
        work.done = frozenset(key for probe, key in done if probe == work.probe.name)
    if own_template is not None:
        own_template({work.probe.name: _in_own_template(work, own_tokenizer, sink) for work in works})
    seconds = time.monotonic() - started
    own_tokenizer = None if own_template is None else own_tokenizer
    evaluated = measure_branch(branch, works, answers, sink, progress, rule, measured, own_tokenizer, answered)
    evaluated.seconds["reference"] += seconds
    return evaluated


def plan_once(probes: Iterable[Probe], tokenizer: Any, sink: Sink) -> Planned:
    """The items of all probes, by the reference's tokenizer."""
    works = plan_probes(probes, tokenizer, sink)
    return Planned(works, requested_tokens(works))


def plan_probes(probes: Iterable[Probe], tokenizer: Any, sink: Sink) -> list[Work]:
    """Each probe with its items; a probe whose plan crashes is recorded as failed."""
    works = []
    for probe in probes:
        work = Work(probe, [])
        with recording_crash(work, sink):
            work.items = [in_group(item, probe.name) for item in probe.plan(tokenizer)]
            if not work.items:
                raise ValueError("it planned nothing")
        works.append(work)
    return works


def requested_tokens(works: Sequence[Work]) -> dict[str, tuple[int, ...]]:
    """Every request's token ids by its key."""
    items = [item for work in works for item in work.items]
    scores = {request.key: request.token_ids for item in items for request in item.scores}
    return scores | {request.key: request.token_ids for item in items for request in item.generations}


def same_tokenizer(one: Any, other: Any) -> bool:
    """Whether two tokenizers surely turn every text and conversation into the same tokens, because all rules are equal.

    False only means that their results must be compared.
    """
    if type(one) is not type(other) or not hasattr(one, "backend_tokenizer"):
        return False
    rules = [
        (tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.special_tokens_map)
        for tokenizer in (one, other)
    ]
    return bool(rules[0] == rules[1])


def _leave_out_unscored(engine: Engine, works: Sequence[Work], sink: Sink) -> None:
    """Drop the divergence if its logits are unavailable."""
    for work in works:
        if work.probe.name is ProbeName.KL and engine.scores != "states":
            seen = f" (tried: {engine.why_no_scores})" * bool(engine.why_no_scores)
            work.items, work.failed = [], NO_LOG_PROBS + seen if engine.scores == "nothing" else LIKELIEST_ALONE
            sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="unmeasurable"))


def _in_own_template(work: Work, tokenizer: Any, sink: Sink) -> OwnPrompts:
    """A probe's items as rendered by the branch's own template."""
    own = OwnPrompts(work.items)
    if work.failed is None:
        with recording_crash(work, sink):
            own = work.probe.in_own_template(work.items, tokenizer)
    return own


def measure_branch(
    branch: Callable[[], Engine],
    works: Sequence[Work],
    answers: ReferenceAnswers,
    sink: Sink,
    progress: Progress,
    rule: PolicyRule | None = None,
    measured: Sequence[Measurement] = (),
    own_tokenizer: Any = None,
    answered: Callable[[Work], None] | None = None,
) -> Evaluated:
    """Judge the items of every probe, stage by stage; write each outcome, and each finished probe's figures, at once.

    A crashed probe is recorded and the others continue. After each round `rule` determines which tasks are resolved
    early, and whether the verdict is final on the measurements so far and `measured`: then nothing more is evaluated,
    and every incomplete probe is recorded as skipped. Without a rule everything is evaluated, and also with an engine
    that generates nothing: it reads all weights for every pass, and one pass scores everything. With `own_tokenizer`
    that tokenizer's chat template renders the prompts.
    """
    asking = _Asking(answers, own_tokenizer, answered)
    evaluation = _Evaluation(branch, asking, sink, progress, rule, list(measured), list(sink.known_items()))
    answers.seconds = 0.0
    # together, since a reference that is run layer by layer reads all its weights for every call
    first = [(work, (work.stages or [""])[0]) for work in works if work.failed is None]
    answers.answer([(work, work.probe.answered_first(work.of_stage(stage))) for work, stage in first])
    for work, stage in first:  # impossible criteria are refused before the branch is evaluated
        evaluation.begin(work, stage)
    of_reference = answers.seconds
    progress.stage("measuring the branch", sum(len(work.todo) for work in works))
    for work in works:
        for item in work.todo:
            progress.expect(_task_name(work, item), item.tokens)
    answers.progress = Within(progress)
    if not branch().generates:
        started = time.monotonic()
        evaluation.in_one_pass(works)
        evaluation.evaluated.seconds[ONE_PASS] = time.monotonic() - started
    for work in works:
        for stage in work.stages or [""]:
            started, before = time.monotonic(), answers.seconds
            record = evaluation.stage(work, stage)
            evaluation.evaluated.stages.append(record)
            of_reference += answers.seconds - before
            evaluation.evaluated.seconds[record.name] = time.monotonic() - started - (answers.seconds - before)
    for work in works:
        evaluation.check_order(work)
    evaluation.evaluated.seconds["reference"] = of_reference
    return evaluation.evaluated


@dataclass
class _Asking:
    """The reference's answers as a branch reaches them, and the branch's items."""

    answers: ReferenceAnswers
    own_tokenizer: Any
    """The tokenizer whose chat template renders the branch's prompts; None if it is the reference's."""
    answered: Callable[[Work], None] | None
    begun: set[tuple[ProbeName, str]] = field(default_factory=set)

    def begin(self, work: Work, stage: str, engine: Callable[[], Engine]) -> None:
        """Have the reference answer a stage's first items before the branch begins it, and lay out its items."""
        name, probe = work.probe.name, work.probe
        if work.failed is not None or (name, stage) in self.begun:
            return
        self.begun.add((name, stage))
        of_stage = work.of_stage(stage)
        needed = list(probe.answered_first(of_stage))
        if probe.follows_up and len(needed) < len(of_stage):
            raise ValueError("a probe that follows up is asked whole stages, since the branch gets what follows too")
        self.answers.answer([(work, needed)])
        first = self.answers.first.setdefault(name, [])
        first += [item.key for item in needed]
        # the needed ones, with the follow-ups of the reference's answers
        keys, known = {item.key for item in needed}, self.answers.asked(name)
        work.items = [known[item.key] if item.key in keys else item for item in work.items]
        if self.answered is not None:
            self.answered(work)
        items = list(probe.know_reference(work.items, BothSteps(self.answers[name], first)))
        if len(items) != len(work.items) or {item.key for item in items} != {item.key for item in work.items}:
            raise ValueError("what the reference answered may change the order of the items, never which there are")
        work.items = items
        if self.own_tokenizer is not None:
            work.items = list(probe.in_own_template(work.items, self.own_tokenizer).items)
        if probe.does_without_scores and engine().scores != "states":
            work.items = [replace(item, scores=()) if item.generations else item for item in work.items]

    def round(self, work: Work, stage: str, number: int) -> None:
        """Have the reference answer a round before the branch.

        If the device holds one model at a time, half as many additional rounds as were answered before: each change of
        models takes minutes, and so does each unneeded round.
        """
        known = self.answers.asked(work.probe.name)
        ahead = [item for item in work.of_stage(stage) if item.block >= number and item.task not in work.resolved]
        if all(item.key in known for item in ahead if item.block == number):
            return
        last = number + number // 2 if self.answers.one_at_a_time else number
        self.answers.answer([(work, [item for item in ahead if item.block <= last])])


@dataclass
class _Evaluation:
    """A branch under evaluation, and its results so far."""

    branch: Callable[[], Engine]
    asking: _Asking
    sink: Sink
    progress: Progress
    rule: PolicyRule | None
    measured: list[Measurement]
    """Measurements for the verdict: of complete probes, and those of others that may be looked at early."""
    outcomes: list[ItemOutcome]
    complete: frozenset[ProbeName] = frozenset()
    stands: str = ""
    """Why nothing more is evaluated; empty while the verdict is open."""
    evaluated: Evaluated = field(default_factory=Evaluated)

    @property
    def engine(self) -> Engine:
        """The branch's current engine."""
        return self.branch()

    def stage(self, work: Work, stage: str) -> Stage:
        """Evaluate one stage of a probe, unless the verdict is already final."""
        name, items = stage or work.probe.name.value, work.of_stage(stage)
        if self.stands:
            self._leave_out(work, items, self.stands)
            return Stage(name=name, state=StageState.NOT_EVALUATED, items=0, planned=len(items))
        self.begin(work, stage)
        stands_by = self._rounds(work, stage)
        self._confirm(work)
        if stands_by:  # within a stage
            self._write([figure for figure in figures_of(work, self.outcomes, self.sink) if figure.laid_out])
            # a crash of a probe that made the verdict final reopens it, so the others are evaluated
            stands_by = stands_by if work.failed is None else ()
        elif stage == (work.stages or [""])[-1]:
            self.measured += self._write(figures_of(work, self.outcomes, self.sink))
            self.complete |= frozenset() if work.failed else {work.probe.name}
            stands_by = self._decided()
        elif self.rule is not None:
            figures = figures_of(work, self.outcomes, self.sink)
            stands_by = self._decided(figures)
            self._write(figures if stands_by else [])
        if stands_by:
            self.stands = not_evaluated_after(name, stands_by)
        keys = {item.key for item in items}
        judged = {outcome.item_key: outcome for outcome in self.outcomes if outcome.item_key in keys}
        errored = any(each.branch.error is not None or each.reference.error is not None for each in judged.values())
        state = StageState.PARTLY if work.failed is not None or errored or not items else StageState.MEASURED
        return Stage(name=name, state=state, items=len(judged), planned=len(items), settled=stands_by)

    def begin(self, work: Work, stage: str) -> None:
        """Have the reference answer a stage's first items, once; its follow-ups are added to the branch's work."""
        before = {item.key: item.tokens for item in work.items}
        with self._asking_the_reference(work):
            self.asking.begin(work, stage, self.branch)
        for item in work.todo:
            if more := item.tokens - before[item.key]:
                self.progress.expect(_task_name(work, item), more)

    def in_one_pass(self, works: Sequence[Work]) -> None:
        """Evaluate everything remaining; the stages then find their items done and only check whole tasks."""
        self.asking.answers.answer([(work, work.items) for work in works if work.failed is None])
        for work in works:
            for stage in work.stages:
                self.begin(work, stage)
        evaluated: dict[ProbeName, set[str]] = {work.probe.name: set() for work in works}
        for work, item, results in finished_items(self.engine, works, retried=self.progress.retried):
            self._take(work, item, results)
            evaluated[work.probe.name].add(item.key)
        for work in works:
            work.done |= evaluated[work.probe.name]

    def check_order(self, work: Work) -> None:
        """Evaluate a probe's first items again; a changed engine ends the probe like a crash."""
        figure = None
        with recording_crash(work, self.sink):
            figure = check_order(
                self.engine, work, own_outcomes(work, self.outcomes), self.asking.answers, self.progress
            )
        figures = self._write([] if figure is None else [figure])
        for drift in drifts(figures):
            reason = f"the engine is not what it was: {drift.note}"
            self.sink.add_failure(ProbeFailure(probe=work.probe.name, reason=reason, kind="crashed"))

    def _rounds(self, work: Work, stage: str) -> tuple[str, ...]:
        """Evaluate all blocks of a stage, or until the verdict is final; returns the deciding criteria."""
        blocks = work.blocks(stage)
        looked_at: dict[str, Measurement] = {}
        for number in blocks:
            with self._asking_the_reference(work):
                self.asking.round(work, stage, number)
            if work.failed is not None:
                return ()
            for _, item, results in finished_items(self.engine, [work], (stage, number), self.progress.retried):
                self._take(work, item, results)
            if self.rule is None or number == blocks[-1]:
                continue
            looked_at |= {each.key: each for each in self._resolve_early(work, number, self.rule)}
            stands_by = self._decided(looked_at.values())
            if stands_by:
                later = [item for item in work.items if item.block > number and item.task not in work.resolved]
                self._leave_out(work, later, f"evaluated no further: the verdict is certain ({', '.join(stands_by)})")
                return stands_by
        return ()

    @contextmanager
    def _asking_the_reference(self, work: Work) -> Iterator[None]:
        """A failing reference fails only this probe: the others' measurements stay, and they continue."""
        with recording_crash(work, self.sink):
            try:
                yield
            except EngineError as error:
                work.failed = f"the reference could not be asked: {error}"
                self.sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="crashed"))

    def _take(self, work: Work, item: WorkItem, results: ItemResults) -> None:
        self.progress.advance()
        self.progress.worked(_task_name(work, item), item.tokens, results.seconds)
        if results.repeated_seconds:  # after a resume: includes repeated work, or each token would seem too slow
            self.progress.expect(REPEATED, 0)
            self.progress.worked(REPEATED, 0, results.repeated_seconds)
        if work.failed is None:
            self.outcomes += self._compare(work, item, results)

    def _compare(self, work: Work, item: WorkItem, results: ItemResults) -> Sequence[ItemOutcome]:
        """The outcomes of one item, written immediately; none if the probe crashed, which is recorded."""
        reference = known_of(self.asking.answers[work.probe.name], item.key) or MISSING
        compared: Sequence[ItemOutcome] = ()
        with recording_crash(work, self.sink):
            outcomes = work.probe.compare(self.engine, item, results, reference)
            self.sink.add_items(outcomes)
            compared = outcomes
        return compared

    def _resolve_early(self, work: Work, number: int, rule: PolicyRule) -> Sequence[Measurement]:
        """Mark the tasks whose judged figures are all resolved after that round; a task not judged continues.

        Returns the measurements it used. If a resumed run already knows later items of a task, the task was open at
        this look: it is checked after the last of their rounds, never with part of a block answered. The longest items
        are evaluated first, so a part is not a sample.
        """
        probe = work.probe
        if work.failed is not None:
            return ()
        own = {outcome.item_key: outcome for outcome in own_outcomes(work, self.outcomes)}
        later = [item for item in work.items if item.block > number]
        went_on = {item.task for item in later if item.key in own}
        judged = {key: probe.tasks_of(key) for key in rule.judged(probe.name)}
        judged_tasks = frozenset(task for tasks in judged.values() for task in tasks)
        ahead = {item.task for item in later if item.task in judged_tasks} - work.resolved - went_on
        keys = [key for key, tasks in judged.items() if tasks & ahead]
        if not keys:
            return ()
        figures = probe.look(list(own.values()), keys)
        clear = rule.resolved_early(figures)
        resolved = ahead - {task for key in keys if key not in clear for task in judged[key]}
        self._drop(work, [item for item in later if item.task in resolved])
        work.resolved |= resolved
        return figures

    def _decided(self, more: Iterable[Measurement] = ()) -> tuple[str, ...]:
        return () if self.rule is None else self.rule.decided([*self.measured, *more], self.complete)

    def _write(self, figures: list[Measurement]) -> list[Measurement]:
        for measurement in figures:
            self.sink.add_measurement(measurement)
        return figures

    def _leave_out(self, work: Work, items: Sequence[WorkItem], reason: str) -> None:
        """Record that these are not evaluated, with the reason."""
        self._drop(work, items)
        self.sink.add_failure(ProbeFailure(probe=work.probe.name, reason=reason, kind="skipped"))

    def _drop(self, work: Work, items: Sequence[WorkItem]) -> None:
        dropped = [item for item in items if item.key not in work.done]
        self.progress.advance(len(dropped))
        for item in dropped:
            self.progress.dropped(_task_name(work, item), item.tokens)

    def _confirm(self, work: Work) -> None:
        """Evaluate doubtful outcomes again; each new outcome replaces the old one.

        With a rule this happens in portions, and stops once the verdict is final.
        """
        probe = work.probe
        if work.failed is not None:
            return
        with recording_crash(work, self.sink):
            first = {outcome.item_key: outcome for outcome in own_outcomes(work, self.outcomes)}
            doubtful = [in_group(item, probe.name) for item in probe.doubtful(list(first.values()))]
            size = len(doubtful) if self.rule is None else PORTION
            for start in range(0, len(doubtful), max(1, size)):
                self.outcomes += self._evaluated_again(probe, doubtful[start : start + size], first)
                if self.rule is not None and self._decided(figures_of(work, self.outcomes, self.sink)):
                    return

    def _evaluated_again(
        self, probe: Probe, items: list[WorkItem], first: Mapping[str, ItemOutcome]
    ) -> Iterator[ItemOutcome]:
        for item in items:
            self.progress.expect(AGAIN, item.tokens)
        for _, item, results in finished_items(self.engine, [Work(probe, items)], retried=self.progress.retried):
            outcome = probe.confirmed(item, results, first[item.key])
            self.sink.add_items([outcome])
            self.progress.worked(AGAIN, item.tokens, results.seconds)
            yield outcome


def not_evaluated_after(stage: str, stands_by: Sequence[str]) -> str:
    """Why nothing after that stage was evaluated."""
    return f"{CERTAIN} was already certain after {stage} ({', '.join(stands_by)})"


def figures_of(work: Work, outcomes: Sequence[ItemOutcome], sink: Sink) -> list[Measurement]:
    """The measurements of a probe from its outcomes so far; none if it crashed, which is recorded."""
    if work.failed is not None:
        return []
    with recording_crash(work, sink):
        measurements = list(work.probe.summarize(own_outcomes(work, outcomes)))
        keys = [measurement.key for measurement in measurements]
        if len(set(keys)) < len(keys):  # history stores one figure per key: the second would silently replace the first
            twice = min(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"it measured {twice} more than once, so none of its figures can be trusted")
        return measurements
    return []


def own_outcomes(work: Work, outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    """The newest outcomes of a probe's items, in the order of their first ones.

    A run resumed with fewer items contains parts of blocks that it no longer evaluates.
    """
    keys = {item.key for item in work.items}
    own = (outcome for outcome in outcomes if outcome.probe == work.probe.name and outcome.item_key in keys)
    return list({(outcome.item_key, outcome.group): outcome for outcome in own}.values())


def _task_name(work: Work, item: WorkItem) -> str:
    """The displayed name of that item's task."""
    return item.task or item.stage or work.probe.name.value


@contextmanager
def recording_crash(work: Work, sink: Sink) -> Iterator[None]:
    """Record a crash of a probe in the block, with its location; the probe then has no figures. Our own errors are
    raised."""
    try:
        yield
    except Q36Error:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        work.failed = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="crashed"))
