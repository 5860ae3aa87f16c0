"""Fixed prompts: required ones, of which each confirmed flip counts, and those judged as a rate.

Zero tolerance is fair only if a flip is not an accident. A prompt is required if the reference answers it right in
every batch and prefers every decision of its answer by at least `MARGIN_FLOOR_NATS`; any other prompt of the list is
judged in the fixed prompts' rate, by name. Both conditions depend on the reference alone.
"""

from collections.abc import Sequence
from enum import StrEnum

from q36eval.canaries.details import Details
from q36eval.canaries.outcomes import failure_causes, least_margin, question_name
from q36eval.metrics import DeclaredFigure
from q36eval.records import Answer, Clusters, ItemOutcome, Measurement
from q36eval.stats import DEFAULT_LEVEL

MARGIN_FLOOR_NATS = 3.0
"""The minimum decisive margin of the reference, in nats (odds of 20 to 1), for a required prompt.

Measured on the sandbox: branches flip draws similar to the listed canaries' prompts below it, and none above
(benchmarks/README.md).
"""


class Standing(StrEnum):
    """The result of a must-pass prompt."""

    PASSED = "passed"
    FLIPPED = "flipped"
    """The reference answers it right and the branch wrong, each in every batch."""
    UNSTABLE = "unstable"
    """The branch answers it wrong in one batch and right in another, but the reference never does."""
    NO_CANARY = "no canary"
    """The reference itself answers it wrong or unreadably, at least once: it is not evidence."""
    UNCONFIRMED = "unconfirmed"
    """The branch answers it wrong, and it was not repeated: the verdict was final without it."""
    UNREADABLE = "unreadable"
    """A checker cannot read the branch's first or repeated answer."""
    UNKNOWN = "unknown"
    """One side errored, in the first or a repeated answer."""


OPEN = (Standing.UNCONFIRMED, Standing.UNREADABLE, Standing.UNKNOWN)
"""Neither passed nor flipped: counted as not scored, so that nothing passes because of them."""


def standing(outcome: ItemOutcome) -> Standing:
    """The result of one must-pass prompt."""
    reference, branch = outcome.reference, outcome.branch
    if reference.error is not None:
        return Standing.UNKNOWN
    theirs = _scores(reference)
    if any(score == 0.0 for score in theirs) or _unreadable_batches(reference):
        return Standing.NO_CANARY
    if branch.unreadable is not None:
        return Standing.UNREADABLE
    if branch.score is None or None in theirs:
        return Standing.UNKNOWN
    if branch.score == 1.0:
        return Standing.PASSED
    again = repeat_scores(branch)
    if any(score == 1.0 for score in again):
        return Standing.UNSTABLE
    if not again:
        return Standing.UNCONFIRMED
    if _unreadable_batches(branch):
        return Standing.UNREADABLE
    return Standing.UNKNOWN if None in again else Standing.FLIPPED


def repeat_scores(answer: Answer) -> list[float | None]:
    """The scores of the same question in other batches, in order."""
    return [repeat.score for repeat in Details.of(answer).repeats]


def _unreadable_batches(answer: Answer) -> int:
    """The number of batches, the first included, with an unreadable answer."""
    repeats = Details.of(answer).repeats
    return sum(reason is not None for reason in (answer.unreadable, *(repeat.unreadable for repeat in repeats)))


def _scores(answer: Answer) -> list[float | None]:
    return [answer.score, *repeat_scores(answer)]


def why_not_absolute(reference: Answer) -> str | None:
    """Why a required prompt is judged as a rate instead; None if it stays required.

    A prompt on which the reference errored, in any batch, stays on the list: nothing may pass because of it.
    """
    scores = _scores(reference)
    if reference.error is not None:
        return None
    if unreadable := _unreadable_batches(reference):
        return f"the reference's answer cannot be read in {unreadable} of {len(scores)} batches"
    if 0.0 in scores:
        wrong = scores.count(0.0)
        return f"the reference fails it in {wrong} of {len(scores)} batches"
    if None in scores:
        return None
    margin = least_margin(reference)
    if margin is None:
        return "the reference's margin is unknown"
    # NaN is the worst margin
    return None if margin >= MARGIN_FLOOR_NATS else f"margin {margin:.2f} nats"


def flips(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome]) -> Measurement | None:
    """Confirmed flips among the required prompts, each of `outcomes`.

    Prompts judged as a rate instead are left out of the counts and named in the note.
    """
    moved = {outcome.cluster: why for outcome in outcomes if (why := why_not_absolute(outcome.reference)) is not None}
    counted = [outcome for outcome in outcomes if outcome.cluster not in moved]
    notes = [f"{len(counted)} of {len(outcomes)} required prompts count"]
    if moved:
        named = ", ".join(f"{name} ({why})" for name, why in moved.items())
        notes.append(f"judged as a rate instead: {named}")
    return _census(declared, counted, Standing.FLIPPED, notes) if outcomes else None


def unstable(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome]) -> Measurement | None:
    """Fixed prompts that flip in some batches only.

    Prompts that the reference itself fails cannot flip: they are left out of the counts and named in the note.
    """
    informative = [outcome for outcome in outcomes if standing(outcome) is not Standing.NO_CANARY]
    # of the reference alone: an error on the branch is not its fault
    steady = sum(set(_scores(outcome.reference)) == {1.0} for outcome in outcomes)
    notes = [f"the reference passes {steady} of {len(outcomes)} fixed prompts in every batch"]
    failed = [outcome.cluster for outcome in outcomes if standing(outcome) is Standing.NO_CANARY]
    if failed:
        notes.append(f"not counted, since the reference itself fails: {', '.join(failed)}")
    return _census(declared, informative, Standing.UNSTABLE, notes) if outcomes else None


_LABELS = {
    Standing.FLIPPED: "flipped in every batch",
    Standing.UNSTABLE: "unstable, flipped in some batches only",
    Standing.UNCONFIRMED: "flipped once and were not repeated",
    Standing.UNREADABLE: "cannot be read",
    Standing.UNKNOWN: "errored",
}


def _census(
    declared: DeclaredFigure, outcomes: Sequence[ItemOutcome], kind: Standing, notes: Sequence[str]
) -> Measurement:
    """The number of prompts with that result, one prompt per cluster."""
    standings = [standing(outcome) for outcome in outcomes]
    by_standing = {
        each: [outcome.cluster for outcome, came_out in zip(outcomes, standings, strict=True) if came_out is each]
        for each in _LABELS
    }
    count = float(len(by_standing[kind]))
    named = [f"{words}: {', '.join(by_standing[each])}" for each, words in _LABELS.items() if by_standing[each]]
    unreadable = tuple(int(each is Standing.UNREADABLE) for each in standings)
    clusters = Clusters(
        units=tuple(int(each not in OPEN) for each in standings),
        branch=tuple(float(each is kind) for each in standings),
        errored=tuple(int(each in OPEN) for each in standings),
        unreadable=unreadable if any(unreadable) else None,
        names=tuple(question_name(outcome) for outcome in outcomes),
    )
    return declared.metric.counted(
        count,
        clusters.counts(),
        declared.slice,
        level=DEFAULT_LEVEL,
        clusters=clusters,
        causes=failure_causes(outcomes) if any(unreadable) else None,
        note="; ".join([*notes, *named]),
    )
