"""What may ship, read from history: for the dashboard's first page and for `q36eval history ship`.

A family's file says for which uses a branch is meant, and which policy judges it. Of a family whose file did not ship
with this program the newest run says so: the gate wrote it down (`q36eval.gate.covering.Declaration`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from pydantic import ValidationError

from q36eval.app.dashboard.models.front import Declared, Front, Judged, front
from q36eval.app.dashboard.models.overview import BranchRow, Review, branch_row, standing_waivers
from q36eval.config import Branch, Family
from q36eval.config.paths import Paths
from q36eval.drift import BranchDrift
from q36eval.errors import Q36Error
from q36eval.gate import GateReport, Policy
from q36eval.gate.covering import asks_less, recorded_declaration
from q36eval.gate.policy_file import read_policy
from q36eval.history import (
    Blessing,
    BranchKey,
    BranchSummary,
    RunRecord,
    RunState,
    StandingVerdict,
    WaiverRecord,
)
from q36eval.history.attempts import same_deployment
from q36eval.provenance import CHANGED
from q36eval.records import Lane

BOTH = tuple(Lane)


@dataclass(frozen=True)
class Rules:
    """What is known of a family: what it says of its branches, and the policy that judges them; None where nobody knows
    it any more."""

    branches: Mapping[str, Declared] = field(default_factory=dict)
    policy: Policy | None = None
    name: str = ""


class Source(Protocol):
    """What is read of a history; blessings come newest first, and of a family the rules of the file that ships."""

    def branches(self) -> list[BranchSummary]: ...
    def standing_verdicts(self) -> Mapping[BranchKey, Sequence[StandingVerdict]]: ...
    def waiver_records(self) -> list[WaiverRecord]: ...
    def kept_drifts(self) -> Mapping[BranchKey, BranchDrift]: ...
    def blessings(self, family: str, branch: str) -> list[Blessing]: ...
    def unverified(self, run_ids: Sequence[str]) -> frozenset[str]: ...
    def run(self, run_id: str) -> RunRecord: ...
    def shipped_rules(self, family: str) -> Rules | None: ...


def shipped_rules(family: str) -> Rules | None:
    """The rules of the family of that name that ships with this program; None where there is none."""
    paths = Paths.default()
    try:
        known = Family.load(paths.families / f"{family}.yaml")
    except Q36Error:
        return None
    try:
        policy = read_policy(paths.policies / f"{known.policy}.yaml")
    except Q36Error:
        policy = None
    branches = {
        name: Declared(_judged_lanes(branch.lanes, policy), _size(branch, paths), is_reference=name == known.reference)
        for name, branch in known.branches.items()
    }
    return Rules(branches, policy, known.policy)


def _size(branch: Branch, paths: Paths) -> float | None:
    """In bytes: what the file says, else what lies on the disk."""
    if branch.size_gib is not None:
        return branch.size_gib * 1024**3
    folder = None if branch.source.path is None else paths.repository / branch.source.path
    files = [] if folder is None else list(folder.glob("*.safetensors"))
    return float(sum(file.stat().st_size for file in files)) or None


def _judged_lanes(lanes: Sequence[Lane], policy: Policy | None) -> tuple[Lane, ...]:
    """The uses that a branch is meant for, all where nothing is said; those that the family's policy judges."""
    judged = BOTH if policy is None else policy.lanes
    return tuple(lane for lane in lanes or BOTH if lane in judged) or tuple(lanes) or BOTH


def rules_of(source: Source) -> dict[str, Rules]:
    """The rules of every family in the history: of the file that ships, else of the newest run of each branch."""
    rules: dict[str, Rules] = {}
    standing = source.standing_verdicts()
    for family in {of.family for of in source.branches()}:
        shipped = source.shipped_rules(family)
        rules[family] = shipped or _written_down({key: of for key, of in standing.items() if key[0] == family})
    return rules


def _written_down(standing: Mapping[BranchKey, Sequence[StandingVerdict]]) -> Rules:
    """What the gates wrote down; the family's policy is that of its newest run."""
    newest = [of[0] for of in standing.values() if of]
    branches, policy, name = dict[str, Declared](), None, ""
    for one in sorted(newest, key=lambda one: (one.run.started, one.run.id)):
        declaration = recorded_declaration(one.provenance)
        policy = None if declaration is None else declaration.rules or _policy(one.policy)
        if declaration is not None:
            name, size = declaration.policy, declaration.size_bytes
            branches[one.run.branch] = Declared(
                declaration.lanes, None if size is None else float(size), declaration.is_reference
            )
    judged = {of: replace(each, lanes=_judged_lanes(each.lanes, policy)) for of, each in branches.items()}
    return Rules(judged, policy, name)


def _policy(kept: Mapping[str, Any]) -> Policy | None:
    """A policy as a run keeps it; None where this version cannot read it."""
    try:
        return Policy.model_validate(kept)
    except ValidationError:
        return None


class Fronts:
    """How every branch of a history stands at a moment (UTC)."""

    def __init__(self, source: Source, now: datetime) -> None:
        self._source, self._now = source, now
        self.rules = rules_of(source)
        self._verdicts = _verdicts(source.standing_verdicts(), self.rules)
        self._reviews = reviews(source, self._verdicts)

    def all(self) -> list[Front]:
        """Every branch, without what only reports tell.

        Where it passed by a waiver the reports are read: whether that waiver still stands is known from them alone.
        """
        plain = [self._front(branch_row(of, self._review(of), self._now)) for of in self._source.branches()]
        waived = {row.row.key for row in plain if any(each.run and each.run.waived for each in row.lanes.values())}
        return [self.with_reports([row])[0] if row.row.key in waived else row for row in plain]

    def with_reports(self, rows: Iterable[Front]) -> list[Front]:
        """The rows with what their reports tell; slower, so of a page's rows and a banner's only."""
        return [self._reported(row) for row in rows]

    def _review(self, of: BranchSummary) -> Review:
        return self._reviews[of.family, of.branch]

    def _front(self, row: BranchRow, reports: Mapping[str, GateReport] | None = None) -> Front:
        declared = self.rules[row.of.family].branches.get(row.of.branch, Declared())
        review = replace(self._review(row.of), reports=reports or {})
        return front(row, review, self._now, declared, self._verdicts.get(row.key, ()))

    def _reported(self, row: Front) -> Front:
        said = {each.run.id for each in row.lanes.values() if each.run is not None}
        if row.row.of.judged is not None:
            said.add(row.row.of.judged.id)
        reports = {run_id: report for run_id in said if (report := self._source.run(run_id).report) is not None}
        own = row.row.of.judged
        review = replace(self._review(row.row.of), report=None if own is None else reports.get(own.id))
        return self._front(branch_row(row.row.of, review, self._now), reports)


def _verdicts(
    standing: Mapping[BranchKey, Sequence[StandingVerdict]], rules: Mapping[str, Rules]
) -> dict[BranchKey, list[Judged]]:
    """What each verdict says of its branch as the family declares it."""
    policies: dict[int, Policy | None] = {}
    lacks: dict[tuple[int, str], dict[Lane | None, str]] = {}
    judged: dict[BranchKey, list[Judged]] = {}
    for (family, branch), verdicts in standing.items():
        of, newest = rules.get(family, Rules()), verdicts[0].identity
        for one in verdicts:
            number = id(one.policy)  # runs of one policy share what was read of it
            if number not in policies:
                policies[number] = _policy(one.policy)
            if (number, family) not in lacks:
                lacks[number, family] = _lacks(policies[number], of)
            policy, other = policies[number], one.identity
            current = other == newest or (newest is not None and other is not None and same_deployment(newest, other))
            pre_check = policy is not None and policy.purpose == "pre-check"
            found = Judged(one.run, lacks[number, family], current, pre_check, one.of_itself)
            judged.setdefault((family, branch), []).append(found)
    return judged


def _lacks(policy: Policy | None, rules: Rules) -> dict[Lane | None, str]:
    """By lane, and for all together, why a PASS by that policy does not speak for it, a sentence each."""
    if policy is None:
        return dict.fromkeys((*BOTH, None), "The policy that it passes cannot be read by this version.")
    asked: dict[Lane | None, tuple[Lane, ...]] = {lane: (lane,) for lane in policy.lanes} | {None: policy.lanes}
    said = {of: asks_less(policy, rules.policy, rules.name, lanes) for of, lanes in asked.items()}
    return {of: f"It passes `{policy.name}`, which {less}." for of, less in said.items() if less is not None}


def reviews(source: Source, verdicts: Mapping[BranchKey, Sequence[Judged]] | None = None) -> dict[BranchKey, Review]:
    """What people decided about every branch, and whether the verdicts that say how it stands are those written."""
    waivers, drifts = standing_waivers(source.waiver_records()), source.kept_drifts()
    branches = {(of.family, of.branch): of for of in source.branches()}
    told = {key: [of.judged.id] if of.judged is not None else [] for key, of in branches.items()}
    for key, each in (verdicts or {}).items():
        told[key] = [*told.get(key, ()), *(one.run.id for one in each)]
    unverified = source.unverified(sorted({run_id for ids in told.values() for run_id in ids}))
    return {
        key: Review(
            next(iter(source.blessings(*key)), None),
            waivers.get(key, ()),
            drifts.get(key),
            unverified=not unverified.isdisjoint(told[key]),
            changed=of.newest.state is RunState.INTERRUPTED and CHANGED in source.run(of.newest.id).provenance,
        )
        for key, of in branches.items()
    }
