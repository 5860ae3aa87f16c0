"""Reads the hand-labelled answers for the tests that use them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FOLDER = Path(__file__).parent / "labelled"
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
    for file in sorted(FOLDER.glob("*.yaml")):
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
