"""What the canary page shows: outcomes in words, filters, margins to draw, where answers part, a diff. Pure."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

from q36eval.app.canary_details import Divergence, at_risk, divergence_of, margin_of, margin_words, reasons
from q36eval.app.canary_figures import STANDINGS, CanaryRun, batches_words, failures_by_check
from q36eval.canaries.must_pass import Standing, standing
from q36eval.records import ItemOutcome
from q36eval.reports._text import number

MAX_DIFF_CHARACTERS = 6_000
MAX_SHARED_CHARACTERS = 1_000

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")

ALL = "all"
OUTCOMES: dict[str, Callable[[ItemOutcome], bool]] = {
    ALL: lambda item: True,
    "regression": lambda item: item.flip == "regression",
    "improvement": lambda item: item.flip == "improvement",
    "both right": lambda item: (item.reference.score, item.branch.score) == (1.0, 1.0),
    "both wrong": lambda item: (item.reference.score, item.branch.score) == (0.0, 0.0),
    "unreadable": lambda item: any(answer.unreadable is not None for answer in (item.reference, item.branch)),
    "not scored": lambda item: item.reference.score is None or item.branch.score is None,
    "text differs": lambda item: item.reference.text != item.branch.text,
    "unstable": lambda item: item.must_pass and standing(item) is Standing.UNSTABLE,
    "at risk": lambda item: bool(at_risk([item])),
}

_LABELS = {
    "regression": ("✗ REGRESSION: only the reference is right", "red"),
    "improvement": ("↑ IMPROVEMENT: only the branch is right", "blue"),
    "unreadable": ("? CANNOT BE READ", "violet"),
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
class Held:
    """How likely one model held a token: `share` is its probability, `said` whether it went on with it."""

    share: float
    words: str
    said: bool


@dataclass(frozen=True)
class Choice:
    """A token where two answers part, as each model held it; None where it is not among that one's likeliest."""

    token: str
    reference: Held | None
    branch: Held | None


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


def asked_for(items: Sequence[ItemOutcome], name: str, canary: str | None = None) -> list[ItemOutcome]:
    """Items that a link names: by the beginning of their key (8 characters at least), or by their own name."""
    return [
        item
        for item in items
        if canary in (None, ALL, item.group)
        and (item.cluster == name or (len(name) >= 8 and item.item_key.startswith(name)))
    ]


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


def margin_point_rows(points: Sequence[MarginPoint]) -> list[dict[str, str]]:
    """The margins that are drawn, as they are."""
    return [
        {
            "question": point.name,
            "reference, nats": repr(point.reference),
            "branch, nats": repr(point.branch),
            "outcome": point.outcome,
        }
        for point in points
    ]


def choices(item: ItemOutcome) -> list[Choice]:
    """Both models' likeliest tokens where the answers part, the likeliest of either first. Empty where unknown."""
    sides = [_held(divergence_of(answer)) for answer in (item.reference, item.branch)]
    tokens = dict.fromkeys(token for side in sides for token in side)
    found = [Choice(_visible(token), sides[0].get(token), sides[1].get(token)) for token in tokens]
    return sorted(found, key=lambda c: -max(held.share for held in (c.reference, c.branch) if held is not None))


def _held(side: Divergence | None) -> dict[str, Held]:
    found: dict[str, Held] = {}
    for text, log_prob in () if side is None else side.top:
        share = math.exp(min(log_prob, 0.0))
        words = f"{100 * share:.3g} % ({number(log_prob)} nats)"
        # two tokens may read alike; the likelier one stands first
        found.setdefault(text, Held(share, words, side is not None and text == side.said))
    return found


def _visible(token: str) -> str:
    """A token with its blanks and line ends to be seen, between quotes."""
    return repr(token)


def parting_words(item: ItemOutcome) -> str | None:
    """What each said at the first token where the answers part; None where they do not, or it was not measured."""
    reference, branch = divergence_of(item.reference), divergence_of(item.branch)
    if reference is None or branch is None:
        return None
    place = f"The answers part at token {branch.position + 1}"
    return f"{place}: the reference says {reference.said!r}, the branch {branch.said!r}."


Pieces = tuple[tuple[str, bool], ...]
"""A text in order; True marks what the other text does not have."""


def diff_pieces(reference: str, branch: str) -> tuple[Pieces, Pieces]:
    """Both texts cut where they differ, word by word; of longer ones, from the first to the last difference.

    A line end that differs is shown as `⏎`, for nothing else of it could be marked.
    """
    if reference == branch:
        return _pieces([(reference, False)]), _pieces([(branch, False)])
    if max(len(reference), len(branch)) > MAX_DIFF_CHARACTERS:
        return _ends_alike(reference, branch)
    old, new = _TOKEN.findall(reference), _TOKEN.findall(branch)
    left, right = [], []
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for place, (tag, old_from, old_to, new_from, new_to) in enumerate(codes):
        ours, theirs = "".join(old[old_from:old_to]), "".join(new[new_from:new_to])
        # a comma that happens to be the same between two differences only makes them hard to read
        stray = 0 < place < len(codes) - 1 and not any(map(str.isalnum, ours)) and "\n" not in ours
        left.append((ours, tag != "equal" or stray))
        right.append((theirs, tag != "equal" or stray))
    return _pieces(left), _pieces(right)


def _ends_alike(reference: str, branch: str) -> tuple[Pieces, Pieces]:
    shorter = min(len(reference), len(branch))
    start = next((at for at in range(shorter) if reference[at] != branch[at]), shorter)
    end = next((at for at in range(shorter - start) if reference[-1 - at] != branch[-1 - at]), shorter - start)
    sides = []
    for text in (reference, branch):
        stop = len(text) - end
        sides.append(_pieces([(_near(text[:start]), False), (text[start:stop], True), (text[stop:], False)]))
    return sides[0], sides[1]


def _near(text: str) -> str:
    """The end of a long beginning that both texts share: what differs would be out of sight after all of it."""
    if len(text) <= MAX_SHARED_CHARACTERS:
        return text
    return f"[… {len(text) - MAX_SHARED_CHARACTERS:,} characters that are the same …]\n{text[-MAX_SHARED_CHARACTERS:]}"


def _pieces(found: Iterable[tuple[str, bool]]) -> Pieces:
    """Neighbours of a kind joined, the empty ones left out."""
    joined = ((marked, "".join(text for text, _ in of)) for marked, of in groupby(found, key=lambda piece: piece[1]))
    return tuple((text.replace("\n", "⏎\n") if marked else text, marked) for marked, text in joined if text)
