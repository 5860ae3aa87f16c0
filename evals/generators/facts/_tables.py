"""The fact tables, read once."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

FACTS_PER_SUBJECT = 40
"""How many of a subject's facts are used, the best known of each of its relations."""


@dataclass(frozen=True)
class Relation:
    """Facts of one form. `rows` are (what is asked about, answer), the best known first."""

    subject: str
    question: str
    statements: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    answers: tuple[str, ...]


@cache
def load_subjects() -> dict[str, tuple[Relation, ...]]:
    """Every tabled subject with its relations, in the order of the files.

    Raises:
        ValueError: a relation with fewer than four distinct answers, which could not be put as multiple choice.
    """
    subjects: dict[str, tuple[Relation, ...]] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        # BaseLoader keeps every scalar a string: a port stays "80" and the symbol "No" is no boolean.
        for entry in yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader):
            limit = FACTS_PER_SUBJECT // len(entry["relations"])
            relations = tuple(_relation(entry["subject"], raw, limit) for raw in entry["relations"])
            subjects[entry["subject"]] = relations
    return subjects


def _relation(subject: str, raw: dict[str, object], limit: int) -> Relation:
    rows = raw["rows"]
    statements = raw["statements"]
    if not isinstance(rows, dict) or not isinstance(statements, list):
        raise ValueError(f"subject {subject!r}: rows must be a mapping and statements a list")
    kept = tuple(rows.items())[:limit]
    answers = tuple(dict.fromkeys(answer for _, answer in kept))
    if len(answers) < 4:
        raise ValueError(f"subject {subject!r}: a relation needs four distinct answers, it has {len(answers)}")
    return Relation(subject, str(raw["question"]), tuple(statements), kept, answers)
