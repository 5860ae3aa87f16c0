"""What may ship, and what stands in the way of the rest: a chip and a sentence a branch, a banner a family. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum

from q36eval.app.dashboard.models.overview import STALE_AFTER, UNVERIFIED, BranchRow, Review, drift_need, names
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, Waiver
from q36eval.records import Lane, Verdict

LANE_NAMES = {Lane.STRUCTURED: "Structured", Lane.FREEFORM: "Free-form"}
MUST_PASS = "must_pass_flips"
KL = ("kl_divergence", "all")


class Standing(StrEnum):
    """How a branch stands; what a person should look at comes before what is in order."""

    UNVERIFIED = "UNVERIFIED"
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
MOST_IN_BANNER = 24
"""So many that ship, and so many that do not; of a family with more branches the banner leaves the rest to the rows."""

_LOOKS = {
    Standing.UNVERIFIED: ("!", "red"),
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

    RUN = "Open the run"
    WHY = "See why"
    PROMPTS = "See the prompts"
    MISSING = "See what is missing"
    SIGN = "Sign"
    WAIVERS = "See the waivers"
    BLESS = "Accept as drift baseline"
    DRIFT = "See since when"


@dataclass(frozen=True)
class Front:
    """A branch on the front page: `detail` goes beside the chip, `why` is one sentence, `count` is the button's.

    `margin` is that of the KL in nats/token, where the policy has one.
    """

    row: BranchRow
    standing: Standing
    why: str
    button: Button
    detail: str = ""
    count: int = 0
    margin: float | None = None

    @property
    def colour(self) -> str:
        """A Streamlit colour name."""
        return _LOOKS[self.standing][1]

    @property
    def chip(self) -> str:
        """Symbol and word; of a waiver until when by whom."""
        return f"{_LOOKS[self.standing][0]} {self.standing} {self.detail}".rstrip()

    @property
    def button_words(self) -> str:
        """What stands on the button."""
        if self.button is Button.PROMPTS:
            return f"See the {self.count} prompts" if self.count != 1 else "See the prompt"
        return str(self.button)


def front(row: BranchRow, review: Review, now: datetime, *, is_reference: bool = False) -> Front:
    """How the branch stands at that moment (UTC). Without its report the sentence names no criteria.

    A reference that passes is no branch to ship: it was held against itself.
    """
    told = replace(_front(row, review, now), margin=_kl_margin(review.report))
    if told.standing is not Standing.UNVERIFIED and (is_reference or review.of_itself) and _passed(row):
        return replace(
            told,
            standing=Standing.REFERENCE,
            why="Held against itself it passes, as it must.",
            detail="",
            button=Button.RUN,
        )
    return told


def _passed(row: BranchRow) -> bool:
    return row.of.judged is not None and row.of.judged.verdict is Verdict.PASS


def _kl_margin(report: GateReport | None) -> float | None:
    """The upper limit of the mean KL over everything, the tightest where there are several."""
    criteria = () if report is None else report.criteria
    return min((one.limit for one in criteria if (one.metric, one.slice) == KL and one.limit is not None), default=None)


def _front(row: BranchRow, review: Review, now: datetime) -> Front:
    judged, report = row.of.judged, review.report
    if judged is None:
        return Front(row, Standing.NOT_JUDGED, "It was never judged.", Button.RUN)
    if review.unverified:
        return Front(row, Standing.UNVERIFIED, UNVERIFIED, Button.RUN)
    if judged.verdict is Verdict.FAIL:
        flips = flipped(report)
        return Front(row, Standing.BLOCKED, blocked_words(report), Button.PROMPTS if flips else Button.WHY, count=flips)
    if judged.awaiting_sign_off:
        return Front(row, Standing.SIGN, "It passes but for a signature.", Button.SIGN)
    if judged.verdict is not Verdict.PASS:
        return Front(row, Standing.INCONCLUSIVE, undecided_words(report), Button.MISSING)
    used = waivers_of(report)
    gone = _of_other_bytes(row, review) or _gone(used, review.waivers, now.astimezone(UTC).date())
    if gone is not None:
        return Front(row, Standing.STALE, gone, Button.RUN)
    drifting = None if review.drift is None else drift_need(review.drift)
    if drifting is not None:
        return Front(row, Standing.DRIFTING, drifting.words, Button.DRIFT)
    age = now - judged.started
    if age > STALE_AFTER:
        return Front(row, Standing.STALE, f"It passed {age.days} days ago; gate it again.", Button.RUN)
    if judged.waived:
        until = f"until {used[0].expires} by {names(sorted({waiver.owner for waiver in used}), 2)}" if used else ""
        waived = [] if report is None else [one.heading for one in report.criteria if one.waived]
        why = f"It passes with a waiver of {names(waived, 3)}." if waived else "It passes by waivers."
        return Front(row, Standing.WAIVED, why, Button.WAIVERS, detail=until)
    if review.blessing is None:
        return Front(row, Standing.SHIP, "It passes; nothing says what drift is measured against.", Button.BLESS)
    return Front(row, Standing.SHIP, f"It passes, {row.freshness}.", Button.RUN)


def _of_other_bytes(row: BranchRow, review: Review) -> str | None:
    """Why a PASS is not of what the branch is now; None where nothing says so.

    An older PASS speaks for its own bytes. Of others a newer run began, and no verdict of them was kept.
    """
    if review.changed:
        return "It passed, and then changed while a newer gate judged it; gate it again."
    newest, judged = row.of.newest, row.of.judged
    if judged is None or newest.id == judged.id or newest.checkpoint_sha256 in (None, judged.checkpoint_sha256):
        return None
    return "It passed as it was before: a newer run is of other bytes, and has no verdict."


def waivers_of(report: GateReport | None) -> list[Waiver]:
    """The waivers that made a difference to what blocks, the first to expire first."""
    criteria = () if report is None else report.criteria
    used = {waiver for result in criteria if result.tier == "blocking" for waiver in result.waived_by}
    return sorted(used, key=lambda waiver: (waiver.expires, waiver.scope, waiver.owner))


def _gone(used: Sequence[Waiver], standing: Sequence[Waiver], today: date) -> str | None:
    """Why a PASS no longer rests on the waivers that it rested on; None where it does."""
    for waiver in used:
        if waiver.expires < today:
            return f"It passed by a waiver of {waiver.scope}, which expired on {waiver.expires}; gate it again."
        if waiver not in standing:
            return f"It passed by a waiver of {waiver.scope}, which was revoked; gate it again."
    return None


def flipped(report: GateReport | None) -> int:
    """Required prompts that flipped, where they decided: the largest count, since lanes share prompts."""
    return max((int(one.value or 0) for one in _decisive(report) if one.metric == MUST_PASS), default=0)


def blocked_words(report: GateReport | None) -> str:
    """What blocks, in a sentence: required prompts first, then what else decided."""
    flips, said = flipped(report), []
    if flips:
        said.append(f"{flips} required prompt{'s' * (flips != 1)} flipped")
    for one in _decisive(report):
        if one.metric == MUST_PASS:
            continue
        counted = one.margin.kind == "max_count" and one.value is not None
        said.append(f"{one.heading}: {one.value:.0f} found" if counted else f"{one.heading}: outside the margin")
    more = f"; and {len(said) - 2} more" if len(said) > 2 else ""
    return f"{'; '.join(said[:2])}{more}." if said else "It failed."


def undecided_words(report: GateReport | None) -> str:
    """What is open, in a sentence."""
    if report is not None and report.nothing_found:
        return "A pre-check found nothing; gate it over the suite that releases."
    said = []
    for words, verdict in (
        ("Not measured", CriterionVerdict.NOT_MEASURED),
        ("Not decided", CriterionVerdict.INCONCLUSIVE),
    ):
        found = [one.heading for one in _decisive(report) if one.verdict is verdict]
        said += [f"{words}: {names(found, 3)}."] if found else []
    return " ".join(said) or "It was not decided."


def _decisive(report: GateReport | None) -> list[CriterionResult]:
    by_id = {} if report is None else {one.id: one for one in report.criteria}
    return [] if report is None else [by_id[name] for name in report.decisive if name in by_id]


def in_order(rows: Sequence[Front]) -> list[Front]:
    """What needs a person most comes first, then by family and name."""
    order = list(Standing)
    return sorted(rows, key=lambda each: (order.index(each.standing), each.row.key))


@dataclass(frozen=True)
class Declared:
    """What a family's file says of a branch: the lanes that it is meant for, its size in bytes, and whether it is the
    reference. Of a branch that no file knows: both lanes."""

    lanes: tuple[Lane, ...] = tuple(Lane)
    size: float | None = None
    is_reference: bool = False


@dataclass(frozen=True)
class Said:
    """A branch in the banner, and what stands beside its name."""

    branch: str
    words: str = ""


@dataclass(frozen=True)
class Banner:
    """A family in one sentence: what may ship in each lane, the smallest first, and what waits, is open or blocked."""

    family: str
    lanes: Mapping[Lane, tuple[Said, ...]]
    waiting: tuple[Said, ...] = ()
    open: tuple[Said, ...] = ()
    blocked: tuple[Said, ...] = ()
    more: int = 0


_GROUPS = {
    Standing.UNVERIFIED: "open",
    Standing.SIGN: "waiting",
    Standing.BLOCKED: "blocked",
    Standing.INCONCLUSIVE: "open",
    Standing.DRIFTING: "open",
    Standing.STALE: "open",
}


def of_banner(
    rows: Sequence[Front], declared: Mapping[str, Declared], most: int = MOST_IN_BANNER
) -> tuple[list[Front], int]:
    """The rows of a family that its banner names, and how many it leaves out.

    What ships comes first, the smallest at the head: whatever else there is, it is never left out for what does not.
    """

    def size(row: Front) -> float:
        return declared.get(row.row.of.branch, Declared()).size or float("inf")

    ships = sorted((row for row in rows if row.standing in SHIPS), key=lambda row: (size(row), row.row.key))
    others = [row for row in in_order(rows) if row.standing in _GROUPS]
    return [*ships[:most], *others[:most]], max(0, len(ships) - most) + max(0, len(others) - most)


def banner(family: str, rows: Sequence[Front], declared: Mapping[str, Declared], more: int = 0) -> Banner:
    """What may ship for which use, and what may not and why; `more` branches are left out."""
    known = {each.row.of.branch: declared.get(each.row.of.branch, Declared()) for each in rows}
    candidates = [each for each in rows if each.standing in SHIPS]
    lanes = {}
    for lane in Lane:
        fit = [
            each
            for each in candidates
            if each.row.lanes.get(lane) is Verdict.PASS and lane in known[each.row.of.branch].lanes
        ]
        sizes = {each.row.of.branch: known[each.row.of.branch].size for each in fit}
        lanes[lane] = _smallest_first(fit, sizes)
    groups: dict[str, list[Said]] = {"waiting": [], "open": [], "blocked": []}
    for each in sorted(rows, key=lambda each: each.row.of.branch):
        group = _GROUPS.get(each.standing)
        if group is not None:
            words = "for a signature" if each.standing is Standing.SIGN else each.why.rstrip(".")
            groups[group].append(Said(each.row.of.branch, words))
    return Banner(family, lanes, **{name: tuple(said) for name, said in groups.items()}, more=more)


def _smallest_first(fit: Sequence[Front], sizes: Mapping[str, float | None]) -> tuple[Said, ...]:
    ordered = sorted(fit, key=lambda each: (sizes[each.row.of.branch] or float("inf"), each.row.of.branch))
    said = []
    for number, each in enumerate(ordered):
        smallest = number == 0 and len(ordered) > 1 and sizes[each.row.of.branch] is not None
        waived = f"waived {each.detail}".rstrip() if each.standing is Standing.WAIVED else ""
        said.append(Said(each.row.of.branch, ", ".join(filter(None, ("smallest" if smallest else "", waived)))))
    return tuple(said)
