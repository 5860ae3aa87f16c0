"""Long closed lists of Czech names: one member by another grammatical form, and many brought into a stated order."""

import random

from q36eval.canaries.generators._names import TOWN_OF, TOWNS
from q36eval.canaries.generators._words import code, pick
from q36eval.examples import ChatExample

OFFERED_MIN, OFFERED_MAX = 20, 36
ORDERED_MIN, ORDERED_MAX = 8, 12

SENT = (
    "Zásilka {code} jede {origin} do {target}.",
    "Zákazník chce balík {code} doručit do {target}, ne do {other}.",
    "Kurýr veze balík {code} do {target}; předtím se vrátil {origin}.",
)
PICK = (
    "Vyber ze seznamu cílové město a odpověz přesně jednou jeho položkou. Seznam: {listing}.",
    "Které město ze seznamu je cílem? Napiš jen tu položku, přesně jako v seznamu. Seznam: {listing}.",
)

STATES = (
    "koncept", "nová", "ověřená", "přijatá", "zaplacená", "připravená", "zabalená", "předaná", "odeslaná", "na cestě",
    "zpožděná", "doručená", "převzatá", "reklamovaná", "vrácená", "uzavřená",
)  # fmt: skip
ORDER = (
    "Seřaď stavy ze vstupu podle pořadí: {listing}. Napiš jen seřazené stavy oddělené čárkou, "
    "žádný nevynech ani neopakuj.",
    "Stavy na vstupu seřaď podle číselníku ({listing}). Odpověz jen stavy oddělenými čárkou, každý uveď jednou.",
)


def _ask(kind: str, key: str, text: str, answer: str, expected: dict[str, object]) -> ChatExample:
    messages = ({"role": "user", "content": text},)
    return ChatExample(key=f"{kind}:{key}", messages=messages, answer=answer, expected=expected)


def enum_long(rng: random.Random) -> ChatExample:
    """One of up to three dozen towns, named in the genitive beside another one; the answer is the list's own form."""
    offered = rng.sample(
        [town.nominative for town in TOWNS], OFFERED_MIN + int(rng.random() * (OFFERED_MAX - OFFERED_MIN + 1))
    )
    target, origin = rng.sample(offered, 2)
    ticket = code(rng)
    forms = {"target": TOWN_OF[target].genitive, "other": TOWN_OF[origin].genitive, "origin": TOWN_OF[origin].origin}
    sent = pick(rng, SENT).format(code=ticket, **forms)
    ask = pick(rng, PICK).format(listing=", ".join(offered))
    text = f"{sent}\n{ask}" if rng.random() < 0.6 else f"{ask}\n{sent}"
    key = f"{ticket}:{target}:{','.join(offered)}"
    exactly = "přesně jako v seznamu" in ask
    return _ask("enum_long", key, text, target, {"value": target, "options": offered, "exactly": exactly})


def enum_order_long(rng: random.Random) -> ChatExample:
    """Eight to twelve states brought into an order that is stated anew for each question."""
    stated = rng.sample(STATES, len(STATES))
    values = rng.sample(STATES, ORDERED_MIN + int(rng.random() * (ORDERED_MAX - ORDERED_MIN + 1)))
    ticket = code(rng)
    ordered = sorted(values, key=stated.index)
    ask = pick(rng, ORDER).format(listing=", ".join(stated))
    given = f"Vstup {ticket}: {', '.join(values)}"
    text = f"{ask}\n{given}" if rng.random() < 0.6 else f"{given}\n{ask}"
    key = f"{ticket}:{','.join(stated)}:{','.join(values)}"
    return _ask("enum_order_long", key, text, ", ".join(ordered), {"items": ordered, "separator": "comma"})
