"""The tools that requests are made for: their schemas, and for each the ways to ask with the arguments that follow.

`TOOLS` take plain arguments; `NESTED_TOOLS` take arrays, nested objects and dates, some of them optional.
"""

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from q36eval.canaries.generators.json_objects import object_schema
from q36eval.canaries.generators.words import (
    CITIES,
    PRODUCTS,
    PRODUCTS_EN,
    code,
    declined_person,
    iso_date,
    person,
    pick,
)

Arguments = dict[str, Any]
Asked = tuple[str, Arguments]
"""A request as a person writes it, and the arguments it calls for."""


class Tool(NamedTuple):
    """A tool: its schema in OpenAI's form, and a request for it in Czech or in English."""

    name: str
    schema: dict[str, Any]
    request: Callable[[random.Random, bool], Asked]


def tool_schema(
    name: str, description: str, properties: dict[str, Any], optional: Sequence[str] = ()
) -> dict[str, Any]:
    """In OpenAI's form: every argument is required but the `optional` ones."""
    required = [key for key in properties if key not in optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _tool(
    request: Callable[[random.Random, bool], Asked],
    name: str,
    description: str,
    properties: dict[str, Any],
    optional: Sequence[str] = (),
) -> Tool:
    return Tool(name, tool_schema(name, description, properties, optional), request)


_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
_DATE: dict[str, Any] = {"type": "string", "format": "date"}
_NUMBER: dict[str, Any] = {"type": "number"}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _weather(rng: random.Random, czech: bool) -> Asked:
    city, date = pick(rng, CITIES), iso_date(rng)
    arguments: Arguments = {"city": city}
    if rng.random() < 0.5:
        arguments["date"] = date
        templates = (
            ("Jaké bude počasí ve městě {c} dne {d}?",) if czech else ("What will the weather be in {c} on {d}?",)
        )
    else:
        templates = ("Jaké je teď počasí ve městě {c}?",) if czech else ("What is the weather in {c} now?",)
    return pick(rng, templates).format(c=city, d=date), arguments


def _order(rng: random.Random, czech: bool) -> Asked:
    order = code(rng)
    texts = ("Kde je objednávka {o}?", "V jakém stavu je objednávka {o}?") if czech else ("Where is order {o}?",)
    return pick(rng, texts).format(o=order), {"order_id": order}


def _email(rng: random.Random, czech: bool) -> Asked:
    to, number = person(rng), code(rng)
    urgent = rng.random() < 0.5
    subject = f"Faktura {number}" if czech else f"Invoice {number}"
    arguments: Arguments = {"to": to, "subject": subject}
    if urgent:
        arguments["urgent"] = True
    if czech:
        text = f"Pošli {'urgentní ' if urgent else ''}e-mail. Příjemce: {to}, předmět: {subject}."
    else:
        text = f"Send an {'urgent ' if urgent else ''}e-mail to {to} with the subject {subject}."
    return text, arguments


def _meeting(rng: random.Random, czech: bool) -> Asked:
    date, minutes = iso_date(rng), 15 * (1 + int(rng.random() * 8))
    people = [person(rng) for _ in range(1 + int(rng.random() * 3))]
    listing = ", ".join(people)
    if czech:
        text = f"Naplánuj na {date} schůzku v délce {minutes} minut, účastníci: {listing}."
    else:
        text = f"Schedule a meeting on {date} for {minutes} minutes with: {listing}."
    return text, {"date": date, "minutes": minutes, "people": people}


def _transfer(rng: random.Random, czech: bool) -> Asked:
    amount, account = 1 + int(rng.random() * 99_999), f"{int(rng.random() * 10**10):010d}"
    currency = pick(rng, ("CZK", "EUR", "USD"))
    text = (
        f"Převeď {amount} {currency} na účet {account}." if czech else f"Send {amount} {currency} to account {account}."
    )
    return text, {"account": account, "amount": amount, "currency": currency}


def _lights(rng: random.Random, czech: bool) -> Asked:
    on, dimmed = rng.random() < 0.5, rng.random() < 0.4
    rooms = {"v kuchyni": "kitchen", "v ložnici": "bedroom", "v obýváku": "lounge", "na chodbě": "hall"}
    room = pick(rng, tuple(rooms))
    arguments: Arguments = {"room": rooms[room], "on": on}
    if czech:
        text = f"{'Rozsviť' if on else 'Zhasni'} světlo {room}"
    else:
        text = f"Turn the {rooms[room]} light {'on' if on else 'off'}"
    if on and dimmed:
        level = 1 + int(rng.random() * 100)
        arguments["level"] = level
        text += f", jas {level} %" if czech else f", brightness {level} %"
    return text + ".", arguments


def _ticket(rng: random.Random, czech: bool) -> Asked:
    severity = {"nízkou": "low", "střední": "medium", "vysokou": "high"}
    word, device = pick(rng, tuple(severity)), code(rng)
    title = f"Porucha {device}" if czech else f"Failure {device}"
    if czech:
        text = f"Založ tiket s názvem {title} a {word} závažností."
    else:
        text = f"Open a ticket titled {title}, severity {severity[word]}."
    return text, {"title": title, "severity": severity[word]}


def _search(rng: random.Random, czech: bool) -> Asked:
    word = pick(rng, ("batoh", "stan", "lampa", "kufr", "svetr") if czech else ("backpack", "tent", "lamp", "suitcase"))
    arguments: Arguments = {"query": word}
    text = f"Najdi v katalogu výraz „{word}“" if czech else f"Search the catalogue for: {word}"
    if rng.random() < 0.6:
        arguments["max_price"] = 100 + int(rng.random() * 9_900)
        text += f", nejvýš za {arguments['max_price']} Kč" if czech else f", at most {arguments['max_price']} CZK"
    if rng.random() < 0.4:
        arguments["in_stock"] = True
        text += ", jen skladem" if czech else ", only in stock"
    return text + ".", arguments


def _translate(rng: random.Random, czech: bool) -> Asked:
    languages = {"němčiny": "de", "angličtiny": "en", "polštiny": "pl", "francouzštiny": "fr"}
    english = {"de": "German", "en": "English", "pl": "Polish", "fr": "French"}
    offered = tuple(word for word, target in languages.items() if czech or target != "en")
    word, number = pick(rng, offered), code(rng)
    text = f"Zásilka {number} dorazila" if czech else f"Parcel {number} has arrived"
    target = languages[word]
    request = f"Přelož do {word}: „{text}“." if czech else f'Translate into {english[target]}: "{text}".'
    return request, {"text": text, "target": target}


def _reminder(rng: random.Random, czech: bool) -> Asked:
    date, who = iso_date(rng), declined_person(rng).name
    text = f"Zavolat {who.dative}" if czech else f"Call {who.nominative}"
    request = f"Přidej na {date} připomínku „{text}“." if czech else f'Remind me on {date} of "{text}".'
    return request, {"date": date, "text": text}


def _invoice(rng: random.Random, czech: bool) -> Asked:
    customer, total = person(rng), 100 + int(rng.random() * 99_900)
    paid = rng.random() < 0.5
    if czech:
        text = f"Vystav fakturu. Zákazník: {customer}, celkem {total} Kč, {'zaplaceno' if paid else 'nezaplaceno'}."
    else:
        text = f"Issue an invoice for {customer}, total {total} CZK, {'paid' if paid else 'unpaid'}."
    return text, {"customer": customer, "total": total, "paid": paid}


def _room(rng: random.Random, czech: bool) -> Asked:
    start, nights, guests = iso_date(rng), 1 + int(rng.random() * 14), 1 + int(rng.random() * 6)
    if czech:
        text = f"Rezervuj pokoj od {start}. Počet nocí: {nights}, počet hostů: {guests}."
    else:
        text = f"Book a room from {start}, nights: {nights}, guests: {guests}."
    return text, {"start": start, "nights": nights, "guests": guests}


TOOLS = (
    _tool(_weather, "get_weather", "Weather in a city", {"city": _STRING, "date": _DATE}, optional=["date"]),
    _tool(_order, "order_status", "State of an order", {"order_id": _STRING}),
    _tool(
        _email, "send_email", "Send an e-mail", {"to": _STRING, "subject": _STRING, "urgent": _BOOLEAN},
        optional=["urgent"],
    ),
    _tool(
        _meeting, "schedule_meeting", "Plan a meeting",
        {"date": _DATE, "minutes": _INTEGER, "people": _array(_STRING)},
    ),
    _tool(
        _transfer, "transfer_money", "Send money",
        {"account": _STRING, "amount": _INTEGER, "currency": _enum("CZK", "EUR", "USD")},
    ),
    _tool(
        _lights, "set_light", "Switch a light",
        {"room": _enum("kitchen", "bedroom", "lounge", "hall"), "on": _BOOLEAN, "level": _INTEGER}, optional=["level"],
    ),
    _tool(
        _ticket, "open_ticket", "Open a support ticket",
        {"title": _STRING, "severity": _enum("low", "medium", "high")},
    ),
    _tool(
        _search, "search_catalogue", "Find products", {"query": _STRING, "max_price": _INTEGER, "in_stock": _BOOLEAN},
        optional=["max_price", "in_stock"],
    ),
    _tool(
        _translate, "translate", "Translate a text", {"text": _STRING, "target": _enum("de", "en", "pl", "fr")}
    ),
    _tool(_reminder, "add_reminder", "Add a reminder", {"date": _DATE, "text": _STRING}),
    _tool(
        _invoice, "create_invoice", "Issue an invoice", {"customer": _STRING, "total": _INTEGER, "paid": _BOOLEAN}
    ),
    _tool(_room, "book_room", "Book a hotel room", {"start": _DATE, "nights": _INTEGER, "guests": _INTEGER}),
)  # fmt: skip


def hermes_text(name: str, arguments: Arguments) -> str:
    """A call in the wire format of the Hermes models and of older Qwen ones: one JSON object."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def call_text(name: str, arguments: Arguments) -> str:
    """A call in Qwen's XML wire format: strings as they are, everything else as JSON."""
    lines = ["<tool_call>", f"<function={name}>"]
    for key, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"<parameter={key}>", written, "</parameter>"]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def _create_order(rng: random.Random, czech: bool) -> Asked:
    names = rng.sample(PRODUCTS if czech else PRODUCTS_EN, 1 + int(rng.random() * 3))
    items = [{"name": name, "count": 1 + int(rng.random() * 30)} for name in names]
    customer = {"name": person(rng), "city": pick(rng, CITIES)}
    arguments: Arguments = {"customer": customer, "items": items}
    listing = ", ".join(f"{item['count']}x {item['name']}" for item in items)
    if czech:
        text = f"Založ objednávku. Zákazník: {customer['name']}, město: {customer['city']}, položky: {listing}"
    else:
        text = f"Create an order. Customer {customer['name']}, city {customer['city']}, items: {listing}"
    if rng.random() < 0.5:
        arguments["deliver_on"] = iso_date(rng)
        text += f". Doručit dne {arguments['deliver_on']}" if czech else f". Deliver on {arguments['deliver_on']}"
    return text + ".", arguments


def _trip(rng: random.Random, czech: bool) -> Asked:
    stops = rng.sample(CITIES, 2 + int(rng.random() * 2))
    legs = [{"from": a, "to": b, "date": iso_date(rng)} for a, b in pairwise(stops)]
    people = [person(rng) for _ in range(1 + int(rng.random() * 3))]
    said = "; ".join(f"{leg['from']} – {leg['to']}, {leg['date']}" for leg in legs)
    arguments: Arguments = {"passengers": people, "legs": legs}
    if czech:
        text = f"Kup jízdenky. Cestující: {', '.join(people)}. Úseky: {said}"
    else:
        text = f"Buy train tickets. Passengers: {', '.join(people)}. Legs: {said}"
    if rng.random() < 0.4:
        arguments["seat_class"] = "first"
        text += ". První třída" if czech else ". First class"
    return text + ".", arguments


def _readings(rng: random.Random, czech: bool) -> Asked:
    values: list[int | float] = []
    for _ in range(2 + int(rng.random() * 4)):
        tenth = int(rng.random() * 400) - 100
        values.append(tenth / 10 if tenth % 10 else tenth // 10)
    arguments: Arguments = {"sensor": f"S{int(rng.random() * 900) + 100}", "taken_on": iso_date(rng), "values": values}
    said = "; ".join(str(value).replace(".", ",") if czech else str(value) for value in values)
    sensor, day = arguments["sensor"], arguments["taken_on"]
    if czech:
        return f"Ulož měření čidla {sensor} ze dne {day} ve stupních Celsia: {said}.", {**arguments, "unit": "celsius"}
    return f"Store the readings of sensor {sensor} of {day} in kelvin: {said}.", {**arguments, "unit": "kelvin"}


ROLES = {
    "organizer": ("organizátor", "organizátorka"),
    "speaker": ("řečník", "řečnice"),
    "listener": ("posluchač", "posluchačka"),
}
"""Of those invited, as the key says it and as Czech does of a man and of a woman.

None of them is `host`, which says in Czech the opposite of what it says in English.
"""


def _invitation(rng: random.Random, czech: bool) -> Asked:
    people, clauses = [], []
    for _ in range(1 + int(rng.random() * 3)):
        (name, _, _), woman = declined_person(rng)
        role = pick(rng, tuple(ROLES))
        people.append({"name": name, "role": role})
        clauses.append(f"{name} ({ROLES[role][woman] if czech else role})")
    said = ", ".join(clauses)
    day = iso_date(rng)
    arguments: Arguments = {"date": day, "people": people}
    text = f"Pozvi na {day} tyto lidi: {said}" if czech else f"Invite these people for {day}: {said}"
    if rng.random() < 0.4:
        arguments["online"] = True
        text += "; setkání je online" if czech else "; the meeting is online"
    return text + ".", arguments


def _profile(rng: random.Random, czech: bool) -> Asked:
    number = 1 + int(rng.random() * 9_999)
    said: list[str] = []
    changes: dict[str, Any] = {}
    if rng.random() < 0.6:
        changes["city"] = pick(rng, CITIES)
        said.append(f"město {changes['city']}" if czech else f"city {changes['city']}")
    if rng.random() < 0.6:
        changes["name"] = person(rng)
        said.append(f"jméno {changes['name']}" if czech else f"name {changes['name']}")
    if rng.random() < 0.5 or not changes:
        addresses = [f"{int(rng.random() * 10**6):06d}@example.cz" for _ in range(1 + int(rng.random() * 2))]
        changes["emails"] = addresses
        label = "e-mail" + ("" if len(addresses) == 1 else "y" if czech else "s")
        said.append(f"{label} {(' a ' if czech else ' and ').join(addresses)}")
    listing = ", ".join(said)
    text = f"Uprav údaje zákazníka {number}: {listing}." if czech else f"Update customer {number}: {listing}."
    return text, {"customer_id": number, "changes": changes}


NESTED_TOOLS = (
    _tool(
        _create_order, "create_order", "Create an order",
        {
            "customer": object_schema({"name": _STRING, "city": _STRING}),
            "items": _array(object_schema({"name": _STRING, "count": _INTEGER})),
            "deliver_on": _DATE,
            "note": _STRING,
        },
        optional=["deliver_on", "note"],
    ),
    _tool(
        _trip, "buy_tickets", "Buy train tickets",
        {
            "passengers": _array(_STRING),
            "legs": _array(object_schema({"from": _STRING, "to": _STRING, "date": _DATE})),
            "seat_class": _enum("first", "second"),
        },
        optional=["seat_class"],
    ),
    _tool(
        _readings, "store_readings", "Store what a sensor measured",
        {"sensor": _STRING, "taken_on": _DATE, "values": _array(_NUMBER), "unit": _enum("celsius", "kelvin")},
    ),
    _tool(
        _invitation, "invite", "Invite people to a meeting",
        {
            "date": _DATE,
            "people": _array(object_schema({"name": _STRING, "role": _enum(*ROLES)})),
            "online": _BOOLEAN,
        },
        optional=["online"],
    ),
    _tool(
        _profile, "update_customer", "Change what is stored of a customer; only what is given is changed",
        {
            "customer_id": _INTEGER,
            "changes": object_schema({"name": _STRING, "city": _STRING, "emails": _array(_STRING)}, required=[]),
        },
    ),
)  # fmt: skip
