"""The effect of one more waiver on judged runs, or why it has none. Also used by the dashboard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from q36eval.app.reviewing.waiver_files import LONGEST_DAYS, too_long
from q36eval.errors import UsageError
from q36eval.gate import CriterionResult, CriterionVerdict, GateReport, Waiver
from q36eval.gate.evidence import is_of
from q36eval.gate.report import CERTAIN
from q36eval.history import History, RunRecord
from q36eval.history.decisions import circumstances_then, evidence_of, policy_of, unsigned_report
from q36eval.records import ProbeName, Verdict
from q36eval.reports.story import stopped_early

MOST_NAMED = 5


@dataclass(frozen=True)
class Effect:
    """One judged run as decided today, without and with the waiver.

    `together` are other canaries whose waivers are also needed for an effect. None if no number of waived canaries is
    enough.
    """

    run: RunRecord
    waiver: Waiver
    before: GateReport
    after: GateReport
    together: tuple[str, ...] | None = ()

    @property
    def excused(self) -> tuple[str, ...]:
        """The blocking criteria that this waiver sets aside, or sets aside for longer than existing ones."""
        before = {result.id: result.waived_by for result in self.before.criteria}
        return tuple(
            result.id
            for result in self.after.criteria
            if _by(result, self.waiver) and self.waiver not in before.get(result.id, ())
        )

    @property
    def sentence(self) -> str:
        """The waiver's effect on it, in words."""
        excused = sorted(set(_waived(self.after)) - set(_waived(self.before)))
        if self.together and not excused:
            others = ", ".join(self.together[:MOST_NAMED]) + " and others" * (len(self.together) > MOST_NAMED)
            return f"run {self.run.id}: it excuses nothing alone, and does together with {others}"
        if not excused:
            return f"run {self.run.id}: nothing changes, {self.before.headline}"
        return f"run {self.run.id}: {', '.join(excused)} set aside, {self.before.headline} -> {self.after.headline}"

    @property
    def why_none(self) -> str | None:
        """Why it changes nothing that blocks, in a sentence; None if it has an effect, alone or with others."""
        if self.excused or self.together:
            return None
        waiver = self.waiver
        concerned = [
            one
            for one in self.after.criteria
            if (waiver.canary is None or one.probe is ProbeName.CANARIES)
            and waiver.criterion in (None, one.id)
            and waiver.slice in (None, one.slice)
        ]
        blocking = [one for one in concerned if one.tier == "blocking"]
        where = f"in run {self.run.id}"
        if concerned and not blocking:
            return f"{concerned[0].name} is advisory and blocks nothing {where}"
        open_ = [one for one in blocking if one.verdict is not CriterionVerdict.PASS]
        if not open_:
            what = ", ".join(one.name for one in blocking) or f"what blocks over {self.waiver.scope}"
            return f"{what} passes {where}"
        waived = [one for one in open_ if one.waived]
        if waived and len(waived) == len(open_):
            by = waived[0].waived_by[0]
            return f"{waived[0].name} is waived already, until {by.expires} by {by.owner}"
        if all(one.verdict is CriterionVerdict.NOT_MEASURED for one in open_):
            return f"{open_[0].name} was not measured {where}, and a missing measurement cannot be waived"
        if self.waiver.canary is not None and self.together is None:
            return f"the canary {self.waiver.canary} lost nothing that blocks {where}"
        return f"{open_[0].name} cannot be waived {where}: its faults were not all counted, or the policy forbids it"


def _waived(report: GateReport) -> list[str]:
    return [result.id for result in report.criteria if result.waived]


def _by(result: CriterionResult, waiver: Waiver) -> bool:
    return result.tier == "blocking" and waiver in result.waived_by


def record_needed(run: RunRecord) -> str | None:
    """Why no waiver lets any lane pass in a run that stopped at a certain FAIL; None if one may."""
    report = run.report
    if report is None or report.verdict is Verdict.PASS or not stopped_early(report):
        return None
    unmeasured = (one for one in report.criteria if one.verdict is CriterionVerdict.NOT_MEASURED)
    left_out = [one for one in unmeasured if CERTAIN in one.reason]
    lacking = {lane for one in left_out if one.tier == "blocking" for lane in one.lanes}
    if any(lane.lane not in lacking for lane in report.lanes):
        return None
    criteria = f"{len(left_out)} of its {len(report.criteria)} criteria were not evaluated"
    return f"Run {run.id} stopped once its FAIL was certain, and {criteria}. No waiver lets it pass without them."


def check_expiry(expires: date, today: date) -> None:
    """Refuse an expiry that has passed, or is more than a year away.

    Raises:
        UsageError: it has passed or is too far away.
    """
    if expires < today:
        raise UsageError(
            "waiver-expired", f"The waiver would have expired on {expires} already; today is {today} (UTC)."
        )
    if (expires - today).days > LONGEST_DAYS:
        raise UsageError("waiver-too-long", f"The expiry {too_long(expires)}.")


def check_effect(effects: Sequence[Effect]) -> None:
    """Refuse a waiver without an effect on the newest run of each policy: it would remain until it excuses something
    that nobody has reviewed. Without a run it is accepted.

    Raises:
        UsageError: it changes none of them.
    """
    newest = {effect.before.policy: effect for effect in reversed(effects)}.values()
    whys = [effect.why_none for effect in newest]
    if whys and all(why is not None for why in whys):
        raise UsageError(
            "waiver-without-effect",
            f"This waiver would have no effect: {whys[0]}; --ahead writes it for the next gate all the same.",
        )


def effects(history: History, runs: Iterable[RunRecord], waiver: Waiver, today: date) -> list[Effect]:
    """Each run decided as of today with the waivers in history, without and with one more."""
    return [_effect(history, run, waiver, today) for run in runs]


def _effect(history: History, run: RunRecord, waiver: Waiver, today: date) -> Effect:
    policy = policy_of(run)
    standing = tuple(history.waivers(run.family, run.branch).values())
    then = circumstances_then(history, run)
    now = then.model_copy(update={"on": today, "waivers": standing, "waivers_from": None})
    evidence = evidence_of(history, run, now)

    def with_(*more: Waiver) -> GateReport:
        return unsigned_report(policy, evidence, now.model_copy(update={"waivers": (*standing, *more)}))

    effect = Effect(run, waiver, with_(), with_(waiver))
    if waiver.canary is None or effect.excused:
        return effect
    lost = {one.group for one in history.items(run.id, ProbeName.CANARIES, flips_only=True) if one.flip == "regression"}
    others = sorted(canary for canary in lost if not is_of(canary, (waiver.canary,)))
    if len(others) == len(lost):
        return Effect(run, waiver, effect.before, effect.after, None)
    whole = with_(waiver, *(waiver.model_copy(update={"canary": canary}) for canary in others))
    needed = {by.canary or "" for result in whole.criteria if _by(result, waiver) for by in result.waived_by}
    together = tuple(sorted(needed - {waiver.canary})) or None
    return Effect(run, waiver, effect.before, effect.after, together)
