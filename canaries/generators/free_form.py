"""Free-form answers: long ones that must stay sound, the same after a long context, ones under several constraints."""

import random
from dataclasses import replace

from q36eval.canaries.generators.discount import SYSTEMS, LastLine, discount_compare
from q36eval.canaries.generators.recall import context
from q36eval.canaries.generators.words import (
    CITIES,
    FIRST_NAMES_F,
    FIRST_NAMES_M,
    PRODUCTS,
    TOWN_OF,
    WORDS,
    pick,
    question,
)
from q36eval.examples import ChatExample

LONG_CHARACTERS = 6_000
"""About 2,000 tokens of Qwen's, whose Czech takes three characters per token; specifications use more."""

SHORT_CHARACTERS = 250
"""A long context for the sandbox, whose questions have a hundred tokens."""

ADVISER = SYSTEMS[0]

MAX_CHARACTERS = 9_000
MIN_CHARACTERS_PER_WORD = 2
"""Of a long answer: a third of the requested length, since a Czech word takes six characters with its space."""

_WORDS = WORDS["free_form"]
LANGUAGE = {
    "scripts": ["Latin"],
    "max_characters": MAX_CHARACTERS,
    "language": "cs",
    "headings": False,
    "finished": True,
}
SHORT_PROSE = {"scripts": ["Latin"], "min_characters": 1, "max_characters": 4_000, "finished": True}
"""Of the points under several constraints, whose language the style states."""


def _long_question(rng: random.Random) -> tuple[str, str, str]:
    """The content by which the question is known, the question, and an answer of the right kind."""
    subject, city = pick(rng, _WORDS["subjects"]), pick(rng, CITIES)
    name, words = pick(rng, FIRST_NAMES_M + FIRST_NAMES_F).nominative, 200 + 10 * int(rng.random() * 16)
    forms: list[str] = _WORDS["forms"]
    form, town = int(rng.random() * len(forms)), TOWN_OF[city]
    asked = forms[form].format(subject=subject)
    prompt = _WORDS["frame"].format(form=asked, town=town.genitive, person=name, words=words)
    answer = " ".join(_WORDS["story"]).format(subject=subject, place=town.place, person=name)
    return f"{subject}:{city}:{name}:{words}:{'abcde'[form]}", prompt, answer


def stability(rng: random.Random) -> ChatExample:
    """A text of a few hundred words; only its soundness and end are judged, not its content."""
    key, prompt, answer = _long_question(rng)
    _, city, name, words, _ = key.split(":")
    stable = LANGUAGE | {"min_characters": MIN_CHARACTERS_PER_WORD * int(words)}
    expected = {"stable": stable, "style": {"mentions": [city, name]}}
    return question(f"stability:{key}", prompt, answer, expected)


def stability_long_context(rng: random.Random, characters: int = LONG_CHARACTERS) -> ChatExample:
    """The same after a long text, where a cache of low precision fails first."""
    example = stability(rng)
    key = example.key.replace("stability:", "stability_long_context:", 1)
    text = f"{context(rng, characters, True)}\n\nPředchozí text nech stranou. {example.messages[0]['content']}"
    return replace(example, key=key, messages=({"role": "user", "content": text},))


def discount_after_context(
    rng: random.Random, characters: int = SHORT_CHARACTERS, last_line: LastLine = "free"
) -> ChatExample:
    """A price comparison after other text in another language, within the sandbox's ability."""
    example = discount_compare(rng, last_line)
    prompt = f"{context(rng, characters, False)}\n{example.messages[-1]['content']}"
    messages = ({"role": "system", "content": ADVISER}, {"role": "user", "content": prompt})
    key = example.key.replace("discount_compare:", "discount_after_context:", 1)
    return replace(example, key=key, messages=messages)


def instruction_order(rng: random.Random) -> ChatExample:
    """Several constraints at once: the first word, a number of bullets, Czech, a word to use and one to avoid."""
    subject, first = pick(rng, _WORDS["subjects"]), pick(rng, _WORDS["first_words"])
    word, banned = pick(rng, PRODUCTS), pick(rng, _WORDS["banned"])
    bullets, most = pick(rng, list(_WORDS["counted"])), 100 + 10 * int(rng.random() * 11)
    count = _WORDS["counted"][bullets]
    prompt = _WORDS["constrained"].format(
        subject=subject, first=first, word=word, banned=banned, count=count, most=most
    )
    if rng.random() < 0.4:
        prompt = f"{pick(rng, _WORDS['notes'])}\n{prompt}"
    lines = [f"- {advice}" for advice in _WORDS["advice"][: bullets - 1]] + [f"- Nakonec přijde na řadu {word}."]
    style = {
        "bullets": bullets,
        "bullet": "dash",
        "first_word": first,
        "colon": True,
        "language": "cs",
        "max_words": most,
        "contains": [word],
        "lacks": [banned],
    }
    key = f"instruction_order:{subject}:{first}:{word}:{banned}:{count}:{most}"
    answer = "\n".join([f"{first}: {subject} krok za krokem.", *lines])
    return question(key, prompt, answer, {"style": style, "stable": SHORT_PROSE})
