"""Properties of a single outcome: its name in the evidence, its smallest margin, why an answer is not right.

Pages and reports import this module, so it must not import torch or the checks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from q36eval.canaries.details import Details
from q36eval.records import Answer, FailureCauses, FamilyCompetence, ItemOutcome

KEY_CHARACTERS = 8


def question_name(outcome: ItemOutcome) -> str:
    """`CANARY/QUESTION#CONTENT`: a waiver finds its canary by the first part, the whole name pairs two runs.

    The content is the start of the item's key, a hash of the question and of its judging: a reworded question is a new
    one, whatever its number.
    """
    return f"{outcome.cluster}#{outcome.item_key[:KEY_CHARACTERS]}"


AT_RISK_NATS = 0.5
"""A right answer of the reference whose smallest margin is below this (odds of 1.65 to 1) may change next."""


def least_margin(answer: Answer) -> float | None:
    """The smallest decisive margin in nats; None without decisions or scores."""
    margin = Details.of(answer).margin
    return None if margin is None else margin.nats


ERRORED, UNREADABLE, LOOP, CUT_OFF, NO_END, WRONG = "errored", "unreadable", "loop", "cut_off", "no_end", "wrong"
TEXT_AROUND = "text_around_right_json"
"""Causes, the most specific first: an answer in a loop is also cut off, and no budget would help it.

`unreadable`: a checker cannot read it. `loop`: a checker finds a repetition. `cut_off`: no end within the budget.
`no_end`: the reasoning never ends, though the answer does. `text_around_right_json`: the JSON is right, with text
before or after it, ended or not. `wrong`: it ended normally, and a checker rejects it.
"""

UNREAD_NAMED = 5
"""The number of unreadable answers that are named with a figure."""

_BY_CODE = {"repetition": LOOP, "no_answer": NO_END}
_AROUND = {"text_before", "text_after"}
"""Codes of the check `json_object`; pages read this module, so it cannot import them."""


def cause_of(answer: Answer) -> str | None:
    """Why an answer is not right; None if it is."""
    if answer.unreadable is not None:
        return UNREADABLE
    if answer.score is None:
        return ERRORED
    if answer.score == 1.0:
        return None
    details = Details.of(answer)
    codes = {_BY_CODE.get(code) for code in details.codes}
    if LOOP in codes:
        return LOOP
    if _AROUND & details.codes and details.codes <= {*_AROUND, CUT_OFF}:
        return TEXT_AROUND
    if details.cut_off:
        return CUT_OFF
    return NO_END if NO_END in codes else WRONG


def failure_causes(outcomes: Iterable[ItemOutcome]) -> FailureCauses:
    """The number of both sides' answers that are not right, by cause."""
    evaluated = list(outcomes)
    return FailureCauses(
        branch=by_class(cause_of(outcome.branch) for outcome in evaluated),
        reference=by_class(cause_of(outcome.reference) for outcome in evaluated),
        unread=tuple(islice(_unread(evaluated), UNREAD_NAMED)),
    )


def _unread(outcomes: Iterable[ItemOutcome]) -> Iterator[str]:
    for outcome in outcomes:
        for side, answer in (("branch", outcome.branch), ("reference", outcome.reference)):
            if answer.unreadable is not None:
                yield f"{outcome.cluster} on the {side}: {answer.unreadable}"


@dataclass(frozen=True)
class PlannedItem:
    """The reference's result on one planned item: `cause` is why its answer is not right, None if it is.

    `absolute`: the item is a required prompt, and the reference's answer keeps it one.
    """

    canary: str
    cause: str | None
    absolute: bool = False


def competence_of(items: Sequence[PlannedItem]) -> tuple[FamilyCompetence, ...]:
    """By canary, in the order of planning: the number of its items that the reference solves within its budget."""
    by_canary: dict[str, list[str | None]] = {}
    for item in items:
        by_canary.setdefault(item.canary, []).append(item.cause)
    return tuple(
        FamilyCompetence(name=name, items=len(causes), informative=causes.count(None), causes=by_class(causes))
        for name, causes in by_canary.items()
    )


def by_class(classes: Iterable[str | None]) -> dict[str, int]:
    """The number in each class; those without a class are not counted."""
    return dict(sorted(Counter(each for each in classes if each is not None).items()))
