"""Single questions of canaries: margins, points of divergence, repeats, results for filtering. Pure.

Histories can be imported: details of an unexpected form are ignored, never an error.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from q36eval.app.figures.answers import Choice, Held
from q36eval.app.figures.canary_lanes import CanaryLanes
from q36eval.canaries.details import Details, Divergence
from q36eval.canaries.must_pass import Standing, standing
from q36eval.canaries.outcomes import AT_RISK_NATS
from q36eval.metrics import ALL
from q36eval.records import Answer, ItemOutcome
from q36eval.reports.text import number


def details_of(answer: Answer) -> Details:
    """The stored details of this side; empty if an imported history has another form."""
    try:
        return Details.of(answer)
    except ValidationError:
        return Details()


def scores_of(answer: Answer) -> list[float | None]:
    """This side's score and those of its repeats in other batches; None is errored."""
    return [answer.score, *(repeat.score for repeat in details_of(answer).repeats)]


def flips(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    """Items that only one side answers right: regressions first, fixed prompts first among them."""
    flipped = [item for item in items if item.flip is not None]
    return sorted(flipped, key=lambda item: (item.flip != "regression", not item.must_pass, item.cluster))


def at_risk(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    """Items that both still answer rightly and that may turn next: the branch's least margins first."""
    risky = []
    for item in items:
        margin = details_of(item.branch).margin
        right = item.branch.score == 1.0 and item.reference.score == 1.0
        if right and margin is not None and not margin.nats >= AT_RISK_NATS:
            # NaN is the worst margin
            risky.append((-math.inf if math.isnan(margin.nats) else margin.nats, item.cluster, item))
    return [item for _, _, item in sorted(risky, key=lambda entry: entry[:2])]


def faults(answer: Answer) -> list[tuple[str, str]]:
    """Why an answer is wrong or missing: in words, and the check with its code and place, where one failed."""
    if answer.error is not None:
        return [(f"errored: {answer.error}", "")]
    if answer.unreadable is not None:
        return [(f"cannot be read: {answer.unreadable}", "")]
    return [(failure.message, failure.source) for failure in details_of(answer).failures]


def reasons(answer: Answer) -> list[str]:
    """As `faults`, one sentence each."""
    return [": ".join(filter(None, (source, words))) for words, source in faults(answer)]


def margin_words(item: ItemOutcome) -> str | None:
    """`margin 2.1 → 0.3 nats at 'B' against 'A' (conclusion)`; None where it was not measured."""
    before, after = (details_of(side).margin for side in (item.reference, item.branch))
    if before is None or after is None:
        return None
    what = f" ({after.decision})" if after.decision else ""
    at = f" at {after.right!r} against {after.wrong!r}" if after.right or after.wrong else ""
    return f"margin {before.nats:.3g} → {after.nats:.3g} nats{at}{what}"


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


def _never(*_: object) -> bool:
    """For a choice that does not exist."""
    return False


_LABELS = {
    "regression": ("✗ REGRESSION: only the reference is right", "red"),
    "improvement": ("↑ IMPROVEMENT: only the branch is right", "blue"),
    "unreadable": ("? CANNOT BE READ", "violet"),
    "not scored": ("∅ NOT SCORED", "violet"),
    "both right": ("✓ BOTH RIGHT", "green"),
    "both wrong": ("= BOTH WRONG", "gray"),
}


PROMPTS: dict[str, Callable[[str, ItemOutcome, CanaryLanes], bool]] = {
    ALL: lambda lane, item, lanes: True,
    "required": lambda lane, item, lanes: lanes.requires(item),
    "confirmed": lambda lane, item, lanes: lanes.counts(lane, item),
    "fixed": lambda lane, item, lanes: item.must_pass,
}
"""Required prompts, those that the gate counts as flipped in a lane, and all that are written by hand."""


@dataclass(frozen=True)
class Filter:
    """What to show; each is `ALL` or a name, `prompts` one of `PROMPTS`."""

    canary: str = ALL
    outcome: str = ALL
    lane: str = ALL
    prompts: str = ALL


def select(items: Sequence[ItemOutcome], chosen: Filter, lanes: CanaryLanes | None = None) -> list[ItemOutcome]:
    """Items that fit the filter, regressions of fixed prompts first, then other regressions, then the rest."""
    fits, lanes = OUTCOMES.get(chosen.outcome, _never), lanes or CanaryLanes()
    among = PROMPTS.get(chosen.prompts, _never)
    fitting = [
        item
        for item in items
        if chosen.canary in (ALL, item.group)
        and fits(item)
        and lanes.holds(chosen.lane, item)
        and among(chosen.lane, item, lanes)
    ]
    return sorted(fitting, key=lambda item: (item.flip != "regression", not item.must_pass))


def asked_for(items: Sequence[ItemOutcome], name: str) -> list[ItemOutcome]:
    """Items that a link names: by the beginning of their key (8 characters at least), or by their own name."""
    return [item for item in items if item.cluster == name or (len(name) >= 8 and item.item_key.startswith(name))]


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
        {"canary": group, "evaluated": str(totals[group]), "fixed prompts lost": str(must_flips[group])}
        | {name: str(by_outcome[name][group]) for name in _LABELS}
        for group in groups
    ]


def risk_rows(items: Sequence[ItemOutcome]) -> list[dict[str, str]]:
    """Right answers that may turn next, the least margin first."""
    return [{"question": item.cluster, "margin": margin_words(item) or "–"} for item in at_risk(items)]


def choices(item: ItemOutcome) -> list[Choice]:
    """Both models' likeliest tokens where the answers part, the likeliest of either first. Empty where unknown."""
    sides = [_held(details_of(answer).divergence) for answer in (item.reference, item.branch)]
    tokens = dict.fromkeys(token for side in sides for token in side)
    tokens_held = [Choice(repr(token), sides[0].get(token), sides[1].get(token)) for token in tokens]
    return sorted(tokens_held, key=lambda c: -max(held.share for held in (c.reference, c.branch) if held is not None))


def _held(side: Divergence | None) -> dict[str, Held]:
    held: dict[str, Held] = {}
    for text, log_prob in () if side is None else side.top:
        if math.isnan(log_prob):
            continue
        share = math.exp(min(log_prob, 0.0))
        words = f"{100 * share:.3g} % ({number(log_prob + 0.0)} nats)"  # -0 reads as a figure
        # two tokens may read alike; the likelier one stands first
        held.setdefault(text, Held(share, words, side is not None and text == side.said))
    return held


def parting_words(item: ItemOutcome) -> str | None:
    """Both models' tokens at the first difference of the answers; None without a difference or a measurement."""
    reference, branch = (details_of(side).divergence for side in (item.reference, item.branch))
    if reference is None or branch is None:
        return None
    place = f"The answers part at token {branch.position + 1}"
    return f"{place}: the reference says {reference.said!r}, the branch {branch.said!r}."
