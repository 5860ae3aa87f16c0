"""The study's entries and how `set-aside.yaml` drew them."""

from pathlib import Path
from typing import NamedTuple

import yaml

REFERENCE = "reference"


class Drawn(NamedTuple):
    """An entry is a branch or a damage, and may be set aside to confirm what the others chose."""

    kind: str  # reference, branches or damages
    set_aside: bool


def drawn() -> dict[str, Drawn]:
    """The reference itself, then every branch and damage."""
    parts = yaml.safe_load((Path(__file__).parent / "set-aside.yaml").read_text(encoding="utf-8"))
    found = {REFERENCE: Drawn(REFERENCE, False)}
    for kind, thirds in parts.items():
        found |= {name: Drawn(kind, third == "set_aside") for third, names in thirds.items() for name in names}
    return found
