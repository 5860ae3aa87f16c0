"""The Czech of the prompts: declined names, prepositions, agreement, and keys that mean in both languages the same."""

import json
import random
import re
from itertools import pairwise

import pytest

from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.generators.tools import NESTED_TOOLS
from q36eval.canaries.generators.words import CITIES, FIRST_NAMES_F, SURNAMES_F, TOWN_OF, TOWNS, declined_person
from q36eval.canaries.specification import CanarySpec, FixedPrompt, load_specs

SPECS = load_specs(skills=None)
FIXED = [(spec, prompt) for spec in SPECS for prompt in spec.must_pass or ()]

UNVOCALISED = re.compile(r"\b[Zz] (?:[zsšž]|vs)|\b[Vv] [vf]", re.IGNORECASE)
"""„z Zlína“, „z Vsetína“, „v Vsetíně“: a preposition that lacks its vowel."""

CZECH = {
    "a",
    "je",
    "jen",
    "na",
    "ve",
    "do",
    "podle",
    "přesně",
    "schéma",
    "záznam",
    "obchod",
    "účastníci",
    "děkuji",
    "zruš",
}
ENGLISH = {"the", "and", "as", "for", "to", "of", "in", "only", "is", "with", "schema", "which", "record", "exactly"}


def _asked(prompt: FixedPrompt) -> str:
    return " ".join(message["content"] for message in prompt.messages if message["role"] in ("system", "user"))


def _is_czech(text: str) -> bool:
    words = re.findall(r"\w+", text.lower())
    return sum(word in CZECH for word in words) > sum(word in ENGLISH for word in words)


@pytest.mark.parametrize(("spec", "prompt"), FIXED, ids=[f"{s.id}/{p.name}" for s, p in FIXED])
def test_a_name_that_says_a_language_says_the_right_one(spec: CanarySpec, prompt: FixedPrompt) -> None:
    languages = {"cs", "en"} & set(prompt.name.split("-"))
    if languages:
        assert languages == {"cs" if _is_czech(_asked(prompt)) else "en"}


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


def test_what_is_asked_for_stands_in_the_accusative() -> None:
    rng, seen = random.Random(47), ""
    for _ in range(300):
        for kind in ("copy_exact", "copy_references"):
            prompt = GENERATORS[kind](rng).messages[0]["content"]
            seen += "".join(re.findall(r"(?:Opiš z textu|Opiš přesně:|Přepiš přesně:|Vypiš beze změny)[^.]*", prompt))
    assert not re.search(r"částka|osoba|adresa", seen)
    assert all(form in seen for form in ("částku", "kontaktní osobu", "adresu IPv6", "adresu,"))


def test_counted_things_of_a_chore_stand_in_the_genitive_plural() -> None:
    """„2 hostů“ is none: two to four take another form."""
    rng = random.Random(53)
    for _ in range(400):
        words = GENERATORS["tool_none"](rng).messages[-1]["content"].split()
        counts = [
            int(word)
            for word, after in pairwise(words)
            if word in ("2", "3", "4") and after in ("hostů", "stromů", "písní")
        ]
        assert counts == []


def test_no_role_of_an_invitation_means_something_else_in_czech() -> None:
    """`host` is the one who invites in English and the one who is invited in Czech."""
    (invite,) = (tool for tool in NESTED_TOOLS if tool.name == "invite")
    assert "host" not in json.dumps(invite.schema)
    rng = random.Random(59)
    for _ in range(100):
        text, arguments = invite.request(rng, True)
        assert "host" not in text
        assert len(re.findall(r"\((?:organizátor|řečn|posluchač)", text)) == len(arguments["people"])
