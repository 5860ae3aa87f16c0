"""Reads `tests/canaries/answers`: hand-labelled answers, and what the checks make of them."""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from q36eval.canaries.checks import Failure, Outcome, run_checks
from q36eval.canaries.generators.free_form import LANGUAGE, MIN_CHARACTERS_PER_WORD
from q36eval.canaries.specification import load_specs

FOLDER = Path(__file__).parent / "answers"
PARTS = (
    "blind-discounts",
    "blind-others",
    "informed-discounts",
    "informed-others",
)
CZECH = {"stable": {"scripts": ["Latin"], "min_characters": 1, "max_characters": 100_000}}


class Prompt(NamedTuple):
    """What was asked, and what the checks are to know of it. `family`: the generator of such prompts."""

    id: str
    family: str
    checks: tuple[str, ...]
    expected: dict[str, Any]
    tools: list[dict[str, Any]]


class HandLabelled(NamedTuple):
    """An answer, its label and its reading. `fault`: the question that a wrong price comparison answers wrong."""

    prompt: Prompt
    label: Outcome
    text: str
    fault: str = ""

    def failures(self) -> list[Failure]:
        return run_checks(self.text, self.prompt.checks, self.prompt.expected, self.prompt.tools)


@cache
def prompts() -> dict[str, Prompt]:
    """By id."""
    checks = {spec.family.generator: tuple(spec.checks) for spec in load_specs(skills=None) if spec.family}
    by_id = {}
    for entry in yaml.safe_load((FOLDER / "prompts.yaml").read_text(encoding="utf-8")):
        named = checks[entry["check"]]
        expected = entry["facts"]
        if entry["check"].startswith("discount"):
            expected = expected_of_discount(expected) | CZECH
            named = tuple(dict.fromkeys((*named, "stable")))
        else:
            expected = expected | _of_its_words(entry)
        by_id[entry["id"]] = Prompt(entry["id"], entry["check"], named, expected, entry.get("tools", []))
    return by_id


def _of_its_words(entry: dict[str, Any]) -> dict[str, Any]:
    """What the generators state of such a prompt beside its facts, taken from its own words."""
    question = entry["messages"][-1]["content"]
    said = [message["content"] for message in entry["messages"]]
    if entry["check"].startswith("tool_") and entry["check"] != "tool_none":
        refusal = re.search(r"(?:přesně|exactly): (.*)$", said[0])
        return {"known": [text for text in said if text]} | ({"refusal": refusal[1]} if refusal else {})
    if entry["check"] in ("json_flat", "json_nested", "json_types", "recall"):
        return {"fence": "pouze JSON" in question or "only the JSON" in question}
    if entry["check"] == "enum_order":
        return {"separator": "comma"}
    if entry["check"] == "copy_references":
        return {"formatting": False}
    if entry["check"] == "copy_code":
        return {"one_block": True}
    if entry["check"] == "json_in_prose":
        block = "blok" in question or "code block" in question
        thanks = "poděkuj" in question or "with thanks" in question
        language = "cs" if "Schéma" in question else "en"
        stable = {"scripts": ["Latin"], "min_characters": 1, "max_characters": 4_000, "language": language}
        return {
            "prose": {"before": 1, "after": 1, "block": block, "thanks": thanks},
            "known": said,
            "stable": stable | {"finished": True},
        }
    if entry["check"] == "instruction_order":
        style = entry["facts"]["style"] | {"colon": True, "bullet": "dash"}
        stable = {"scripts": ["Latin"], "min_characters": 1, "max_characters": 4_000}
        return {"style": style, "stable": stable | {"finished": True}}
    if entry["check"] == "stability":
        asked = re.search(r"v místě (.+), vystupuje v něm (\w+)\. Piš česky, asi (\d+) slov", question)
        *names, number_of_words = asked.groups()
        stable = LANGUAGE | {"min_characters": MIN_CHARACTERS_PER_WORD * int(number_of_words)}
        return {"stable": stable, "style": {"mentions": names}}
    return {}


def expected_of_discount(facts: dict[str, Any]) -> dict[str, Any]:
    """What the check wants to know of these shops."""
    offers = {}
    for letter, shop in facts["shops"].items():
        discounts = [{kind: step[kind] for kind in ("percent", "amount") if kind in step} for step in shop["steps"]]
        if "threshold" in shop:
            discounts[0]["only_above"] = shop["threshold"]
        offers[letter] = {"price": shop["price"], "discounts": discounts}
    return {"offers": offers, "last_line": facts["fixed_last_line"]}


def hand_labelled(parts: tuple[str, ...] = PARTS) -> Iterator[HandLabelled]:
    """Every answer of the parts, in the order of writing."""
    for part in parts:
        for line in (FOLDER / f"{part}.jsonl").read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            yield HandLabelled(prompts()[said["prompt"]], Outcome(said["label"]), said["text"], said.get("fault", ""))


def sha256_of(name: str) -> str:
    """Of a file of the folder."""
    return hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()


# -- the answers of the folder labelled


LABELLED = Path(__file__).parent / "labelled"
KEYS = {"text", "codes", "why", "places", "repeat"}


class Labelled(NamedTuple):
    """An answer, what it was asked under, and what a person says of it."""

    name: str
    checks: list[str]
    expected: dict[str, Any]
    tools: list[dict[str, Any]]
    text: str
    codes: set[str]
    places: list[str] | None


def labelled_answers() -> Iterator[Labelled]:
    """Every answer of every file."""
    for file in sorted(LABELLED.glob("*.yaml")):
        for group in yaml.safe_load(file.read_text(encoding="utf-8")):
            for answer in group["answers"]:
                assert set(answer) <= KEYS, answer
                part, times = answer.get("repeat", ("", 0))
                yield Labelled(
                    name=f"{file.stem}: {answer['why'][:70]}",
                    checks=group["checks"],
                    expected=group["expected"],
                    tools=group.get("tools", []),
                    text=answer["text"] + part * times,
                    codes=set(answer["codes"]),
                    places=answer.get("places"),
                )
