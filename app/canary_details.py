"""What a canary's outcome holds beside its texts: margins, where two answers part, repeats. Pure; any shape is borne.

History keeps records of every age, and their details come from files: what is not there, or not of the shape it should
have, is None and never an error.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from q36eval.canaries.outcomes import AT_RISK_NATS
from q36eval.records import Answer, ItemOutcome


@dataclass(frozen=True)
class DecisiveMargin:
    """By how many nats the right choice leads the best wrong one, where that lead is least in the reference's answer.

    `decision` is what is decided there (a conclusion, a tool's name), `position` the token of the answer.
    """

    nats: float
    decision: str
    right: str
    wrong: str
    position: int | None


@dataclass(frozen=True)
class Divergence:
    """What one model said at the first token where the two answers part, and its likeliest tokens with log-probs."""

    position: int
    said: str
    top: tuple[tuple[str, float], ...]


def margin_of(answer: Answer) -> DecisiveMargin | None:
    """The least decisive margin of this side; None where it was not measured."""
    found = answer.detail.get("margin")
    if not isinstance(found, dict):
        return None
    nats = _float(found.get("nats"))
    if nats is None:
        return None
    right, wrong, decision = (_text(found.get(name)) for name in ("right", "wrong", "decision"))
    return DecisiveMargin(nats, decision, right, wrong, _int(found.get("position")))


def divergence_of(answer: Answer) -> Divergence | None:
    """What this side said where the two part; None where they do not, or it was not measured."""
    found = answer.detail.get("divergence")
    if not isinstance(found, dict):
        return None
    position = _int(found.get("position"))
    if position is None:
        return None
    pairs = found.get("top")
    top = [_choice(pair) for pair in pairs] if isinstance(pairs, list | tuple) else []
    return Divergence(position, _text(found.get("said")), tuple(choice for choice in top if choice is not None))


def _choice(pair: object) -> tuple[str, float] | None:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    log_prob = _float(pair[1])
    return None if log_prob is None or math.isnan(log_prob) else (_text(pair[0]), log_prob)


def scores_of(answer: Answer) -> list[float | None]:
    """This side's score and those of its repeats in other batches; None is errored."""
    repeats = answer.detail.get("repeats")
    again = [repeat for repeat in repeats if isinstance(repeat, dict)] if isinstance(repeats, list | tuple) else []
    return [answer.score, *(_float(repeat.get("score")) for repeat in again)]


def flips(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    """What one of the two only answers rightly: regressions first, must-pass ones first among them."""
    found = [item for item in items if item.flip is not None]
    return sorted(found, key=lambda item: (item.flip != "regression", not item.must_pass, item.cluster))


def at_risk(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    """Items that both still answer rightly and that may turn next: the branch's least margins first."""
    found = []
    for item in items:
        margin = margin_of(item.branch)
        right = item.branch.score == 1.0 and item.reference.score == 1.0
        if right and margin is not None and not margin.nats >= AT_RISK_NATS:
            # a margin that is no number is the worst that there can be
            found.append((-math.inf if math.isnan(margin.nats) else margin.nats, item.cluster, item))
    return [item for _, _, item in sorted(found, key=lambda entry: entry[:2])]


def failures_of(answer: Answer) -> list[dict[str, str]]:
    """The failed checks: `check`, `code`, `place`, `message`; a failure of another shape is all message."""
    found = answer.detail.get("failures")
    if found is None:
        return []
    listed = found if isinstance(found, list | tuple) else [found]
    names = ("check", "code", "place", "message")
    return [
        {name: _text(entry.get(name)) for name in names}
        if isinstance(entry, dict)
        else {"check": "", "code": "", "place": "", "message": _text(entry)}
        for entry in listed
    ]


def failure_words(failure: dict[str, str]) -> str:
    """One failed check as a sentence."""
    if not failure["check"] and not failure["code"]:
        return failure["message"]
    where = f" at {failure['place']}" if failure["place"] else ""
    return f"{failure['check'] or '?'}/{failure['code'] or '?'}{where}: {failure['message']}"


def reasons(answer: Answer) -> list[str]:
    """Why an answer is wrong or missing, one plain sentence each; whose fault it is where that is known."""
    if answer.error is not None:
        return [f"errored: {answer.error}"]
    if answer.unreadable is not None:
        return [f"cannot be read: {answer.unreadable}"]
    found = [failure_words(failure) for failure in failures_of(answer)]
    fault = answer.detail.get("fault")
    return [*found, f"the fault is the {fault}'s"] if isinstance(fault, str) else found


def first_difference(reference: str, branch: str) -> int | None:
    """The 0-based character at which two texts part; None where they are equal."""
    if reference == branch:
        return None
    pairs = zip(reference, branch, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(reference), len(branch)))


def margin_words(item: ItemOutcome) -> str | None:
    """`margin 2.1 → 0.3 nats at 'B' against 'A' (conclusion)`; None where it was not measured."""
    before, after = margin_of(item.reference), margin_of(item.branch)
    if before is None or after is None:
        return None
    what = f" ({after.decision})" if after.decision else ""
    at = f" at {after.right!r} against {after.wrong!r}" if after.right or after.wrong else ""
    return f"margin {before.nats:.3g} → {after.nats:.3g} nats{at}{what}"


def choices_words(top: Sequence[tuple[str, float]]) -> str:
    """Tokens with their probabilities in percent, the likeliest first."""
    return ", ".join(f"{text!r} {100 * math.exp(min(log_prob, 0.0)):.3g} %" for text, log_prob in top)


def _float(value: Any) -> float | None:
    """A number, also one that JSON had to write as text; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
