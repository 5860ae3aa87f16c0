"""The drift part of the branch page. Pure."""

from collections import Counter
from collections.abc import Sequence

from q36eval.drift import ALPHA, BranchDrift, DriftState, MetricDrift

STATE_LABELS = {
    DriftState.DRIFTING: ("▲ DRIFTING", "red"),
    DriftState.INCOMPARABLE: ("≠ INCOMPARABLE", "orange"),
    DriftState.NOT_BLESSED: ("… NOT BLESSED", "gray"),
    DriftState.STABLE: ("✓ STABLE", "green"),
    DriftState.CHART_ONLY: ("– CHART ONLY", "gray"),
}
"""Symbol with words, and a Streamlit colour; what needs a look comes first."""


def state_label(state: DriftState, worse: bool) -> tuple[str, str]:
    """Symbol with words, and a Streamlit colour; a move for the better is not alarming."""
    label, colour = STATE_LABELS[state]
    if state is not DriftState.DRIFTING:
        return label, colour
    return (f"{label} FOR THE WORSE", colour) if worse else (f"{label} FOR THE BETTER", "blue")


def in_order(drift: BranchDrift) -> list[MetricDrift]:
    """The KL over everything, then drifts for the worse, then other unstable metrics."""
    order, first = list(STATE_LABELS), "kl.kl_divergence[all]"
    return sorted(
        drift.metrics,
        key=lambda one: (not one.watched, one.key != first, order.index(one.state), not one.worse, one.key),
    )


def comparable(metric: MetricDrift) -> int:
    """How many runs of a metric compare with the blessed one, or with the newest where none is blessed."""
    return sum(not point.apart for point in metric.points)


def needed_words(metrics: Sequence[MetricDrift]) -> str | None:
    """How many more runs it takes until there is something to follow; None where two compare."""
    most = max(map(comparable, metrics), default=0)
    if most > 1:
        return None
    return f"Drift needs {2 - most} more comparable run{'s' * (most == 0)}: the same suite, reference and engine."


def since_run(drift: BranchDrift) -> str | None:
    """The run at which most drifting metrics changed; only those for the worse if any."""
    drifting = [one for one in drift.metrics if one.watched and one.state is DriftState.DRIFTING]
    moved = [one for one in drifting if one.worse] or drifting
    runs = Counter(one.since_run_id for one in moved if one.since_run_id is not None)
    return runs.most_common(1)[0][0] if runs else None


def alarms_words(drift: BranchDrift) -> str:
    """The drift criteria of a branch, and the false alarm rate for a stable one."""
    return (
        f"{drift.watched} metrics decide it: the newest of {drift.runs:,} runs is paired with the blessed one, item by "
        f"item. Runs that do not differ are reported as drifting in at most {ALPHA:.0%} of comparisons."
    )


def change_rows(drift: BranchDrift) -> list[dict[str, str]]:
    """Runs with which something of the deployment changed, newest first."""
    return [
        {"when (UTC)": f"{one.started:%Y-%m-%d %H:%M}", "run": one.run_id, "changed": ", ".join(one.changed)}
        for one in drift.changes
    ]
