"""The state of each branch in each lane: its newest verdict under its family's current policy.

The current policy is that of the family's file, if it ships with this program, or else the one recorded by the family's
newest gate (`q36eval.gate.declaration`). A run under another policy, by its hash, approves no release.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum

from q36eval.chat.declared_template import recorded_template
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.drift import DriftState
from q36eval.errors import Q36Error
from q36eval.gate.declaration import (
    Declaration,
    declaration,
    policy_sha256,
    recorded_declaration,
    recorded_policy_sha256,
)
from q36eval.gate.policy_file import read_policy
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, Waiver
from q36eval.history import (
    WATCHED,
    Archiving,
    Blessing,
    BranchKey,
    BranchSummary,
    History,
    RunFilter,
    RunRecord,
    RunState,
    RunSummary,
    StandingVerdict,
)
from q36eval.inert_text import name
from q36eval.provenance import CHANGED
from q36eval.records import Lane, Verdict
from q36eval.run.drift import standing_drift

LANE_NAMES = {Lane.STRUCTURED: "structured", Lane.FREEFORM: "free-form"}
FILES = frozenset({"checkpoint_sha256", "tokenizer_sha256", "chat_template_sha256"})
MOST_NAMES = 3


class Standing(StrEnum):
    """The state of a branch; states that need attention come first."""

    BLOCKED = "BLOCKED"
    INCONCLUSIVE = "INCONCLUSIVE"
    STALE = "STALE"
    SIGN = "SIGN"
    WAIVED = "WAIVED"
    SHIP = "SHIP"
    REFERENCE = "REFERENCE"
    NOT_JUDGED = "NOT JUDGED"


SHIPS = (Standing.SHIP, Standing.WAIVED)
_LOOKS = {
    Standing.BLOCKED: ("✗", "red"),
    Standing.INCONCLUSIVE: ("?", "orange"),
    Standing.STALE: ("◷", "gray"),
    Standing.SIGN: ("✎", "blue"),
    Standing.WAIVED: ("✓", "violet"),
    Standing.SHIP: ("✓", "green"),
    Standing.REFERENCE: ("=", "gray"),
    Standing.NOT_JUDGED: ("–", "gray"),
}


@dataclass(frozen=True)
class LaneStanding:
    """The state of a branch in a lane, the run behind it, and the reason; `until` is the expiry of its waivers."""

    standing: Standing
    why: str
    run: RunSummary | None = None
    until: str = ""


@dataclass(frozen=True)
class BranchStanding:
    """The state of a branch in each of its intended lanes, and people's decisions about it.

    `margin` is that of the mean KL in nats/token, and `decisive` the first deciding criterion of the worst lane, if the
    report was read. `drifts`: for the worse. `changed`: the checkpoint changed during the newest run, which cannot be
    resumed. `apart`: why it is not listed as a release candidate; empty if it is.
    """

    of: BranchSummary
    lanes: Mapping[Lane, LaneStanding]
    blessing: Blessing | None = None
    waivers: tuple[Waiver, ...] = ()
    drifts: bool = False
    margin: float | None = None
    decisive: CriterionResult | None = None
    changed: bool = False
    apart: str = ""

    @property
    def key(self) -> BranchKey:
        """Family and branch."""
        return self.of.family, self.of.branch

    @property
    def worst(self) -> LaneStanding:
        """The lane that most needs attention; a lane without a verdict comes after one that may ship."""
        return min(self.lanes.values(), key=lambda each: list(Standing).index(each.standing))

    @property
    def standing(self) -> Standing:
        """The state of the whole."""
        return self.worst.standing

    @property
    def ships(self) -> bool:
        """Whether it may ship for some use."""
        return any(each.standing in SHIPS for each in self.lanes.values())

    @property
    def why(self) -> str:
        """The sentence of every lane, with the lane's name if they differ."""
        whys: dict[str, list[Lane]] = {}
        for lane, each in self.lanes.items():
            whys.setdefault(each.why, []).append(lane)
        if len(whys) == 1:
            return self.worst.why
        return " ".join(f"{uses(lanes).capitalize()}: {why}" for why, lanes in whys.items())

    @property
    def chips(self) -> list[tuple[str, str]]:
        """For each state, the worst first: symbol and word, its lanes if not all, and the expiry of its waivers; with a
        Streamlit colour name."""
        chips = []
        for standing in sorted({each.standing for each in self.lanes.values()}, key=list(Standing).index):
            lanes = {lane: each.until for lane, each in self.lanes.items() if each.standing is standing}
            of, until = uses(lanes) if len(lanes) < len(self.lanes) else "", next(iter(lanes.values()))
            symbol, colour = _LOOKS[standing]
            chips.append((" ".join(filter(None, (symbol, str(standing), of, until))), colour))
        return chips

    @property
    def chip(self) -> str:
        """The worst of its chips."""
        return self.chips[0][0]

    @property
    def shown(self) -> RunSummary:
        """The newest run with a verdict, else the newest of all."""
        return self.of.judged or self.of.newest

    @property
    def run(self) -> RunSummary:
        """The run behind the branch's state, else the shown one."""
        return self.worst.run or self.shown


def uses(lanes: Iterable[Lane]) -> str:
    """Lanes in words."""
    return " and ".join(LANE_NAMES[lane] for lane in lanes)


def in_order(rows: Iterable[BranchStanding]) -> list[BranchStanding]:
    """Those that most need attention first, then by family and name."""
    return sorted(rows, key=lambda each: (list(Standing).index(each.standing), each.key))


def why_apart(of: BranchSummary, archived: Archiving | None = None) -> str:
    """Why a branch is not listed as a release candidate; empty if it is one."""
    if of.branch.startswith(WATCHED):
        return "Rounds of q36eval watch."
    gates = [run for run in (of.judged, of.newest) if run is not None and run.is_gate]
    if not gates:
        return "Inspected or measured, never gated."
    if of.branch.startswith("/") and not any(run.checkpoint_sha256 for run in gates):
        return "No checkpoint could be read in this folder."
    if archived is not None:
        return f"Archived by {archived.owner} on {archived.at:%Y-%m-%d}: {archived.reason}"
    return ""


def since_words(run: RunRecord, now: BranchStanding) -> str | None:
    """The branch's present state `now`; None if the run's own verdict shows it."""
    by_it = [each for each in now.lanes.values() if each.run is not None and each.run.id == run.id]
    if by_it and not any(each.standing is Standing.STALE for each in by_it):
        return None
    return f"{name(run.branch)} now, {'by this run' if by_it else 'by another run'}: {now.chip}. {now.why}"


@dataclass(frozen=True)
class Rules:
    """A family's rules: the declarations of its branches, and the hash of its current policy."""

    branches: Mapping[str, Declaration] = field(default_factory=dict)
    policy_sha256: str | None = None


def shipped_rules(family: str) -> Rules | None:
    """The rules of the shipped family of that name; None if it does not exist or cannot be read."""
    paths = Paths.default()
    try:
        known = Family.load(paths.families / f"{family}.yaml")
        policy = read_policy(paths.policies / f"{known.policy}.yaml")
    except Q36Error:
        return None
    branches = {
        name: declaration(
            policy,
            lanes=branch.lanes,
            is_reference=name == known.reference,
            template="" if branch.chat_template is None else branch.chat_template.sha256,
        )
        for name, branch in known.branches.items()
    }
    return Rules(branches, policy_sha256(policy))


def recorded_rules(verdicts: Iterable[StandingVerdict]) -> Rules:
    """The rules recorded by a family's gates, the newest of each branch; the policy is that of the newest."""
    branches: dict[str, Declaration] = {}
    sha256 = None
    for one in sorted(verdicts, key=lambda one: (one.run.started, one.run.id)):
        known = recorded_declaration(one.provenance)
        if known is not None:
            branches[one.run.branch], sha256 = known, known.policy_sha256
    return Rules(branches, sha256)


class Standings:
    """The states of a history's branches at a moment (UTC)."""

    def __init__(self, history: History, now: datetime) -> None:
        self._history, self._today = history, now.astimezone(UTC).date()
        self._branches = {(of.family, of.branch): of for of in history.branches()}
        self._verdicts, self._archived = history.standing_verdicts(), history.archived()
        self._waivers: dict[BranchKey, tuple[Waiver, ...]] = {}
        for record in history.waiver_records():
            if record.revoked is None:
                key = record.family, record.branch
                self._waivers[key] = (*self._waivers.get(key, ()), record.waiver)
        self._policies: dict[tuple[int, tuple[Lane, ...]], str | None] = {}
        self._rules: dict[str, Rules] = {}
        for family in {family for family, _ in self._branches}:
            verdicts = [one for key, of in self._verdicts.items() if key[0] == family for one in of]
            self._rules[family] = shipped_rules(family) or recorded_rules(verdicts)

    def all(self) -> list[BranchStanding]:
        """Every branch; the sentences name no criteria, which would require reading every report."""
        return [self._branch(key, named=False) for key in self._branches]

    def of(self, key: BranchKey) -> BranchStanding:
        """One branch, with the criteria that decided."""
        return self._branch(key, named=True)

    def _branch(self, key: BranchKey, *, named: bool) -> BranchStanding:
        of, rules = self._branches[key], self._rules[key[0]]
        blessing = next(iter(self._history.blessings(key[1], key[0])), None)
        drifts = blessing is not None and self._drifts_for_the_worse(key)
        declared = rules.branches.get(key[1])
        verdicts, sha256 = self._verdicts.get(key, ()), rules.policy_sha256
        if declared is not None:
            sha256 = declared.required_sha256 if declared.policy_sha256 == sha256 else None
        lanes_meant = declared.lanes if declared else ()
        own = next((one for one in verdicts if sha256 and self._policy_sha256(one, lanes_meant) == sha256), None)
        report = self._history.get_run(own.run.id).report if own is not None and (named or own.run.waived) else None
        changed = of.newest.state is RunState.INTERRUPTED and CHANGED in self._history.get_run(of.newest.id).provenance
        remarks, stale = [], None
        if own is not None:
            stale = self._why_stale(own, of, declared, changed)
            remarks = list(_newer(own, of, verdicts))
            remarks += ["Drifting for the worse."] if drifts else []
        lanes = {}
        for lane in declared.lanes if declared else Lane:
            known = own if own is not None and lane in own.run.lanes else None
            if known is None:
                lanes[lane] = _without_verdict([one.run for one in verdicts if lane in one.run.lanes], rules)
                continue
            found = _decided(
                known, lane, report, stale or _lapsed(report, lane, self._waivers.get(key, ()), self._today)
            )
            if known.run.lanes[lane] is Verdict.PASS and (known.of_itself or (declared and declared.is_reference)):
                found = LaneStanding(Standing.REFERENCE, "Compared with itself it passes.", known.run)
            why = " ".join((found.why, *remarks))
            lanes[lane] = LaneStanding(found.standing, why, found.run, found.until)
        worst = min(lanes, key=lambda lane: list(Standing).index(lanes[lane].standing))
        return BranchStanding(
            of,
            lanes,
            blessing=blessing,
            waivers=self._waivers.get(key, ()),
            drifts=drifts,
            margin=_kl_margin(report),
            decisive=next(iter(decisive_in(report, worst)), None),
            changed=changed,
            apart=why_apart(of, self._archived.get(key)),
        )

    def _drifts_for_the_worse(self, key: BranchKey) -> bool:
        try:
            drift = standing_drift(self._history, *key)
        except Q36Error:  # one unreadable run hides no branch; `q36eval drift` reports the error
            return False
        return drift.state is DriftState.DRIFTING and drift.worse

    def _policy_sha256(self, one: StandingVerdict, lanes: tuple[Lane, ...]) -> str | None:
        key = id(one.policy), lanes  # runs under one policy share its parsed content
        if key not in self._policies:
            self._policies[key] = recorded_policy_sha256(one.policy, lanes)
        return self._policies[key]

    def _why_stale(
        self, own: StandingVerdict, of: BranchSummary, declared: Declaration | None, changed: bool
    ) -> str | None:
        """Why a PASS of that run does not apply to the branch in its present or declared form."""
        if changed:
            return "It passed, and its files changed during a newer gate; gate it again."
        if self._of_other_files(own, of):
            return "It passed, and a newer run has other files; gate it again."
        against = recorded_declaration(own.provenance)
        if against is not None and against.against:
            return f"It passed against {against.against}, which is not the family's reference; gate it again."
        template = recorded_template(own.provenance)
        declares = declared.template if declared else ""
        used = None if own.identity is None else own.identity.chat_template_sha256
        if (declares or (template is not None and template.is_own)) and used != declares:
            return "It passed with another chat template than the family declares now; gate it again."
        return None

    def _of_other_files(self, own: StandingVerdict, of: BranchSummary) -> bool:
        """Whether the newest run that read its files has others than the deciding run."""
        if of.newest.id == own.run.id:
            return False
        later = self._history.summaries(RunFilter(family=of.family, branch=of.branch, since=own.run.started))
        newest = next((one for one in later if one.checkpoint_sha256 is not None or one.id == own.run.id), own.run)
        identity = own.identity if newest.id == own.run.id else self._history.get_run(newest.id).identity
        if identity is None or own.identity is None:
            return identity != own.identity
        return not FILES.isdisjoint(own.identity.differing_fields(identity))


def _newer(own: StandingVerdict, of: BranchSummary, verdicts: Sequence[StandingVerdict]) -> Iterable[str]:
    """Later events than the deciding run that decide nothing themselves."""
    if verdicts[0] is not own:
        newer = verdicts[0].run
        yield f"A newer run under another policy, {newer.policy}, is {newer.verdict}."
    if of.newest.state is not RunState.FINISHED:
        yield f"A newer run is {of.newest.state}."


def _without_verdict(judged: Sequence[RunSummary], rules: Rules) -> LaneStanding:
    """No run under the family's policy judged the lane; `judged` are those under others, the newest first."""
    if not judged:
        return LaneStanding(Standing.NOT_JUDGED, "No run judged it for this use.")
    by = (
        "the family's policy is not known here"
        if rules.policy_sha256 is None
        else "that is not the family's policy now"
    )
    return LaneStanding(
        Standing.STALE, f"{judged[0].verdict} under policy {judged[0].policy}: {by}; gate it again.", judged[0]
    )


def _decided(own: StandingVerdict, lane: Lane, report: GateReport | None, stale: str | None) -> LaneStanding:
    run, verdict = own.run, own.run.lanes[lane]
    if verdict is Verdict.NOT_JUDGED:
        return LaneStanding(Standing.NOT_JUDGED, "The reference cannot do its tasks.", run)
    if verdict is not Verdict.PASS:
        standing = Standing.BLOCKED if verdict is Verdict.FAIL else Standing.INCONCLUSIVE
        return LaneStanding(standing, _open_words(verdict, report, lane), run)
    if stale is not None:
        return LaneStanding(Standing.STALE, stale, run)
    waivers = waivers_of(report, lane)
    until = f"until {waivers[0].expires} by {names(sorted({one.owner for one in waivers}))}" if waivers else ""
    waived = f" by a waiver of {names([one.scope for one in waivers])}" if waivers else ""
    if run.awaiting_sign_off:
        return LaneStanding(Standing.SIGN, f"It passes{waived} except for a signature.", run, until)
    day = f"{run.started:%Y-%m-%d}"
    return LaneStanding(
        Standing.WAIVED if waivers else Standing.SHIP, f"It passes{waived}, judged on {day}.", run, until
    )


def _open_words(verdict: Verdict, report: GateReport | None, lane: Lane) -> str:
    """The failed or open criteria of a lane, by name if the report was read."""
    if report is not None and report.nothing_found:
        return "A pre-check found nothing; gate it over the suite that releases."
    decisive = decisive_in(report, lane)
    missing = [title_of(one) for one in decisive if one.verdict is CriterionVerdict.NOT_MEASURED]
    others = [title_of(one) for one in decisive if one.verdict is not CriterionVerdict.NOT_MEASURED]
    said = [f"Not measured: {names(missing)}."] if missing else []
    if others or not said:
        what = "Failed" if verdict is Verdict.FAIL else "Not decided"
        said.append(f"{what}: {names(others)}." if others else f"{what}.")
    return " ".join(said)


def _lapsed(report: GateReport | None, lane: Lane, in_force: Sequence[Waiver], today: date) -> str | None:
    """Why the waivers behind a PASS no longer hold; None if they do."""
    for waiver in waivers_of(report, lane):
        if waiver.expires < today:
            return f"It passed by a waiver of {waiver.scope}, which expired on {waiver.expires}; gate it again."
        if waiver not in in_force:
            return f"It passed by a waiver of {waiver.scope}, which was revoked; gate it again."
    return None


def waivers_of(report: GateReport | None, lane: Lane) -> list[Waiver]:
    """The waivers that affected the blocking criteria of a lane; the first to expire first."""
    criteria = () if report is None else report.criteria
    used = {waiver for one in criteria if one.tier == "blocking" and lane in one.lanes for waiver in one.waived_by}
    return sorted(used, key=lambda waiver: (waiver.expires, waiver.scope, waiver.owner))


def decisive_in(report: GateReport | None, lane: Lane) -> list[CriterionResult]:
    """The deciding criteria of a lane; those of the run if all its lanes have one verdict."""
    if report is None:
        return []
    ids = report.decisive
    if len({one.verdict for one in report.lanes}) > 1:
        ids = next((one.decisive for one in report.lanes if one.lane is lane), ())
    by_id = {one.id: one for one in report.criteria}
    return [by_id[name] for name in ids if name in by_id]


def title_of(one: CriterionResult) -> str:
    """A criterion's title in a policy, without the sign that marks names in our sentences."""
    return one.heading.replace("`", "'")


def names(of: Sequence[str]) -> str:
    """A list in words, cut at a readable length."""
    shown = ", ".join(of[:MOST_NAMES])
    return shown if len(of) <= MOST_NAMES else f"{shown} and {len(of) - MOST_NAMES} more"


def _kl_margin(report: GateReport | None) -> float | None:
    """The upper limit of the mean KL over everything, the tightest where there are several."""
    criteria = () if report is None else report.criteria
    limits = [one.limit for one in criteria if (one.metric, one.slice) == ("kl_divergence", "all")]
    return min((limit for limit in limits if limit is not None), default=None)
