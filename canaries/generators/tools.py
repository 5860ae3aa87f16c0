"""The tools behind requests: for each the phrasings, with the resulting arguments.

`TOOLS` take plain arguments; `NESTED_TOOLS` take arrays, nested objects and dates, some of them optional.
"""

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from q36eval.canaries.generators.words import (
    CITIES,
    WORDS,
    code,
    declined_person,
    iso_date,
    person,
    pick,
)
from q36eval.config.family import ToolFormat

Arguments = dict[str, Any]
Asked = tuple[str, Arguments]
"""A request in a person's words, and its arguments."""


Words = dict[str, Any]
"""The texts of a tool's requests, in one language."""


class Tool(NamedTuple):
    """A tool of `words.yaml`; `draw` draws a request for it out of the words of a language."""

    name: str
    draw: Callable[[random.Random, Words], Asked]

    @property
    def schema(self) -> dict[str, Any]:
        """In OpenAI's form."""
        return tool_schema(self.name)

    def request(self, rng: random.Random, czech: bool) -> Asked:
        """A request in Czech or in English."""
        return self.draw(rng, WORDS["tools"][self.name]["cs" if czech else "en"])


def tool_schema(name: str) -> dict[str, Any]:
    """A tool of `words.yaml` in OpenAI's form: every argument is required but the optional ones."""
    tool = WORDS["tools"][name]
    required = [key for key in tool["properties"] if key not in tool.get("optional", ())]
    parameters = {"type": "object", "properties": tool["properties"], "required": required}
    function = {"name": name, "description": tool["description"], "parameters": parameters}
    return {"type": "function", "function": function}


def _weather(rng: random.Random, words: Words) -> Asked:
    city, date = pick(rng, CITIES), iso_date(rng)
    dated = rng.random() < 0.5
    arguments: Arguments = {"city": city, "date": date} if dated else {"city": city}
    return pick(rng, words["dated" if dated else "now"]).format(**arguments), arguments


def _order(rng: random.Random, words: Words) -> Asked:
    arguments = {"order_id": code(rng)}
    return pick(rng, words["request"]).format(**arguments), arguments


def _email(rng: random.Random, words: Words) -> Asked:
    to, number = person(rng), code(rng)
    urgent = rng.random() < 0.5
    arguments: Arguments = {"to": to, "subject": words["subject"].format(number)}
    text = words["request"].format(urgent=words["urgent"] if urgent else "", **arguments)
    return text, arguments | ({"urgent": True} if urgent else {})


def _meeting(rng: random.Random, words: Words) -> Asked:
    date, minutes = iso_date(rng), 15 * (1 + int(rng.random() * 8))
    people = [person(rng) for _ in range(1 + int(rng.random() * 3))]
    text = words["request"].format(date=date, minutes=minutes, people=", ".join(people))
    return text, {"date": date, "minutes": minutes, "people": people}


def _transfer(rng: random.Random, words: Words) -> Asked:
    amount, account = 1 + int(rng.random() * 99_999), f"{int(rng.random() * 10**10):010d}"
    arguments = {"account": account, "amount": amount, "currency": pick(rng, ("CZK", "EUR", "USD"))}
    return words["request"].format(**arguments), arguments


def _lights(rng: random.Random, words: Words) -> Asked:
    on, dimmed = rng.random() < 0.5, rng.random() < 0.4
    room = pick(rng, list(words["rooms"]))
    arguments: Arguments = {"room": words["rooms"][room], "on": on}
    text = words["lit" if on else "dark"].format(room)
    if on and dimmed:
        arguments["level"] = 1 + int(rng.random() * 100)
        text += words["level"].format(arguments["level"])
    return text + ".", arguments


def _ticket(rng: random.Random, words: Words) -> Asked:
    severity, device = pick(rng, list(words["severities"])), code(rng)
    title = words["title"].format(device)
    text = words["request"].format(title=title, severity=severity)
    return text, {"title": title, "severity": words["severities"][severity]}


def _search(rng: random.Random, words: Words) -> Asked:
    word = pick(rng, words["words"])
    arguments: Arguments = {"query": word}
    text = words["request"].format(word)
    if rng.random() < 0.6:
        arguments["max_price"] = 100 + int(rng.random() * 9_900)
        text += words["at_most"].format(arguments["max_price"])
    if rng.random() < 0.4:
        arguments["in_stock"] = True
        text += words["in_stock"]
    return text + ".", arguments


def _translate(rng: random.Random, words: Words) -> Asked:
    language, number = pick(rng, list(words["languages"])), code(rng)
    text = words["text"].format(number)
    request = words["request"].format(language=language, text=text)
    return request, {"text": text, "target": words["languages"][language]}


def _reminder(rng: random.Random, words: Words) -> Asked:
    date, who = iso_date(rng), declined_person(rng).name
    arguments = {"date": date, "text": words["text"].format(who)}
    return words["request"].format(**arguments), arguments


def _invoice(rng: random.Random, words: Words) -> Asked:
    customer, total = person(rng), 100 + int(rng.random() * 99_900)
    paid = rng.random() < 0.5
    text = words["request"].format(customer=customer, total=total, paid=words["paid"][paid])
    return text, {"customer": customer, "total": total, "paid": paid}


def _room(rng: random.Random, words: Words) -> Asked:
    arguments = {"start": iso_date(rng), "nights": 1 + int(rng.random() * 14), "guests": 1 + int(rng.random() * 6)}
    return words["request"].format(**arguments), arguments


TOOLS = (
    Tool("get_weather", _weather),
    Tool("order_status", _order),
    Tool("send_email", _email),
    Tool("schedule_meeting", _meeting),
    Tool("transfer_money", _transfer),
    Tool("set_light", _lights),
    Tool("open_ticket", _ticket),
    Tool("search_catalogue", _search),
    Tool("translate", _translate),
    Tool("add_reminder", _reminder),
    Tool("create_invoice", _invoice),
    Tool("book_room", _room),
)


def calls_text(calls: Sequence[tuple[str, Arguments]], tool_format: ToolFormat) -> str:
    """The calls of one turn in a wire format, without the token that ends the turn."""
    key = "parameters" if tool_format == "llama_json" else "arguments"
    bodies = [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]
    match tool_format:
        case "qwen3_xml":
            return "\n".join(call_text(name, arguments) for name, arguments in calls)
        case "hermes":
            return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        case "llama_json":
            return "; ".join(bodies)
        case "mistral":
            return f"[TOOL_CALLS] [{', '.join(bodies)}]"
        case "harmony":
            messages = [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
            marked = [f"to=functions.{name} <|constrain|>json<|message|>{said}" for name, said in messages]
            return "<|call|><|start|>assistant".join(f"<|channel|>commentary {each}" for each in marked)


def call_text(name: str, arguments: Arguments) -> str:
    """A call in Qwen's XML wire format: strings as they are, everything else as JSON."""
    lines = ["<tool_call>", f"<function={name}>"]
    for key, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines += [f"<parameter={key}>", written, "</parameter>"]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def _create_order(rng: random.Random, words: Words) -> Asked:
    names = rng.sample(words["products"], 1 + int(rng.random() * 3))
    items = [{"name": name, "count": 1 + int(rng.random() * 30)} for name in names]
    customer = {"name": person(rng), "city": pick(rng, CITIES)}
    arguments: Arguments = {"customer": customer, "items": items}
    listing = ", ".join(f"{item['count']}x {item['name']}" for item in items)
    text = words["request"].format(items=listing, **customer)
    if rng.random() < 0.5:
        arguments["deliver_on"] = iso_date(rng)
        text += words["deliver_on"].format(arguments["deliver_on"])
    return text + ".", arguments


def _trip(rng: random.Random, words: Words) -> Asked:
    stops = rng.sample(CITIES, 2 + int(rng.random() * 2))
    legs = [{"from": a, "to": b, "date": iso_date(rng)} for a, b in pairwise(stops)]
    people = [person(rng) for _ in range(1 + int(rng.random() * 3))]
    said = "; ".join(f"{leg['from']} – {leg['to']}, {leg['date']}" for leg in legs)
    arguments: Arguments = {"passengers": people, "legs": legs}
    text = words["request"].format(people=", ".join(people), legs=said)
    if rng.random() < 0.4:
        arguments["seat_class"] = "first"
        text += words["first"]
    return text + ".", arguments


def _readings(rng: random.Random, words: Words) -> Asked:
    values: list[int | float] = []
    for _ in range(2 + int(rng.random() * 4)):
        tenth = int(rng.random() * 400) - 100
        values.append(tenth / 10 if tenth % 10 else tenth // 10)
    arguments: Arguments = {"sensor": f"S{int(rng.random() * 900) + 100}", "taken_on": iso_date(rng), "values": values}
    said = "; ".join(str(value).replace(".", words["point"]) for value in values)
    return words["request"].format(**{**arguments, "values": said}), {**arguments, "unit": words["unit"]}


def _invitation(rng: random.Random, words: Words) -> Asked:
    people, clauses = [], []
    for _ in range(1 + int(rng.random() * 3)):
        (name, _, _), woman = declined_person(rng)
        role = pick(rng, list(words["roles"]))
        people.append({"name": name, "role": role})
        clauses.append(f"{name} ({words['roles'][role][woman]})")
    arguments: Arguments = {"date": iso_date(rng), "people": people}
    text = words["request"].format(date=arguments["date"], people=", ".join(clauses))
    if rng.random() < 0.4:
        arguments["online"] = True
        text += words["online"]
    return text + ".", arguments


def _profile(rng: random.Random, words: Words) -> Asked:
    number = 1 + int(rng.random() * 9_999)
    said: list[str] = []
    changes: dict[str, Any] = {}
    if rng.random() < 0.6:
        changes["city"] = pick(rng, CITIES)
        said.append(words["city"].format(changes["city"]))
    if rng.random() < 0.6:
        changes["name"] = person(rng)
        said.append(words["name"].format(changes["name"]))
    if rng.random() < 0.5 or not changes:
        addresses = [f"{int(rng.random() * 10**6):06d}@example.cz" for _ in range(1 + int(rng.random() * 2))]
        changes["emails"] = addresses
        said.append(words["emails"][len(addresses) - 1].format(*addresses))
    return words["request"].format(number, ", ".join(said)), {"customer_id": number, "changes": changes}


NESTED_TOOLS = (
    Tool("create_order", _create_order),
    Tool("buy_tickets", _trip),
    Tool("store_readings", _readings),
    Tool("invite", _invitation),
    Tool("update_customer", _profile),
)
