"""Sentences shared by reports and pages: deciding criteria, suggestions, the reference's competence. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from q36eval.chat.declared_template import recorded_template
from q36eval.engines.comparability import shared_words, trusted_words
from q36eval.gate.attempts import Attempts
from q36eval.gate.competence import causes_words, family_words, is_able
from q36eval.gate.declaration import no_release
from q36eval.gate.headroom import BEYOND_ALONE, from_pass, share_of_limit, times_the_items
from q36eval.gate.policy import Informative
from q36eval.gate.report import (
    CERTAIN,
    UNMEASURED,
    CriterionResult,
    CriterionVerdict,
    GateReport,
    LaneResult,
    Stage,
    StageState,
)
from q36eval.measurement_facts import recorded_not_judged
from q36eval.records import FailureCauses, FamilyCompetence, Measurement, Verdict
from q36eval.reports.text import figure_text, margin_text, number, unseen_text, why_text

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord

COUNTED = "max_count"

EARLIER_SHOWN = 5
"""The number of earlier gates that are named, newest first."""


def by_id(report: GateReport) -> dict[str, CriterionResult]:
    """The criteria by their ids."""
    return {result.id: result for result in report.criteria}


def names_text(report: GateReport, ids: Iterable[str]) -> str:
    """Display names of criteria; the id for one that the report does not contain."""
    criteria = by_id(report)
    return ", ".join(criteria[name].name if name in criteria else name for name in ids)


def distance_text(result: CriterionResult) -> str | None:
    """The criterion's distance from another verdict; None if unknown."""
    if result.margin.kind == COUNTED:
        counted = f"{number(result.value)} counted, {number(result.margin.value)} allowed"
        return None if result.value is None else counted
    if result.to_turn is None:
        return None
    how_far = _loss_text(result, result.to_turn)
    match result.verdict:
        case CriterionVerdict.PASS:
            return f"inside the margin by at least {how_far}"
        case CriterionVerdict.FAIL:
            return f"outside the margin by at least {how_far}"
        case CriterionVerdict.INCONCLUSIVE if result.code == BEYOND_ALONE:
            return f"its corrected lower bound is inside the margin by {how_far}"
        case CriterionVerdict.INCONCLUSIVE:
            return f"its upper bound is beyond the margin by {how_far}"
        case _:
            return None


def _loss_text(result: CriterionResult, loss: float) -> str:
    """A loss in words, and as a share of the margin where that is not zero."""
    kind = result.margin.kind
    if kind == "min_recovery":
        words = f"{number(100 * loss)} points of recovery"
    elif kind == "max_share" or (kind == "max_increase" and result.unit == "fraction"):
        words = f"{number(100 * loss)} points" + (" of clusters" if kind == "max_share" else "")
    else:
        words = " ".join(filter(None, (number(loss), "nats/token" if kind == "min_retention" else result.unit)))
    if not result.limit:
        return words
    share = loss / result.limit
    return words if share >= 1 else f"{words}, {100 * share:.0f} % of its width"


def decided_by(report: GateReport, lane: LaneResult | None = None) -> tuple[CriterionResult, ...]:
    """The deciding criteria of the whole or a lane: those that prevented PASS, else the one with least headroom."""
    criteria = by_id(report)
    if lane is not None:
        names: Iterable[str] = lane.decisive or lane.nearest
    else:
        names = report.decisive or dict.fromkeys(name for lane in report.lanes for name in lane.nearest)
    return tuple(criteria[name] for name in names if name in criteria)


_RANKS = {
    CriterionVerdict.FAIL: 0,
    CriterionVerdict.NOT_MEASURED: 1,
    CriterionVerdict.INCONCLUSIVE: 2,
    CriterionVerdict.NOT_JUDGED: 3,
    CriterionVerdict.PASS: 4,
}


def worst_first(results: Iterable[CriterionResult]) -> list[CriterionResult]:
    """Blocking criteria first: failed, not measured, open; then advisory or waived ones, those omitted after a certain
    FAIL, and passed ones.

    Ties are sorted by distance: the furthest beyond its margin first, of passed ones the nearest to it.
    """
    return sorted(results, key=_badness)


def _badness(result: CriterionResult) -> tuple[bool, bool, bool, int, float, str]:
    left_out = result.verdict is CriterionVerdict.NOT_MEASURED and CERTAIN in result.reason
    passes = result.verdict is CriterionVerdict.PASS
    share = share_of_limit(result)
    headroom = math.inf if share is None else share
    excused = result.tier == "advisory" or result.waived or result.verdict is CriterionVerdict.NOT_JUDGED
    return passes, left_out, excused, _RANKS[result.verdict], headroom if passes else -from_pass(result), result.id


def decision_line(result: CriterionResult) -> str:
    """One deciding criterion: figure, margin, and distance from another verdict."""
    parts = [f"{figure_text(result)} (margin: {margin_text(result.margin, result.unit)})"]
    if result.verdict in UNMEASURED:
        parts = [why_text(result)]
    elif result.anomalous:
        parts += ["an implausible gain, which counts once a reviewer signs the run"]
    elif result.margin.kind != COUNTED:
        parts += [why_text(result)] if result.code == BEYOND_ALONE else []
        parts += filter(None, [distance_text(result)])
    return "; ".join(parts)


def decided_title(report: GateReport) -> str:
    """The title of the list of decisive criteria."""
    return "Decided by" if report.decisive else "Smallest headroom"


def waits_for_signature(report: GateReport) -> bool:
    """Whether only a reviewer's signature is missing: for the report, or for an implausible gain."""
    anomalous = any(r.anomalous and r.verdict is CriterionVerdict.INCONCLUSIVE for r in report.criteria)
    return report.awaiting_sign_off or anomalous


def reasons(report: GateReport) -> tuple[CriterionResult, ...]:
    """Measured criteria that are not PASS, or only by a signature: the reader wants the reason."""
    silent = (CriterionVerdict.PASS, *UNMEASURED)
    return tuple(result for result in report.criteria if result.verdict not in silent or result.anomalous)


def stage_text(stage: Stage, report: GateReport) -> str:
    """The evaluated part of a stage, and whether it decided the verdict, by which criteria."""
    match stage.state:
        case StageState.NOT_EVALUATED:
            return f"not evaluated ({stage.planned:,} planned)"
        case StageState.PARTLY:
            words = f"{stage.items:,} of {stage.planned:,} evaluated, part of it not measured"
        case _:
            words = f"{stage.items:,} of {stage.planned:,} evaluated"
    return words if not stage.settled else f"{words}; this decided the verdict, by {names_text(report, stage.settled)}"


def stopped_early(report: GateReport) -> bool:
    """Whether the verdict was final before everything was evaluated."""
    return any(stage.state is StageState.NOT_EVALUATED for stage in report.stages)


def help_text(result: CriterionResult) -> str | None:
    """The number of further items that would decide an open criterion; None if items are not what it lacks."""
    times = times_the_items(result)
    if result.waived or result.tier != "blocking" or times is None:
        return None
    if math.isinf(times):
        return "at the measured loss, no number of items passes"
    return f"about {max(1.1, times):.2g} times the items would pass 4 times in 5 at the measured loss"


def helping(report: GateReport) -> list[tuple[CriterionResult, str]]:
    """The criteria of an INCONCLUSIVE that more items may decide, each with how many."""
    told = ((result, help_text(result)) for result in report.criteria if report.verdict is Verdict.INCONCLUSIVE)
    return [(result, text) for result, text in told if text is not None]


def notes(report: GateReport, run: "RunRecord | None") -> tuple[str, ...]:
    """Notes next to the verdict: a missing signature, why it approves no release, signatures, the gate's own notes."""
    signed = tuple(f"signed by {by.owner} at {by.at:%Y-%m-%d %H:%M} UTC: {by.reason}" for by in report.signed_by)
    awaited = ("a reviewer's sign-off is required and missing, so nothing passes yet",)
    tried = () if report.attempts is None else attempts_text(report.attempts)
    why = no_release_text(report, run)
    asked = () if why is None else (f"{why}; its PASS does not approve a release",)
    engine = shared_engine(run)
    shared = () if engine is None else (engine,)
    trusted = trusted_words(None if run is None else run.identity)
    unjudged = () if run is None else recorded_not_judged(run.provenance)
    awaits = awaited if report.awaiting_sign_off else ()
    better = (
        f"{result.heading}: better than the reference over the whole interval"
        for result in report.criteria
        if result.loss_interval is not None and result.loss_interval.upper < 0 and not result.anomalous
    )
    unseen = (
        unseen_text(result.counts.total, result.confidence)
        for result in report.criteria
        if result.margin.kind == "max_share" and result.counts is not None
    )
    said = (*awaits, *asked, *unjudged, *_same_files(run), *shared, *trusted, *better, *unseen)
    return (*said, *tried, *signed, *report.notes)


def _same_files(run: "RunRecord | None") -> tuple[str, ...]:
    """Whether the branch is the reference, in any folder."""
    if run is None or run.identity is None or run.reference_identity is None:
        return ()
    if run.identity.checkpoint_sha256 != run.reference_identity.checkpoint_sha256:
        return ()
    return ("the branch is the reference: its files are equal, byte for byte",)


def no_release_text(report: GateReport, run: "RunRecord | None") -> str | None:
    """Why a PASS approves no release; None if it does, and for a pre-check, which never passes."""
    return None if run is None or report.purpose == "pre-check" else no_release(run.policy, run.provenance)


def shared_engine(run: "RunRecord | None") -> str | None:
    """The limits of a verdict whose reference used the branch's own engine; None for any other run."""
    return None if run is None else shared_words(run.identity, run.reference_identity)


def template_lines(run: "RunRecord | None") -> tuple[str, ...]:
    """The effect of a declared chat template, ending with lines of a diff; empty without a declaration."""
    declared = None if run is None else recorded_template(run.provenance)
    return () if declared is None else tuple(declared.lines())


def attempts_text(attempts: Attempts) -> tuple[str, ...]:
    """The earlier gates of the same deployment, and their effect on the chance of a false PASS."""
    sentences = []
    if attempts.earlier:
        sentences.append(f"gated before, {_times(len(attempts.earlier))}: {_earlier_text(attempts)}")
        sentences.append(_chance_text(attempts))
    if attempts.unfinished:
        named = ", ".join(reversed(attempts.unfinished[-EARLIER_SHOWN:]))
        sentences.append(
            f"started earlier without a verdict, {_times(len(attempts.unfinished))}: {named}; a gate stopped because "
            "it went badly is an attempt that is not counted"
        )
    if attempts.too_many:
        sentences.append(
            f"the policy allows {_sets(attempts.allowed or 0)}, and this is number {attempts.since_pass}: a PASS "
            "needs a reviewer's sign-off"
        )
    return tuple(sentences)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sets(count: int) -> str:
    return f"{count} set{'' if count == 1 else 's'} of answers"


def _earlier_text(attempts: Attempts) -> str:
    """The newest of them, by run and verdict."""
    shown = attempts.earlier[-EARLIER_SHOWN:]
    others = len(attempts.earlier) - len(shown)
    named = [
        f"run {gate.run_id} {gate.verdict}"
        + (f" (another suite of {', '.join(gate.other_suites)})" * bool(gate.other_suites))
        for gate in reversed(shown)
    ]
    return ", ".join(named) + (f", and {others} more" if others else "")


def _chance_text(attempts: Attempts) -> str:
    each = f"{attempts.false_pass_each:.1%}"
    if attempts.answer_sets == 1:
        return (
            f"all of them rest on the same answers: a branch just at a margin still passes at most {each} of the time, "
            "and gating it again adds nothing"
        )
    return (
        f"with this one they rest on {_sets(attempts.answer_sets)}: a branch just at a margin passes one gate at most "
        f"{each} of the time, and at least one of that many with new items {attempts.false_pass_any:.1%} (with the "
        "same items less)"
    )


TITLE = "What the reference can do, and why answers are not right"

NOT_RIGHT = "not right"
"""The column of `not_right_cell`."""

LEFT_OUT = "left out, since the reference cannot do enough of it"

DEFAULTS = Informative()
"""A policy's default requirements for the reference."""


NAMED = 4
"""The number of a criterion's families named in texts; the pages and the JSON report name all."""


def answer_lines(report: GateReport) -> list[tuple[str, str]]:
    """The id of every criterion that compares answers, with notes on them, in short lines."""
    lines = [(result.id, words) for result in report.criteria for words in (_summary(result), _left_out_short(result))]
    return [(name, words) for name, words in lines if words]


def _left_out_short(result: CriterionResult) -> str:
    """The same as `left_out_text`, in one line for any number."""
    families = () if result.competence is None else result.competence.left_out
    if len(families) <= NAMED:
        return left_out_text(result)
    others = len(families) - NAMED
    return f"{len(families)} families {LEFT_OUT}, among them {_listed(families[:NAMED])} (and {others} more)"


def _summary(result: CriterionResult) -> str:
    return "; ".join(filter(None, (able_text(result), not_right_text(result.causes))))


def answers_text(result: CriterionResult) -> str:
    """The reference's right answers, the families left out with reasons, and both sides' failures by cause."""
    return "; ".join(filter(None, (_summary(result), left_out_text(result))))


def able_text(result: CriterionResult) -> str:
    """`the reference solves 3,612 of 3,800 items`; empty where no answers were compared, or nothing is known."""
    competence = result.competence
    return (
        f"the reference solves {competence.informative:,} of {competence.items:,} items"
        if competence and competence.items
        else ""
    )


def left_out_text(result: CriterionResult) -> str:
    """Every family left out, with its counts; empty without any."""
    competence = result.competence
    if competence is None or not competence.left_out:
        return ""
    return f"{LEFT_OUT}: {_listed(competence.left_out)}"


def not_right_text(causes: FailureCauses | None) -> str:
    """`not right: branch 20 wrong, 5 cut off at their budget; reference none`; empty where that is not known."""
    if causes is None:
        return ""
    branch, reference = causes_words(causes.branch), causes_words(causes.reference)
    return f"{NOT_RIGHT}: branch {branch or 'none'}; reference {reference or 'none'}"


def not_right_cell(causes: FailureCauses | None) -> str:
    """The same for a column: `branch 20 wrong, 5 cut off at their budget; reference 22 wrong`."""
    return not_right_text(causes).removeprefix(f"{NOT_RIGHT}: ") or "–"


def unable_words(measurements: Iterable[Measurement]) -> list[str]:
    """A sentence for every family of which the reference solves too little for a comparison."""
    families = {family.name: family for measurement in measurements for family in measurement.competence or ()}
    unable = [family for family in families.values() if not is_able(family, DEFAULTS)]
    return [
        f"No evidence: the reference solves {family_words(family)}."
        for family in sorted(unable, key=lambda family: family.name)
    ]


def _listed(families: Sequence[FamilyCompetence]) -> str:
    return ", ".join(family_words(family) for family in families)
