"""Must-pass prompts: what the reference answers right every time, and the branch wrong every time, blocks a release."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from canaries.naming import question_name
from q36eval.records import Answer, Clusters, Counts, Direction, Interval, ItemOutcome, Measurement, ProbeName
from q36eval.stats import DEFAULT_LEVEL


class Standing(StrEnum):
    """How a must-pass prompt came out."""

    PASSED = "passed"
    FLIPPED = "flipped"
    """The reference answers it right and the branch wrong, each in every batch that it was asked in."""
    UNSTABLE = "unstable"
    """The branch answers it wrong in one batch and right in another, where the reference never does."""
    NO_CANARY = "no canary"
    """The reference itself answers it wrong, once or always, so that it says nothing of the branch."""
    UNCONFIRMED = "unconfirmed"
    """The branch answers it wrong, and was not asked again: the verdict stood by others that were."""
    UNKNOWN = "unknown"
    """One side errored, when it was asked or asked again."""


OPEN = (Standing.UNCONFIRMED, Standing.UNKNOWN)
"""Neither passed nor flipped: counted as not scored, so that nothing passes by them."""


def standing(outcome: ItemOutcome) -> Standing:
    """Of one must-pass prompt."""
    reference, branch = outcome.reference, outcome.branch
    if reference.score is None:
        return Standing.UNKNOWN
    theirs = _scores(reference)
    if any(score == 0.0 for score in theirs):
        return Standing.NO_CANARY
    if branch.score is None or None in theirs:
        return Standing.UNKNOWN
    if branch.score == 1.0:
        return Standing.PASSED
    again = repeat_scores(branch)
    if any(score == 1.0 for score in again):
        return Standing.UNSTABLE
    if not again:
        return Standing.UNCONFIRMED
    return Standing.UNKNOWN if None in again else Standing.FLIPPED


def repeat_scores(answer: Answer) -> list[float | None]:
    """Of the same question in other batches, in the order of asking."""
    repeats: Sequence[dict[str, Any]] = answer.detail.get("repeats") or ()
    return [repeat.get("score") for repeat in repeats]


def _scores(answer: Answer) -> list[float | None]:
    return [answer.score, *repeat_scores(answer)]


def must_pass_figures(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Confirmed flips, and prompts that flip in some batches only.

    Prompts that the reference itself fails cannot flip: they are left out of the counts and named in the note.
    """
    if not outcomes:
        return
    standings = [standing(outcome) for outcome in outcomes]
    by_standing: dict[Standing, list[str]] = {kind: [] for kind in Standing}
    for outcome, kind in zip(outcomes, standings, strict=True):
        by_standing[kind].append(outcome.cluster)
    asked = len(outcomes) - len(by_standing[Standing.NO_CANARY])
    unknown = sum(kind in OPEN for kind in standings)
    counts = Counts(total=asked, scored=asked - unknown, errored=unknown)
    # of the reference alone: what errored on the branch is no fault of its
    steady = sum(set(_scores(outcome.reference)) == {1.0} for outcome in outcomes)
    notes = [f"the reference passes {steady} of {len(outcomes)} must-pass prompts every time"]
    told = {
        Standing.FLIPPED: "flipped in every batch",
        Standing.UNSTABLE: "unstable, flipped in some batches only",
        Standing.NO_CANARY: "the reference itself fails",
        Standing.UNCONFIRMED: "flipped once and were not asked again",
        Standing.UNKNOWN: "errored",
    }
    notes += [f"{words}: {', '.join(by_standing[kind])}" for kind, words in told.items() if by_standing[kind]]
    for metric, kind in (("must_pass_flips", Standing.FLIPPED), ("must_pass_unstable", Standing.UNSTABLE)):
        count = float(len(by_standing[kind]))
        yield Measurement(
            probe=ProbeName.CANARIES,
            metric=metric,
            slice=slice_name,
            unit="prompts",
            direction=Direction.LOWER_IS_BETTER,
            estimator="census",
            value=count,
            effect=count,
            effect_interval=Interval(lower=count, upper=count, level=DEFAULT_LEVEL, method="census"),
            counts=counts,
            clusters=_clusters(outcomes, standings, kind),
            note="; ".join(notes),
        )


def _clusters(outcomes: Sequence[ItemOutcome], standings: Sequence[Standing], counted: Standing) -> Clusters:
    """One prompt a cluster, 1 where it came out as is counted; without those that the reference itself fails."""
    asked = [(o, kind) for o, kind in zip(outcomes, standings, strict=True) if kind is not Standing.NO_CANARY]
    return Clusters(
        units=tuple(int(kind not in OPEN) for _, kind in asked),
        branch=tuple(float(kind is counted) for _, kind in asked),
        errored=tuple(int(kind in OPEN) for _, kind in asked),
        names=tuple(question_name(outcome) for outcome, _ in asked),
    )
