"""The canary probe: asks fixed prompts and generated families, and compares what both deployments answered."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from canaries.cases import Case, cases_of
from canaries.checks import Failure, run_checks
from canaries.specification import CanarySpec
from canaries.summary import summarize_outcomes
from q36eval.chat import rendered_chat
from q36eval.engines.base import Engine, Generated, GenerationRequest
from q36eval.probes import Digest, ItemResults, WorkItem
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName

THINK_END = "</think>"


class CanaryProbe:
    """Implements `q36eval.probes.Probe`; one work item and one cluster per question.

    The reference's digest keeps its raw text, which is judged again at every comparison: a corrected checker applies
    to both sides alike.
    """

    name = ProbeName.CANARIES

    def __init__(self, specs: Sequence[CanarySpec]) -> None:
        self.specs = tuple(specs)
        self._cases = [case for spec in self.specs for case in cases_of(spec)]
        self._by_key: dict[str, tuple[Case, str]] = {}
        contents = json.dumps(sorted(case.content for case in self._cases))
        self.suite_sha256 = hashlib.sha256(contents.encode()).hexdigest()

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """One greedy generation per question; its key is a hash of the rendered prompt and of how it is judged."""
        self._by_key = {}
        items = []
        for case in self._cases:
            prompt = rendered(case, tokenizer)
            key = hashlib.sha256(json.dumps([prompt, case.content]).encode()).hexdigest()
            if key in self._by_key:
                continue
            self._by_key[key] = (case, prompt)
            ids = tuple(tokenizer.encode(prompt, add_special_tokens=False))
            request = GenerationRequest(key=key, token_ids=ids, max_new_tokens=case.generation.max_new_tokens)
            items.append(WorkItem(key=key, generations=(request,)))
        return items

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's raw text, why it ended, and what was wrong with it."""
        case, _ = self._by_key[item.key]
        generated = results.generated[item.key]
        failures = [failure.as_dict() for failure in judge(case, generated.text, generated.finish_reason)]
        values = {"text": _storable(generated.text), "finish_reason": generated.finish_reason, "failures": failures}
        return Digest(values=values)

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome with both raw texts; an errored side has no score."""
        case, prompt = self._by_key[item.key]
        return [
            ItemOutcome(
                probe=self.name,
                group=case.canary,
                item_key=item.key,
                cluster=case.name,
                stratum=case.skill,
                prompt=prompt,
                expected=case.answer,
                must_pass=case.must_pass,
                branch=_branch_answer(case, results.error, results.generated.get(item.key)),
                reference=_reference_answer(case, reference),
            )
        ]

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """Failure rates by family and lane, must-pass flips by lane, right numbers with a wrong conclusion."""
        yield from summarize_outcomes(self.specs, outcomes)


def rendered(case: Case, tokenizer: Any) -> str:
    """The prompt as the chat template writes it, generation prompt included."""
    return rendered_chat(tokenizer, case.messages, case.tools, enable_thinking=case.generation.enable_thinking)


def judge(case: Case, text: str, finish_reason: str) -> list[Failure]:
    """What is wrong with a raw answer. Reasoning is cut off first; an answer that never ended is wrong."""
    failures = []
    if finish_reason == "length":
        budget = case.generation.max_new_tokens
        failures.append(Failure("generation", "cut_off", "end", f"no end within {budget} tokens"))
    answer = text
    if case.generation.enable_thinking:
        _, end, answer = text.partition(THINK_END)
        if not end:
            message = f"the reasoning never ends with {THINK_END}"
            return [*failures, Failure("generation", "no_answer", "end", message)]
    return failures + run_checks(answer, case.checks, case.expected, case.tools)


def _answer(case: Case, text: str, finish_reason: str) -> Answer:
    failures = judge(case, text, finish_reason)
    detail = {"failures": [failure.as_dict() for failure in failures], "finish_reason": finish_reason}
    return Answer(score=0.0 if failures else 1.0, text=_storable(text), detail=detail)


def _storable(text: str) -> str:
    """Lone surrogates, which a server's JSON can carry but UTF-8 cannot, become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _branch_answer(case: Case, error: str | None, generated: Generated | None) -> Answer:
    if error is not None or generated is None:
        return Answer(score=None, error=error or "the engine returned no result")
    return _answer(case, generated.text, generated.finish_reason)


def _reference_answer(case: Case, reference: Digest) -> Answer:
    if reference.error is not None:
        return Answer(score=None, error=reference.error)
    return _answer(case, reference.values["text"], reference.values["finish_reason"])
