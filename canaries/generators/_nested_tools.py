"""Tools whose arguments are arrays, nested objects and dates, some of them optional; requests that fill them in."""

import random
from itertools import pairwise
from typing import Any

from q36eval.canaries.generators._names import declined_person, person
from q36eval.canaries.generators._tools import Arguments, Asked, Tool, tool_schema
from q36eval.canaries.generators._words import CITIES, PRODUCTS, PRODUCTS_EN, iso_date, pick

_STRING: dict[str, Any] = {"type": "string"}
_INTEGER: dict[str, Any] = {"type": "integer"}
_NUMBER: dict[str, Any] = {"type": "number"}
_DATE: dict[str, Any] = {"type": "string", "format": "date"}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _order(rng: random.Random, czech: bool) -> Asked:
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
    Tool(
        "create_order",
        tool_schema(
            "create_order",
            "Create an order",
            {
                "customer": _object({"name": _STRING, "city": _STRING}, ["name", "city"]),
                "items": _array(_object({"name": _STRING, "count": _INTEGER}, ["name", "count"])),
                "deliver_on": _DATE,
                "note": _STRING,
            },
            ["customer", "items"],
        ),
        _order,
    ),
    Tool(
        "buy_tickets",
        tool_schema(
            "buy_tickets",
            "Buy train tickets",
            {
                "passengers": _array(_STRING),
                "legs": _array(_object({"from": _STRING, "to": _STRING, "date": _DATE}, ["from", "to", "date"])),
                "seat_class": _enum("first", "second"),
            },
            ["passengers", "legs"],
        ),
        _trip,
    ),
    Tool(
        "store_readings",
        tool_schema(
            "store_readings",
            "Store what a sensor measured",
            {"sensor": _STRING, "taken_on": _DATE, "values": _array(_NUMBER), "unit": _enum("celsius", "kelvin")},
            ["sensor", "taken_on", "values", "unit"],
        ),
        _readings,
    ),
    Tool(
        "invite",
        tool_schema(
            "invite",
            "Invite people to a meeting",
            {
                "date": _DATE,
                "people": _array(_object({"name": _STRING, "role": _enum(*ROLES)}, ["name", "role"])),
                "online": {"type": "boolean"},
            },
            ["date", "people"],
        ),
        _invitation,
    ),
    Tool(
        "update_customer",
        tool_schema(
            "update_customer",
            "Change what is stored of a customer; only what is given is changed",
            {
                "customer_id": _INTEGER,
                "changes": _object({"name": _STRING, "city": _STRING, "emails": _array(_STRING)}, []),
            },
            ["customer_id", "changes"],
        ),
        _profile,
    ),
)
