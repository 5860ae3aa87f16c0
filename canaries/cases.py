"""From specifications to the single questions that are asked."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from canaries.checks import CHECKS_VERSION, NotJudgedError, run_checks
from canaries.generators import GENERATORS
from canaries.specification import CanarySpec, DecisivePlace, Family, FixedPrompt, GenerationSettings
from q36eval.errors import UsageError
from q36eval.examples import ChatExample, draw

MAX_DRAWS_PER_EXAMPLE = 50
DRAWS_LOOKED_AT = 20
"""Draws in which every kind of decision of a family occurs."""


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
    decisive: tuple[str, ...] = ()
    places: tuple[DecisivePlace, ...] = ()

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
            "decisive": self.decisive,
            "places": [place.model_dump() for place in self.places],
        }
        return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def cases_of(spec: CanarySpec) -> list[Case]:
    """All questions of one canary, in a fixed order.

    Raises:
        UsageError: a family whose generator raises, has fewer distinct draws than it wants, or makes examples that the
            canary's checks cannot judge.
    """
    if spec.family is not None:
        width = len(str(spec.family.n))
        drawn = draws(spec.family, spec.id)
        _check_fit(spec, drawn)
        return [_case(spec, f"{number:0{width}d}", example) for number, example in enumerate(drawn, 1)]
    return [_case(spec, prompt.name, prompt, tuple(prompt.decisive)) for prompt in spec.must_pass or ()]


def _check_fit(spec: CanarySpec, drawn: Sequence[ChatExample]) -> None:
    """A family's checks fit its generator: the first draw's own answer passes them, and what is decisive occurs."""
    first = drawn[0]
    try:
        failures = run_checks(first.answer, spec.checks, first.expected, first.tools)
        looked_at = drawn[:DRAWS_LOOKED_AT] if spec.decisive else ()
        spec.check_kinds({kind for each in looked_at for kind in spec.kinds(each.answer, each.expected, each.tools)})
    except ValidationError as error:
        lacking = ".".join(str(part) for part in error.errors()[0]["loc"])
        message = f"its checks need {lacking!r}, which its generator's examples do not state"
        raise UsageError(f"Canary {spec.id}: {message}; name other checks.") from error
    except (NotJudgedError, ValueError) as error:
        raise UsageError(f"Canary {spec.id}: {error}; correct it.") from error
    if failures:
        raise UsageError(f"Canary {spec.id}: its generator's own answer fails, {failures[0].message}; correct either.")


def _case(
    spec: CanarySpec, name: str, asked: ChatExample | FixedPrompt, places: tuple[DecisivePlace, ...] = ()
) -> Case:
    return Case(
        name=f"{spec.id}/{name}",
        canary=spec.id,
        skill=spec.skill,
        messages=tuple(asked.messages),
        tools=tuple(asked.tools),
        expected=asked.expected,
        answer=asked.answer,
        generation=spec.generation,
        checks=tuple(spec.checks),
        must_pass=spec.must_pass is not None,
        decisive=tuple(spec.decisive),
        places=places,
    )


def draws(family: Family, name: str) -> list[ChatExample]:
    """The family's `n` examples, distinct by content; a longer family starts with the shorter one's examples.

    Raises:
        UsageError: the generator raises, or does not have that many on this side of the split.
    """
    rng = random.Random(f"{name}-{family.seed}")
    generator = partial(GENERATORS[family.generator], **family.settings)
    found: dict[str, ChatExample] = {}
    for number in range(1, family.n * MAX_DRAWS_PER_EXAMPLE + 1):
        try:
            example = draw(generator, rng, family.split)
        except Exception as error:
            trouble = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(f"Canary {name}: {family.generator} fails at draw {number} ({trouble}).") from error
        found.setdefault(example.key, example)
        if len(found) == family.n:
            return list(found.values())
    raise UsageError(f"Canary {name}: {family.generator} has only {len(found)} distinct draws, not n = {family.n}.")
