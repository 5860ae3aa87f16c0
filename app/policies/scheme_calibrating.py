"""A scheme's figures set from accepted runs of other branches of that scheme, never from the candidate's own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from q36eval.app.policies.calibrating import (
    Calibration,
    Change,
    CriterionCalibration,
    Noise,
    limit_as_margin,
    noise_of,
    rounded_up,
)
from q36eval.app.policies.noise import KnownFloor, NoiseRun, floor_among, known_floor, noise_runs
from q36eval.app.targets import name_in_history, resolve
from q36eval.checkpoints.hashing import checkpoint_sha256
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate import Criterion, Policy, SchemeFigure
from q36eval.gate.margins import held_to, schemes_found
from q36eval.gate.noise import floor_of, floor_unit
from q36eval.gate.policy import stricter
from q36eval.history import History
from q36eval.metrics import metric_of
from q36eval.schemes import mixture_name, parts_of
from q36eval.stats import loss_limit

LEAST_CHECKPOINTS = 2
"""Of one branch alone nobody knows whether another of its scheme is like it."""


@dataclass(frozen=True)
class Wanted:
    """Whose figures are set: those of `scheme`, for judging `candidate`, by `owner` on that day."""

    scheme: str
    candidate: str
    owner: str
    on: date


def scheme_calibration(
    policy: Policy, family: Family, paths: Paths, wanted: Wanted, named: Sequence[str] = ()
) -> Calibration:
    """The scheme's figure of every divergence and perplexity, from accepted runs (blessed, or `named`) of others.

    A run is the candidate's own, and left out, where it is of a branch of its name or of its very checkpoint.

    Raises:
        UsageError: the scheme is none, the owner is blank, there is no such run, or too few are left.
    """
    try:
        parts = parts_of(wanted.scheme)
    except ValueError as error:
        raise UsageError("scheme-unknown", f"Nothing can be calibrated: {error}.") from error
    if not wanted.owner.strip():
        raise UsageError("owner-required", "A scheme's figure names who set it: give --owner.")
    runs, notes = noise_runs(family, paths, named)
    own = _own_checkpoints(wanted.candidate, family, paths)
    refused = {each.run.id: _refused(each, parts, name_in_history(wanted.candidate, family), own) for each in runs}
    taken = tuple(each for each in runs if refused[each.run.id] is None)
    notes += tuple(f"run {name} ({why})" for name, why in refused.items() if why is not None)
    name = mixture_name(parts)
    if len(_checkpoints(taken)) < LEAST_CHECKPOINTS:
        raise UsageError(
            "runs-too-few",
            f"Too few runs to set a figure for {name}: accepted runs of {LEAST_CHECKPOINTS} other checkpoints of that "
            f"scheme are needed, and history holds {len(_checkpoints(taken))}"
            + (f" (left out: {'; '.join(notes)})" if notes else "")
            + "; bless runs of other branches (q36eval history bless), or name them with --run.",
        )
    known = floor_among(runs, paths) or known_floor(family, paths)
    wanted = replace(wanted, scheme=name)
    criteria = tuple(_calibrated(criterion, wanted, taken, known) for criterion in policy.criteria)
    return Calibration(policy, taken, known.source, criteria, notes)


def _own_checkpoints(candidate: str, family: Family, paths: Paths) -> frozenset[str]:
    """The hashes of what the candidate's runs were of, and of its folder where it is on this machine."""
    own: set[str] = set()
    if paths.has_history:
        history = History.open(paths.history_url)
        try:
            runs = history.list_runs(family=family.name, branch=name_in_history(candidate, family))
            own |= {run.identity.checkpoint_sha256 for run in runs if run.identity is not None}
        finally:
            history.close()
    folder = _folder(candidate, family, paths)
    if folder is not None:
        own.add(checkpoint_sha256(folder))
    return frozenset(own)


def _folder(candidate: str, family: Family, paths: Paths) -> Path | None:
    try:
        return resolve(candidate, family, paths).folder
    except UsageError:  # its weights need not be here: its runs tell its hash
        return None


def _refused(each: NoiseRun, parts: frozenset[str], candidate: str, own: frozenset[str]) -> str | None:
    """Why a run sets no figure; None where it may."""
    identity = each.run.identity
    if each.run.branch == candidate:
        return "the candidate's own"
    if identity is None:
        return "of a checkpoint that nobody knows"
    if identity.checkpoint_sha256 in own:
        return f"of the candidate's checkpoint, under the name {each.run.branch}"
    if each.kind == "reference":
        return "of the reference"
    schemes = schemes_found(list(each.measured.values()))
    if schemes != parts:
        return "its weights were not inspected" if schemes is None else f"of {mixture_name(schemes) or 'no scheme'}"
    return None


def _checkpoints(runs: Sequence[NoiseRun]) -> set[str]:
    return {each.run.identity.checkpoint_sha256 for each in runs if each.run.identity is not None}


def _calibrated(
    criterion: Criterion, wanted: Wanted, runs: Sequence[NoiseRun], known: KnownFloor
) -> CriterionCalibration:
    margin = criterion.margin
    before = next((figure for figure in margin.schemes if figure.scheme == wanted.scheme), None)
    held = held_to(criterion, before)
    floor = floor_of(criterion, known.measurements)

    def result(change: Change, new: float | None, why: str, noise: tuple[Noise, ...] = ()) -> CriterionCalibration:
        return CriterionCalibration(
            criterion.id,
            criterion.key,
            margin.kind,
            held.margin.value,
            loss_limit(held.margin),
            change,
            new,
            why,
            floor=floor,
            noise=noise,
            scheme=wanted.scheme,
        )

    if not metric_of(criterion.probe, criterion.metric).is_distance:
        return result("not calibrated", None, "a consequence has the same margin for every scheme")
    if margin.against == "blessed":
        return result("not calibrated", None, "it is held against the blessed run, whatever the scheme")
    measured = [(run, run.measured[criterion.key]) for run in runs if criterion.key in run.measured]
    noise = tuple(each for run, m in measured if (each := noise_of(held_to(criterion, None), run, m)) is not None)
    judged = [run for run, _ in measured if run.run.id in {each.run for each in noise}]
    if len(_checkpoints(judged)) < LEAST_CHECKPOINTS:
        return result("not calibrated", None, f"fewer than {LEAST_CHECKPOINTS} checkpoints were measured by it", noise)
    target = max(each.needed for each in noise)
    floored = floor is not None and floor.loss > target
    if floor is not None and floored:
        target = floor.loss
    new = limit_as_margin(criterion, rounded_up(target))
    why = "; ".join(_reasons(criterion, wanted, noise, before, floored and floor is not None))
    if stricter(margin.kind, margin.value, new):
        beyond = f"{why}; they ask for {new:g}, beyond the ceiling {margin.value:g}"
        return result("not calibrated", None, beyond, noise)
    return result(_change(criterion, before, new), new, why, noise)


def _change(criterion: Criterion, before: SchemeFigure | None, new: float) -> Change:
    if before is None:
        return "set"
    if new == before.value:
        return "keep"
    return "tighten" if stricter(criterion.margin.kind, new, before.value) else "widen"


def _reasons(
    criterion: Criterion, wanted: Wanted, noise: Sequence[Noise], before: SchemeFigure | None, floored: bool
) -> Iterator[str]:
    """What the new figure's source says: who, when, from what."""
    yield (
        f"set by {wanted.owner} on {wanted.on.isoformat()} for {wanted.scheme}, from accepted runs of other branches "
        f"than {wanted.candidate}"
    )
    for each in noise:
        yield f"{each.run} ({each.branch}) loses {each.loss:.2g}, at most {each.bound:.2g}, on {each.scored:,} scored"
    yield "a branch that loses as much as the worst of them is to pass 95% of the time"
    if floored:
        yield f"no figure lies below the noise floor (in {floor_unit(criterion.metric)})"
    if before is not None:
        yield f"before, {before.value:g} ({before.source})"
