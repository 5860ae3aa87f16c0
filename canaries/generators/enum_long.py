"""Long closed lists of Czech names: one member by another grammatical form, and many brought into a stated order."""

import random

from canaries.generators._words import code, pick
from q36eval.examples import ChatExample

OFFERED_MIN, OFFERED_MAX = 20, 36
ORDERED_MIN, ORDERED_MAX = 8, 12

TOWNS = {
    "Praha": "Prahy", "Brno": "Brna", "Ostrava": "Ostravy", "Plzeň": "Plzně", "Liberec": "Liberce",
    "Olomouc": "Olomouce", "České Budějovice": "Českých Budějovic", "Hradec Králové": "Hradce Králové",
    "Ústí nad Labem": "Ústí nad Labem", "Pardubice": "Pardubic", "Zlín": "Zlína", "Havířov": "Havířova",
    "Kladno": "Kladna", "Most": "Mostu", "Opava": "Opavy", "Frýdek-Místek": "Frýdku-Místku", "Karviná": "Karviné",
    "Jihlava": "Jihlavy", "Teplice": "Teplic", "Děčín": "Děčína", "Karlovy Vary": "Karlových Varů",
    "Chomutov": "Chomutova", "Jablonec nad Nisou": "Jablonce nad Nisou", "Mladá Boleslav": "Mladé Boleslavi",
    "Prostějov": "Prostějova", "Přerov": "Přerova", "Česká Lípa": "České Lípy", "Třebíč": "Třebíče",
    "Třinec": "Třince", "Tábor": "Tábora", "Znojmo": "Znojma", "Příbram": "Příbrami", "Kolín": "Kolína",
    "Cheb": "Chebu", "Písek": "Písku", "Trutnov": "Trutnova", "Kroměříž": "Kroměříže",
    "Žďár nad Sázavou": "Žďáru nad Sázavou", "Uherské Hradiště": "Uherského Hradiště", "Břeclav": "Břeclavi",
    "Vsetín": "Vsetína", "Český Krumlov": "Českého Krumlova", "Jindřichův Hradec": "Jindřichova Hradce",
}  # fmt: skip
"""Towns and the form that follows "do"."""

SENT = (
    "Zásilka {code} jede z {origin} do {target}.",
    "Zákazník chce balík {code} doručit do {target}, ne do {origin}.",
    "Kurýr veze balík {code} do {target}; nejdřív se vrátil z {origin}.",
)
PICK = (
    "Vyber cílové město z tohoto seznamu a odpověz přesně jednou jeho položkou: {listing}.",
    "Které město ze seznamu je cílem? Napiš jen tu položku, přesně jako v seznamu. Seznam: {listing}.",
)

STATES = (
    "koncept", "nová", "ověřená", "přijatá", "zaplacená", "připravená", "zabalená", "předaná", "odeslaná", "na cestě",
    "zpožděná", "doručená", "převzatá", "reklamovaná", "vrácená", "uzavřená",
)  # fmt: skip
ORDER = (
    "Seřaď stavy v pořadí: {listing}. Napiš jen seřazené stavy oddělené čárkou, žádný nevynech ani neopakuj.",
    "Stavy na vstupu seřaď podle číselníku ({listing}). Odpověz jen stavy oddělenými čárkou, každým jednou.",
)


def _ask(kind: str, key: str, text: str, answer: str, expected: dict[str, object]) -> ChatExample:
    messages = ({"role": "user", "content": text},)
    return ChatExample(key=f"{kind}:{key}", messages=messages, answer=answer, expected=expected)


def enum_long(rng: random.Random) -> ChatExample:
    """One of up to three dozen towns, named in the genitive beside another one; the answer is the list's own form."""
    offered = rng.sample(list(TOWNS), OFFERED_MIN + int(rng.random() * (OFFERED_MAX - OFFERED_MIN + 1)))
    target, origin = rng.sample(offered, 2)
    ticket = code(rng)
    sent = pick(rng, SENT).format(code=ticket, target=TOWNS[target], origin=TOWNS[origin])
    ask = pick(rng, PICK).format(listing=", ".join(offered))
    text = f"{sent}\n{ask}" if rng.random() < 0.6 else f"{ask}\n{sent}"
    key = f"{ticket}:{target}:{','.join(offered)}"
    return _ask("enum_long", key, text, target, {"value": target, "options": offered})


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
    return _ask("enum_order_long", key, text, ", ".join(ordered), {"items": ordered})
