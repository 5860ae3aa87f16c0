"""What the canary page shows: outcomes in words, filters, failures as text, and a diff in plain characters. Pure."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from q36eval.records import Answer, ItemOutcome

MAX_DIFF_CHARACTERS = 6_000

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")

ALL = "all"
OUTCOMES: dict[str, Callable[[ItemOutcome], bool]] = {
    ALL: lambda item: True,
    "regression": lambda item: item.flip == "regression",
    "improvement": lambda item: item.flip == "improvement",
    "both right": lambda item: (item.reference.score, item.branch.score) == (1.0, 1.0),
    "both wrong": lambda item: (item.reference.score, item.branch.score) == (0.0, 0.0),
    "not scored": lambda item: item.reference.score is None or item.branch.score is None,
    "text differs": lambda item: item.reference.text != item.branch.text,
}

_LABELS = {
    "regression": ("✗ REGRESSION: only the reference is right", "red"),
    "improvement": ("↑ IMPROVEMENT: only the branch is right", "blue"),
    "not scored": ("∅ NOT SCORED", "violet"),
    "both right": ("✓ BOTH RIGHT", "green"),
    "both wrong": ("= BOTH WRONG", "gray"),
}


@dataclass(frozen=True)
class Filter:
    """What to show; `canary` and `outcome` are `ALL` or a name."""

    canary: str = ALL
    outcome: str = ALL
    flips_only: bool = False
    must_pass_only: bool = False


def select(items: Sequence[ItemOutcome], chosen: Filter) -> list[ItemOutcome]:
    """Items that fit the filter, regressions of must-pass canaries first, then other regressions, then the rest."""
    fits = OUTCOMES[chosen.outcome]
    found = [
        item
        for item in items
        if chosen.canary in (ALL, item.group)
        and fits(item)
        and (item.flip is not None or not chosen.flips_only)
        and (item.must_pass or not chosen.must_pass_only)
    ]
    return sorted(found, key=lambda item: (item.flip != "regression", not item.must_pass))


def outcome_label(item: ItemOutcome) -> tuple[str, str]:
    """Symbol with words, and a Streamlit colour."""
    name = next((name for name in _LABELS if OUTCOMES[name](item)), None)
    return _LABELS[name] if name is not None else ("~ PARTLY RIGHT", "gray")


def counts_by_canary(items: Sequence[ItemOutcome]) -> list[dict[str, str]]:
    """How each canary came out, those with most regressions first."""
    totals = Counter(item.group for item in items)
    by_outcome = {name: Counter(item.group for item in items if OUTCOMES[name](item)) for name in _LABELS}
    must_flips = Counter(item.group for item in items if item.must_pass and item.flip == "regression")
    groups = sorted(totals, key=lambda group: (-by_outcome["regression"][group], group))
    return [
        {"canary": group, "asked": str(totals[group]), "must-pass regressions": str(must_flips[group])}
        | {name: str(by_outcome[name][group]) for name in _LABELS}
        for group in groups
    ]


def failure_lines(answer: Answer) -> list[str]:
    """Why an answer is wrong or missing, one plain sentence each."""
    if answer.error is not None:
        return [f"errored: {answer.error}"]
    failures = answer.detail.get("failures") or ()
    if not isinstance(failures, list | tuple):
        return [str(failures)]
    return [_failure(failure) for failure in failures]


def _failure(failure: object) -> str:
    if not isinstance(failure, dict):
        return str(failure)
    where = f" at {failure['place']}" if failure.get("place") else ""
    return f"{failure.get('check', '?')}/{failure.get('code', '?')}{where}: {failure.get('message', '')}"


def diff_text(reference: str, branch: str) -> str:
    """Word-level difference as plain text: `[-only the reference-]`, `{+only the branch+}`."""
    if reference == branch:
        return "The texts are equal, character for character."
    if max(len(reference), len(branch)) > MAX_DIFF_CHARACTERS:
        return f"Too long to compare here: {len(reference)} and {len(branch)} characters."
    old, new = _TOKEN.findall(reference), _TOKEN.findall(branch)
    pieces = []
    for tag, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            pieces.append("".join(old[old_from:old_to]))
            continue
        removed, added = "".join(old[old_from:old_to]), "".join(new[new_from:new_to])
        pieces += [f"[-{removed}-]"] if removed else []
        pieces += [f"{{+{added}+}}"] if added else []
    return "".join(pieces)
