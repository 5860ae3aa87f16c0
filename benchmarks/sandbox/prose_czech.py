"""Czech: narrative, news, recipes and letters; contracts and statutes.

Inflected forms are stored, or built by paradigms without exceptions; phrases of contracts in the case their slot needs.
"""

import random

from benchmarks.sandbox.json_documents import MEN, WOMEN
from benchmarks.sandbox.prose_english import LEXICON

_WORDS = LEXICON["czech"]
# Masculine inanimate without vowel shifts (paradigm hrad).
MASCULINE = _WORDS["masculine"]
# Feminine hard stems (paradigm žena).
FEMININE = _WORDS["feminine"]
NEUTER = _WORDS["neuter"]
# Stems of hard adjectives.
ADJECTIVES = _WORDS["adjectives"]
PLACES = _WORDS["places"]
TIMES = _WORDS["times"]
# Past tense, masculine and feminine, with an object in the accusative.
VERBS = _WORDS["verbs"]
JOBS = _WORDS["jobs"]
FEELINGS = _WORDS["feelings"]
WEATHER = _WORDS["weather"]
BODIES_M = _WORDS["bodies_m"]
BODIES_F = _WORDS["bodies_f"]
DECISIONS = _WORDS["decisions"]
REASONS = _WORDS["reasons"]
TOWNS = _WORDS["towns"]
# Ingredients in the genitive (after grams) and in the accusative.
FOODS = _WORDS["foods"]
STEPS = _WORDS["steps"]


def _gendered(pair: str, feminine: bool) -> str:
    masculine, _, other = pair.partition("/")
    return (other or masculine + "a") if feminine else masculine


def _accusative(rng: random.Random) -> str:
    """An adjective and a noun in the accusative singular."""
    stem = rng.choice(ADJECTIVES)
    gender = rng.randrange(3)
    if gender == 0:
        return f"{stem}ý {rng.choice(MASCULINE)}"
    if gender == 1:
        return f"{stem}ou {rng.choice(FEMININE)}u"
    return f"{stem}é {rng.choice(NEUTER)}"


def _nominative(rng: random.Random) -> str:
    """An adjective and a noun in the nominative singular, followed by "byl" in the right gender."""
    stem = rng.choice(ADJECTIVES)
    gender = rng.randrange(3)
    if gender == 0:
        return f"{stem}ý {rng.choice(MASCULINE)} byl"
    if gender == 1:
        return f"{stem}á {rng.choice(FEMININE)}a byla"
    return f"{stem}é {rng.choice(NEUTER)} bylo"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def sentence(rng: random.Random) -> str:
    """One narrative sentence."""
    kind = rng.randrange(8)
    feminine = rng.random() < 0.5
    name = rng.choice(WOMEN if feminine else MEN)
    verb, place, moment = _gendered(rng.choice(VERBS), feminine), rng.choice(PLACES), rng.choice(TIMES)
    if kind == 0:
        return f"{name} {verb} {place} {_accusative(rng)}."
    if kind == 1:
        return f"{_capital(moment)} {verb} {_gendered(rng.choice(JOBS), feminine)} {_accusative(rng)}."
    if kind == 2:
        return f"{_capital(_nominative(rng))} {place}."
    if kind == 3:
        return rng.choice(WEATHER)
    if kind == 4:
        was, ending = ("byla", "á") if feminine else ("byl", "ý")
        return f"{name} {was} {place} {moment} velmi {rng.choice(FEELINGS)}{ending}."
    if kind == 5:
        said = "zeptala se" if feminine else "zeptal se"
        return f"„Kde je {_nominative(rng).rsplit(' ', 1)[0]}?“ {said} {name}. „Asi {place}.“"
    if kind == 6:
        went = "ušla" if feminine else "ušel"
        distance, discovered = rng.randint(5, 40), "našla" if feminine else "našel"
        return f"{name} {went} {distance} kilometrů, než {discovered} {_accusative(rng)}."
    also = _gendered(rng.choice(VERBS), feminine)
    who = _capital(_gendered(rng.choice(JOBS), feminine))
    return f"{who} {verb} {_accusative(rng)} a {moment} {also} {_accusative(rng)}."


def _news(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(2, 4)):
        feminine = rng.random() < 0.5
        body = rng.choice(BODIES_F if feminine else BODIES_M)
        kind = rng.randrange(3)
        if kind == 0:
            parts.append(f"{body} {rng.choice(DECISIONS).format('a' if feminine else '')} {rng.choice(REASONS)}.")
        elif kind == 1:
            parts.append(f"Počet návštěvníků v {rng.choice(TOWNS)} vzrostl o {rng.randint(5, 48)} procent.")
        else:
            cost = rng.randint(5, 90)
            parts.append(
                f"Oprava v {rng.choice(TOWNS)} bude stát {cost} milionů korun "
                f"a skončí v roce {rng.randint(2024, 2035)}."
            )
    return " ".join(parts)


def _recipe(rng: random.Random) -> str:
    foods = rng.sample(FOODS, 4)
    listed = ", ".join(f"{rng.randrange(50, 600, 50)} g {food.split('/')[0]}" for food in foods)
    objects = [food.split("/")[1] for food in foods]
    steps = []
    for number in range(1, rng.randint(4, 6)):
        step = rng.choice(STEPS).format(*rng.sample(objects, 2), rng.randint(5, 40), rng.randrange(150, 230, 10))
        steps.append(f"{number}. {step}")
    return f"Suroviny: {listed}.\nPostup:\n" + "\n".join(steps)


def _letter(rng: random.Random) -> str:
    start = rng.choice(["Milá babičko", "Vážený pane řediteli", "Vážená paní učitelko", "Ahoj všichni", "Dobrý den"])
    close = rng.choice(["S pozdravem", "S úctou", "Srdečně zdraví", "Mějte se hezky"])
    body = " ".join(sentence(rng) for _ in range(rng.randint(2, 3)))
    return f"{start},\n{_capital(body)} Prosím, brzy mi napište.\n{close}\n{rng.choice(MEN + WOMEN)}"


def paragraph(rng: random.Random) -> str:
    """One paragraph of some kind."""
    kind = rng.choices((0, 1, 2, 3), (5, 3, 1, 1))[0]
    if kind == 0:
        return " ".join(sentence(rng) for _ in range(rng.randint(3, 6)))
    return (_news, _recipe, _letter)[kind - 1](rng)


_LEGAL = LEXICON["legal"]
# nominative/genitive/"f" where the noun is feminine
PARTIES = _LEGAL["parties"]
DUTIES = _LEGAL["duties"]
EVENTS = _LEGAL["events"]
CONDITIONS = _LEGAL["conditions"]
EFFECTS = _LEGAL["effects"]
TOPICS = _LEGAL["topics"]
CLOSINGS = _LEGAL["closings"]


def _clause(rng: random.Random) -> str:
    nominative, genitive, feminine = rng.choice(PARTIES).split("/")
    bound = "povinna" if feminine else "povinen"
    kind = rng.randrange(6)
    if kind == 0:
        days = rng.choice((5, 7, 10, 14, 15, 30, 60, 90))
        return f"{nominative} je {bound} {rng.choice(DUTIES)} do {days} dnů {rng.choice(EVENTS)}."
    if kind == 1:
        return f"{rng.choice(CONDITIONS)}, {rng.choice(EFFECTS)}."
    if kind == 2:
        fine = rng.randint(1, 50) * 100
        return f"Smluvní pokuta činí {fine} Kč za každý den prodlení na straně {genitive[0].lower()}{genitive[1:]}."
    if kind == 3:
        section, subsection = rng.randint(5, 2900), rng.randint(1, 5)
        act = f"zákona č. {rng.randint(6, 499)}/{rng.randint(1991, 2024)} Sb."
        return f"Ustanovení § {section} odst. {subsection} {act} tím není dotčeno."
    if kind == 4:
        return rng.choice(CLOSINGS)
    return f"{nominative} může {rng.choice(DUTIES)} i dříve. Neučiní-li tak, {rng.choice(EFFECTS)}."


def legal_paragraph(rng: random.Random) -> str:
    """One numbered section of a contract or a statute."""
    number = rng.randint(2, 120)
    clauses = [f"({index}) {_clause(rng)}" for index in range(1, rng.randint(3, 6))]
    return f"§ {number}\n{rng.choice(TOPICS)}\n" + "\n".join(clauses)
