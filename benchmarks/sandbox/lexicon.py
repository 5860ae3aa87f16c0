"""The word lists of `lexicon.yaml`, read once."""

from functools import cache
from pathlib import Path

import yaml


@cache
def _all() -> dict[str, dict[str, list[str]]]:
    text = (Path(__file__).parent / "lexicon.yaml").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, list[str]]] = yaml.safe_load(text)
    return loaded


def lexicon(section: str) -> dict[str, list[str]]:
    """The word lists of one section, by name."""
    return _all()[section]
