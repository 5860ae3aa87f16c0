"""What may ship, read from history: for the dashboard's first page and for `q36eval history status`.

A family's file says for which uses a branch is meant, and which policy judges it. Of a family whose file did not ship
with this program the newest run says so: the gate wrote it down (`q36eval.gate.covering.Declaration`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from pydantic import ValidationError

from q36eval.app.dashboard.models.front import Declared, Front, Judged, drifting, front
from q36eval.app.dashboard.models.overview import BranchRow, Review, branch_row, drift_need, standing_waivers
from q36eval.chat.declared import recorded_template
from q36eval.checkpoints.opened import weight_paths
from q36eval.config import Branch, Family
from q36eval.config.paths import Paths
from q36eval.drift import FEWEST_RUNS, BranchDrift
from q36eval.errors import Q36Error
from q36eval.gate import GateReport, Policy
from q36eval.gate.covering import ALL_LANES, judged_lanes, less_by_lane, recorded_declaration, shortfall
from q36eval.gate.policy_file import read_policy
from q36eval.history import (
    Blessing,
    BranchKey,
    BranchSummary,
    History,
    RunFilter,
    RunRecord,
    RunState,
    RunSummary,
    StandingVerdict,
    WaiverRecord,
)
from q36eval.history.attempts import same_deployment
from q36eval.history.records import ASKED, SECOND_ENDPOINT
from q36eval.provenance import CHANGED
from q36eval.records import DeploymentIdentity, Lane, ProbeName, Verdict
from q36eval.run.drift import read_kept, standing_drift

BOTH = tuple(Lane)
_FILES = frozenset({"checkpoint_sha256", "tokenizer_sha256", "chat_template_sha256"})
"""Of a deployment what lies on the disk. How it is computed may differ in a run of one probe, and nothing has moved."""


@dataclass(frozen=True)
class Rules:
    """What is known of a family: what it says of its branches, and the policy that judges them.

    `policy` is that of a file that ships with this program. `sha256` is the hash of the one that the newest gate wrote
    down, where no file ships. Where there is neither nobody knows what is asked.
    """

    branches: Mapping[str, Declared] = field(default_factory=dict)
    policy: Policy | None = None
    sha256: str | None = None


class Source(Protocol):
    """What is read of a history; blessings come newest first, and of a family the rules of the file that ships."""

    def branches(self) -> list[BranchSummary]: ...
    def summaries(self, wanted: RunFilter | None = None) -> list[RunSummary]: ...
    def standing_verdicts(self) -> Mapping[BranchKey, Sequence[StandingVerdict]]: ...
    def waiver_records(self) -> list[WaiverRecord]: ...
    def kept_drifts(self) -> Mapping[BranchKey, BranchDrift]: ...
    def blessings(self, family: str, branch: str) -> list[Blessing]: ...
    def run(self, run_id: str) -> RunRecord: ...
    def drift(self, family: str, branch: str) -> BranchDrift: ...
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
        name: Declared(
            judged_lanes(branch.lanes, policy),
            _size(branch, paths),
            is_reference=name == known.reference,
            template="" if branch.chat_template is None else branch.chat_template.sha256,
        )
        for name, branch in known.branches.items()
    }
    return Rules(branches, policy)


def _size(branch: Branch, paths: Paths) -> float | None:
    """In bytes: what the file says, else what lies on the disk."""
    if branch.size_gib is not None:
        return branch.size_gib * 1024**3
    folder = None if branch.source.path is None else paths.repository / branch.source.path
    files = [] if folder is None else weight_paths(folder)
    return float(sum(file.stat().st_size for file in files)) or None


class OfHistory:
    """A history as it is read once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.branches = history.branches
        self.summaries = history.summaries
        self.waiver_records = history.waiver_records
        self.run = history.get_run
        self.shipped_rules = shipped_rules

    @cached_property
    def _standing(self) -> dict[BranchKey, list[StandingVerdict]]:
        return self._history.standing_verdicts()

    @cached_property
    def _kept(self) -> dict[BranchKey, BranchDrift]:
        kept = self._history.kept_drifts()
        found = {key: read_kept(now, kept.get(key)) for key, now in self._history.fingerprints().items()}
        return {key: drift for key, drift in found.items() if drift is not None}

    def standing_verdicts(self) -> dict[BranchKey, list[StandingVerdict]]:
        """Of every branch the verdicts that may say how it stands."""
        return self._standing

    def kept_drifts(self) -> dict[BranchKey, BranchDrift]:
        """Where the branches stand, of those that history keeps it of as they are now."""
        return self._kept

    def drift(self, family: str, branch: str) -> BranchDrift:
        """Where a branch stands."""
        return standing_drift(self._history, family, branch)

    def blessings(self, family: str, branch: str) -> list[Blessing]:
        """Blessings of a branch, newest first."""
        return self._history.blessings(branch, family)


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
    branches, sha256 = dict[str, Declared](), None
    newest = [of[0] for of in standing.values() if of]
    for one in sorted(newest, key=lambda one: (one.run.started, one.run.id)):
        known = recorded_declaration(one.provenance)
        sha256 = None if known is None else known.policy_sha256
        if known is not None:
            size = None if known.size_bytes is None else float(known.size_bytes)
            branches[one.run.branch] = Declared(known.lanes, size, known.is_reference, known.template)
    return Rules(branches, None, sha256)


def _policy(kept: Mapping[str, Any]) -> Policy | None:
    """A policy as a run keeps it; None where this version cannot read it."""
    try:
        return Policy.model_validate(kept)
    except ValidationError:
        return None


class Fronts:
    """How every branch of a history stands at a moment (UTC), or the `only` one that is asked for."""

    def __init__(self, source: Source, now: datetime, only: BranchKey | None = None) -> None:
        self._source, self._now = source, now
        self.rules = rules_of(source)
        self._verdicts = _verdicts(source.standing_verdicts(), self.rules)
        self._reviews = reviews(source, only)

    def all(self) -> list[Front]:
        """Every branch, without what only reports tell.

        Where it passed by a waiver the reports are read: whether that waiver still stands is known from them alone.
        """
        plain = [self._front(branch_row(of, self._review(of), self._now)) for of in self._source.branches()]
        waived = {row.row.key for row in plain if any(each.run and each.run.waived for each in row.lanes.values())}
        return [self.with_reports([row])[0] if row.row.key in waived else row for row in plain]

    def of(self, key: BranchKey) -> Front:
        """One branch, with what its reports tell."""
        (of,) = (one for one in self._source.branches() if (one.family, one.branch) == key)
        return self._reported(self._front(branch_row(of, self._review(of), self._now)))

    def with_reports(self, rows: Iterable[Front]) -> list[Front]:
        """The rows with what their reports tell; slower, so of a page's rows and a banner's only."""
        return [self._reported(row) for row in rows]

    def with_drift(self, rows: Iterable[Front]) -> list[Front]:
        """The rows with what drift is found anew of those that would ship; a second each, where nobody kept it."""
        kept, told = self._source.kept_drifts(), []
        for row in rows:
            if row.ships and row.row.key not in kept and row.row.of.runs >= FEWEST_RUNS:
                need = drift_need(self._source.drift(*row.row.key))
                row = drifting(row, None if need is None else need.words)
            told.append(row)
        return told

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
    read: dict[int, Policy | None] = {}
    less: dict[tuple[int, str], Mapping[str, str]] = {}
    judged: dict[BranchKey, list[Judged]] = {}
    for (family, branch), verdicts in standing.items():
        for one in verdicts:
            number = id(one.policy)  # runs of one policy share what was read of it
            if number not in read:
                read[number] = _policy(one.policy)
        speaking, newest = _that_speak(verdicts, [read[id(one.policy)] for one in verdicts])
        of = rules.get(family, Rules())
        for one, of_server in speaking:
            number, policy, other = id(one.policy), read[id(one.policy)], one.identity
            if of.policy is None or policy is None:
                asks_less = _by_its_own_words(one, policy, of)
            else:
                if (number, family) not in less:
                    less[number, family] = less_by_lane(policy, of.policy)
                asks_less = less[number, family]
            lacks: dict[Lane | None, str] = {
                None if lane == ALL_LANES else Lane(lane): f"It passes `{one.run.policy}`, which {words}."
                for lane, words in asks_less.items()
            }
            known = recorded_declaration(one.provenance)
            if known is not None and known.against:
                other_one = f"It passes, held against `{known.against}`, which is not the family's reference."
                lacks = dict.fromkeys((*BOTH, None), other_one)
            declared = of.branches[branch].template if branch in of.branches else ""
            if declared and one.identity is not None and one.identity.chat_template_sha256 != declared:
                other_one = "It passes with another chat template than the one that the family declares now."
                lacks = dict.fromkeys((*BOTH, None), other_one)
            own = recorded_template(one.provenance)
            if not declared and of.policy is not None and own is not None and own.is_own:
                other_one = "It passes with a chat template of its own that the family's file does not declare."
                lacks = dict.fromkeys((*BOTH, None), other_one)
            current = _same(newest, other)
            if of_server and newest is not None and other is not None:
                current = _FILES.isdisjoint(newest.differing_fields(other))
            pre_check = policy is not None and policy.purpose == "pre-check"
            judged.setdefault((family, branch), []).append(Judged(one.run, lacks, current, pre_check, one.of_itself))
    return judged


def _that_speak(
    verdicts: Sequence[StandingVerdict], policies: Sequence[Policy | None]
) -> tuple[list[tuple[StandingVerdict, bool]], DeploymentIdentity | None]:
    """The verdicts that count, whether each is of a server by itself, and the deployment that the branch is judged as.

    What an endpoint shows by itself says nothing of the weights: a gate's verdict stands beside it, unless it fails. A
    server is mended without another checkpoint: a PASS of the same one, by no less and asked no less, takes the
    place of what was before.
    """
    told, passed = list[tuple[StandingVerdict, bool]](), list[tuple[StandingVerdict, Policy]]()
    for one, policy in zip(verdicts, policies, strict=True):
        if policy is None or any(each.probe is not ProbeName.SERVED for each in policy.criteria):
            told.append((one, False))
            continue
        if any(_mended(one, later) and shortfall(by, policy, policy.lanes) is None for later, by in passed):
            continue
        passed += [(one, policy)] * (one.run.verdict is Verdict.PASS)
        told.append((one, True))
    return told, next((one for one, of_server in told if not of_server), verdicts[0]).identity


def _mended(before: StandingVerdict, later: StandingVerdict) -> bool:
    """Whether a later verdict is of the same files, served under the same name, and rests on as much as the one before.

    How a server was started is what a mend changes: its context, its limits, what it says of itself.
    """
    one, other = before.identity, later.identity
    if one is None or other is None or not _FILES.isdisjoint(one.differing_fields(other)):
        return False
    named = "served_model"
    if (one.engine, one.settings.get(named)) != (other.engine, other.settings.get(named)):
        return False
    asked, again = before.provenance.get(ASKED), later.provenance.get(ASKED)
    if not isinstance(asked, Mapping) or not isinstance(again, Mapping):
        return False
    amounts = {name: value for name, value in asked.items() if isinstance(value, (int, float))}
    less = [name for name, value in amounts.items() if not _at_least(again.get(name), value)]
    return not less and (SECOND_ENDPOINT not in asked or SECOND_ENDPOINT in again)


def _at_least(amount: object, least: float) -> bool:
    return isinstance(amount, (int, float)) and amount >= least


def _same(one: DeploymentIdentity | None, other: DeploymentIdentity | None) -> bool:
    return one == other or (one is not None and other is not None and same_deployment(one, other))


def _by_its_own_words(one: StandingVerdict, policy: Policy | None, rules: Rules) -> Mapping[str, str]:
    """What its policy asks less, as its gate wrote it down, of a family whose policy is not here."""
    known, everywhere = recorded_declaration(one.provenance), (*BOTH, ALL_LANES)
    if policy is None:
        return dict.fromkeys(everywhere, "this version cannot read")
    if known is None or rules.sha256 is None:
        return dict.fromkeys(everywhere, "nobody can hold against the family's own: that is not known here")
    if known.policy_sha256 != rules.sha256:
        return dict.fromkeys(everywhere, f"was held against another version of the family's `{known.policy}`")
    return known.asks_less


def reviews(source: Source, only: BranchKey | None = None) -> dict[BranchKey, Review]:
    """What people decided about every branch or the `only` one."""
    waivers, drifts = standing_waivers(source.waiver_records()), source.kept_drifts()
    every = {(of.family, of.branch): of for of in source.branches()}
    branches = {key: of for key, of in every.items() if only in (None, key)}
    return {
        key: Review(
            next(iter(source.blessings(*key)), None),
            waivers.get(key, ()),
            drifts.get(key),
            changed=of.newest.state is RunState.INTERRUPTED and CHANGED in source.run(of.newest.id).provenance,
            other_bytes=_began_of_other_bytes(source, of),
        )
        for key, of in branches.items()
    }


def _began_of_other_bytes(source: Source, of: BranchSummary) -> bool:
    """Whether what began after the newest verdict is of other files: the newest run that came to say of which."""
    if of.judged is None or of.newest.id == of.judged.id:
        return False
    later = source.summaries(RunFilter(family=of.family, branch=of.branch, since=of.judged.started))
    told = next(one for one in later if one.checkpoint_sha256 is not None or one.id == of.judged.id)
    if told.id == of.judged.id:
        return False
    newer, judged = source.run(told.id).identity, source.run(of.judged.id).identity
    if newer is None or judged is None:
        return newer != judged
    return not _FILES.isdisjoint(judged.differing_fields(newer))
