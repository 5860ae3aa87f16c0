"""A reviewer's possible decisions on a run, and their effects. Reads history; writes nothing."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from q36eval.app.dashboard.models.overview import needs_of
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.reviewing.effects import Effect, effects
from q36eval.app.standing import BranchStanding, Standing, in_order
from q36eval.errors import UsageError
from q36eval.gate import CriterionVerdict, GateReport, Policy, Waiver
from q36eval.history import History, RunRecord
from q36eval.history.decisions import (
    circumstances_on,
    circumstances_then,
    decided,
    evidence_of,
    policy_of,
    replayed,
    report_sha256,
    unsigned_report,
)
from q36eval.records import ProbeName

WAITING = (Standing.BLOCKED, Standing.INCONCLUSIVE, Standing.STALE, Standing.SIGN)
CRITERION, CANARY, SLICE = "a criterion", "a canary", "a slice"


def queue(rows: Sequence[BranchStanding], now: datetime) -> list[BranchStanding]:
    """Judged branches that wait for a person: because of their state, or for a reviewer's decision."""
    waiting = [
        row
        for row in rows
        if row.of.judged is not None
        and not row.apart
        and (row.standing in WAITING or row.drifts or any(needs_of(row, now)))
    ]
    return in_order(waiting)


def scopes(report: GateReport, policy: Policy, canaries: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """What a waiver could excuse of a report, by kind: criteria that block, fail or are open, and that the policy lets
    people waive, what decided first; a kind without names is left out.

    What was not measured cannot be waived. `canaries` are those of which the run lost an answer.
    """
    open_ = (CriterionVerdict.FAIL, CriterionVerdict.INCONCLUSIVE)
    waivable = {criterion.id for criterion in policy.criteria if criterion.waivable and criterion.tier == "blocking"}
    concerned = [
        one
        for one in sorted(report.criteria, key=lambda one: one.id not in report.decisive)
        if one.verdict in open_ and not one.waived and one.id in waivable
    ]
    of_canaries = any(one.probe is ProbeName.CANARIES for one in concerned)
    named = {
        CRITERION: tuple(one.id for one in concerned),
        CANARY: tuple(canaries) if of_canaries else (),
        SLICE: tuple(sorted({one.slice for one in concerned} - {"all"})),
    }
    return {kind: names for kind, names in named.items() if names}


def draft_of(kind: str, name: str, expires: date) -> Waiver:
    """The draft of a waiver with one scope, whose owner and reason are not written yet."""
    scope = {{CRITERION: "criterion", CANARY: "canary", SLICE: "slice"}[kind]: name}
    return Waiver(owner="you", reason="draft", expires=expires, **scope)


def effect_of(history: History, run: RunRecord, waiver: Waiver, today: date) -> Effect:
    """The run as it would be decided today, without and with the waiver."""
    return effects(history, [run], waiver, today)[0]


def without_effect(effect: Effect) -> str | None:
    """Why the waiver would change nothing of the run, in a sentence; None if it has an effect, alone or with others. A
    waiver without an effect is not written."""
    return None if effect.why_none is None else f"This waiver would have no effect: {effect.why_none}."


def state_of(*what: object) -> str:
    """A short hash of the displayed state, which changes with any part of it."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Prospect:
    """The effect of signing a run: its present report, and whether it equals the reported one."""

    found: GateReport
    sha256: str
    stands: bool


def prospect(history: History, run: RunRecord) -> Prospect:
    """What a signature would be under.

    Raises:
        UsageError: the run has no verdict.
    """
    circumstances = circumstances_then(history, run)
    report = unsigned_report(policy_of(run), evidence_of(history, run, circumstances), circumstances)
    assert run.report is not None, "what has a policy and was decided has a report"
    stands = report_sha256(replayed(history, run)) == report_sha256(run.report)
    return Prospect(report, report_sha256(report), stands)


def asks_for_signature(run: RunRecord) -> bool:
    """Whether the run's gate required a signature: deciding it again requires the same."""
    return run.circumstances is not None and run.circumstances.require_sign_off


def decided_today(history: History, run: RunRecord, today: date) -> GateReport:
    """The run decided as of today, with today's waivers and signatures; nothing is written.

    Raises:
        UsageError: the run has no verdict, or was decided by the waivers of a file.
    """
    if run.circumstances is not None and run.circumstances.waivers_from is not None:
        raise UsageError(
            "waivers-elsewhere",
            f"Run {run.id} was decided by the waivers in {run.circumstances.waivers_from} alone: change that file, "
            f"then q36eval gate --resume {run.id} --require-sign-off --waivers-from FILE.",
        )
    circumstances = circumstances_on(history, run, today, require_sign_off=asks_for_signature(run))
    return decided(policy_of(run), evidence_of(history, run, circumstances), circumstances)


def lanes_words(report: GateReport) -> str:
    """The whole and every lane, in symbols and words."""
    whole = f"{look_of(report.verdict).symbol} {report.headline}"
    lanes = (f"{lane.lane}: {look_of(lane.verdict).symbol} {lane.headline}" for lane in report.lanes)
    return "\n".join((whole, *lanes))
