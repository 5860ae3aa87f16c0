"""What one more waiver would change of judged runs. The dashboard uses it: it needs no canaries."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from q36eval.app.reviewing.waiver_files import LONGEST_DAYS, too_long
from q36eval.errors import UsageError
from q36eval.gate import GateReport, Waiver
from q36eval.history import History, RunRecord
from q36eval.history.deciding import circumstances_then, evidence_of, policy_of, unsigned_report


@dataclass(frozen=True)
class Effect:
    """One judged run as it would be decided today, without and with the waiver."""

    run: RunRecord
    before: GateReport
    after: GateReport

    @property
    def sentence(self) -> str:
        """What the waiver changes of it, in words."""
        excused = sorted(set(_waived(self.after)) - set(_waived(self.before)))
        if not excused:
            return f"run {self.run.id}: nothing changes, {self.before.headline}"
        return f"run {self.run.id}: {', '.join(excused)} set aside, {self.before.headline} -> {self.after.headline}"


def _waived(report: GateReport) -> list[str]:
    return [result.id for result in report.criteria if result.waived]


def check_expiry(expires: date, today: date) -> None:
    """Refuse an expiry that has passed, or is further away than a year.

    Raises:
        UsageError: it is one of the two.
    """
    if expires < today:
        raise UsageError(f"The waiver would have expired on {expires} already; today is {today} (UTC).")
    if (expires - today).days > LONGEST_DAYS:
        raise UsageError(f"The expiry {too_long(expires)}.")


def effects(history: History, runs: Iterable[RunRecord], waiver: Waiver, today: date) -> list[Effect]:
    """Each run decided as of today with the waivers in history, without and with one more."""
    return [_effect(history, run, waiver, today) for run in runs]


def _effect(history: History, run: RunRecord, waiver: Waiver, today: date) -> Effect:
    policy = policy_of(run)
    standing = tuple(history.waivers(run.family, run.branch).values())
    then = circumstances_then(history, run)
    now = then.model_copy(update={"on": today, "waivers": standing, "waivers_from": None})
    evidence = evidence_of(history, run, now)
    more = now.model_copy(update={"waivers": (*standing, waiver)})
    return Effect(run, unsigned_report(policy, evidence, now), unsigned_report(policy, evidence, more))
