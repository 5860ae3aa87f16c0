"""Margins proposed from measured noise, and the policy file that proposes them.

Noise is that of the reference against itself, of accepted runs, and the noise floor of the KL. The file extends the
calibrated policy and changes its margins alone.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import yaml

from q36eval.app.policies.files import FILE_ENDINGS
from q36eval.app.policies.noise import KnownFloor, NoiseRun, floor_among, known_floor, noise_runs
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.files import real_path
from q36eval.gate import Criterion, Policy
from q36eval.gate.judge import judge
from q36eval.gate.noise import NoiseFloor, floor_of, floor_unit
from q36eval.gate.policy_file import read_policy
from q36eval.records import Measurement
from q36eval.stats import loss_limit, power, tightest_limit

PASSES = 0.95
"""How often a branch that loses as much as an accepted one is to pass: 19 times in 20."""

SIGNIFICANT = 2
"""Digits of a proposed limit, rounded away from zero: margins are written for people."""

Change = Literal["keep", "tighten", "widen", "set", "not calibrated"]
"""A scheme's figure that there was none of is `set`."""


@dataclass(frozen=True)
class Noise:
    """What one run lost by one criterion: `loss`, its one-sided `bound`, and the limit `needed` for it to pass.

    `moved` says whether any answer differed from the reference's at all.
    """

    run: str
    branch: str
    kind: Literal["reference", "accepted"]
    loss: float
    bound: float
    needed: float
    moved: bool
    scored: int


@dataclass(frozen=True)
class CriterionCalibration:
    """One criterion: its margin now, what noise and items ask for, and what is proposed.

    Limits are in the loss' unit (`stats.loss_limit`), `old` and `new` in the margin's own. `shown` is the least limit
    that these items can show, `flips` the share of changed answers up to which a branch without loss passes 19 times
    in 20; None where neither is known. `tighter_than_floor` and `not_shown` say what is wrong with the margin as it is.
    Where a `scheme` is named, the figures are that scheme's own.
    """

    id: str
    key: str
    kind: str
    old: float
    old_limit: float
    change: Change
    new: float | None
    why: str
    floor: NoiseFloor | None = None
    shown: float | None = None
    flips: float | None = None
    noise: tuple[Noise, ...] = ()
    tighter_than_floor: str | None = None
    not_shown: str | None = None
    scheme: str | None = None

    @property
    def proposed(self) -> bool:
        """Whether another margin is proposed."""
        return self.change in ("tighten", "widen", "set")


@dataclass(frozen=True)
class Calibration:
    """All criteria of a policy, the runs they were held against, and what was left out."""

    policy: Policy
    runs: tuple[NoiseRun, ...]
    floor_source: str
    criteria: tuple[CriterionCalibration, ...]
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Plain values; the policy by its name."""
        criteria = [
            {**asdict(each), "floor": None if each.floor is None else json.loads(each.floor.model_dump_json())}
            for each in self.criteria
        ]
        runs = [{"run": each.run.id, "branch": each.run.branch, "kind": each.kind} for each in self.runs]
        return {
            "policy": self.policy.name,
            "runs": runs,
            "floor": self.floor_source,
            "criteria": criteria,
            "notes": list(self.notes),
        }


def calibration(policy: Policy, family: Family, paths: Paths, named: Sequence[str] = ()) -> Calibration:
    """Hold every criterion against what the runs in history show of noise; `named` runs count as accepted too.

    Raises:
        UsageError: there is no such run, or none to calibrate by.
    """
    runs, notes = noise_runs(family, paths, named)
    known = floor_among(runs, paths) or known_floor(family, paths)
    criteria = tuple(_calibrated(policy, criterion, runs, known) for criterion in policy.criteria)
    return Calibration(policy, runs, known.source, criteria, notes)


def _calibrated(
    policy: Policy, criterion: Criterion, runs: Sequence[NoiseRun], known: KnownFloor
) -> CriterionCalibration:
    limit = loss_limit(criterion.margin)
    floor = floor_of(criterion, known.measurements)
    measured = [(run, m) for run in runs if (m := run.measured.get(criterion.key)) is not None]
    whole = [(run, m) for run, m in measured if not run.stopped_early(criterion.key)]
    noise = tuple(each for run, m in whole if (each := noise_of(criterion, run, m)) is not None)
    reason = _uncalibrated(criterion, noise, floor, (len(measured), len(whole)))
    if reason is not None:
        return _result(criterion, limit, "not calibrated", None, reason, floor=floor, noise=noise)
    largest = max((m for _, m in measured), key=lambda m: m.counts.scored, default=None)
    shown, flips = (None, None) if largest is None else _showable(policy, criterion, largest)
    lowest = list(_lowest_limits(criterion, noise, floor, shown, largest))
    least = max((asks for asks, _ in lowest), default=0.0)
    accepted = max((each.needed for each in noise if each.kind == "accepted"), default=None)
    target = max(least, limit if accepted is None else accepted)
    change, new = _proposal(criterion, limit, target)
    moved = [words for asks, words in lowest if asks > limit and not words.startswith("its items")]
    return _result(
        criterion,
        limit,
        change,
        new,
        _why(lowest, noise, accepted, change),
        floor=floor,
        noise=noise,
        shown=shown,
        flips=flips,
        tighter_than_floor="; ".join(moved) or None,
        not_shown=next((words for asks, words in lowest if asks > limit and words.startswith("its items")), None),
    )


def _result(
    criterion: Criterion, limit: float, change: Change, new: float | None, why: str, **more: Any
) -> CriterionCalibration:
    margin = criterion.margin
    return CriterionCalibration(criterion.id, criterion.key, margin.kind, margin.value, limit, change, new, why, **more)


def noise_of(criterion: Criterion, run: NoiseRun, measurement: Measurement) -> Noise | None:
    """What a run lost by a criterion; None where it cannot be judged by it."""
    result = judge(criterion.model_copy(update={"informative": None}), [measurement], [])
    if result.loss is None or result.loss_interval is None or not math.isfinite(result.loss_interval.upper):
        return None
    needed = _needed(result.loss, result.loss_interval.upper, criterion.confidence)
    return Noise(
        run.run.id,
        run.run.branch,
        run.kind,
        result.loss,
        result.loss_interval.upper,
        needed,
        _moved(measurement),
        measurement.counts.scored,
    )


def _moved(measurement: Measurement) -> bool:
    """Whether anything differed from the reference; a divergence has no reference beside it, and is 0 where not."""
    clusters = measurement.clusters
    if clusters is None:
        return measurement.value != 0
    nothing = (0.0,) * len(clusters.branch) if clusters.reference is None else clusters.reference
    return clusters.branch != nothing


def _needed(loss: float, bound: float, confidence: float) -> float:
    """The limit below which the bound of a run that loses as much lies 19 times in 20.

    The bound lies z(confidence) standard errors above the loss; that of another such run varies by one standard error,
    so that z(0.95) more are needed (normal approximation). That a run gained something was luck, and is not counted on.
    """
    z = NormalDist().inv_cdf
    return max(loss, 0.0) + (1.0 + z(PASSES) / z(confidence)) * (bound - loss)


def _uncalibrated(
    criterion: Criterion, noise: Sequence[Noise], floor: NoiseFloor | None, runs: tuple[int, int]
) -> str | None:
    """Why nothing is proposed; None where something may be. `runs` hold its measurement, and hold it whole."""
    if criterion.margin.kind == "max_count":
        counted = [each for each in noise if each.kind == "reference" and each.loss > criterion.margin.value]
        if counted:
            return f"the reference itself counts {counted[0].loss:g} in run {counted[0].run}, which is a fault"
        return "a counted fault is no noise"
    if criterion.margin.kind == "max_share":
        return "it counts clusters beyond a threshold, of which noise says nothing; its threshold follows a margin"
    if criterion.margin.schemes:
        return "its ceiling is no noise, and --scheme with --candidate sets the figure of a scheme"
    if criterion.margin.against == "blessed":
        return "it is held against the blessed run, of which the reference's noise says nothing"
    if floor is not None and not math.isfinite(floor.loss):
        return f"its noise floor is no finite number ({floor.source}), and refuses every margin"
    if noise or floor is not None:
        return None
    if not runs[0]:
        return "no run to calibrate by holds its measurement"
    if not runs[1]:
        return "every run stopped early, once its margin was resolved: measure one with --exhaustive"
    return "no run could be judged by it"


def _showable(policy: Policy, criterion: Criterion, measurement: Measurement) -> tuple[float | None, float | None]:
    """The least limit that its items can show, and up to which share of changed answers the margin is shown."""
    clusters, margin = measurement.clusters, criterion.margin
    if clusters is None or clusters.reference is None or margin.kind not in ("min_recovery", "max_increase"):
        return None, None
    identical = clusters.model_copy(update={"branch": clusters.reference})
    settings: dict[str, Any] = {
        "confidence": criterion.confidence,
        "direction": measurement.direction,
        "estimator": measurement.estimator,
    }
    sharing = sum(c.tier == criterion.tier and c.margin.kind != "max_count" for c in policy.criteria)
    try:
        shown = tightest_limit(identical, margin.kind, **settings)
        flips = power(identical, margin, alpha=policy.alpha, criteria=max(1, sharing), **settings).most_flips
    except ValueError:  # unbounded values, items that errored: no such figure is known of them
        return None, None
    return shown, flips


def _lowest_limits(
    criterion: Criterion,
    noise: Sequence[Noise],
    floor: NoiseFloor | None,
    shown: float | None,
    largest: Measurement | None,
) -> Iterator[tuple[float, str]]:
    """Limits below which no margin makes sense, each with its reason."""
    if floor is not None:
        yield floor.loss, f"the noise floor is {floor.loss:.3g} {floor_unit(criterion.metric)} ({floor.source})"
    for each in noise:
        if each.kind == "reference" and each.moved:
            yield each.needed, f"the reference against itself (run {each.run}) {_lost(each)}"
    if shown is not None and largest is not None:
        yield shown, f"its items ({largest.counts.scored:,} scored) can exclude no loss below {shown:.2g}"


def _lost(noise: Noise) -> str:
    return f"loses {noise.loss:.2g}, at most {noise.bound:.2g}"


def _proposal(criterion: Criterion, limit: float, target: float) -> tuple[Change, float | None]:
    if math.isclose(target, limit, rel_tol=1e-9):
        return "keep", None
    new = limit_as_margin(criterion, rounded_up(target))
    if criterion.margin.kind in ("min_recovery", "min_retention") and not 0 < new <= 1:
        return "not calibrated", None
    if math.isclose(new, criterion.margin.value, rel_tol=1e-9):
        return "keep", None
    at_least = criterion.margin.kind in ("min_recovery", "min_retention")
    wider = new < criterion.margin.value if at_least else new > criterion.margin.value
    return ("widen" if wider else "tighten"), new


def rounded_up(limit: float) -> float:
    """A limit for people, rounded away from zero."""
    if limit <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(limit)) - SIGNIFICANT + 1)
    return round(math.ceil(limit / step - 1e-9) * step, 12)


def limit_as_margin(criterion: Criterion, limit: float) -> float:
    """The limit in the margin's own terms, rounded to the wider side."""
    if criterion.margin.kind == "min_recovery":
        return round(1.0 - limit, 12)
    if criterion.margin.kind == "min_retention":
        return math.floor(math.exp(-limit) * 1e4) / 1e4
    return limit


def _why(lowest: Sequence[tuple[float, str]], noise: Sequence[Noise], accepted: float | None, change: Change) -> str:
    """The sentence that goes into the new margin's source: what the figure rests on."""
    parts = []
    if accepted is not None:
        worst = max((each for each in noise if each.kind == "accepted"), key=lambda each: each.needed)
        parts.append(
            f"the accepted run {worst.run} ({worst.branch}) {_lost(worst)} on {worst.scored:,} scored, and a branch "
            f"that loses as much is to pass {PASSES:.0%} of the time"
        )
    still = sorted(each.run for each in noise if each.kind == "reference" and not each.moved)
    if still:
        parts.append(f"the reference against itself changed no answer ({', '.join(still)})")
    parts += [words for _, words in sorted(lowest, reverse=True)[:2]]
    return "; ".join(parts) or "nothing measured asks for another"


HEADER = """\
# Proposed by `q36eval policy calibrate` from measured noise. Read each margin and its source before using it.
"""


def as_policy_file(
    calibrated: Calibration, extends: str, out: Path | None, name: str | None = None, *, widen: bool = False
) -> str:
    """The file as text. Wider margins are in it only if asked for; `extends` is what the person named."""
    changed = [
        each for each in calibrated.criteria if each.change in ("tighten", "set", *(("widen",) if widen else ()))
    ]
    sources = {criterion.id: criterion.margin.source for criterion in calibrated.policy.criteria}
    runs = ", ".join(each.run.id for each in calibrated.runs)
    document = {
        "name": name or f"{calibrated.policy.name}-calibrated",
        "description": f"{calibrated.policy.name} with margins calibrated on {runs}.",
        "extends": _extends(extends, out),
        "criteria": [{"id": each.id, "margin": _margin(each, sources[each.id])} for each in changed],
    }
    return HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _margin(each: CriterionCalibration, old_source: str) -> dict[str, object]:
    """The new value, and a source that says from what, what it was before, and whether it is wider."""
    if each.scheme is not None:
        direction = {"widen": "wider: ", "tighten": "tighter: "}.get(each.change, "")
        source = f"calibrated, {direction}{each.why}"
        return {"schemes": [{"scheme": each.scheme, "value": each.new, "source": source}]}
    direction = "wider" if each.change == "widen" else "tighter"
    source = f"calibrated, {direction} than the {each.kind} {each.old:g} before ({old_source}): {each.why}"
    return {"value": each.new, "source": source}


def _extends(named: str, out: Path | None) -> str:
    """A shipped policy by its name; a file as it is found from the folder of the new one."""
    if not named.endswith(FILE_ENDINGS):
        return named
    return os.path.relpath(real_path(named), Path.cwd() if out is None else real_path(out).parent)


def write_policy(text: str, out: Path) -> None:
    """Write the file and read it back; one that is there is never overwritten.

    Raises:
        UsageError: it exists, cannot be written, or is no .yaml file.
    """
    if out.suffix not in FILE_ENDINGS:
        raise UsageError("option-value", f"A policy is a .yaml file, not {out.name!r}.")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError("file-exists", f"{out} exists and is never overwritten; name another file.") from error
    except OSError as error:
        raise UsageError("file-unwritable", f"The policy cannot be written to {out}: {error.strerror}.") from error
    read_policy(out)
