"""The tools that requests are made for: their schemas, and for each the ways to ask with the arguments that follow."""

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from q36eval.canaries.generators._names import declined_person, person
from q36eval.canaries.generators._words import CITIES, code, iso_date, pick

Arguments = dict[str, Any]
Asked = tuple[str, Arguments]
"""A request as a person writes it, and the arguments it calls for."""


class Tool(NamedTuple):
    """A tool: its schema in OpenAI's form, and a request for it in Czech or in English."""

    name: str
    schema: dict[str, Any]
    request: Callable[[random.Random, bool], Asked]


def tool_schema(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
_DATE: dict[str, Any] = {"type": "string", "format": "date"}
_STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}


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
    asked = f"Přelož do {word}: „{text}“." if czech else f'Translate into {english[target]}: "{text}".'
    return asked, {"text": text, "target": target}


def _reminder(rng: random.Random, czech: bool) -> Asked:
    date, who = iso_date(rng), declined_person(rng).name
    text = f"Zavolat {who.dative}" if czech else f"Call {who.nominative}"
    asked = f"Přidej na {date} připomínku „{text}“." if czech else f'Remind me on {date} of "{text}".'
    return asked, {"date": date, "text": text}


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
    Tool(
        "get_weather",
        tool_schema("get_weather", "Weather in a city", {"city": _STRING, "date": _DATE}, ["city"]),
        _weather,
    ),
    Tool("order_status", tool_schema("order_status", "State of an order", {"order_id": _STRING}, ["order_id"]), _order),
    Tool(
        "send_email",
        tool_schema(
            "send_email", "Send an e-mail", {"to": _STRING, "subject": _STRING, "urgent": _BOOLEAN}, ["to", "subject"]
        ),
        _email,
    ),
    Tool(
        "schedule_meeting",
        tool_schema(
            "schedule_meeting",
            "Plan a meeting",
            {"date": _DATE, "minutes": _INTEGER, "people": _STRINGS},
            ["date", "minutes", "people"],
        ),
        _meeting,
    ),
    Tool(
        "transfer_money",
        tool_schema(
            "transfer_money",
            "Send money",
            {"account": _STRING, "amount": _INTEGER, "currency": _enum("CZK", "EUR", "USD")},
            ["account", "amount", "currency"],
        ),
        _transfer,
    ),
    Tool(
        "set_light",
        tool_schema(
            "set_light",
            "Switch a light",
            {"room": _enum("kitchen", "bedroom", "lounge", "hall"), "on": _BOOLEAN, "level": _INTEGER},
            ["room", "on"],
        ),
        _lights,
    ),
    Tool(
        "open_ticket",
        tool_schema(
            "open_ticket",
            "Open a support ticket",
            {"title": _STRING, "severity": _enum("low", "medium", "high")},
            ["title", "severity"],
        ),
        _ticket,
    ),
    Tool(
        "search_catalogue",
        tool_schema(
            "search_catalogue",
            "Find products",
            {"query": _STRING, "max_price": _INTEGER, "in_stock": _BOOLEAN},
            ["query"],
        ),
        _search,
    ),
    Tool(
        "translate",
        tool_schema(
            "translate",
            "Translate a text",
            {"text": _STRING, "target": _enum("de", "en", "pl", "fr")},
            ["text", "target"],
        ),
        _translate,
    ),
    Tool(
        "add_reminder",
        tool_schema("add_reminder", "Add a reminder", {"date": _DATE, "text": _STRING}, ["date", "text"]),
        _reminder,
    ),
    Tool(
        "create_invoice",
        tool_schema(
            "create_invoice",
            "Issue an invoice",
            {"customer": _STRING, "total": _INTEGER, "paid": _BOOLEAN},
            ["customer", "total", "paid"],
        ),
        _invoice,
    ),
    Tool(
        "book_room",
        tool_schema(
            "book_room",
            "Book a hotel room",
            {"start": _DATE, "nights": _INTEGER, "guests": _INTEGER},
            ["start", "nights", "guests"],
        ),
        _room,
    ),
)


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
