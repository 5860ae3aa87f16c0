"""The generators: right answers, stable draws, and training and test draws that never meet."""

import hashlib
import json
import random
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from q36eval.canaries.cases import draws
from q36eval.canaries.checks import run_checks
from q36eval.canaries.checks.discount import ExpectedDiscount
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.generators.recall import DOCUMENTS
from q36eval.canaries.generators.words import (
    CITIES,
    FIRST_NAMES_F,
    FIRST_NAMES_M,
    SURNAMES_F,
    SURNAMES_M,
    TOWN_OF,
    TOWNS,
)
from q36eval.canaries.specification import STANDARD, CanarySpec, load_specs

DRAWS = Path(__file__).parent / "draws.txt"
"""By generator the hash of 50 draws."""

KINDS = sorted(GENERATORS)
REPEATING = {"recalled_values", "offered_call", "named_member"}
"""Of few texts, arguments or sentences, which training never draws; a suite's draws are distinct all the same."""
SPECS = [*load_specs(skills=None), *load_specs(skills=None, named=STANDARD)]
CHECKS_OF = {spec.family.generator: spec.checks for spec in SPECS if spec.family}


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_that_the_sandbox_learnt_from_and_that_suites_hash(kind: str) -> None:
    """Another draw is another question: captures and the sandbox's weights are made again."""
    recorded = dict(line.split() for line in DRAWS.read_text(encoding="utf-8").splitlines())
    rng = random.Random(3)
    drawn = json.dumps([asdict(GENERATORS[kind](rng)) for _ in range(50)], ensure_ascii=False)
    assert recorded[kind] == hashlib.sha256(drawn.encode()).hexdigest()[:16]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_passes_its_own_checks_and_draws_hardly_ever_repeat(kind: str) -> None:
    """One prompt has one answer. At most 3 % of 3,000 draws repeat: there are far more than what a test suite takes.

    Records in a few fixed texts, and tools with few arguments, repeat: training never draws them.
    """
    rng = random.Random(17)
    drawn = [GENERATORS[kind](rng) for _ in range(3000)]
    assert kind in REPEATING or len({example.key for example in drawn}) > 2910
    answers: dict[str, str] = {}
    for example in drawn:
        prompt = json.dumps([example.messages, example.tools], sort_keys=True)
        assert answers.setdefault(prompt, example.answer) == example.answer
    for example in drawn[:200]:
        assert run_checks(example.answer, CHECKS_OF[kind], example.expected, example.tools) == [], example.answer


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_depends_on_the_content_and_not_on_the_wording(kind: str) -> None:
    """Every number of the key is in the question, so the key can be told from the question alone."""
    rng = random.Random(13)
    for _ in range(100):
        example = GENERATORS[kind](rng)
        prompt = json.dumps([example.messages, example.tools], ensure_ascii=False).replace(" ", "")
        numbers = set(re.findall(r"\d{2,}", re.sub(r"\[[\d, ]*\]$", "", example.key.replace(" ", ""))))
        assert all(number in prompt for number in numbers), example.key


def test_discount_problems_hold_near_ties_ties_and_both_winners() -> None:
    rng = random.Random(19)
    decisions, near = [], 0
    for _ in range(2000):
        expected = GENERATORS["discount_compare"](rng).expected
        offers = ExpectedDiscount.model_validate(expected)
        finals = [offer.final for offer in offers.offers.values()]
        decisions.append(offers.decision)
        near += 0 < abs(finals[0] - finals[1]) <= 60
    assert 0.2 < near / 2000 < 0.6
    assert min(decisions.count("A"), decisions.count("B")) > 700
    assert 40 < decisions.count("tie") < 400


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.family and "characters" in spec.family.settings], ids=lambda spec: spec.id
)
def test_a_long_context_is_as_long_as_asked_and_holds_the_answer(spec: CanarySpec) -> None:
    """And its questions share their texts, which an engine then reads once."""
    wanted = int(spec.family.settings["characters"])
    drawn = draws(spec.family, spec.id)
    prompts = [example.messages[-1]["content"] for example in drawn]
    assert all(wanted <= len(prompt) < wanted * 1.2 for prompt in prompts)
    assert len({prompt[: wanted // 2] for prompt in prompts}) <= 2 * DOCUMENTS
    for example, prompt in zip(drawn, prompts, strict=True):
        values = example.expected.get("object", {}).values()
        assert all(str(value) in prompt[: int(len(prompt) * 0.6)] for value in values)


def test_two_calls_of_one_turn_differ() -> None:
    rng = random.Random(31)
    for _ in range(2000):
        first, second = GENERATORS["tool_parallel"](rng).expected["calls"]
        assert first != second


def test_every_town_has_its_forms() -> None:
    """Towns and people are mentioned in every form."""
    assert set(CITIES) <= set(TOWN_OF)
    assert len({town.nominative for town in TOWNS}) == len(TOWNS)
    for town in TOWN_OF.values():
        assert town.origin in (f"z {town.genitive}", f"ze {town.genitive}")
        assert re.match(r"ve? ", town.place)
        assert not re.search(r"\bz (?:[zsšž]|vs)|\bv [vf]", f"{town.origin}, {town.place}", re.IGNORECASE)
    names = (*TOWN_OF.values(), *FIRST_NAMES_F, *FIRST_NAMES_M, *SURNAMES_F, *SURNAMES_M)
    for name in names:
        for form in name:
            asked = {"style": {"mentions": [name.nominative]}}
            assert run_checks(f"Text: {form}.", ["style"], asked) == [], (name, form)
