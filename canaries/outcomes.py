"""What an outcome shows of itself: its name in the evidence, its least margin, why an answer is not right.

Pages and reports import this module, so it must not lead to torch or to the checks.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from q36eval.canaries.details import Details
from q36eval.records import Answer, FailureCauses, FamilyCompetence, ItemOutcome

KEY_CHARACTERS = 8


def question_name(outcome: ItemOutcome) -> str:
    """`CANARY/QUESTION#CONTENT`: by the first part a waiver finds its canary, by all of it two runs pair.

    The content is the beginning of the item's key, a hash of what was asked and of how it is judged: a question that
    was reworded is another one, whatever its number.
    """
    return f"{outcome.cluster}#{outcome.item_key[:KEY_CHARACTERS]}"


AT_RISK_NATS = 0.5
"""An answer that the reference gets right and whose least margin is below this (odds of 1.65 to 1) may turn next."""


def least_margin(answer: Answer) -> float | None:
    """The least decisive margin in nats; None where nothing decides or nothing was scored."""
    margin = Details.of(answer).margin
    return None if margin is None else margin.nats


ERRORED, UNREADABLE, LOOP, CUT_OFF, NO_END, WRONG = "errored", "unreadable", "loop", "cut_off", "no_end", "wrong"
TEXT_AROUND = "text_around_right_json"
"""Causes, the one that explains most first: an answer that goes round is cut off too, and no budget would help it.

`unreadable`: a checker cannot tell what it says. `loop`: a checker finds a repetition. `cut_off`: no end within the
budget. `no_end`: the reasoning never ends, though the answer does. `text_around_right_json`: the JSON is right, and
text stands before or after it, ended or not. `wrong`: it ended by itself, and a checker rejects it.
"""

UNREAD_NAMED = 5
"""So many answers that cannot be read are named beside a figure."""

_BY_CODE = {"repetition": LOOP, "no_answer": NO_END}
_AROUND = {"text_before", "text_after"}
"""Codes of the check `json_object`; pages read this module, so that it cannot import them."""


def cause_of(answer: Answer) -> str | None:
    """Why an answer is not right; None where it is."""
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
    """Of both sides' answers that are not right, how many are so by which cause."""
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
    """What the reference makes of one item that is planned: `cause` says why its answer is not right, None where it is.

    `absolute`: the item is a required prompt, and stays one by what the reference answers.
    """

    canary: str
    cause: str | None
    absolute: bool = False


def competence_of(items: Sequence[PlannedItem]) -> tuple[FamilyCompetence, ...]:
    """By canary, in the order of planning: how many of its items the reference solves within its budget."""
    by_canary: dict[str, list[str | None]] = {}
    for item in items:
        by_canary.setdefault(item.canary, []).append(item.cause)
    return tuple(
        FamilyCompetence(name=name, items=len(causes), informative=causes.count(None), causes=by_class(causes))
        for name, causes in by_canary.items()
    )


def by_class(classes: Iterable[str | None]) -> dict[str, int]:
    """How many are of each class; those of none are not counted."""
    return dict(sorted(Counter(each for each in classes if each is not None).items()))
