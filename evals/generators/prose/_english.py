"""English: narrative, news, recipes and letters."""

import random

from q36eval.evals.generators.prose._lexicon import lexicon

_WORDS = lexicon("english")
NAMES = _WORDS["names"]
JOBS = _WORDS["jobs"]
THINGS = _WORDS["things"]
ADJECTIVES = _WORDS["adjectives"]
PLACES = _WORDS["places"]
TIMES = _WORDS["times"]
DEEDS = _WORDS["deeds"]
FEELINGS = _WORDS["feelings"]
WEATHER = _WORDS["weather"]
INSTITUTIONS = _WORDS["institutions"]
DECISIONS = _WORDS["decisions"]
REASONS = _WORDS["reasons"]
FOODS = _WORDS["foods"]
STEPS = _WORDS["steps"]


def article(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def thing(rng: random.Random) -> str:
    """An indefinite noun phrase."""
    return article(f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}")


def sentence(rng: random.Random) -> str:
    """One narrative sentence."""
    kind = rng.randrange(8)
    name, job, place = rng.choice(NAMES), rng.choice(JOBS), rng.choice(PLACES)
    if kind == 0:
        return f"{name} {rng.choice(DEEDS)} {thing(rng)} {place}."
    if kind == 1:
        moment = rng.choice(TIMES)
        return f"{moment[0].upper()}{moment[1:]} the {job} {rng.choice(DEEDS)} {thing(rng)}."
    if kind == 2:
        return f"The {rng.choice(THINGS)} {place} was {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}."
    if kind == 3:
        return rng.choice(WEATHER)
    if kind == 4:
        return f"{name} felt {rng.choice(FEELINGS)}, but the {job} was {rng.choice(FEELINGS)}."
    if kind == 5:
        return f'"Where is the {rng.choice(THINGS)}?" asked {name}. "It is {place}," said the {job}.'
    if kind == 6:
        return f"{name} and {rng.choice(NAMES)} walked {rng.randint(2, 30)} miles to see {thing(rng)}."
    return f"The {job} {rng.choice(DEEDS)} the {rng.choice(THINGS)} and gave it to {name}."


def _news(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(2, 4)):
        who = rng.choice(INSTITUTIONS)
        kind = rng.randrange(3)
        if kind == 0:
            parts.append(f"{who[0].upper()}{who[1:]} {rng.choice(DECISIONS)} {rng.choice(REASONS)}.")
        elif kind == 1:
            parts.append(f"According to {who}, the number of visitors rose by {rng.randint(2, 48)} percent.")
        else:
            parts.append(f"{rng.choice(NAMES)} of {who} said the change would cost {rng.randint(2, 90)} million.")
    return " ".join(parts)


def _recipe(rng: random.Random) -> str:
    foods = rng.sample(FOODS, 4)
    listed = ", ".join(f"{rng.randrange(50, 600, 50)} g {food}" for food in foods)
    steps = []
    for number in range(1, rng.randint(3, 5)):
        step = rng.choice(STEPS).format(*rng.sample(foods, 2), rng.randint(3, 40), rng.randrange(150, 230, 10))
        steps.append(f"{number}. {step}")
    return f"{foods[0].capitalize()} with {foods[1]}\nIngredients: {listed}.\n" + "\n".join(steps)


def _letter(rng: random.Random) -> str:
    body = " ".join(sentence(rng) for _ in range(rng.randint(2, 3)))
    close = rng.choice(["Yours sincerely", "Best wishes", "With love", "Kind regards"])
    return f"Dear {rng.choice(NAMES)},\n{body} Please write to me soon.\n{close},\n{rng.choice(NAMES)}"


def paragraph(rng: random.Random) -> str:
    """One paragraph of some kind."""
    kind = rng.choices((0, 1, 2, 3), (5, 3, 1, 1))[0]
    if kind == 0:
        return " ".join(sentence(rng) for _ in range(rng.randint(3, 6)))
    return (_news, _recipe, _letter)[kind - 1](rng)
