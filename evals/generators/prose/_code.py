"""Code: small Python functions with a check of their own result."""

import random

from q36eval.evals.generators.prose._lexicon import lexicon

_WORDS = lexicon("code")
VERBS = _WORDS["verbs"]
NOUNS = _WORDS["nouns"]
VARIABLES = _WORDS["variables"]
ITEMS = _WORDS["items"]
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


def paragraph(rng: random.Random) -> str:
    """One function or class."""
    argument = rng.choice(NOUNS)
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    build = rng.choice((_map_function, _filter_function, _fold_function, _class))
    return build(rng, name, argument)
