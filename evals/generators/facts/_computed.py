"""Subjects whose answers are computed, not looked up."""

import random
from collections.abc import Callable
from dataclasses import dataclass

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Problem:
    """A computed problem: as a question, as a statement with a gap for the result, its result, and wrong results."""

    question: str
    statement: str
    result: str
    wrong: tuple[str, ...]


def _near(rng: random.Random, result: int, spread: int = 12) -> tuple[str, ...]:
    values = [value for value in range(max(0, result - spread), result + spread + 1) if value != result]
    return tuple(str(value) for value in rng.sample(values, 3))


def elementary_mathematics(rng: random.Random) -> Problem:
    """Sums, differences, products, quotients, squares and remainders of small numbers."""
    kind = rng.randrange(6)
    a, b = rng.randint(2, 49), rng.randint(2, 49)
    if kind == 0:
        found = f"What is {a} + {b}?", f"{a} + {b} = {{}}", a + b
    elif kind == 1:
        a, b = max(a, b) + 1, min(a, b)
        found = f"What is {a} - {b}?", f"{a} - {b} = {{}}", a - b
    elif kind == 2:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        found = f"What is {a} * {b}?", f"{a} * {b} = {{}}", a * b
    elif kind == 3:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        found = f"What is {a * b} / {b}?", f"{a * b} / {b} = {{}}", a
    elif kind == 4:
        a = rng.randint(2, 15)
        found = f"What is the square of {a}?", f"The square of {a} is {{}}.", a * a
    else:
        a, b = rng.randint(3, 40), rng.randint(2, 9)
        found = f"What is the remainder of {a} divided by {b}?", f"{a} divided by {b} leaves {{}}.", a % b
    question, statement, result = found
    return Problem(question, statement, str(result), _near(rng, result))


def high_school_mathematics(rng: random.Random) -> Problem:
    """Two-digit products, sums of three numbers and linear equations."""
    kind = rng.randrange(3)
    a, b, c = rng.randint(11, 99), rng.randint(3, 9), rng.randint(11, 99)
    if kind == 0:
        return _number(rng, f"What is {a} * {b}?", f"{a} * {b} = {{}}", a * b)
    if kind == 1:
        d = rng.randint(11, 99)
        return _number(rng, f"What is {a} + {c} + {d}?", f"{a} + {c} + {d} = {{}}", a + c + d)
    x = rng.randint(2, 30)
    return _number(
        rng, f"If {b}x + {c} = {b * x + c}, what is x?", f"The solution of {b}x + {c} = {b * x + c} is {{}}.", x
    )


def calendar_arithmetic(rng: random.Random) -> Problem:
    """Which weekday comes some days later."""
    start, days = rng.randrange(7), rng.randint(2, 40)
    result = WEEKDAYS[(start + days) % 7]
    wrong = tuple(rng.sample([day for day in WEEKDAYS if day != result], 3))
    return Problem(
        f"Which weekday is {days} days after {WEEKDAYS[start]}?",
        f"{days} days after {WEEKDAYS[start]} comes {{}}.",
        result,
        wrong,
    )


def unit_arithmetic(rng: random.Random) -> Problem:
    """Hours and minutes, metres and centimetres, kilograms and grams."""
    kind = rng.randrange(3)
    big = rng.randint(2, 9)
    if kind == 0:
        small = rng.randint(1, 59)
        return _number(
            rng,
            f"How many minutes are {big} hours and {small} minutes?",
            f"{big} hours and {small} minutes are {{}} minutes.",
            60 * big + small,
        )
    if kind == 1:
        small = rng.randint(1, 99)
        return _number(
            rng,
            f"How many centimetres are {big} m and {small} cm?",
            f"{big} m and {small} cm are {{}} cm.",
            100 * big + small,
        )
    price, count = rng.randint(3, 60), rng.randint(3, 9)
    return _number(
        rng,
        f"One ticket costs {price} euros. What do {count} tickets cost?",
        f"{count} tickets at {price} euros cost {{}} euros.",
        price * count,
    )


def number_systems(rng: random.Random) -> Problem:
    """Binary numbers and their decimal values."""
    value = rng.randint(5, 63)
    if rng.random() < 0.5:
        return _number(rng, f"What is binary {value:b} in decimal?", f"Binary {value:b} is decimal {{}}.", value)
    others = rng.sample([other for other in range(max(4, value - 9), value + 10) if other != value], 3)
    return Problem(
        f"What is decimal {value} in binary?",
        f"Decimal {value} is binary {{}}.",
        f"{value:b}",
        tuple(f"{other:b}" for other in others),
    )


def _number(rng: random.Random, question: str, statement: str, result: int) -> Problem:
    return Problem(question, statement, str(result), _near(rng, result))


COMPUTED: dict[str, Callable[[random.Random], Problem]] = {
    "elementary mathematics": elementary_mathematics,
    "high school mathematics": high_school_mathematics,
    "calendar arithmetic": calendar_arithmetic,
    "unit arithmetic": unit_arithmetic,
    "number systems": number_systems,
}
"""Computed subjects by name."""
