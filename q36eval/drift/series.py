"""Lays the runs of one metric out as lines: which run joins which, where a line breaks and what changed there. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from q36eval.history.records import SeriesPoint, SeriesRun
from q36eval.records import DeploymentIdentity

_NAMES = {"checkpoint_sha256": "checkpoint", "tokenizer_sha256": "tokenizer", "chat_template_sha256": "chat template"}


@dataclass(frozen=True)
class Placed:
    """One run's figure on its line. `stream` numbers what it compares with: a line broken by other runs goes on later
    in the same stream. It is None where the figure is no finite number."""

    point: SeriesPoint
    line: int
    breaks: tuple[str, ...]
    stream: int | None
    identity_changes: tuple[str, ...]


def place(points: Sequence[SeriesPoint], runs: Sequence[SeriesRun]) -> list[Placed]:
    """The points of one metric, oldest first, on their lines; `runs` are all of the branch, in the same order.

    Runs compare when they were asked the same (suite hash), against the same answers of the same reference, of the
    same engine, and the figure is defined alike. A new checkpoint, another engine version, KV-cache dtype, template or
    setting of the branch is what drift is about: it stays on the line and is named. A reference that was captured anew
    and answers otherwise begins a new line: every effect is taken against it, so what moved then is no move of the
    branch. One that answers the same, by whichever version, is the same.
    """
    placed: list[Placed] = []
    heads: list[SeriesPoint] = []
    missing = _missing(points, runs)
    last: dict[int, SeriesPoint] = {}
    for number, point in enumerate(points):
        before = points[number - 1] if number else None
        breaks = [] if before is None else [*_differences(before, point), *_unknown(before, "the run before it")]
        breaks += missing[number] + (_unknown(point, "this run") if before is not None else [])
        stream = _stream(point, heads)
        compared = before if stream is None else last.get(stream)
        placed.append(
            Placed(
                point=point,
                line=placed[-1].line + bool(breaks) if placed else 0,
                breaks=tuple(dict.fromkeys(breaks)),
                stream=stream,
                identity_changes=() if compared is None else identity_changes(compared.run, point.run),
            )
        )
        if stream is not None:
            last[stream] = point
    return placed


def _stream(point: SeriesPoint, heads: list[SeriesPoint]) -> int | None:
    """The number of the stream whose first point this one compares with; a new one where there is none."""
    if not math.isfinite(point.effect):
        return None
    for number, head in enumerate(heads):
        if not _differences(head, point):
            return number
    heads.append(point)
    return len(heads) - 1


def _differences(before: SeriesPoint, after: SeriesPoint) -> list[str]:
    """What must agree for two figures to be compared, and does not."""
    differences = [] if before.suite_sha256 == after.suite_sha256 else [f"another suite of {after.probe} was asked"]
    one, other = before.run.identity, after.run.identity
    if one is None or other is None:
        differences += ["the deployment could not be identified"]
    elif one.engine != other.engine:
        differences.append(f"another engine: {one.engine} -> {other.engine}")
    differences += _of_reference(before, after)
    if (before.estimator, before.unit) != (after.estimator, after.unit):
        differences.append("the metric is defined otherwise")
    return differences


def _of_reference(before: SeriesPoint, after: SeriesPoint) -> list[str]:
    """How the references of two figures differ, in at most one sentence.

    What the reference answered decides where both runs kept its hash: a new version that answers the same is the same,
    and the same version may answer otherwise when it is asked again. Where a run kept none, the identity decides.
    """
    one, other = before.run.reference_identity, after.run.reference_identity
    then, now = (point.run.reference_answers.get(point.probe.value) for point in (before, after))
    of_same_items = then is not None and now is not None and _items(then) == _items(now)
    if one is None or other is None:
        return [] if one is other else ["another reference"]
    changed = [] if one is other else one.differing_fields(other)  # what many runs share is read once
    if set(changed) - {"engine_version", "settings", "kv_cache_dtype"}:
        return [f"another reference ({', '.join(_changed(one, other))})"]
    if then == now if of_same_items else not changed:
        return []
    how = f" ({', '.join(_changed(one, other))})" if changed else ""
    return [f"the reference was captured anew{how}{_paired_shift(before, after)}"]


def _items(answers: str) -> str:
    """Of how many items the hash is: other items have other answers, which says nothing of the reference."""
    return answers.partition(":")[0]


def _paired_shift(before: SeriesPoint, after: SeriesPoint) -> str:
    """How far the reference's own figure moved, and the branch's, where both stand in the figure."""
    own = [_own_figure(point) for point in (before, after)]
    if before.scored != after.scored or own[0] is None or own[1] is None:
        return ""
    return (
        f": its own figure went from {own[0]:.4g} to {own[1]:.4g}, the branch's from {before.value:.4g} to "
        f"{after.value:.4g}"
    )


def _own_figure(point: SeriesPoint) -> float | None:
    """The reference's figure behind a paired effect; None where there is none, as of a divergence."""
    if not (math.isfinite(point.effect) and math.isfinite(point.value)):
        return None
    if point.estimator in ("paired_mean", "paired_proportions"):
        return point.value - point.effect
    if point.estimator in ("ratio", "perplexity") and point.effect:
        return point.value / point.effect
    return None


def _unknown(point: SeriesPoint, which: str) -> list[str]:
    return [] if math.isfinite(point.effect) else [f"{which} gave no finite figure"]


def _missing(points: Sequence[SeriesPoint], runs: Sequence[SeriesRun]) -> list[list[str]]:
    """Per point: the runs just before it that asked the metric's probe and did not measure it."""
    measured = {point.run.id: number for number, point in enumerate(points)}
    before: list[list[str]] = [[] for _ in points]
    without: list[str] = []
    for run in runs:
        if run.id in measured:
            if without and measured[run.id] > 0:
                before[measured[run.id]] = [f"not measured in {_named(without)}"]
            without = []
        elif _was_to_measure(run, points[0]):
            without.append(run.id)
    return before


def unmeasured_since(points: Sequence[SeriesPoint], runs: Sequence[SeriesRun]) -> str | None:
    """The newest run, if it asked the metric's probe in the same suite as before and yet did not measure it."""
    newest = points[-1]
    same = (run for run in runs if run.suites.get(newest.probe.value) == newest.suite_sha256)
    measuring = [run for run in same if run.id == newest.run.id or _was_to_measure(run, newest)]
    return None if not measuring or measuring[-1].id == newest.run.id else measuring[-1].id


def _was_to_measure(run: SeriesRun, point: SeriesPoint) -> bool:
    """A gate measures all that its probes have; one probe alone may be asked for a part."""
    return run.policy is not None and point.probe.value in run.suites


def _named(run_ids: Sequence[str]) -> str:
    return f"run {run_ids[0]}" if len(run_ids) == 1 else f"{len(run_ids)} runs, {run_ids[0]} the first"


def identity_changes(before: SeriesRun, after: SeriesRun) -> tuple[str, ...]:
    """What changed in the deployment from one run to the other, or in how the reference was captured.

    Settings go by their own names. Of a change of both by the same the deployment's alone is named.
    """
    changed = _changes(before.identity, after.identity)
    of_reference = _changes(before.reference_identity, after.reference_identity)
    return (*changed, *(f"the reference's {each}" for each in of_reference if each not in changed))


def _changes(one: DeploymentIdentity | None, other: DeploymentIdentity | None) -> list[str]:
    return [] if one is None or other is None else _changed(one, other)


def _changed(one: DeploymentIdentity, other: DeploymentIdentity) -> list[str]:
    if one is other:  # what many runs share is read once
        return []
    changes = []
    for field in one.differing_fields(other):
        if field == "settings":
            changes += [f"setting {name}{values}" for name, values in _settings(one.settings, other.settings)]
        elif field in _NAMES:
            changes.append(_NAMES[field])
        else:
            name = "KV-cache dtype" if field == "kv_cache_dtype" else field.replace("_", " ")
            changes.append(f"{name} {getattr(one, field)} -> {getattr(other, field)}")
    return changes


def _settings(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str]]:
    names = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    return [(name, f" {one.get(name, 'unset')} -> {other.get(name, 'unset')}") for name in names]
