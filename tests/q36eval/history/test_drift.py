"""Drift statements."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from q36eval.history import DriftState, SeriesPoint, SeriesRun, drift
from q36eval.records import DeploymentIdentity, Direction, Interval, ProbeName

IDENTITY = DeploymentIdentity(
    checkpoint_sha256="aa", tokenizer_sha256="bb", chat_template_sha256="cc", engine="in-process", engine_version="1"
)


def point(day: int, effect: float, half_width: float = 0.01, suite: str = "s", higher: bool = False, **identity: str):
    run = SeriesRun(
        id=f"r{day}",
        started=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        verdict=None,
        policy="sandbox",
        suites={"evals": suite},
        identity=IDENTITY.model_copy(update=identity),
        reference_identity=IDENTITY,
    )
    metric = "accuracy" if higher else "perplexity"
    return SeriesPoint(
        run=run,
        probe=ProbeName.EVALS,
        metric=metric,
        key=f"evals.{metric}[all]",
        unit="fraction",
        direction=Direction.HIGHER_IS_BETTER if higher else Direction.LOWER_IS_BETTER,
        estimator="paired_mean",
        value=0.5 + effect,
        effect=effect,
        effect_interval=Interval(lower=effect - half_width, upper=effect + half_width, level=0.95, method="betting"),
        scored=9,
        errored=0,
    )


@pytest.mark.parametrize(
    ("series", "blessed", "state", "words"),
    [
        ([point(1, 0.0), point(2, 0.03)], "r1", DriftState.MOVED, "for the worse: 0 -> 0.03"),
        ([point(1, 0.0, higher=True), point(2, 0.03, higher=True)], "r1", DriftState.MOVED, "for the better"),
        ([point(1, 0.0), point(2, 0.009)], "r1", DriftState.WITHIN, "Within the intervals of the blessed run"),
        ([point(1, 0.0), point(2, 0.03, 0.05)], "r1", DriftState.WITHIN, "0 -> 0.03"),
        ([point(1, 0.0), point(2, 0.03)], None, DriftState.MOVED, "oldest comparable run (none is blessed)"),
        ([point(2, 0.03), point(1, 0.0)], "r1", DriftState.MOVED, "worse"),
        ([point(1, 0.0)], "r1", DriftState.TOO_FEW_RUNS, "Nothing was measured after the blessed run"),
        ([point(2, 0.0)], "r1", DriftState.TOO_FEW_RUNS, "did not measure this"),
        ([point(1, 0.0, suite="t"), point(2, 0.5)], "r1", DriftState.INCOMPARABLE, "suite hash changed"),
        ([point(1, 0.0, engine="vllm"), point(2, 0.5)], "r1", DriftState.INCOMPARABLE, "engine changed"),
        ([point(1, 0.0, engine="vllm"), point(2, 0.5)], None, DriftState.INCOMPARABLE, "No earlier run"),
        ([point(1, 0.0, checkpoint_sha256="zz"), point(2, 0.5)], "r1", DriftState.MOVED, "worse"),
        ([point(1, float("nan")), point(2, 0.5)], "r1", DriftState.INCOMPARABLE, "not finite"),
    ],
)
def test_statement(series, blessed, state, words) -> None:
    (found,) = drift(series, blessed)
    assert found.state is state
    assert words in found.statement
    assert [p.run_id for p in found.points] == sorted(p.run_id for p in found.points)


def test_the_reference_s_own_noise_is_no_drift_of_the_branch() -> None:
    quiet = point(1, 0.0)
    floor = replace(quiet, probe=ProbeName.KL, metric="kl_divergence_noise_floor", key="kl.kl_divergence_noise_floor")
    assert [found.key for found in drift([quiet, floor])] == ["evals.perplexity[all]"]


def test_nothing_measured_is_no_drift() -> None:
    assert drift([]) == []
