"""English: narrative, news, recipes and letters; arithmetic worked step by step; small Python functions.

Every result is computed.
"""

import random
from pathlib import Path

from benchmarks.sandbox.json_documents import ADJECTIVES, THINGS
from q36eval.files import read_our_yaml

LEXICON: dict[str, dict[str, list[str]]] = read_our_yaml(Path(__file__).with_name("lexicon.yaml"))
"""The word lists of all languages, by section and name."""

_WORDS = LEXICON["english"]
NAMES = _WORDS["names"]
JOBS = _WORDS["jobs"]
PLACES = _WORDS["places"]
TIMES = _WORDS["times"]
DEEDS = _WORDS["deeds"]
FEELINGS = _WORDS["feelings"]
WEATHER = _WORDS["weather"]
INSTITUTIONS = _WORDS["institutions"]
DECISIONS = _WORDS["decisions"]
REASONS = _WORDS["reasons"]
FOODS = _WORDS["foods"]
STEPS = _WORDS["steps"]


def article(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def thing(rng: random.Random) -> str:
    """An indefinite noun phrase."""
    return article(f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}")


def sentence(rng: random.Random) -> str:
    """One narrative sentence."""
    kind = rng.randrange(8)
    name, job, place = rng.choice(NAMES), rng.choice(JOBS), rng.choice(PLACES)
    if kind == 0:
        return f"{name} {rng.choice(DEEDS)} {thing(rng)} {place}."
    if kind == 1:
        moment = rng.choice(TIMES)
        return f"{moment[0].upper()}{moment[1:]} the {job} {rng.choice(DEEDS)} {thing(rng)}."
    if kind == 2:
        return f"The {rng.choice(THINGS)} {place} was {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}."
    if kind == 3:
        return rng.choice(WEATHER)
    if kind == 4:
        return f"{name} felt {rng.choice(FEELINGS)}, but the {job} was {rng.choice(FEELINGS)}."
    if kind == 5:
        return f'"Where is the {rng.choice(THINGS)}?" asked {name}. "It is {place}," said the {job}.'
    if kind == 6:
        return f"{name} and {rng.choice(NAMES)} walked {rng.randint(2, 30)} miles to see {thing(rng)}."
    return f"The {job} {rng.choice(DEEDS)} the {rng.choice(THINGS)} and gave it to {name}."


def _news(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(2, 4)):
        who = rng.choice(INSTITUTIONS)
        kind = rng.randrange(3)
        if kind == 0:
            parts.append(f"{who[0].upper()}{who[1:]} {rng.choice(DECISIONS)} {rng.choice(REASONS)}.")
        elif kind == 1:
            parts.append(f"According to {who}, the number of visitors rose by {rng.randint(2, 48)} percent.")
        else:
            parts.append(f"{rng.choice(NAMES)} of {who} said the change would cost {rng.randint(2, 90)} million.")
    return " ".join(parts)


def _recipe(rng: random.Random) -> str:
    foods = rng.sample(FOODS, 4)
    listed = ", ".join(f"{rng.randrange(50, 600, 50)} g {food}" for food in foods)
    steps = []
    for number in range(1, rng.randint(3, 5)):
        step = rng.choice(STEPS).format(*rng.sample(foods, 2), rng.randint(3, 40), rng.randrange(150, 230, 10))
        steps.append(f"{number}. {step}")
    return f"{foods[0].capitalize()} with {foods[1]}\nIngredients: {listed}.\n" + "\n".join(steps)


def _letter(rng: random.Random) -> str:
    body = " ".join(sentence(rng) for _ in range(rng.randint(2, 3)))
    close = rng.choice(["Yours sincerely", "Best wishes", "With love", "Kind regards"])
    return f"Dear {rng.choice(NAMES)},\n{body} Please write to me soon.\n{close},\n{rng.choice(NAMES)}"


def paragraph(rng: random.Random) -> str:
    """One paragraph of some kind."""
    kind = rng.choices((0, 1, 2, 3), (5, 3, 1, 1))[0]
    if kind == 0:
        return " ".join(sentence(rng) for _ in range(rng.randint(3, 6)))
    return (_news, _recipe, _letter)[kind - 1](rng)


GOODS = LEXICON["mathematics"]["goods"]


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


def mathematics_paragraph(rng: random.Random) -> str:
    """One worked problem."""
    return rng.choice((_sum, _product, _equation, _percent, _story, _divisor))(rng)


_CODE = LEXICON["code"]
VERBS = _CODE["verbs"]
NOUNS = _CODE["nouns"]
VARIABLES = _CODE["variables"]
ITEMS = _CODE["items"]
OPERATORS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def _numbers(rng: random.Random) -> list[int]:
    return [rng.randint(0, 30) for _ in range(rng.randint(3, 6))]


def _map_function(rng: random.Random, name: str, argument: str) -> str:
    item, out, sign, amount = rng.choice(ITEMS), rng.choice(VARIABLES), rng.choice("+-*"), rng.randint(2, 9)
    numbers = _numbers(rng)
    answer = [OPERATORS[sign](number, amount) for number in numbers]
    return (
        f"def {name}({argument}: list[int]) -> list[int]:\n    {out} = []\n    for {item} in {argument}:\n"
        f"        {out}.append({item} {sign} {amount})\n    return {out}\n\n\nassert {name}({numbers}) == {answer}"
    )


def _filter_function(rng: random.Random, name: str, argument: str) -> str:
    item, limit, numbers = rng.choice(ITEMS), rng.randint(3, 25), _numbers(rng)
    keep_above = rng.random() < 0.5
    sign = ">" if keep_above else "<"
    answer = [number for number in numbers if (number > limit) == keep_above and number != limit]
    return (
        f"def {name}({argument}: list[int]) -> list[int]:\n"
        f"    return [{item} for {item} in {argument} if {item} {sign} {limit}]\n\n\n"
        f"assert {name}({numbers}) == {answer}"
    )


def _fold_function(rng: random.Random, name: str, argument: str) -> str:
    item, out, start, numbers = rng.choice(ITEMS), rng.choice(VARIABLES), rng.randint(0, 9), _numbers(rng)
    even = rng.random() < 0.5
    answer = start + sum(number for number in numbers if number % 2 == 0 or not even)
    guard = f"        if {item} % 2 == 0:\n            {out} += {item}\n" if even else f"        {out} += {item}\n"
    return (
        f"def {name}({argument}: list[int]) -> int:\n    {out} = {start}\n    for {item} in {argument}:\n{guard}"
        f"    return {out}\n\n\nassert {name}({numbers}) == {answer}"
    )


def _class(rng: random.Random, name: str, argument: str) -> str:
    title = name.title().replace("_", "")
    field, other = rng.sample([*ITEMS[3:], "size", "width", "price", "rate", "limit"], 2)
    return (
        f"class {title}:\n    def __init__(self, {field}: int, {other}: int) -> None:\n        self.{field} = {field}\n"
        f"        self.{other} = {other}\n\n    def {argument}(self) -> int:\n"
        f"        return self.{field} {rng.choice('+-*')} self.{other}"
    )


def code_paragraph(rng: random.Random) -> str:
    """One function or class."""
    argument = rng.choice(NOUNS)
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    build = rng.choice((_map_function, _filter_function, _fold_function, _class))
    return build(rng, name, argument)
