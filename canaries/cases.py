"""From specifications to single questions."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from q36eval.canaries.checks import CHECKS, CHECKS_VERSION, QWEN3_XML, run_checks
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.generators.tools import calls_text
from q36eval.canaries.specification import (
    CanarySpec,
    Family,
    FixedPrompt,
    GenerationSettings,
    unusable,
)
from q36eval.chat import with_call_ids
from q36eval.config.family import ToolFormat
from q36eval.errors import UsageError
from q36eval.examples import ChatExample, draw
from q36eval.files import canonical_json

SEED_MARK = "~"
"""Separates a sampled question's name from the number of its seed."""

MAX_DRAWS_PER_EXAMPLE = 50


@dataclass(frozen=True, eq=False)
class Case:
    """One question with its right answer. `name` is unique among all cases and readable: `canary/prompt`.

    Compared by identity, so that judgements of it can be kept.

    If answers are sampled, a question is evaluated once for each `seed`, and all of them belong to one `question`.
    """

    name: str
    canary: str
    skill: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...]
    expected: dict[str, Any]
    answer: str
    generation: GenerationSettings
    checks: tuple[str, ...]
    must_pass: bool
    seed: int | None = None

    @property
    def question(self) -> str:
        """The cluster of the evidence: the prompt, whatever its seed."""
        return self.name if self.seed is None else self.name.rpartition(SEED_MARK)[0]

    @property
    def content(self) -> str:
        """Canonical JSON of the question and of its judging."""
        fields = {
            "canary": self.canary,
            "messages": self.messages,
            "tools": self.tools,
            "expected": self.expected,
            "generation": self.generation.model_dump(exclude_none=True),
            "checks": self.checks,
            "checks_version": CHECKS_VERSION,
            "must_pass": self.must_pass,
            "decisive": (),  # formerly choices; part of existing hashes
            "places": (),
        }
        if self.seed is not None:
            fields["seed"] = self.seed
        return canonical_json(fields, ascii_only=False)


def cases_of(spec: CanarySpec) -> list[Case]:
    """All questions of one canary, in a fixed order.

    Raises:
        UsageError: a family whose generator raises, has fewer distinct draws than it wants, or makes examples that the
            canary's checks cannot judge.
    """
    if spec.family is not None:
        width = len(str(spec.family.n))
        drawn = draws(spec.family, spec.id)
        _check_fit(spec, drawn[0])
        cases = [_case(spec, f"{number:0{width}d}", example) for number, example in enumerate(drawn, 1)]
        sampling = spec.generation.sampling
        if sampling is None:
            return cases
        seeds = range(1, sampling.seeds + 1)
        return [replace(case, name=f"{case.name}{SEED_MARK}{seed}", seed=seed) for case in cases for seed in seeds]
    return [_case(spec, prompt.name, prompt) for prompt in spec.must_pass or ()]


def _check_fit(spec: CanarySpec, first: ChatExample) -> None:
    """Check that a family's checks fit its generator: the first draw's own answer passes them."""
    try:
        failures = run_checks(first.answer, spec.checks, first.expected, first.tools)
    except ValidationError as error:
        message = f"its generator's examples do not state what its checks need ({unusable(error)})"
        raise UsageError("canary-checks-unusable", f"Canary {spec.id}: {message}; name other checks.") from error
    if failures:
        raise UsageError(
            "canary-answer-fails",
            f"Canary {spec.id}: its generator's own answer fails its checks: {failures[0].message}; correct either.",
        )


def _case(spec: CanarySpec, name: str, prompt: ChatExample | FixedPrompt) -> Case:
    return Case(
        name=f"{spec.id}/{name}",
        canary=spec.id,
        skill=spec.skill,
        messages=tuple(prompt.messages),
        tools=tuple(prompt.tools),
        expected=_what_was_said(spec, prompt) | prompt.expected,
        answer=prompt.answer,
        generation=spec.generation,
        checks=tuple(spec.checks),
        must_pass=spec.must_pass is not None,
    )


def _keys_read(checks: Sequence[str]) -> frozenset[str]:
    return frozenset(key for name in checks for key in CHECKS[name].keys)


def _what_was_said(spec: CanarySpec, prompt: ChatExample | FixedPrompt) -> dict[str, Any]:
    """The texts of the conversation, for checks that compare an answer's prose with them."""
    said = [message["content"] for message in prompt.messages if isinstance(message.get("content"), str)]
    return {"known": [text for text in said if text]} if "known" in _keys_read(spec.checks) else {}


def in_format(case: Case, tool_format: ToolFormat | None, *, system: bool = True) -> Case:
    """The question in that format of tool calls, for models whose chat template uses it.

    Without a `system` role its text is put at the start of the first user message.
    """
    if not system and case.messages[0]["role"] == "system":
        case = replace(case, messages=_without_system(*case.messages))
    if tool_format is None or tool_format == QWEN3_XML or "tool_format" not in _keys_read(case.checks):
        return case
    wanted = case.expected.get("calls", [case.expected])
    calls = [(call["name"], call["arguments"]) for call in wanted if call.get("name") is not None]
    return replace(
        case,
        messages=tuple(with_call_ids(case.messages)),
        expected={**case.expected, "tool_format": tool_format},
        answer=calls_text(calls, tool_format) if calls else case.answer,
    )


def _without_system(system: dict[str, Any], *messages: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    first = next(at for at, message in enumerate(messages) if message["role"] == "user")
    user = {**messages[first], "content": f"{system['content']}\n\n{messages[first]['content']}"}
    return (*messages[:first], user, *messages[first + 1 :])


def draws(family: Family, name: str) -> list[ChatExample]:
    """The family's `n` examples, distinct by content; a longer family starts with the shorter one's examples.

    Raises:
        UsageError: the generator raises, or does not have that many on this side of the split.
    """
    rng = random.Random(f"{name}-{family.seed}")
    generator = partial(GENERATORS[family.generator], **family.settings)
    drawn: dict[str, ChatExample] = {}
    for number in range(1, family.n * MAX_DRAWS_PER_EXAMPLE + 1):
        try:
            example = draw(generator, rng, family.split)
        except Exception as error:
            trouble = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(
                "canary-generator-failed", f"Canary {name}: {family.generator} fails at draw {number} ({trouble})."
            ) from error
        drawn.setdefault(example.key, example)
        if len(drawn) == family.n:
            return list(drawn.values())
    raise UsageError(
        "canary-draws-exhausted",
        f"Canary {name}: {family.generator} has only {len(drawn)} distinct draws, not n = {family.n}.",
    )
