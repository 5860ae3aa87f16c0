"""Mathematics: arithmetic worked step by step; every result is computed."""

import random

from q36eval.evals.generators.prose._english import NAMES
from q36eval.evals.generators.prose._lexicon import lexicon

_WORDS = lexicon("mathematics")
GOODS = _WORDS["goods"]


def _sum(rng: random.Random) -> str:
    a, b, c = rng.randint(10, 99), rng.randint(10, 99), rng.randint(2, 50)
    return f"Compute {a} + {b} - {c}.\n{a} + {b} = {a + b}\n{a + b} - {c} = {a + b - c}\nThe result is {a + b - c}."


def _product(rng: random.Random) -> str:
    a, b = rng.randint(11, 49), rng.randint(3, 12)
    tens, ones = a // 10 * 10, a % 10
    return (
        f"Compute {a} * {b}.\n{a} = {tens} + {ones}\n{tens} * {b} = {tens * b}\n{ones} * {b} = {ones * b}\n"
        f"{tens * b} + {ones * b} = {a * b}\nThe result is {a * b}."
    )


def _equation(rng: random.Random) -> str:
    a, x, b = rng.randint(2, 9), rng.randint(2, 20), rng.randint(1, 40)
    return f"Solve {a}x + {b} = {a * x + b}.\n{a}x = {a * x + b} - {b}\n{a}x = {a * x}\nx = {a * x} / {a}\nx = {x}"


def _percent(rng: random.Random) -> str:
    price, percent = rng.randint(1, 40) * 20, rng.choice((5, 10, 15, 20, 25, 30, 50))
    part = price * percent // 100
    return (
        f"Take {percent} % off {price}.\n{price} * {percent} / 100 = {part}\n"
        f"{price} - {part} = {price - part}\nThe new price is {price - part}."
    )


def _story(rng: random.Random) -> str:
    name, goods = rng.choice(NAMES), rng.choice(GOODS)
    boxes, each, given = rng.randint(2, 9), rng.randint(3, 12), rng.randint(1, 5)
    total = boxes * each
    return (
        f"{name} has {boxes} boxes with {each} {goods} each and gives away {given}.\n{boxes} * {each} = {total}\n"
        f"{total} - {given} = {total - given}\n{name} keeps {total - given} {goods}."
    )


def _divisor(rng: random.Random) -> str:
    a, b = rng.randint(12, 99), rng.randint(8, 60)
    lines = [f"Find the greatest common divisor of {a} and {b}."]
    while b:
        lines.append(f"{a} = {b} * {a // b} + {a % b}")
        a, b = b, a % b
    return "\n".join([*lines, f"The greatest common divisor is {a}."])


def paragraph(rng: random.Random) -> str:
    """One worked problem."""
    return rng.choice((_sum, _product, _equation, _percent, _story, _divisor))(rng)
