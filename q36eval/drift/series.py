"""Which runs of a metric compare with the blessed one, and what changed in the deployment between them. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence

from q36eval.history.records import SeriesPoint, SeriesRun
from q36eval.records import DeploymentIdentity

_NAMES = {"checkpoint_sha256": "checkpoint", "tokenizer_sha256": "tokenizer", "chat_template_sha256": "chat template"}


def why_apart(base: SeriesPoint, point: SeriesPoint) -> list[str]:
    """Why a run's figure does not compare with the one of `base`; empty where it does.

    Runs compare when they evaluated the same (suite hash), against the same answers of the same reference, on the same
    engine, and the figure is defined identically. A new checkpoint, another engine version, KV-cache dtype, template or
    setting of the branch does not part them: that is what drift is to find.
    """
    if not math.isfinite(point.effect):
        return ["it gave no finite figure"]
    differences = [] if base.suite_sha256 == point.suite_sha256 else [f"another suite of {point.probe} was evaluated"]
    one, other = base.run.identity, point.run.identity
    if one is None or other is None:
        differences += ["the deployment could not be identified"]
    elif one.engine != other.engine:
        differences.append(f"another engine: {one.engine} -> {other.engine}")
    differences += _of_reference(base, point)
    if (base.estimator, base.unit) != (point.estimator, point.unit):
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
    return [f"the reference was captured again{how}"]


def _items(answers: str) -> str:
    """Of which items the hash is: other items have other answers, which says nothing of the reference."""
    return answers.partition(":")[0]


def unmeasured_since(points: Sequence[SeriesPoint], runs: Sequence[SeriesRun]) -> str | None:
    """The newest run, if it asked the metric's probe in the same suite as before and yet did not measure it."""
    newest = points[-1]
    same = (run for run in runs if run.suites.get(newest.probe.value) == newest.suite_sha256)
    # a gate measures all that its probes have; one probe alone may be asked for a part
    gates = {run.id for run in runs if run.policy is not None and newest.probe.value in run.suites}
    measuring = [run for run in same if run.id == newest.run.id or run.id in gates]
    return None if not measuring or measuring[-1].id == newest.run.id else measuring[-1].id


def identity_changes(before: SeriesRun, after: SeriesRun) -> tuple[str, ...]:
    """What changed in the deployment from one run to the other, or in how the reference was captured.

    Settings go by their own names. Of a change of both by the same the deployment's alone is named.
    """
    changed = _changed(before.identity, after.identity)
    of_reference = _changed(before.reference_identity, after.reference_identity)
    return (*changed, *(f"the reference's {each}" for each in of_reference if each not in changed))


def _changed(one: DeploymentIdentity | None, other: DeploymentIdentity | None) -> list[str]:
    if one is None or other is None or one is other:  # what many runs share is read once
        return []
    changes = []
    for field in one.differing_fields(other):
        if field == "settings":
            before, after = (defaultdict(lambda: "unset", each.settings) for each in (one, other))
            names = sorted({*one.settings, *other.settings})
            changes += [f"setting {n} {before[n]} -> {after[n]}" for n in names if before[n] != after[n]]
        elif field in _NAMES:
            changes.append(_NAMES[field])
        else:
            name = "KV-cache dtype" if field == "kv_cache_dtype" else field.replace("_", " ")
            changes.append(f"{name} {getattr(one, field)} -> {getattr(other, field)}")
    return changes
