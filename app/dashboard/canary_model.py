"""What the canary page shows: outcomes in words, filters, margins to draw, where answers part, a diff. Pure."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from app.canary_details import Divergence, at_risk, divergence_of, margin_of, margin_words, reasons
from app.canary_figures import STANDINGS, CanaryRun, batches_words, failures_by_check
from canaries.must_pass import Standing, standing
from q36eval.records import ItemOutcome
from q36eval.reports._text import number

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
    "unstable": lambda item: item.must_pass and standing(item) is Standing.UNSTABLE,
    "at risk": lambda item: bool(at_risk([item])),
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


@dataclass(frozen=True)
class MarginPoint:
    """One question's least decisive margins in nats, both finite; `outcome` is a name of `OUTCOMES`."""

    name: str
    reference: float
    branch: float
    outcome: str
    detail: str


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


def must_pass_rows(run: CanaryRun) -> list[dict[str, str]]:
    """The must-pass prompts that did not simply pass: confirmed flips, unstable ones, what is no canary, not known."""
    rows = []
    for kind, items in run.must_pass().items():
        for item in items if kind is not Standing.PASSED else ():
            side = item.reference if kind is Standing.NO_CANARY else item.branch
            why = "; ".join(reasons(side))
            batches = batches_words(item) or "–"
            rows.append({"prompt": item.cluster, "outcome": STANDINGS[kind], "in other batches": batches, "why": why})
    return rows


def failure_rows(items: Sequence[ItemOutcome]) -> list[dict[str, str]]:
    """Which checks failed, and how many answers of each deployment did."""
    return [
        {"check": check, "failure": code, "branch": str(branch), "reference": str(reference)}
        for check, code, branch, reference in failures_by_check(items)
    ]


def risk_rows(items: Sequence[ItemOutcome]) -> list[dict[str, str]]:
    """Right answers that may turn next, the least margin first."""
    return [{"question": item.cluster, "margin": margin_words(item) or "–"} for item in at_risk(items)]


def margin_points(items: Sequence[ItemOutcome]) -> tuple[list[MarginPoint], int]:
    """The margins that can be drawn, and how many questions have margins that cannot (infinite, or no number)."""
    points, undrawn = [], 0
    for item in items:
        reference, branch = margin_of(item.reference), margin_of(item.branch)
        if reference is None or branch is None:
            continue
        if not (math.isfinite(reference.nats) and math.isfinite(branch.nats)):
            undrawn += 1
            continue
        outcome = next((name for name in _LABELS if OUTCOMES[name](item)), "not scored")
        detail = f"{item.cluster}: {margin_words(item)}"
        points.append(MarginPoint(item.cluster, reference.nats, branch.nats, outcome, detail))
    return points, undrawn


def parting_rows(item: ItemOutcome) -> list[dict[str, str]]:
    """Both models' likeliest tokens where the answers part, best first; `◂` is what was said. Empty where unknown."""
    sides = divergence_of(item.reference), divergence_of(item.branch)
    count = max(0 if side is None else len(side.top) for side in sides)
    rows = []
    for place in range(count):
        row = {}
        for name, side in zip(("reference", "branch"), sides, strict=True):
            row[name], row[f"{name}, log p"] = _choice(side, place)
        rows.append(row)
    return rows


def _choice(side: Divergence | None, place: int) -> tuple[str, str]:
    if side is None or place >= len(side.top):
        return "", ""
    text, log_prob = side.top[place]
    return f"{text!r}{' ◂' if text == side.said else ''}", number(log_prob)


def parting_words(item: ItemOutcome) -> str | None:
    """What each said at the first token where the answers part; None where they do not, or it was not measured."""
    reference, branch = divergence_of(item.reference), divergence_of(item.branch)
    if reference is None or branch is None:
        return None
    place = f"The answers part at token {branch.position + 1}"
    return f"{place}: the reference says {reference.said!r}, the branch {branch.said!r}."


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
