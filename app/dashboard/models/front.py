"""How a branch stands in each lane that it is meant for: a chip, a sentence and what to do next. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from enum import StrEnum

from q36eval.app.dashboard.models.overview import (
    STALE_AFTER,
    BranchRow,
    Review,
    age_text,
    drift_need,
    names,
)
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, Waiver
from q36eval.history import RunRecord, RunSummary
from q36eval.records import Lane, Verdict
from q36eval.reports.text import name

LANE_NAMES = {Lane.STRUCTURED: "Structured", Lane.FREEFORM: "Free-form"}
MUST_PASS = "must_pass_flips"
KL = ("kl_divergence", "all")


class Standing(StrEnum):
    """How a branch stands; what a person should look at comes before what is in order."""

    BLOCKED = "BLOCKED"
    INCONCLUSIVE = "INCONCLUSIVE"
    DRIFTING = "DRIFTING"
    STALE = "STALE"
    SIGN = "SIGN"
    WAIVED = "WAIVED"
    SHIP = "SHIP"
    REFERENCE = "REFERENCE"
    NOT_JUDGED = "NOT JUDGED"


SHIPS = (Standing.SHIP, Standing.WAIVED)
TAKEN_BACK = (Standing.DRIFTING, Standing.STALE, Standing.NOT_JUDGED)
"""What a verdict does not say by itself: nobody should sign or bless for its badge alone."""
_LOOKS = {
    Standing.BLOCKED: ("✗", "red"),
    Standing.INCONCLUSIVE: ("?", "orange"),
    Standing.DRIFTING: ("↘", "orange"),
    Standing.STALE: ("◷", "gray"),
    Standing.SIGN: ("✎", "blue"),
    Standing.WAIVED: ("✓", "violet"),
    Standing.SHIP: ("✓", "green"),
    Standing.REFERENCE: ("=", "gray"),
    Standing.NOT_JUDGED: ("–", "gray"),
}


class Button(StrEnum):
    """What a person does next. The page that it leads to is the reviewer's, the run's or another of them."""

    RUN = "Open the run of {branch}"
    WHY = "See why {branch} is blocked"
    PROMPT = "See the prompt that {branch} lost"
    PROMPTS = "See the {count} prompts that {branch} lost"
    MISSING = "See what {branch} is missing"
    SIGN = "Sign {branch}"
    WAIVERS = "See the waivers of {branch}"
    BLESS = "Accept {branch} as drift baseline"
    DRIFT = "See since when {branch} drifts"


@dataclass(frozen=True)
class Declared:
    """What a family's file says of a branch: the lanes that it is meant for, its size in bytes, and whether it is the
    reference. Of a branch that no file knows: both lanes. `template` is the hash of the chat template that it is
    declared to have of its own."""

    lanes: tuple[Lane, ...] = tuple(Lane)
    size: float | None = None
    is_reference: bool = False
    template: str = ""


@dataclass(frozen=True)
class Judged:
    """A run with a verdict, and what that says of the branch as it is declared.

    `lacks` says of the lanes that the run does not speak for what its policy asks less than the family's there, and
    under None of all together. `current`: it is of the deployment that the branch's newest verdict is of. `of_itself`:
    that was held against itself.
    """

    run: RunSummary
    lacks: Mapping[Lane | None, str] = field(default_factory=dict)
    current: bool = True
    pre_check: bool = False
    of_itself: bool = False


@dataclass(frozen=True)
class LaneStanding:
    """How a branch stands for some uses, by which run: `detail` goes beside the chip, `why` is a sentence, `count` is
    the button's."""

    standing: Standing
    why: str
    button: Button
    run: RunSummary | None = None
    detail: str = ""
    count: int = 0
    lane: Lane | None = None


@dataclass(frozen=True)
class Front:
    """A branch on the front page: how it stands in each lane that it is meant for, and what stands most in the way.

    `margin` is that of the KL in nats/token, where the policy has one.
    """

    row: BranchRow
    lanes: Mapping[Lane, LaneStanding]
    margin: float | None = None

    @property
    def worst(self) -> LaneStanding:
        """What a person should look at first; a lane that nobody judged comes after one that ships."""
        return min(self.lanes.values(), key=lambda each: list(Standing).index(each.standing))

    @property
    def standing(self) -> Standing:
        """That of the whole."""
        return self.worst.standing

    @property
    def ships(self) -> bool:
        """Whether it may ship for some use."""
        return any(each.standing in SHIPS for each in self.lanes.values())

    @property
    def parts(self) -> list[tuple[LaneStanding, list[Lane]]]:
        """How it stands, once for all lanes of which the same is said."""
        parts: list[tuple[LaneStanding, list[Lane]]] = []
        for lane, each in self.lanes.items():
            same = next((lanes for other, lanes in parts if other == each), None)
            if same is None:
                parts.append((each, [lane]))
            else:
                same.append(lane)
        return parts

    @property
    def why(self) -> str:
        """What is to be said, by lane where that is not one thing."""
        if len(self.parts) == 1:
            return self.worst.why
        return " ".join(f"{uses(lanes).capitalize()}: {each.why}" for each, lanes in self.parts)

    @property
    def colour(self) -> str:
        """A Streamlit colour name."""
        return _LOOKS[self.standing][1]

    @property
    def chip(self) -> str:
        """Symbol and word; of which lane, where it is not that of all; of a waiver until when by whom."""
        lanes = [lane for lane, each in self.lanes.items() if each.standing is self.standing]
        of = uses(lanes) if len(lanes) < len(self.lanes) else ""
        return " ".join(filter(None, (_LOOKS[self.standing][0], str(self.standing), of, self.worst.detail)))

    @property
    def run(self) -> RunSummary:
        """The run that is opened."""
        return self.worst.run or self.row.shown

    @property
    def button(self) -> Button:
        """What a person does next."""
        return self.worst.button

    def button_words(self, branch: str) -> str:
        """What stands on the button, the branch being written like that."""
        asked = Button.PROMPT if self.button is Button.PROMPTS and self.worst.count == 1 else self.button
        return asked.format(branch=branch, count=self.worst.count)


def since_words(run: RunRecord, now: Front) -> str | None:
    """What the verdict of a run is worth as its branch stands `now`; None where the verdict says as much itself.

    Another run may have come after it, its waiver may be over, or it passed what asks less than the family does.
    """
    by_it = [each for each in now.lanes.values() if each.run is not None and each.run.id == run.id]
    if by_it and not any(each.standing in TAKEN_BACK for each in by_it):
        return None
    return f"{name(run.branch)} now, {'by this run' if by_it else 'by another run'}: {now.chip}. {now.why}"


def uses(lanes: Iterable[Lane]) -> str:
    """Lanes in words."""
    return " and ".join(LANE_NAMES[lane].lower() for lane in lanes)


def front(
    row: BranchRow,
    review: Review,
    now: datetime,
    declared: Declared = Declared(),
    verdicts: Sequence[Judged] | None = None,
) -> Front:
    """How the branch stands at that moment (UTC) in the lanes that it is meant for. Without a report its sentence names
    no criteria.

    In each lane the newest run decides that may speak for it: of the deployment that the newest verdict is of, by a
    policy that asks at least what the family's asks. A FAIL that came after it blocks, whatever was asked. `verdicts`
    are the branch's, the newest first; without them there is its newest, which speaks for itself.

    A reference that passes is no branch to ship: it was held against itself.
    """
    judged = row.of.judged
    if verdicts is None:
        verdicts = () if judged is None else (Judged(judged),)
    found = _Found(row, review, now, declared, verdicts)
    lanes = {lane: found.lane(lane) for lane in Lane if lane in declared.lanes}
    alike = {(each.standing, each.run and each.run.id) for each in lanes.values()}
    if len(alike) == 1:  # then one sentence is of the whole run
        whole = found.lane(next(iter(lanes)), whole=True)
        lanes = dict.fromkeys(lanes, whole)
    told = Front(row, lanes)
    return replace(told, margin=_kl_margin(found.report(told.run)))


def drifting(row: Front, statement: str | None) -> Front:
    """The row, of which was found only now that it drifts for the worse; as it is where that is None."""
    if statement is None:
        return row
    lanes = {
        lane: replace(each, standing=Standing.DRIFTING, why=statement, button=Button.DRIFT, detail="")
        if each.standing in SHIPS
        else each
        for lane, each in row.lanes.items()
    }
    return replace(row, lanes=lanes)


def _kl_margin(report: GateReport | None) -> float | None:
    """The upper limit of the mean KL over everything, the tightest where there are several."""
    criteria = () if report is None else report.criteria
    return min((one.limit for one in criteria if (one.metric, one.slice) == KL and one.limit is not None), default=None)


@dataclass(frozen=True)
class _Found:
    """All that is known of a branch at a moment."""

    row: BranchRow
    review: Review
    now: datetime
    declared: Declared
    verdicts: Sequence[Judged]

    def lane(self, lane: Lane, *, whole: bool = False) -> LaneStanding:
        """How it stands in a lane; `whole`: in words of the whole run."""
        of = None if whole else lane
        current = [one for one in self.verdicts if one.current and lane in one.run.lanes]
        for one in current:  # from the newest on
            if one.run.lanes[lane] is Verdict.FAIL:
                return self._blocked(one.run, of)
            if lane not in one.lacks:
                return self._with_newer(self._decided(one, lane, of), current[: current.index(one)], of)
        return self._unspoken(lane, of, current)

    def report(self, run: RunSummary | None) -> GateReport | None:
        """That of a run, where it was read."""
        own = self.row.of.judged
        if run is None:
            return None
        return self.review.reports.get(run.id) or (self.review.report if own and own.id == run.id else None)

    def _blocked(self, run: RunSummary, of: Lane | None) -> LaneStanding:
        report = self.report(run)
        lane, flips = next(iter(flipped(report, of).items()), (None, 0))
        button = Button.PROMPTS if flips else Button.WHY
        why = f"{blocked_words(report, of)}{self._newer_bytes()}"
        return LaneStanding(Standing.BLOCKED, why, button, run, count=flips, lane=lane)

    def _decided(self, one: Judged, lane: Lane, of: Lane | None) -> LaneStanding:
        """By a run that speaks for the lane and did not fail there."""
        run, report = one.run, self.report(one.run)
        if run.lanes[lane] is not Verdict.PASS:
            why = f"{undecided_words(report, of)}{self._newer_bytes()}"
            return LaneStanding(Standing.INCONCLUSIVE, why, Button.MISSING, run)
        if one.of_itself or self.declared.is_reference:
            return LaneStanding(Standing.REFERENCE, "Held against itself it passes, as it must.", Button.RUN, run)
        return self._passed(run, report, of)

    def _passed(self, run: RunSummary, report: GateReport | None, of: Lane | None) -> LaneStanding:
        """By a run that passes there, or would with a signature: what would not ship with one is not to be signed."""
        used = waivers_of(report, of)
        gone = self._of_other_bytes() or _gone(used, self.review.waivers, self.now.astimezone(UTC).date())
        if gone is not None:
            return LaneStanding(Standing.STALE, gone, Button.RUN, run)
        drifting = None if self.review.drift is None else drift_need(self.review.drift)
        if drifting is not None:
            return LaneStanding(Standing.DRIFTING, drifting.words, Button.DRIFT, run)
        age = self.now - run.started
        if age > STALE_AFTER:
            why = f"It passed {age.days} days ago; gate it again."
            return LaneStanding(Standing.STALE, why, Button.RUN, run)
        waived, until = "", ""
        if used or (report is None and run.waived):
            until = f"until {used[0].expires} by {names(sorted({waiver.owner for waiver in used}), 2)}" if used else ""
            criteria = () if report is None else report.criteria
            titles = [_title(one) for one in criteria if one.waived and of in (None, *one.lanes)]
            waived = f"with a waiver of {names(titles, 3)}" if titles else "by waivers"
        if run.awaiting_sign_off:
            why = f"It passes {waived} but for a signature." if waived else "It passes but for a signature."
            return LaneStanding(Standing.SIGN, why, Button.SIGN, run, f"waived {until}" if until else "")
        if waived:
            return LaneStanding(Standing.WAIVED, f"It passes {waived}.", Button.WAIVERS, run, until)
        if self.review.blessing is None:
            why = "It passes; nothing says what drift is measured against."
            return LaneStanding(Standing.SHIP, why, Button.BLESS, run)
        return LaneStanding(Standing.SHIP, f"It passes, judged {age_text(run.started, self.now)}.", Button.RUN, run)

    def _unspoken(self, lane: Lane, of: Lane | None, current: Sequence[Judged]) -> LaneStanding:
        """No run speaks for the lane as the branch is now."""
        if current:
            newest = current[0]
            if newest.run.lanes[lane] is not Verdict.PASS:
                return LaneStanding(
                    Standing.INCONCLUSIVE, undecided_words(self.report(newest.run), of), Button.MISSING, newest.run
                )
            if newest.of_itself or self.declared.is_reference:
                return LaneStanding(
                    Standing.REFERENCE, "Held against itself it passes, as it must.", Button.RUN, newest.run
                )
            return LaneStanding(Standing.NOT_JUDGED, newest.lacks[of], Button.RUN, newest.run)
        for one in self.verdicts:
            if one.run.lanes.get(lane) is Verdict.PASS and lane not in one.lacks and not one.of_itself:
                why = "It passed as it was before: the newest verdict is of another deployment; gate it again."
                return LaneStanding(Standing.STALE, why, Button.RUN, one.run)
        why = "No run judged it for this use." if self.verdicts else "It was never judged."
        return LaneStanding(Standing.NOT_JUDGED, why, Button.RUN)

    def _with_newer(self, told: LaneStanding, newer: Sequence[Judged], of: Lane | None) -> LaneStanding:
        """What newer runs found that do not speak for the lane: they passed or did not decide."""
        if not newer:
            return told
        run, report = newer[0].run, self.report(newer[0].run)
        if newer[0].pre_check:
            words = "A newer pre-check found nothing." if report is None or report.nothing_found else ""
            words = words or "A newer pre-check did not decide."
        else:
            verdict = run.verdict if of is None else run.lanes[of]
            words = f"A newer run by `{run.policy}`, which asks less, is {verdict}."
        return replace(told, why=f"{told.why} {words}")

    def _newer_bytes(self) -> str:
        """A sentence where a newer run is of other bytes than the newest verdict."""
        return " A newer run is of other bytes." if self.review.other_bytes else ""

    def _of_other_bytes(self) -> str | None:
        """Why a PASS is not of what the branch is now; None where nothing says so.

        An older PASS speaks for its own bytes. Of others a newer run began, and no verdict of them was kept.
        """
        if self.review.changed:
            return "It passed, and then changed while a newer gate judged it; gate it again."
        if not self.review.other_bytes:
            return None
        return "It passed as it was before: a newer run is of other bytes, and has no verdict."


def waivers_of(report: GateReport | None, lane: Lane | None = None) -> list[Waiver]:
    """The waivers that made a difference to what blocks, or blocks a lane; the first to expire first."""
    criteria = () if report is None else report.criteria
    used = {
        waiver
        for result in criteria
        if result.tier == "blocking" and (lane is None or lane in result.lanes)
        for waiver in result.waived_by
    }
    return sorted(used, key=lambda waiver: (waiver.expires, waiver.scope, waiver.owner))


def _gone(used: Sequence[Waiver], standing: Sequence[Waiver], today: date) -> str | None:
    """Why a PASS no longer rests on the waivers that it rested on; None where it does."""
    for waiver in used:
        if waiver.expires < today:
            return f"It passed by a waiver of {waiver.scope}, which expired on {waiver.expires}; gate it again."
        if waiver not in standing:
            return f"It passed by a waiver of {waiver.scope}, which was revoked; gate it again."
    return None


def flipped(report: GateReport | None, of: Lane | None = None) -> dict[Lane, int]:
    """How many required prompts flipped where that decided, by the lane in which they count, the most first.

    Lanes share prompts, so the counts of several are not added up.
    """
    counted = {
        lane: int(one.value or 0)
        for lane in Lane
        for one in _decisive(report, of)
        if (one.metric, one.slice) == (MUST_PASS, lane.value)
    }
    return dict(sorted(counted.items(), key=lambda each: -each[1]))


def blocked_words(report: GateReport | None, of: Lane | None = None) -> str:
    """What blocks, or blocks a lane, in a sentence: required prompts first, then what else decided."""
    flips, said = flipped(report, of), list[str]()
    if flips:
        lane, most = next(iter(flips.items()))
        use = f" for {LANE_NAMES[lane].lower()} use" if len(set(flips.values())) > 1 else ""
        said.append(f"{most} required prompt{'s' * (most != 1)} flipped{use}")
    for one in _decisive(report, of):
        if one.metric == MUST_PASS and flips:
            continue
        counted = one.margin.kind == "max_count" and one.value is not None
        said.append(f"{_title(one)}: {one.value:.0f} found" if counted else f"{_title(one)}: outside the margin")
    more = f"; and {len(said) - 2} more" if len(said) > 2 else ""
    return f"{'; '.join(said[:2])}{more}." if said else "It failed."


def undecided_words(report: GateReport | None, of: Lane | None = None) -> str:
    """What is open, or open in a lane, in a sentence."""
    if report is not None and report.nothing_found:
        return "A pre-check found nothing; gate it over the suite that releases."
    said = []
    for words, verdict in (
        ("Not measured", CriterionVerdict.NOT_MEASURED),
        ("Not decided", CriterionVerdict.INCONCLUSIVE),
    ):
        found = [_title(one) for one in _decisive(report, of) if one.verdict is verdict]
        said += [f"{words}: {names(found, 3)}."] if found else []
    return " ".join(said) or "It was not decided."


def _title(one: CriterionResult) -> str:
    """What a policy calls it, without the sign that marks names in our sentences."""
    return one.heading.replace("`", "'")


def _decisive(report: GateReport | None, of: Lane | None = None) -> list[CriterionResult]:
    """The criteria that decided, or those that decided a lane."""
    if report is None:
        return []
    by_id = {one.id: one for one in report.criteria}
    ids = report.decisive if of is None else next((one.decisive for one in report.lanes if one.lane is of), ())
    return [by_id[name] for name in ids if name in by_id]


def in_order(rows: Sequence[Front]) -> list[Front]:
    """What needs a person most comes first, then by family and name."""
    order = list(Standing)
    return sorted(rows, key=lambda each: (order.index(each.standing), each.row.key))
