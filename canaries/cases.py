"""From specifications to the single questions that are asked."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from canaries.checks import CHECKS_VERSION
from canaries.generators import GENERATORS
from canaries.specification import CanarySpec, Family, GenerationSettings
from q36eval.errors import UsageError
from q36eval.examples import ChatExample, draw

MAX_DRAWS_PER_EXAMPLE = 50


@dataclass(frozen=True)
class Case:
    """One question with its right answer. `name` is unique among all cases and readable: `canary/prompt`."""

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

    @property
    def content(self) -> str:
        """Canonical JSON of everything that is asked and of how it is judged."""
        fields = {
            "canary": self.canary,
            "messages": self.messages,
            "tools": self.tools,
            "expected": self.expected,
            "generation": self.generation.model_dump(),
            "checks": self.checks,
            "checks_version": CHECKS_VERSION,
            "must_pass": self.must_pass,
        }
        return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def cases_of(spec: CanarySpec) -> list[Case]:
    """All questions of one canary, in a fixed order.

    Raises:
        UsageError: a family that wants more distinct draws than its generator has.
    """
    if spec.family is not None:
        width = len(str(spec.family.n))
        drawn = draws(spec.family, spec.id)
        return [
            _case(spec, f"{number:0{width}d}", example.messages, example.tools, example.expected, example.answer)
            for number, example in enumerate(drawn, 1)
        ]
    return [
        _case(spec, prompt.name, prompt.messages, prompt.tools, prompt.expected, prompt.answer)
        for prompt in spec.must_pass or ()
    ]


def _case(
    spec: CanarySpec,
    name: str,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    expected: dict[str, Any],
    answer: str,
) -> Case:
    return Case(
        name=f"{spec.id}/{name}",
        canary=spec.id,
        skill=spec.skill,
        messages=tuple(messages),
        tools=tuple(tools),
        expected=expected,
        answer=answer,
        generation=spec.generation,
        checks=tuple(spec.checks),
        must_pass=spec.must_pass is not None,
    )


def draws(family: Family, name: str) -> list[ChatExample]:
    """The family's `n` examples, distinct by content; a longer family starts with the shorter one's examples.

    Raises:
        UsageError: the generator does not have that many on this side of the split.
    """
    rng = random.Random(f"{name}-{family.seed}")
    found: dict[str, ChatExample] = {}
    for _ in range(family.n * MAX_DRAWS_PER_EXAMPLE):
        example = draw(GENERATORS[family.generator], rng, family.split)
        found.setdefault(example.key, example)
        if len(found) == family.n:
            return list(found.values())
    raise UsageError(f"Canary {name}: {family.generator} has only {len(found)} distinct draws, not n = {family.n}.")
