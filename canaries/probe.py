"""The canary probe: evaluates fixed prompts and generated families, and compares both deployments' answers.

It has three steps: every question on both deployments; then both are teacher-forced on the reference's answers, which
gives the decisive margins and the choices at the first difference of two answers; then the branch repeats, in other
batches, the questions that the reference always answered right and the branch did not.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from q36eval.canaries.answers import (
    SHOWN_TOKEN_CHARACTERS,
    branch_answer,
    divergence_of,
    judged_answer,
    margin_of,
    reference_answer,
    repeat_of,
    repeats_of,
    right_decisions,
    with_detail,
)
from q36eval.canaries.cases import Case, cases_of, in_format
from q36eval.canaries.checks import QWEN3_XML
from q36eval.canaries.margins import CHOICES, END, DecisiveToken, Teacher, decisive_tokens, first_difference, taught
from q36eval.canaries.must_pass import MARGIN_FLOOR_NATS, repeat_scores, why_not_absolute
from q36eval.canaries.outcomes import ERRORED, PlannedItem, cause_of, competence_of
from q36eval.canaries.specification import CanarySpec
from q36eval.canaries.summary import declared_figures, summarize_outcomes
from q36eval.chat import TemplateRaisedError, rendered_chat
from q36eval.config.family import ToolFormat
from q36eval.engines.base import Engine, GenerationRequest, ScoreRequest
from q36eval.engines.batches import common_prefixes
from q36eval.files import json_sha256
from q36eval.inert_text import storable
from q36eval.metrics import DeclaredFigure
from q36eval.probes import Digest, FollowUp, ItemResults, OwnPrompts, Probe, WorkItem
from q36eval.records import Answer, ItemOutcome, Lane, Measurement, ProbeName

SMALL_BATCH = 4
"""Rows of the batch in which a fixed prompt is repeated, before it is repeated alone."""

SHIPPED, OWN = "canaries", "own canaries"
GROUPS = {SHIPPED: "", OWN: "own"}
"""The groups of requests by part of a suite."""

STEPS_VERSION = 3
"""Part of the suite's hash: raise it when the stored part of an answer changes."""

FIXED, FAMILIES = "fixed-prompts", "canaries"
"""Stages: the fixed prompts come first, since one confirmed flip of them decides."""

FOUR, ALONE, TAUGHT = "/four", "/alone", "/taught"
"""Suffixes of the keys of an item's further requests."""


@dataclass
class _Prompt:
    """A case rendered by a chat template. If that fails, `request` is missing, and `error` is the reason."""

    text: str
    request: GenerationRequest | None
    error: str | None = None


@dataclass
class _Question:
    """A case of a part of the suite, for the reference and for the branch, whose template may differ."""

    case: Case
    part: str
    reference: _Prompt
    branch: _Prompt

    @property
    def stage(self) -> str:
        return FIXED if self.case.must_pass else FAMILIES


class CanaryProbe(Probe):
    """One item and one cluster a question.

    The reference's digest keeps its raw text, which is judged again at every comparison: a corrected checker applies
    to both sides alike.
    """

    name = ProbeName.CANARIES
    does_without_scores = True  # then without margins and choices at differences
    where_able = False
    """Whether the branch is evaluated only on families that the reference solves by half, ignoring margins."""

    def __init__(
        self,
        specs: Sequence[CanarySpec],
        own: Sequence[CanarySpec] = (),
        tool_format: ToolFormat | None = QWEN3_XML,
        *,
        system: bool = True,
    ) -> None:
        """`specs` are the shipped canaries, `own` custom ones: never in one batch with those.

        `tool_format` is the format of tool calls in the models' chat template, `system` whether it has that role.
        """
        self.specs = (*specs, *own)
        parts = {SHIPPED: specs, OWN: own}
        self._cases = {
            part: [in_format(case, tool_format, system=system) for spec in part_specs for case in cases_of(spec)]
            for part, part_specs in parts.items()
        }
        self._questions: dict[str, _Question] = {}
        self._tokenizer: Any = None
        self._absolute = frozenset(spec.id for spec in self.specs if spec.absolute)
        self._planned: tuple[PlannedItem, ...] | None = None
        self._left_out: frozenset[str] = frozenset()
        self.suite_fields = {part: _sha256_of(parts[part], cases) for part, cases in self._cases.items()}
        in_order = json.dumps(self.suite_fields)  # in the order of the parts, not by name: existing hashes depend on it
        self.suite_sha256 = hashlib.sha256(in_order.encode()).hexdigest()

    def part_of(self, key: str) -> str:
        """Whether an item is a shipped or a custom canary."""
        return self._questions[key].part

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """One greedy generation per question; its key is a hash of the rendered prompt and of its judging."""
        self._questions, self._tokenizer = {}, tokenizer
        for part, case in ((part, case) for part, cases in self._cases.items() for case in cases):
            prompt = _prompt(case, tokenizer, GROUPS[part])
            key = json_sha256([None if prompt.request is None else prompt.text, case.content])
            self._questions.setdefault(key, _Question(case, part, prompt, prompt))
        self._share({key: one.reference for key, one in self._questions.items()})
        items = [
            WorkItem(key=key, generations=tuple(filter(None, [one.reference.request])), stage=one.stage)
            for key, one in self._questions.items()
        ]
        return sorted(items, key=lambda item: item.stage != FIXED)

    def _share(self, prompts: Mapping[str, _Prompt]) -> None:
        """Set the shared prefix of every request, among requests evaluated together only.

        Custom canaries thus change no batch of the shipped ones.
        """
        together: dict[tuple[str, str], list[tuple[str, GenerationRequest]]] = {}
        for key, prompt in prompts.items():
            if prompt.request is not None:
                part_and_stage = self._questions[key].part, self._questions[key].stage
                together.setdefault(part_and_stage, []).append((key, prompt.request))
        for asked in together.values():
            shared = common_prefixes([request.token_ids for _, request in asked])
            for (key, request), count in zip(asked, shared, strict=True):
                prompts[key].request = replace(request, key=key, shared=count)

    def declared(self) -> tuple[DeclaredFigure, ...]:
        """The figures that it will yield, before any evaluation; see `canaries.summary`."""
        return declared_figures(self.specs)

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's raw text and tokens, and the reason of their end; empty for a question without a request."""
        if self._questions[item.key].reference.request is None:
            return Digest()
        generated = results.generated[item.key]
        values = {
            "text": storable(generated.text),
            "finish_reason": generated.finish_reason,
            "token_ids": list(generated.token_ids),
            "end_id": generated.end_id,
            "rows": generated.rows,
        }
        return Digest(values=values)

    # -- the second step

    def follow_up(self, item: WorkItem, first: Digest) -> FollowUp:
        """Teacher-forcing on the reference's answer; a fixed prompt that it answers right is repeated twice."""
        question = self._questions[item.key]
        request = question.reference.request
        if request is None:
            return FollowUp()
        answered = _answered(first.values)
        scores: tuple[ScoreRequest, ...] = ()
        # a sampled answer is one of many: its decisions say little about the others
        of_margin = question.case.must_pass or not self.where_able
        if answered and question.case.seed is None and of_margin:
            first_row = len(request.token_ids)
            decisive = self._decisive(question.case, first.values)
            scores = (
                ScoreRequest(
                    item.key + TAUGHT,
                    request.token_ids + answered,
                    first=first_row,
                    group=GROUPS[question.part],
                    shared=min(request.shared, first_row - 1),
                    likeliest=CHOICES,
                    whole=tuple(sorted({token.position for token in decisive if token.wrong})),
                ),
            )
        first_answer = reference_answer(question.case, first, again=False)
        return FollowUp(scores=scores, repeats=self._repeats(item.key) if first_answer.score == 1.0 else ())

    def _repeats(self, key: str) -> tuple[GenerationRequest, ...]:
        """A fixed prompt once more, among `SMALL_BATCH` or fewer, and alone; nothing for a family's question."""
        question = self._questions[key]
        request = question.reference.request
        if request is None or not question.case.must_pass:
            return ()
        alike = list(self._alike(key, "reference").values())
        at = alike.index(request)
        # the last batch is filled with prompts whose answers are discarded
        places = range(-len(alike) % SMALL_BATCH if request == alike[-1] else 0)
        fillers = [alike[n % len(alike)] for n in places]
        return _asked_again(request, fillers, f"four/{GROUPS[question.part]}/{at // SMALL_BATCH}")

    def _alike(self, key: str, side: Literal["reference", "branch"]) -> dict[str, GenerationRequest]:
        """That side's requests of the fixed prompts in a prompt's part, itself included, by key in order."""
        part = self._questions[key].part
        same = sorted(other for other, one in self._questions.items() if one.case.must_pass and one.part == part)
        requests = ((other, getattr(self._questions[other], side).request) for other in same)
        return {other: request for other, request in requests if request is not None}

    def digest_follow_up(self, engine: Engine, item: WorkItem, first: Digest, results: ItemResults) -> Digest:
        """The reference's margins and choices on its own answer, and its answers in other batches."""
        values: dict[str, Any] = {}
        if item.key + TAUGHT in results.scored:
            tokens = self._decisive(self._questions[item.key].case, first.values)
            teacher = _taught(engine, results, item.key, first.values, tokens)
            values["decisive"] = [list(token) for token in tokens]
            values["teacher"] = {
                "margins": teacher.margins,
                "best_wrong": teacher.best_wrong,
                "choices": [[[token, round(value, 4)] for token, value in row] for row in teacher.choices],
            }
        again = [results.generated[key] for key in (item.key + FOUR, item.key + ALONE) if key in results.generated]
        values["repeats"] = [repeat_of(generated) for generated in again]
        return Digest(values=values)

    def _decisive(self, case: Case, answer: Mapping[str, Any]) -> list[DecisiveToken]:
        """The decisive tokens of a right answer; none for a wrong or unjudged one."""
        token_ids, text = answer["token_ids"], answer["text"]
        if judged_answer(case, text, answer["finish_reason"], len(token_ids)).score != 1.0:
            return []
        decided = right_decisions(case, text)
        tokens = decisive_tokens(self._tokenizer, token_ids, text, decided, answer["end_id"])
        if answer["end_id"] is not None:
            tokens.append(DecisiveToken(END, len(token_ids), answer["end_id"]))
        return tokens

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """Count the reference's competence, and determine which prompts stay required.

        The items are unchanged, but left out ones (`where_able`: families that the reference cannot do, fixed prompts
        that it fails) only fill the branch's batches, which thus equal the reference's batches.
        """
        known = {item.key: self._planned_item(item, digests[item.key]) for item in items if item.key in digests}
        self._planned = tuple(known.values())
        if self.where_able:
            solved = [(of, of.informative + of.causes.get(ERRORED, 0)) for of in competence_of(self._planned)]
            able = {of.name for of, most in solved if 2 * most >= of.items}
            fixed = {key for key in known if self._questions[key].case.must_pass}
            failed = {key for key in fixed if known[key].cause not in (None, ERRORED)}
            left = failed | {key for key in known.keys() - fixed if known[key].canary not in able}
            self._left_out = frozenset(left - self._shown_unable(left))
        return [self._filling(item) if item.key in self._left_out else item for item in items]

    def _shown_unable(self, left: set[str]) -> set[str]:
        """For each lane whose fixed, or drawn, prompts are all left out, those of one canary: a figure without items is
        missing, and does not show that the reference fails."""
        lanes = {spec.id: spec.lanes for spec in self.specs}
        shown: set[str] = set()
        for lane, fixed in product(Lane, (True, False)):
            cases = {key: one.case for key, one in self._questions.items() if one.case.must_pass == fixed}
            own = {key: case.canary for key, case in cases.items() if lane in lanes[case.canary]}
            if own and left.issuperset(own):
                shown |= {key for key, canary in own.items() if canary == next(iter(own.values()))}
        return shown

    @staticmethod
    def _filling(item: WorkItem) -> WorkItem:
        return replace(item, scores=(), generations=tuple(replace(one, needed=False) for one in item.generations))

    def in_own_template(self, items: Sequence[WorkItem], tokenizer: Any) -> OwnPrompts:
        """The same questions rendered by the branch's template, and its texts before the reference's answers."""
        first, differing = None, 0
        for question in self._questions.values():
            if question.reference.request is None:
                continue
            question.branch = _prompt(question.case, tokenizer, GROUPS[question.part])
            own = question.branch.request
            if own is not None and own.token_ids != question.reference.request.token_ids:
                first = first or (question.case.question, question.reference.text, question.branch.text)
                differing += 1
        self._share({key: one.branch for key, one in self._questions.items()})
        unwritten = sum(one.branch.request is None for one in self._questions.values())
        asked = [self._asked_of_branch(item) for item in items]
        return OwnPrompts(asked, len(self._questions), differing, unwritten, first)

    def _asked_of_branch(self, item: WorkItem) -> WorkItem:
        """An item in its original layout, with the branch's prompt in place of the reference's."""
        own = self._questions[item.key].branch.request
        if own is None:
            return replace(item, scores=(), generations=())
        begins, shared = len(own.token_ids), min(own.shared, len(own.token_ids) - 1)
        scores = [
            replace(one, token_ids=own.token_ids + one.token_ids[one.first :], first=begins, shared=shared)
            for one in item.scores
        ]
        generations = [replace(one, token_ids=own.token_ids, shared=own.shared) for one in item.generations]
        return replace(item, generations=tuple(generations), scores=tuple(scores))

    def _planned_item(self, item: WorkItem, digest: Digest) -> PlannedItem:
        canary = self._questions[item.key].case.canary
        answer = self._theirs(item, digest)
        absolute = canary in self._absolute and why_not_absolute(answer) is None
        return PlannedItem(canary, cause_of(answer), absolute)

    # -- the branch

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome with both raw texts; an errored side has no score. A left out item has none."""
        if item.key in self._left_out:
            return []
        case, prompt = self._questions[item.key].case, self._questions[item.key].reference.text
        theirs, ours = self._both(engine, item, results, reference)
        return [
            ItemOutcome(
                probe=self.name,
                group=case.canary,
                item_key=item.key,
                cluster=case.question,
                stratum=case.skill,
                prompt=prompt,
                expected=case.answer,
                must_pass=case.must_pass,
                branch=ours,
                reference=theirs,
            )
        ]

    def _both(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> tuple[Answer, Answer]:
        """The reference's answer and the branch's, each with its margins and its choices at their first difference."""
        question = self._questions[item.key]
        known, generated = reference.values, results.generated.get(item.key)
        error = question.branch.error or results.error
        theirs, ours = self._theirs(item, reference), branch_answer(question.case, error, generated)
        if theirs.score is None or ours.score is None or generated is None or "teacher" not in known:
            return theirs, ours
        if item.key + TAUGHT not in results.scored:  # an engine that scores nothing
            return theirs, ours
        tokens = [DecisiveToken(*values) for values in known["decisive"]]
        ours_said = {"token_ids": generated.token_ids, "end_id": generated.end_id}
        said = (_answered(known), _answered(ours_said))
        parting = first_difference(*said)
        teachers = (Teacher(**known["teacher"]), _taught(engine, results, item.key, known, tokens))
        details = [
            divergence_of(parting, tokens_said, teacher, self._text_of)
            for teacher, tokens_said in zip(teachers, said, strict=True)
        ]
        return with_detail(theirs, details[0]), with_detail(
            ours, margin_of(tokens, teachers[1], self._text_of) | details[1]
        )

    def _theirs(self, item: WorkItem, reference: Digest) -> Answer:
        """The reference's answer with its margin, independent of the branch's."""
        question, known = self._questions[item.key], reference.values
        if question.reference.error is not None:
            return Answer(score=None, error=question.reference.error)
        answer = reference_answer(question.case, reference)
        if answer.score is None:
            return answer
        if "teacher" in known:
            tokens = [DecisiveToken(*values) for values in known["decisive"]]
            return with_detail(answer, margin_of(tokens, Teacher(**known["teacher"]), self._text_of))
        if self.follow_up(item, reference).scores:
            reason = "the reference could not be scored on its own answer, so its margin is unknown"
            return Answer(score=None, text=answer.text, error=reason)
        return answer

    def _text_of(self, token: int) -> str:
        return storable(str(self._tokenizer.decode([token])))[:SHOWN_TOKEN_CHARACTERS]

    # -- confirming flips

    def doubtful(self, outcomes: Sequence[ItemOutcome]) -> list[WorkItem]:
        """Fixed prompts that the branch fails and the reference does not, to repeat in other batches.

        Required ones come first, since one of them decides. Lanes take turns, so that few prompts show every broken
        lane.
        """
        flipped = [o for o in outcomes if o.must_pass and o.flip == "regression" and "repeats" not in o.branch.detail]
        lanes = {spec.id: tuple(spec.lanes) for spec in self.specs}
        seen: Counter[tuple[Lane, ...]] = Counter()
        turns = []
        for outcome in flipped:
            turns.append(seen[lanes[outcome.group]])
            seen[lanes[outcome.group]] += 1
        order = sorted(zip(turns, flipped, strict=True), key=lambda pair: (not self._is_counted(pair[1]), pair[0]))
        in_turn = [outcome for _, outcome in order]
        return [WorkItem(key=outcome.item_key, generations=self._again(outcome.item_key)) for outcome in in_turn]

    def confirmed(self, item: WorkItem, results: ItemResults, outcome: ItemOutcome) -> ItemOutcome:
        """The outcome with the branch's repeated answer.

        If a required prompt could not be repeated it is errored: its flip is neither confirmed nor dropped. For one
        that is judged as a rate the first answer counts.
        """
        case = self._questions[item.key].case
        again = [results.generated[item.key + ending] for ending in (FOUR, ALONE)]
        error = next((generated.error for generated in again if generated.error is not None), None)
        if error is not None and not self._is_counted(outcome):
            return outcome
        if error is not None:
            branch = Answer(score=None, text=outcome.branch.text, error=f"the flip could not be confirmed: {error}")
        else:
            repeats = repeats_of(case, [repeat_of(generated) for generated in again])
            branch = with_detail(outcome.branch, {"repeats": repeats})
        return outcome.model_copy(update={"branch": branch})

    def _is_counted(self, outcome: ItemOutcome) -> bool:
        """Whether a prompt is required."""
        return outcome.group in self._absolute and why_not_absolute(outcome.reference) is None

    def reference_repeats(self, outcomes: Sequence[ItemOutcome]) -> tuple[int, int]:
        """For the fixed prompts, which the reference repeats in other batches, too."""
        first = [(o.reference.score, score) for o in outcomes for score in repeat_scores(o.reference)]
        known = [(one, other) for one, other in first if one is not None and other is not None]
        return sum(one != other for one, other in known), len(known)

    def _again(self, key: str) -> tuple[GenerationRequest, ...]:
        """The same question in a batch of `SMALL_BATCH`, among other fixed prompts, and in a separate one."""
        alike = self._alike(key, "branch")
        request = alike.pop(key)
        others, place = list(alike.values()) or [request], sum(other < key for other in alike)
        fillers = [others[(place + number) % len(others)] for number in range(SMALL_BATCH - 1)]
        return _asked_again(request, fillers, f"four/{key}")

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """See `canaries.summary`."""
        yield from summarize_outcomes(self.specs, outcomes, self._planned)


def _asked_again(
    request: GenerationRequest, fillers: Sequence[GenerationRequest], group: str
) -> tuple[GenerationRequest, ...]:
    """The same question in a batch among `fillers`, and in a separate one."""
    key = request.key
    four = {key + FOUR: request} | {f"{key}{FOUR}/{n}": other for n, other in enumerate(fillers)}
    batch = [replace(one, key=name, group=group) for name, one in four.items()]
    return (*batch, replace(request, key=key + ALONE, group=f"alone/{key}"))


def _prompt(case: Case, tokenizer: Any, group: str) -> _Prompt:
    """Greedy, or sampled so that both deployments draw the same noise (common random numbers)."""
    try:
        text = rendered(case, tokenizer)
    except TemplateRaisedError as error:
        return _Prompt("", None, str(error))
    token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
    budget, sampling = case.generation.max_new_tokens, case.generation.sampling
    request = GenerationRequest(key="", token_ids=token_ids, max_new_tokens=budget, group=group)
    if sampling is None:
        return _Prompt(text, request)
    request = replace(
        request,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        presence_penalty=sampling.presence_penalty,
        seed=case.seed or 0,
        coupling="gumbel",
    )
    return _Prompt(text, request)


def rendered(case: Case, tokenizer: Any) -> str:
    """The prompt rendered by the chat template, generation prompt included."""
    return rendered_chat(tokenizer, case.messages, case.tools, enable_thinking=case.generation.enable_thinking)


def _sha256_of(specs: Sequence[CanarySpec], cases: Sequence[Case]) -> str:
    """Content hash of a part of a suite and of the use of its fixed prompts; empty for an empty part."""
    listed = [MARGIN_FLOOR_NATS, *sorted(spec.id for spec in specs if spec.absolute)]
    return json_sha256([STEPS_VERSION, listed, *sorted(case.content for case in cases)]) if cases else ""


def _answered(values: Mapping[str, Any]) -> tuple[int, ...]:
    """All tokens of an answer, its end of turn included."""
    end = [] if values.get("end_id") is None else [values["end_id"]]
    return (*values.get("token_ids", ()), *end)


def _taught(
    engine: Engine, results: ItemResults, key: str, answer: Mapping[str, Any], tokens: Sequence[DecisiveToken]
) -> Teacher:
    scored = results.scored[key + TAUGHT]
    if not {token.position for token in tokens if token.wrong} <= set(scored.request.whole):
        raise ValueError(f"the decisive tokens of {key} are not those that its scores were requested for")
    states = scored.hidden_states
    assert states is not None, "a result without an error has its states"
    return taught(engine.logits, states, _answered(answer), tokens)
