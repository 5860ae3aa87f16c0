"""Choosing from a closed list and ordering by a stated order, short or long; the list is always in the prompt."""

import random
from typing import NamedTuple

from q36eval.canaries.generators.words import TOWN_OF, TOWNS, code, pick, question, step_number
from q36eval.examples import ChatExample

LATENCY_MAX_MS, LATENCY_STEP_MS = 9_990, 10
NEAR_THRESHOLD_SHARE = 0.3
"""Share of threshold problems at most five steps from a threshold."""

ORDER_MIN = 3

SEVERITIES_CS = ("kritická", "vysoká", "střední", "nízká")
SEVERITIES_EN = ("critical", "high", "medium", "low")


class Choice(NamedTuple):
    """A closed list and, for each member, reports that can only mean it."""

    czech: bool
    what: str
    members: dict[str, tuple[str, ...]]


CHOICES = (
    Choice(True, "kategorii", {
        "fakturace": ("faktura má špatnou částku", "chybí mi daňový doklad", "platba odešla dvakrát"),
        "doručení": ("balík nedorazil", "kurýr nechal zásilku u souseda", "zásilka dorazila na jinou adresu"),
        "účet": ("nemohu se přihlásit", "zapomněl jsem heslo", "chci změnit e-mail"),
        "závada": ("aplikace padá", "tlačítko nereaguje", "stránka hlásí chybu"),
        "dotaz": ("zajímá mě otevírací doba", "hledám prodejnu v Brně", "rád bych věděl, kdy bude nový katalog"),
    }),
    Choice(True, "stav", {
        "nová": ("objednávka právě přišla", "nikdo ji zatím neotevřel"),
        "zaplacená": ("peníze už jsou na účtu", "platba kartou prošla"),
        "odeslaná": ("balík převzal dopravce", "zásilka je na cestě"),
        "doručená": ("zákazník balík převzal", "zásilka je u zákazníka"),
        "zrušená": ("zákazník objednávku odvolal", "objednávka už neplatí"),
    }),
    Choice(False, "category", {
        "billing": ("the invoice shows a wrong amount", "I was charged twice", "the receipt is missing"),
        "delivery": ("the parcel never arrived", "the box came damaged", "the courier did not ring"),
        "account": ("I cannot log in", "I forgot my password", "I want to change my e-mail"),
        "bug": ("the app crashes", "the button does nothing", "the page shows an error"),
        "question": ("when do you open", "do you have a shop in Brno", "when is the sale"),
    }),
)  # fmt: skip

ASK_CS = (
    "Vyber {what} z tohoto seznamu: {listing}. Odpověz jedním slovem.",
    "Urči {what}. Možnosti: {listing}. Napiš jen jednu z nich.",
    "Která hodnota ze seznamu [{listing}] se hodí? Napiš jen {what}.",
)
ASK_EN = (
    "Choose the {what} from this list: {listing}. Answer with one word.",
    "Which {what} fits? Options: {listing}. Write only one of them.",
)
SOURCES_CS = ("Tiket {}: {}.", "Zpráva {}: {}.", "Hlášení {}: {}.")
SOURCES_EN = ("Ticket {}: {}.", "Message {}: {}.")


def _select_by_meaning(rng: random.Random) -> ChatExample:
    choice = pick(rng, CHOICES)
    offered = rng.sample(list(choice.members), 3 + int(rng.random() * (len(choice.members) - 2)))
    answer = pick(rng, offered)
    report, ticket = pick(rng, choice.members[answer]), code(rng)
    source = pick(rng, SOURCES_CS if choice.czech else SOURCES_EN).format(ticket, report)
    ask = pick(rng, ASK_CS if choice.czech else ASK_EN).format(what=choice.what, listing=", ".join(offered))
    prompt = f"{source}\n{ask}" if rng.random() < 0.6 else f"{ask}\n{source}"
    key = f"enum_select:{ticket}:{report}:{','.join(offered)}"
    return question(key, prompt, answer, {"value": answer, "options": offered})


def _select_by_threshold(rng: random.Random) -> ChatExample:
    czech = rng.random() < 0.65
    names = SEVERITIES_CS if czech else SEVERITIES_EN
    limits = sorted((step_number(rng, 100, 9_000, 100) for _ in range(3)), reverse=True)
    if len(set(limits)) < 3:
        return _select_by_threshold(rng)
    if rng.random() < NEAR_THRESHOLD_SHARE:
        value = pick(rng, limits) + LATENCY_STEP_MS * pick(rng, (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5))
    else:
        value = step_number(rng, LATENCY_STEP_MS, LATENCY_MAX_MS, LATENCY_STEP_MS)
    if value in limits:
        return _select_by_threshold(rng)
    answer = names[sum(value < limit for limit in limits)]
    if czech:
        rules = ", ".join(f"nad {limit} ms {name}" for limit, name in zip(limits, names, strict=False))
        rules += f", jinak {names[3]}"
        prompt = pick(
            rng,
            (
                f"Závažnost: {rules}. Odezva je {value} ms. Jaká je závažnost? Odpověz jedním slovem.",
                f"Odezva serveru je {value} ms. Pravidla závažnosti: {rules}. Napiš jen závažnost.",
            ),
        )
    else:
        rules = ", ".join(f"above {limit} ms {name}" for limit, name in zip(limits, names, strict=False))
        rules += f", otherwise {names[3]}"
        prompt = pick(
            rng,
            (
                f"Severity: {rules}. The response took {value} ms. Which severity is it? Answer with one word.",
                f"The response took {value} ms. Severity rules: {rules}. Write only the severity.",
            ),
        )
    key = f"enum_select:{limits}:{value}:{answer}"
    return question(key, prompt, answer, {"value": answer, "options": list(names)})


def enum_select(rng: random.Random) -> ChatExample:
    """One member of a closed list, by meaning or by a numeric rule."""
    return _select_by_meaning(rng) if rng.random() < 0.4 else _select_by_threshold(rng)


ORDERS = (
    (True, "závažnosti", ("kritická", "vysoká", "střední", "nízká", "žádná")),
    (True, "priority", ("okamžitá", "urgentní", "běžná", "odložená", "zrušená")),
    (True, "stavu", ("nový", "přijatý", "rozpracovaný", "hotový", "uzavřený")),
    (False, "severity", ("critical", "high", "medium", "low", "none")),
    (False, "status", ("new", "accepted", "started", "done", "closed")),
)
ORDER_CS = (
    "Seřaď hodnoty {what} v pořadí: {listing}. Napiš jen hodnoty oddělené čárkou.",
    "Seřaď podle {what} ({listing}) a vynech, co v seznamu není. Odpověz jen hodnotami oddělenými čárkou.",
)
ORDER_EN = (
    "Sort the {what} values in the order {listing}. Write only the values, separated by commas.",
    "Sort by {what} ({listing}) and leave out what is not in the list. Answer only with values, separated by commas.",
)


def enum_order(rng: random.Random) -> ChatExample:
    """Distinct enum values brought into the stated order, which runs either way."""
    czech, what, levels = pick(rng, ORDERS)
    stated = list(levels) if rng.random() < 0.5 else list(reversed(levels))
    values = rng.sample(levels, ORDER_MIN + int(rng.random() * (len(levels) - ORDER_MIN + 1)))
    ticket = code(rng)
    ordered = sorted(values, key=stated.index)
    ask = pick(rng, ORDER_CS if czech else ORDER_EN).format(what=what, listing=", ".join(stated))
    given = f"{'Tiket' if czech else 'Ticket'} {ticket}: {', '.join(values)}"
    prompt = f"{ask}\n{given}" if rng.random() < 0.6 else f"{given}\n{ask}"
    key = f"enum_order:{ticket}:{stated[0]}:{','.join(values)}"
    return question(key, prompt, ", ".join(ordered), {"items": ordered, "separator": "comma"})


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
    key = f"enum_long:{ticket}:{target}:{','.join(offered)}"
    exactly = "přesně jako v seznamu" in ask
    return question(key, text, target, {"value": target, "options": offered, "exactly": exactly})


def enum_order_long(rng: random.Random) -> ChatExample:
    """Eight to twelve states brought into an order that is stated anew for each question."""
    stated = rng.sample(STATES, len(STATES))
    values = rng.sample(STATES, ORDERED_MIN + int(rng.random() * (ORDERED_MAX - ORDERED_MIN + 1)))
    ticket = code(rng)
    ordered = sorted(values, key=stated.index)
    ask = pick(rng, ORDER).format(listing=", ".join(stated))
    given = f"Vstup {ticket}: {', '.join(values)}"
    text = f"{ask}\n{given}" if rng.random() < 0.6 else f"{given}\n{ask}"
    key = f"enum_order_long:{ticket}:{','.join(stated)}:{','.join(values)}"
    return question(key, text, ", ".join(ordered), {"items": ordered, "separator": "comma"})
