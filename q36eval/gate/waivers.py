"""Reviewers' waivers: the criteria that they set aside, and why the others had no effect. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import combinations

from q36eval.gate.evidence import Evidence, is_of
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import UNMEASURED, CriterionResult, CriterionVerdict, Waiver

EVERYTHING = "all"
"""The slice of everything: a waiver of it alone would excuse nearly every criterion at once."""

MOST_COMBINED = 6
"""Up to this number of waived canaries, every combination is tried; above it, each one alone and all together."""


def apply_waivers(
    policy: Policy,
    results: Sequence[CriterionResult],
    waivers: Sequence[Waiver],
    on: date | None,
    evidence: Evidence,
) -> tuple[list[CriterionResult], list[str]]:
    """The results, with `waived_by` if waivers in force on that day set one aside, and notes on the other waivers.

    A waiver of a criterion or a slice excuses a FAIL or an INCONCLUSIVE in its scope. A waiver of a canary excuses it
    only if the evidence without that canary passes; several waivers combine, and the smallest combination with a PASS
    is named. An INCONCLUSIVE rest is not excused: the reviewer accepted the canary's result, not unknown results. For
    the same reason faults are excused only if the count that the policy asks for is complete.
    """
    standing = sorted(in_force(set(waivers), on), key=_order)
    excused = [
        _excused(criterion, result, standing, evidence)
        for criterion, result in zip(policy.criteria, results, strict=True)
    ]
    notes = {note for waiver in set(waivers) for note in _notes(waiver, policy, excused, on, evidence)}
    return excused, sorted(notes)


def in_force(waivers: Iterable[Waiver], on: date | None) -> list[Waiver]:
    """Waivers that have not expired at the end of that day; none without a day."""
    return [waiver for waiver in waivers if on is not None and on <= waiver.expires]


def _order(waiver: Waiver) -> tuple[str, ...]:
    """Sort key: the last to expire comes first, and two different waivers are never equal."""
    scope = (waiver.criterion or "", waiver.slice or "", waiver.canary or "")
    return (f"{date.max.toordinal() - waiver.expires.toordinal():07}", waiver.owner, waiver.reason, *scope)


def _excused(
    criterion: Criterion, result: CriterionResult, standing: Sequence[Waiver], evidence: Evidence
) -> CriterionResult:
    if not criterion.waivable or result.verdict in (CriterionVerdict.PASS, *UNMEASURED):
        return result
    if evidence.unfinished(criterion) is not None:
        return result
    concerning = [waiver for waiver in standing if _concerns(waiver, criterion, evidence)]
    whole = [waiver for waiver in concerning if waiver.canary is None]
    by = (whole[0],) if whole else _enough_canaries(criterion, concerning, evidence)
    return result.model_copy(update={"waived_by": by})


def _enough_canaries(criterion: Criterion, waivers: Sequence[Waiver], evidence: Evidence) -> tuple[Waiver, ...]:
    """The fewest waivers without whose canaries the criterion passes; none if all of them are not enough."""
    of_canary: dict[str, Waiver] = {}
    for waiver in waivers:
        of_canary.setdefault(waiver.canary or "", waiver)
    for canaries in _combined(sorted(of_canary)):
        if evidence.passes_without(criterion, canaries):
            return tuple(sorted((of_canary[canary] for canary in canaries), key=_order))
    return ()


def _combined(canaries: list[str]) -> Iterator[tuple[str, ...]]:
    """All combinations, small ones first."""
    sizes = range(1, len(canaries) + 1) if len(canaries) <= MOST_COMBINED else (1, len(canaries))
    for size in sizes:
        yield from combinations(canaries, size)


def _concerns(waiver: Waiver, criterion: Criterion, evidence: Evidence) -> bool:
    """Whether the criterion lies within every part of the waiver's scope."""
    if waiver.slice is not None and (waiver.slice != criterion.slice or _names_everything(waiver)):
        return False
    if waiver.canary is not None and not any(is_of(one, (waiver.canary,)) for one in evidence.canaries(criterion)):
        return False
    return waiver.criterion is None or waiver.criterion == criterion.id


def _names_everything(waiver: Waiver) -> bool:
    return waiver.slice == EVERYTHING and waiver.criterion is None and waiver.canary is None


def _notes(
    waiver: Waiver, policy: Policy, results: Sequence[CriterionResult], on: date | None, evidence: Evidence
) -> Iterator[str]:
    """Why a waiver does not have the effect that its author may expect."""
    subject = f"the waiver of {waiver.scope} by {waiver.owner}"
    if not in_force([waiver], on):
        yield f"{subject} is not in force: it expired after {waiver.expires}"
        return
    if _names_everything(waiver):
        yield f"{subject} has no effect: slice {EVERYTHING} is everything, so name the criterion"
        return
    concerned = [
        (criterion, result)
        for criterion, result in zip(policy.criteria, results, strict=True)
        if _concerns(waiver, criterion, evidence)
    ]
    if not concerned:
        yield f"{subject} has no effect: {_nothing_named(waiver, policy)}"
    elif not any(criterion.waivable for criterion, _ in concerned):
        whose = ", ".join(sorted(criterion.id for criterion, _ in concerned))
        yield f"{subject} has no effect: the policy lets nobody waive {whose}"
    for criterion, result in concerned:
        if not criterion.waivable or result.waived:
            continue
        unfinished = evidence.unfinished(criterion)
        if result.verdict in UNMEASURED:
            yield f"{subject} has no effect on {criterion.id}: a missing measurement cannot be waived"
        elif unfinished is not None:
            yield f"{subject} has no effect on {criterion.id}: the count was not finished ({unfinished})"
        elif result.verdict is not CriterionVerdict.PASS:
            yield f"{subject} does not excuse {criterion.id}: it does not pass without that canary either"


def _nothing_named(waiver: Waiver, policy: Policy) -> str:
    if waiver.criterion is not None and waiver.criterion not in {criterion.id for criterion in policy.criteria}:
        return "the policy has no such criterion"
    if waiver.slice is not None and waiver.slice not in {criterion.slice for criterion in policy.criteria}:
        return "the policy judges no such slice"
    if waiver.canary is not None:
        return "no evidence that it concerns is named after that canary"
    return "the policy has no criterion that is all of this"
