"""What is reported of a branch: states, since when, with what, and which runs compare.

The runs are of one metric, as history would give them: 200 tool calls, of which some fail.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from q36eval.drift import ALPHA, DriftState, MetricDrift, branch_drift, drift
from q36eval.drift.paired import paired_difference
from q36eval.history import SeriesRun
from q36eval.history.records import SeriesPoint
from q36eval.records import Direction, Measurement, ProbeName
from tests.app import judged_runs
from tests.q36eval.gate.evidence import census, divergence, failure_rate, named, perplexity

IDENTITY = judged_runs.IDENTITY.model_copy(update={"engine": "vllm"})
ITEMS = 200


@dataclass(frozen=True)
class Ran:
    """One run with one measurement of it."""

    point: SeriesPoint
    measurement: Measurement

    @property
    def id(self) -> str:
        return self.point.run.id


def failures(broken: int, slice: str = "tools") -> Measurement:
    """Of 200 named tool calls the first `broken` fail."""
    outcomes = [1] * broken + [0] * (ITEMS - broken)
    return named(failure_rate(outcomes, [0] * ITEMS, slice), [f"tool-call {n}#tool-cal" for n in range(ITEMS)])


def ran(day: int, what: int | Measurement, *, suite: str = "s", reference=IDENTITY, answers=None, **changed) -> Ran:
    """A run of that day; `changed` are fields of its identity."""
    measurement = failures(what) if isinstance(what, int) else what
    probe = measurement.probe
    run = SeriesRun(
        id=f"r{day:02d}",
        started=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        verdict=None,
        policy="sandbox",
        suites={probe.value: suite},
        identity=IDENTITY.model_copy(update=changed),
        reference_identity=reference,
        reference_answers={} if answers is None else {probe.value: answers},
    )
    point = SeriesPoint(
        run=run,
        probe=probe,
        metric=measurement.metric,
        key=measurement.key,
        unit=measurement.unit,
        direction=measurement.direction,
        estimator=measurement.estimator,
        value=measurement.value,
        effect=measurement.effect,
        effect_interval=measurement.effect_interval,
    )
    return Ran(point, measurement)


def measured(runs: Sequence[Ran]):
    """What the measurements of a run are, by its id."""
    return lambda run_id: [one.measurement for one in runs if one.id == run_id]


def followed(runs: Sequence[Ran], blessed: str | None = "r00", **how) -> list[MetricDrift]:
    """The drift of every metric of these runs."""
    return drift([one.point for one in runs], measured(runs), blessed, **how)


DOCUMENTS = [f"document {number}#text" for number in range(100)]


def line(*broken: int, start: int = 0, **how) -> list[Ran]:
    """One run a day."""
    return [ran(start + day, count, **how) for day, count in enumerate(broken)]


@pytest.mark.parametrize(
    ("runs", "blessed", "state", "since"),
    [
        (line(2, 2, 2), "r00", DriftState.STABLE, None),
        (line(2, 3), "r00", DriftState.STABLE, None),
        (line(2, 60), "r00", DriftState.DRIFTING, "r01"),
        (line(2, 2, 60, 60), "r00", DriftState.DRIFTING, "r02"),
        (line(2, 60, 2, 60), "r00", DriftState.DRIFTING, "r03"),
        (line(60, 60, 2, 2), "r01", DriftState.DRIFTING, "r02"),
        (line(2, 60, 60), "r01", DriftState.STABLE, None),
        (line(2, 60, 60), "r02", DriftState.STABLE, None),
        (line(2, 60), None, DriftState.NOT_BLESSED, None),
        (line(2, 60), "r99", DriftState.INCOMPARABLE, None),
        (line(2) + line(60, start=1, engine="sglang"), "r00", DriftState.INCOMPARABLE, None),
        (line(2) + line(60, start=1, suite="t"), "r00", DriftState.INCOMPARABLE, None),
    ],
)
def test_state_and_since_when(runs: list[Ran], blessed: str | None, state: DriftState, since: str | None) -> None:
    (found,) = followed(runs[::-1], blessed)
    assert (found.state, found.since_run_id) == (state, since), found.statement
    assert found.worse is (since is not None and runs[-1].measurement.value > runs[0].measurement.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"checkpoint_sha256": "zz"}, ("checkpoint",)),
        ({"engine_version": "2"}, ("engine version 1 -> 2",)),
        ({"kv_cache_dtype": "fp8"}, ("KV-cache dtype auto -> fp8",)),
        ({"chat_template_sha256": "zz", "settings": {"tp": "2"}}, ("chat template", "setting tp unset -> 2")),
        ({}, ()),
    ],
)
def test_a_drift_names_what_changed_with_it(changed, said) -> None:
    (found,) = followed(line(2, 2) + line(60, 60, start=2, **changed))
    assert (found.since_run_id, found.changed_there) == ("r02", said)
    assert [one.run_id for one in found.points if one.identity_changes] == (["r02"] if said else [])


@pytest.mark.parametrize(("errored", "state"), [(2, DriftState.STABLE), (3, DriftState.INCOMPARABLE)])
def test_items_without_a_figure_hide_no_loss(errored: int, state: DriftState) -> None:
    whole = failures(2)
    lost = range(ITEMS - errored, ITEMS)
    update = {
        name: tuple((missing if n in lost else kept) for n, kept in enumerate(getattr(whole.clusters, name)))
        for name, missing in (("units", 0), ("branch", 0.0), ("reference", 0.0), ("errored", 1))
    }
    clusters = whole.clusters.model_copy(update=update)
    newest = whole.model_copy(update={"clusters": clusters, "counts": clusters.counts()})
    (found,) = followed([ran(0, 2), ran(1, newest)])
    assert found.state is state, found.statement


def test_a_run_that_does_not_compare_is_shown_apart_and_skipped() -> None:
    runs = [*line(2, 60), *line(2, start=2, engine="sglang"), *line(60, start=3)]
    (found,) = followed(runs)
    assert [one.apart for one in found.points] == [(), (), ("another engine: vllm -> sglang",), ()]
    assert found.since_run_id == "r01"


def test_the_direction_that_is_better_is_the_metrics_own() -> None:
    higher = {"direction": Direction.HIGHER_IS_BETTER, "metric": "pass_rate"}
    (found,) = followed([ran(day, failures(count).model_copy(update=higher)) for day, count in enumerate((60, 2))])
    assert (found.state, found.worse) == (DriftState.DRIFTING, True)


def test_another_reference_or_other_answers_of_it_do_not_compare() -> None:
    other = IDENTITY.model_copy(update={"engine_version": "0"})
    for before, after, state in (
        ({"reference": other, "answers": "9:aa"}, {"answers": "9:aa"}, DriftState.STABLE),
        ({"answers": "9:aa"}, {"answers": "9:bb"}, DriftState.INCOMPARABLE),
        ({"answers": "5:aa"}, {"answers": "9:bb"}, DriftState.STABLE),  # other items: the identity decides
        ({"reference": IDENTITY.model_copy(update={"kv_cache_dtype": "fp8"})}, {}, DriftState.INCOMPARABLE),
        ({"reference": IDENTITY.model_copy(update={"checkpoint_sha256": "zz"})}, {}, DriftState.INCOMPARABLE),
    ):
        (found,) = followed(line(2, **before) + line(2, start=1, **after))
        assert found.state is state, found.statement


def kl(nats: float, more: float = 0.0) -> list[float]:
    spread = np.random.default_rng(20261128).normal(0.0, 0.1 * nats, len(DOCUMENTS))
    return [nats + more + wobble for wobble in spread]


def test_divergences_and_perplexities_are_paired_by_document_beyond_the_noise_floor() -> None:
    for make, before, after in (
        (divergence, kl(0.01), kl(0.01, 0.001)),
        (lambda nll: perplexity(nll, kl(2.0)), kl(2.0), kl(2.0, 0.01)),
    ):
        runs = [ran(day, named(make(values), DOCUMENTS)) for day, values in enumerate((before, before, after))]
        (found,) = followed(runs)
        assert (found.state, found.worse, found.since_run_id) == (DriftState.DRIFTING, True, "r02")
        assert followed(runs[:2])[0].state is DriftState.STABLE
    few = [named(divergence(kl(nats)[:4]), DOCUMENTS[:4]) for nats in (0.01, 0.01, 0.011)]
    runs = [ran(day, one) for day, one in enumerate(few)]
    (found,) = followed(runs)
    assert (found.state, found.worse) == (DriftState.INCOMPARABLE, False)
    assert followed(runs[:2])[0].state is DriftState.STABLE, "they are identical"
    # a difference within the noise floor is no drift
    runs = [named(divergence(values), DOCUMENTS) for values in (kl(0.01), kl(0.01, 0.001))]
    floor = divergence([0.0005] * 4).model_copy(update={"metric": "kl_divergence_noise_floor"})
    key = runs[0].key
    for loss, moved in ((0.0005, True), (0.002, False)):
        floors = [floor.model_copy(update={"value": loss})]
        found = paired_difference(key, [runs[1], *floors], [runs[0]])
        assert (found.moved, found.floor) == (moved, loss)


def test_many_metrics_share_the_false_alarm_rate() -> None:
    one, many = (paired_difference(failures(0).key, [failures(9)], [failures(2)], metrics=n) for n in (1, 50))
    assert (one.interval.level, many.interval.level) == (1 - ALPHA, 1 - ALPHA / 50)
    assert many.interval.lower < one.interval.lower


def test_runs_that_fail_at_random_are_rarely_reported_as_drifting() -> None:
    """Every item fails with the same chance in both runs: at most 5 % of comparisons, as the interval promises."""
    random, alarms, trials = np.random.default_rng(20261128), 0, 120
    for _ in range(trials):
        outcomes = (random.random((2, ITEMS)) < 0.1).astype(int).tolist()
        names = [f"{number}#t" for number in range(ITEMS)]
        first, second = (named(failure_rate(each, [0] * ITEMS, "tools"), names) for each in outcomes)
        alarms += paired_difference(first.key, [first], [second]).moved
    assert alarms <= 0.1 * trials


def test_clusters_pair_by_their_names() -> None:
    key = failures(0).key
    same, worse = (paired_difference(key, [failures(broken)], [failures(20)]) for broken in (20, 60))
    assert (same.effect, same.moved, worse.effect, worse.moved) == (0.0, False, 0.2, True)
    unnamed = failures(60)
    unnamed = unnamed.model_copy(update={"clusters": unnamed.clusters.model_copy(update={"names": None})})
    assert isinstance(paired_difference(key, [unnamed], [failures(20)]), str)
    (found,) = followed([ran(0, 20), ran(1, unnamed)])
    assert found.state is DriftState.INCOMPARABLE


def test_a_count_decides_nothing() -> None:
    def counted(count: int) -> list[Ran]:
        return [ran(day, census(ProbeName.CANARIES, "broken", value)) for day, value in enumerate((0, count))]

    runs = [*line(2, 2), *counted(3)]
    found = branch_drift("f", "b", [one.point for one in runs], measured(runs), "r00")
    assert [one.state for one in found.metrics] == [DriftState.CHART_ONLY, DriftState.STABLE]
    assert (found.state, found.watched, len(found.metrics[0].points)) == (DriftState.STABLE, 1, 2)


def test_a_branch_is_judged_by_what_is_watched_and_what_no_run_measured_is_named() -> None:
    other = [ran(day, failures(2, "json")) for day in range(2)]
    runs = line(2, 60) + other
    points = [one.point for one in runs]
    both = branch_drift("f", "b", points, measured(runs), "r00")
    assert (both.state, both.worse, both.watched, both.runs) == (DriftState.DRIFTING, True, 2, 2)
    one = branch_drift("f", "b", points, measured(runs), "r00", {other[0].measurement.key})
    assert (one.state, one.worse, one.watched) == (DriftState.STABLE, False, 1)
    assert branch_drift("f", "b", points, measured(runs)).state is DriftState.NOT_BLESSED
    assert branch_drift("f", "b", [], measured([]), "r00").state is DriftState.INCOMPARABLE
    runs = line(2, 2)
    watched = {runs[0].measurement.key, "canaries.failure_rate[json]", "canaries.failure_rate[czech]"}
    found = branch_drift("f", "b", [one.point for one in runs], measured(runs), "r00", watched)
    assert (found.state, found.watched) == (DriftState.STABLE, 1)
    assert found.never_measured == ("canaries.failure_rate[czech]", "canaries.failure_rate[json]")


def test_changes_of_the_deployment_are_listed_once_newest_first_and_stay_without_the_points() -> None:
    runs = line(2, 2) + line(2, start=2, engine_version="2")
    runs += [ran(day, failures(2, "json"), engine_version="1" if day < 2 else "2") for day in range(3)]
    found = branch_drift("f", "b", [one.point for one in runs], measured(runs), "r00").without_points()
    assert [(one.run_id, one.changed) for one in found.changes] == [("r02", ("engine version 1 -> 2",))]
    assert all(metric.points == () and metric.statement for metric in found.metrics)
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_the_references_own_noise_is_no_drift_of_the_branch() -> None:
    quiet = ran(1, 0)
    floor = replace(
        quiet.point, probe=ProbeName.KL, metric="kl_divergence_noise_floor", key="kl.kl_divergence_noise_floor"
    )
    assert [found.key for found in followed([quiet, Ran(floor, quiet.measurement)])] == [quiet.measurement.key]
    assert followed([]) == []
