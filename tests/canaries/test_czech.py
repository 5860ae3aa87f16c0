"""The Czech of the prompts: declined names, and prepositions that keep their vowel."""

import random
import re

import pytest

from q36eval.canaries.checks import run_checks
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.generators.words import (
    CITIES,
    FIRST_NAMES_F,
    FIRST_NAMES_M,
    SURNAMES_F,
    SURNAMES_M,
    TOWN_OF,
    TOWNS,
    declined_person,
)
from q36eval.canaries.specification import FixedPrompt, load_specs

SPECS = load_specs(skills=None)
FIXED = [(spec, prompt) for spec in SPECS for prompt in spec.must_pass or ()]

UNVOCALISED = re.compile(r"\b[Zz] (?:[zsšž]|vs)|\b[Vv] [vf]", re.IGNORECASE)
"""„z Zlína“, „z Vsetína“, „v Vsetíně“: a preposition that lacks its vowel."""


def _asked(prompt: FixedPrompt) -> str:
    return " ".join(message["content"] for message in prompt.messages if message["role"] in ("system", "user"))


def test_every_town_has_its_forms() -> None:
    assert set(CITIES) <= set(TOWN_OF)
    assert len({town.nominative for town in TOWNS}) == len(TOWNS)
    for town in TOWN_OF.values():
        assert town.origin in (f"z {town.genitive}", f"ze {town.genitive}")
        assert re.match(r"ve? ", town.place)
        assert not UNVOCALISED.search(f"{town.origin}, {town.place}")


@pytest.mark.parametrize("kind", sorted(GENERATORS))
def test_prepositions_keep_their_vowel(kind: str) -> None:
    rng = random.Random(41)
    for _ in range(150):
        example = GENERATORS[kind](rng)
        text = " ".join(message["content"] for message in example.messages)
        assert not UNVOCALISED.search(text), text
    for spec, prompt in FIXED:
        assert not UNVOCALISED.search(_asked(prompt)), (spec.id, prompt.name)


def test_people_are_declined_in_agreement() -> None:
    """A woman's surname is an adjective: -á, -é, -é; a man's first name never keeps its nominative."""
    rng = random.Random(43)
    for _ in range(300):
        name, woman = declined_person(rng)
        first, last = name.nominative.split()
        assert woman == (first in {each.nominative for each in FIRST_NAMES_F})
        assert woman == (last in {each.nominative for each in SURNAMES_F})
        if woman:
            assert (last[-1], name.genitive[-1], name.dative[-1]) == ("á", "é", "é")
        else:
            assert all(first != form.split()[0] and last != form.split()[1] for form in (name.genitive, name.dative))


def test_towns_and_people_are_mentioned_in_every_form() -> None:
    forms = {town.nominative: (town.nominative, town.genitive, town.origin, town.place) for town in TOWN_OF.values()}
    forms |= {name.nominative: name for name in (*FIRST_NAMES_F, *FIRST_NAMES_M, *SURNAMES_F, *SURNAMES_M)}
    for name, said in forms.items():
        for form in said:
            assert run_checks(f"Text: {form}.", ["style"], {"style": {"mentions": [name]}}) == [], (name, form)
