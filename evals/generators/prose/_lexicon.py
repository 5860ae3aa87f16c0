"""The word lists of `lexicon.yaml`, read once."""

from functools import cache
from pathlib import Path

import yaml


@cache
def _all() -> dict[str, dict[str, list[str]]]:
    text = (Path(__file__).parent / "lexicon.yaml").read_text(encoding="utf-8")
    # BaseLoader keeps every scalar a string.
    loaded: dict[str, dict[str, list[str]]] = yaml.load(text, Loader=yaml.BaseLoader)
    return loaded


def lexicon(section: str) -> dict[str, list[str]]:
    """The word lists of one section, by name."""
    return _all()[section]
