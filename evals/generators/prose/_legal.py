"""Czech in the manner of contracts and statutes. Every phrase is stored in the case its slot needs."""

import random

from q36eval.evals.generators.prose._lexicon import lexicon

# nominative/genitive/"f" where the noun is feminine
_WORDS = lexicon("legal")
PARTIES = _WORDS["parties"]
DUTIES = _WORDS["duties"]
EVENTS = _WORDS["events"]
CONDITIONS = _WORDS["conditions"]
EFFECTS = _WORDS["effects"]
TOPICS = _WORDS["topics"]
CLOSINGS = _WORDS["closings"]


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


def paragraph(rng: random.Random) -> str:
    """One numbered section of a contract or a statute."""
    number = rng.randint(2, 120)
    clauses = [f"({index}) {_clause(rng)}" for index in range(1, rng.randint(3, 6))]
    return f"§ {number}\n{rng.choice(TOPICS)}\n" + "\n".join(clauses)
