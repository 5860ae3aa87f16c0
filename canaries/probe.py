"""The canary probe: asks fixed prompts and generated families, and compares what both deployments answered.

It asks in steps: every question of both deployments; then both are teacher-forced on the reference's answers, which
gives the decisive margins and the choices at the first token where two answers part; then the branch is asked again, in
other batches, what the reference answered right every time and the branch did not.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    storable,
    with_detail,
)
from q36eval.canaries.cases import Case, cases_of, in_format
from q36eval.canaries.checks import QWEN3_XML
from q36eval.canaries.margins import CHOICES, END, DecisiveToken, Teacher, decisive_tokens, first_difference, taught
from q36eval.canaries.must_pass import MARGIN_FLOOR_NATS, repeat_scores, why_not_absolute
from q36eval.canaries.outcomes import PlannedItem, cause_of
from q36eval.canaries.specification import CanarySpec
from q36eval.canaries.summary import declared_figures, summarize_outcomes
from q36eval.chat import TemplateRaisedError, rendered_chat
from q36eval.config.family import ToolFormat
from q36eval.engines.base import Engine, GenerationRequest, ScoreRequest
from q36eval.engines.batches import common_prefixes
from q36eval.files import json_sha256
from q36eval.metrics import DeclaredFigure
from q36eval.probes import Digest, FollowUp, ItemResults, OwnPrompts, Probe, WorkItem
from q36eval.records import Answer, ItemOutcome, Lane, Measurement, ProbeName

SMALL_BATCH = 4
"""Rows of the batch in which a must-pass prompt is asked again, before it is asked alone."""

SHIPPED, OWN = "canaries", "own canaries"
GROUPS = {SHIPPED: "", OWN: "own"}
"""Of the requests of each part of a suite."""

STEPS_VERSION = 3
"""Part of the suite's hash: raise it when what is kept of an answer changes."""

MUST_PASS, FAMILIES = "must-pass", "canaries"
"""Stages: the fixed prompts come first, since one confirmed flip of them decides."""

FOUR, ALONE, TAUGHT = "/four", "/alone", "/taught"
"""Endings of the keys of an item's further requests."""


class CanaryProbe(Probe):
    """One item and one cluster a question.

    The reference's digest keeps its raw text, which is judged again at every comparison: a corrected checker applies
    to both sides alike.
    """

    name = ProbeName.CANARIES
    does_without_scores = True  # of margins then, and of the choices where two answers part

    def __init__(
        self, specs: Sequence[CanarySpec], own: Sequence[CanarySpec] = (), tool_format: ToolFormat = QWEN3_XML
    ) -> None:
        """`specs` are the canaries that ship, `own` a person's beside them: never in one batch with those.

        `tool_format` is how the chat template of the models writes tool calls.
        """
        self.specs = (*specs, *own)
        parts = {SHIPPED: specs, OWN: own}
        self._cases = {
            part: [in_format(case, tool_format) for spec in part_specs for case in cases_of(spec)]
            for part, part_specs in parts.items()
        }
        self._by_key: dict[str, tuple[Case, str]] = {}
        self._requests: dict[str, GenerationRequest] = {}
        self._unwritten: dict[str, str] = {}
        """Why the reference's chat template does not write an item's conversation: it cannot be asked."""
        self._of_branch: dict[str, GenerationRequest] = {}
        """What the branch is asked, where its chat template is another one; else `_requests`."""
        self._unwritten_of_branch: dict[str, str] = {}
        self._must_pass: list[str] = []
        self._parts: dict[str, str] = {}
        self._tokenizer: Any = None
        self._absolute = frozenset(spec.id for spec in self.specs if spec.absolute)
        self._planned: tuple[PlannedItem, ...] | None = None
        self.suite_fields = {part: _sha256_of(parts[part], cases) for part, cases in self._cases.items()}
        in_order = json.dumps(self.suite_fields)  # of the parts as they come, not by name: hashes were made so
        self.suite_sha256 = hashlib.sha256(in_order.encode()).hexdigest()

    def part_of(self, key: str) -> str:
        """Whether an item is one of the shipped canaries or a person's own."""
        return self._parts[key]

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """One greedy generation per question; its key is a hash of the rendered prompt and of how it is judged."""
        self._by_key, self._parts, self._unwritten, self._tokenizer = {}, {}, {}, tokenizer
        requests: dict[str, GenerationRequest] = {}
        for part, case in ((part, case) for part, cases in self._cases.items() for case in cases):
            problem = None
            try:
                prompt = rendered(case, tokenizer)
            except TemplateRaisedError as error:
                prompt, problem = "", str(error)
            key = json_sha256([prompt if problem is None else None, case.content])
            if key in self._by_key:
                continue
            self._by_key[key], self._parts[key] = (case, prompt), part
            if problem is not None:
                self._unwritten[key] = problem
                continue
            ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
            requests[key] = _request(key, case, ids, GROUPS[part])
        self._requests = self._of_branch = self._with_shared(requests)
        self._unwritten_of_branch = self._unwritten
        self._must_pass = sorted(key for key in requests if self._stage_of(key) == MUST_PASS)
        items = [
            WorkItem(
                key=key, generations=(self._requests[key],) if key in self._requests else (), stage=self._stage_of(key)
            )
            for key in self._by_key
        ]
        return sorted(items, key=lambda item: item.stage != MUST_PASS)

    def _with_shared(self, requests: Mapping[str, GenerationRequest]) -> dict[str, GenerationRequest]:
        """The requests, told what they share with those alone that are asked together.

        What one's own canaries begin with moves no batch of the shipped ones.
        """
        together: dict[tuple[str, str], list[str]] = {}
        for key in requests:
            together.setdefault((self.part_of(key), self._stage_of(key)), []).append(key)
        shared = {
            key: count
            for keys in together.values()
            for key, count in zip(keys, common_prefixes([requests[key].token_ids for key in keys]), strict=True)
        }
        return {key: replace(request, shared=shared[key]) for key, request in requests.items()}

    def declared(self) -> tuple[DeclaredFigure, ...]:
        """What it will yield, before anything is asked; see `canaries.summary`."""
        return declared_figures(self.specs)

    def _stage_of(self, key: str) -> str:
        return MUST_PASS if self._by_key[key][0].must_pass else FAMILIES

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's raw text and tokens, and why it ended; nothing of a question that it could not be asked."""
        if item.key in self._unwritten:
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
        """Teacher-forcing on the reference's answer; a must-pass prompt is also asked of the reference twice more."""
        if item.key in self._unwritten:
            return FollowUp()
        request = self._requests[item.key]
        answered = _answered(first.values)
        scores: tuple[ScoreRequest, ...] = ()
        # a sampled answer is one of many: what decided it says little of the others
        if answered and self._by_key[item.key][0].seed is None:
            token_ids = request.token_ids + answered
            first_row = len(request.token_ids)
            shared = min(request.shared, first_row - 1)
            group = GROUPS[self.part_of(item.key)]
            decisive = self._decisive(self._by_key[item.key][0], first.values)
            whole = tuple(sorted({token.position for token in decisive if token.wrong}))
            scores = (
                ScoreRequest(
                    item.key + TAUGHT,
                    token_ids,
                    first=first_row,
                    group=group,
                    shared=shared,
                    likeliest=CHOICES,
                    whole=whole,
                ),
            )
        return FollowUp(scores=scores, repeats=self._repeats(item.key))

    def _repeats(self, key: str) -> tuple[GenerationRequest, ...]:
        """A must-pass prompt once more, among `SMALL_BATCH` of them, and alone; nothing of a family's question."""
        if not self._by_key[key][0].must_pass:
            return ()
        alike = self._alike(key)
        request, chunk = self._requests[key], alike.index(key) // SMALL_BATCH
        group = f"four/{GROUPS[self.part_of(key)]}/{chunk}"
        # the last batch is filled up, by prompts whose answers are not kept
        places = range(-len(alike) % SMALL_BATCH if key == alike[-1] else 0)
        fillers = {f"{key}{FOUR}/{n}": self._requests[alike[n % len(alike)]] for n in places}
        four = {key + FOUR: request} | fillers
        batch = [replace(one, key=name, group=group) for name, one in four.items()]
        return (*batch, replace(request, key=key + ALONE, group=f"alone/{key}"))

    def _alike(self, key: str) -> list[str]:
        """The must-pass prompts of the part which that one belongs to, itself among them."""
        return [other for other in self._must_pass if self.part_of(other) == self.part_of(key)]

    def digest_follow_up(self, engine: Engine, item: WorkItem, first: Digest, results: ItemResults) -> Digest:
        """The reference's margins and choices on its own answer, and what it answered in other batches."""
        values: dict[str, Any] = {}
        case, _ = self._by_key[item.key]
        if item.key + TAUGHT in results.scored:
            tokens = self._decisive(case, first.values)
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
        """The decisive tokens of a right answer; of a wrong one, or one that is not judged, none."""
        token_ids, text = answer["token_ids"], answer["text"]
        if judged_answer(case, text, answer["finish_reason"], len(token_ids)).score != 1.0:
            return []
        decided = right_decisions(case, text)
        tokens = decisive_tokens(self._tokenizer, token_ids, text, decided, answer["end_id"])
        if answer["end_id"] is not None:
            tokens.append(DecisiveToken(END, len(token_ids), answer["end_id"]))
        return tokens

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """Count what the reference can do, and which prompts stay on the absolute list; the items are as they were."""
        self._planned = tuple(self._planned_item(item, digests[item.key]) for item in items if item.key in digests)
        return items

    def in_own_template(self, items: Sequence[WorkItem], tokenizer: Any) -> OwnPrompts:
        """The same questions as the branch's template writes them, and its texts before the reference's answers."""
        unwritten = dict(self._unwritten)
        texts: dict[str, str] = {}
        requests: dict[str, GenerationRequest] = {}
        for key, (case, _) in self._by_key.items():
            if key in unwritten:
                continue
            try:
                texts[key] = rendered(case, tokenizer)
            except TemplateRaisedError as error:
                unwritten[key] = str(error)
                continue
            ids = tuple(tokenizer.encode(texts[key], add_special_tokens=False))
            requests[key] = replace(self._requests[key], token_ids=ids)
        self._of_branch, self._unwritten_of_branch = self._with_shared(requests), unwritten
        differing = [key for key, one in requests.items() if one.token_ids != self._requests[key].token_ids]
        first = None
        if differing:
            case, prompt = self._by_key[differing[0]]
            first = (case.question, prompt, texts[differing[0]])
        own = [self._asked_of_branch(item) for item in items]
        return OwnPrompts(own, len(self._by_key), len(differing), len(unwritten), first)

    def _asked_of_branch(self, item: WorkItem) -> WorkItem:
        """An item as it was laid out, of the reference's prompt, with the branch's in its place."""
        if item.key not in self._of_branch:
            return replace(item, scores=(), generations=())
        own = self._of_branch[item.key]
        begins = len(own.token_ids)
        return replace(
            item,
            generations=tuple(replace(one, token_ids=own.token_ids, shared=own.shared) for one in item.generations),
            scores=tuple(
                replace(
                    one,
                    token_ids=own.token_ids + one.token_ids[one.first :],
                    first=begins,
                    shared=min(own.shared, begins - 1),
                )
                for one in item.scores
            ),
        )

    def _planned_item(self, item: WorkItem, digest: Digest) -> PlannedItem:
        canary = self._by_key[item.key][0].canary
        answer = self._theirs(item, digest)
        absolute = canary in self._absolute and why_not_absolute(answer) is None
        return PlannedItem(canary, cause_of(answer), absolute)

    # -- the branch

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome with both raw texts; an errored side has no score."""
        case, prompt = self._by_key[item.key]
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
        """The reference's answer and the branch's, each with its margins and its choices where they part."""
        case, _ = self._by_key[item.key]
        known, generated = reference.values, results.generated.get(item.key)
        error = self._unwritten_of_branch.get(item.key) or results.error
        theirs, ours = self._theirs(item, reference), branch_answer(case, error, generated)
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
        """The reference's answer with its margin, whatever the branch says to it."""
        case, known = self._by_key[item.key][0], reference.values
        if item.key in self._unwritten:
            return Answer(score=None, error=self._unwritten[item.key])
        answer = reference_answer(case, reference)
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
        """Fixed prompts that the branch fails and the reference does not, to be asked again in other batches.

        Those that are counted for the absolute list come first, since one of them decides. Those of the lanes take
        turns, so that few of them show every lane that is broken.
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
        """The outcome with what the branch answered then.

        Where a prompt of the absolute list could not be asked again it is errored: its flip is neither believed nor
        forgotten. Of one that is judged as a rate the first answer stands.
        """
        case, _ = self._by_key[item.key]
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
        """Whether a prompt is counted for the absolute list."""
        return outcome.group in self._absolute and why_not_absolute(outcome.reference) is None

    def reference_repeats(self, outcomes: Sequence[ItemOutcome]) -> tuple[int, int]:
        """Of the must-pass prompts, which the reference is asked in other batches too."""
        first = [(o.reference.score, score) for o in outcomes for score in repeat_scores(o.reference)]
        known = [(one, other) for one, other in first if one is not None and other is not None]
        return sum(one != other for one, other in known), len(known)

    def _again(self, key: str) -> tuple[GenerationRequest, ...]:
        """The same question in a batch of `SMALL_BATCH`, among other must-pass prompts, and in one of its own."""
        request = self._of_branch[key]
        others = [other for other in self._alike(key) if other != key and other in self._of_branch] or [key]
        place = sum(other < key for other in others)
        fillers = [others[(place + number) % len(others)] for number in range(SMALL_BATCH - 1)]
        four = {key + FOUR: request} | {f"{key}{FOUR}/{n}": self._of_branch[other] for n, other in enumerate(fillers)}
        batch = [replace(one, key=name, group=f"four/{key}") for name, one in four.items()]
        return (*batch, replace(request, key=key + ALONE, group=f"alone/{key}"))

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """See `canaries.summary`."""
        yield from summarize_outcomes(self.specs, outcomes, self._planned)


def _request(key: str, case: Case, token_ids: tuple[int, ...], group: str) -> GenerationRequest:
    """Greedy, or sampled so that both deployments draw the same noise (common random numbers)."""
    budget, sampling = case.generation.max_new_tokens, case.generation.sampling
    request = GenerationRequest(key=key, token_ids=token_ids, max_new_tokens=budget, group=group)
    if sampling is None:
        return request
    return replace(
        request,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        presence_penalty=sampling.presence_penalty,
        seed=case.seed or 0,
        coupling="gumbel",
    )


def rendered(case: Case, tokenizer: Any) -> str:
    """The prompt as the chat template writes it, generation prompt included."""
    return rendered_chat(tokenizer, case.messages, case.tools, enable_thinking=case.generation.enable_thinking)


def _sha256_of(specs: Sequence[CanarySpec], cases: Sequence[Case]) -> str:
    """Content hash of a part of a suite and of what its fixed prompts are counted for; empty where it holds nothing."""
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
