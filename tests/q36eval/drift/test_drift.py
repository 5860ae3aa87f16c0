"""What is said of a branch: states, since when, with what, and where lines break."""

import json
from dataclasses import replace

import pytest

from q36eval.drift import DriftState, branch_drift, drift
from q36eval.drift.records import FINDINGS_VERSION
from q36eval.history import SeriesPoint
from q36eval.records import Interval, ProbeName
from tests.assets.drift_findings import RECORDED, findings
from tests.q36eval.drift.series import ERROR, IDENTITY, line, point

STEADY = [0.0, 0.001, -0.001, 0.0, 0.001, -0.001]


def moved(by: float, runs: int = 4, **changed) -> list[SeriesPoint]:
    return [point(6 + day, by + wobble, **changed) for day, wobble in enumerate(STEADY[:runs])]


@pytest.mark.parametrize(
    ("series", "blessed", "state", "words"),
    [
        (line(STEADY), "r01", DriftState.STABLE, "Stable over 6 runs at 0"),
        (line(STEADY) + moved(0.02), "r01", DriftState.DRIFTING, "for the worse since run r06: 0 -> 0.02"),
        (line(STEADY) + moved(0.02), "r06", DriftState.STABLE, "Stable over 10 runs at 0.02"),
        (line(STEADY) + moved(0.02) + [point(10 + d, 0.0) for d in range(6)], "r01", DriftState.STABLE, "back at"),
        ([*line(STEADY), point(6, 0.2)], "r01", DriftState.STABLE, "newest run alone lies"),
        (line(STEADY), "r99", DriftState.INCOMPARABLE, "r99 did not measure it"),
        (line(STEADY, engine="sglang") + moved(0.0), "r01", DriftState.INCOMPARABLE, "engine: sglang -> vllm"),
        ([*line(STEADY), point(6, float("nan"))], "r01", DriftState.INCOMPARABLE, "no finite figure"),
    ],
)
def test_state_and_statement(series, blessed, state, words) -> None:
    (found,) = drift(series[::-1], blessed)
    assert (found.state, words in found.statement) == (state, True), found.statement


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
def test_a_move_names_what_changed_with_it_and_stays_on_its_line(changed, said) -> None:
    (found,) = drift(line(STEADY) + moved(0.02, **changed), "r00")
    assert (found.since_run_id, found.changed_there, found.worse) == ("r06", said, True)
    assert found.change == pytest.approx(0.02, abs=0.001)
    assert {one.line for one in found.points} == {0}
    assert [one.run_id for one in found.points if one.identity_changes] == (["r06"] if said else [])
    assert any(one.signal for one in found.points[6:])


def test_another_engine_between_breaks_the_line_and_not_the_chart() -> None:
    series = [point(d, e, engine="sglang" if d == 3 else "vllm") for d, e in enumerate([0.0, 0.001, 0.0, 0.5, 0.001])]
    (found,) = drift(series, "r00")
    assert [one.line for one in found.points] == [0, 0, 0, 1, 2]
    assert [one.comparable for one in found.points] == [True, True, True, False, True]
    assert found.points[3].breaks == ("another engine: vllm -> sglang",)
    assert found.points[3].residual is None
    assert found.points[4].residual is not None
    assert found.state is DriftState.STABLE


def test_a_run_that_should_have_measured_it_breaks_the_line() -> None:
    other = [point(day, 0.0, metric="accuracy") for day in range(5)]
    perplexity = line([0.0, 0.0, 0.0, 0.0, 0.0])
    missing = [*other, *(one for day, one in enumerate(perplexity) if day != 2)]
    found = drift(missing)[1]
    assert [one.breaks for one in found.points] == [(), (), ("not measured in run r02",), ()]
    newest = drift([*other, *perplexity[:4]])[1]
    assert newest.state is DriftState.INCOMPARABLE
    assert "r04" in newest.statement


def test_another_reference_is_another_line() -> None:
    other = IDENTITY.model_copy(update={"checkpoint_sha256": "zz"})
    series = line(STEADY, reference=other) + moved(0.0)
    (found,) = drift(series, None)
    assert found.points[6].breaks == ("another reference (checkpoint)",)
    assert found.baseline_run_id == "r06"


def test_a_reference_that_answers_the_same_by_another_version_stays_on_the_line_and_is_named() -> None:
    """Else every upgrade of the program would begin all lines anew, and nothing would ever be long enough to watch."""
    other = IDENTITY.model_copy(update={"engine_version": "0", "settings": {"code": "c0"}})
    (found,) = drift(line(STEADY, reference=other, answers="9:aa") + moved(0.0, answers="9:aa"), None)
    assert found.points[6].breaks == ()
    changes = found.points[6].identity_changes
    assert changes == ("the reference's engine version 0 -> 1", "the reference's setting code c0 -> unset")
    assert found.baseline_run_id == "r00"


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({"answers": "9:aa"}, {"answers": "9:bb"}, "the reference was captured anew"),
        ({"answers": "9:aa", "reference": IDENTITY.model_copy(update={"engine_version": "0"})}, {"answers": "9:bb"},
         "the reference was captured anew (engine version 0 -> 1)"),
        # of runs that kept no answers, and of other items, only the identity is known
        ({"reference": IDENTITY.model_copy(update={"kv_cache_dtype": "fp8"})}, {},
         "the reference was captured anew (KV-cache dtype fp8 -> auto)"),
        ({"answers": "5:aa"}, {"answers": "9:bb"}, None),
    ],
)  # fmt: skip
def test_a_reference_captured_anew_is_a_new_line_and_no_move_of_the_branch(before, after, why) -> None:
    shifted = line(STEADY, **before) + moved(0.05, own=0.45, **after)
    (found,) = drift(shifted, "r00")
    if why is None:
        assert found.state is DriftState.DRIFTING
        return
    told = why + ": its own figure went from 0.5 to 0.45, the branch's from 0.499 to 0.5"
    assert (found.points[6].breaks, found.state) == ((told,), DriftState.INCOMPARABLE)
    assert told in found.statement
    assert not any(one.signal for one in found.points)
    (accepted,) = drift(shifted, "r06")
    assert (accepted.state, accepted.baseline_run_id) == (DriftState.STABLE, "r06")


@pytest.mark.parametrize("error", [0.0, 1e-17])
def test_a_figure_that_always_repeated_is_never_a_trillion_errors_away(error) -> None:
    same = [point(day, 0.3, error=error) for day in range(8)]
    (found,) = drift([*same, *(point(8 + day, 0.35, error=error) for day in range(4))], "r00")
    assert (found.state, found.since_run_id) == (DriftState.DRIFTING, "r08")
    assert "beyond all earlier values, whose scatter is zero" in found.statement
    (outlier,) = drift([*same, point(8, 0.35, error=error)], "r00")
    assert "beyond all earlier values, whose scatter is zero" in outlier.statement
    (rounding,) = drift([*same, *(point(8 + day, 0.3 + 1e-12, error=error) for day in range(4))], "r00")
    assert rounding.state is DriftState.STABLE


def test_a_run_of_fewer_items_may_differ_by_the_items_it_lacks() -> None:
    """Nested samples: of a quarter of the items the error is twice as large, and so is the scatter it may have."""
    all_items = line([0.0] * 8)
    few = [point(8 + day, 0.02, error=2 * ERROR, scored=2) for day in range(4)]
    assert drift(all_items + few, "r00")[0].state is DriftState.STABLE
    assert drift(all_items + moved_exactly(0.02), "r00")[0].state is DriftState.DRIFTING


def moved_exactly(by: float) -> list[SeriesPoint]:
    return [point(8 + day, by) for day in range(4)]


@pytest.mark.parametrize(
    ("counts", "state"),
    [
        ([0.0] * 6 + [3.0] * 3, DriftState.DRIFTING),
        ([0.0] * 12 + [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], DriftState.STABLE),  # rare events are no new level
        ([0.0] * 12 + [2.0] * 5, DriftState.DRIFTING),
    ],
)
def test_a_count_without_an_interval_is_watched_too(counts: list[float], state: DriftState) -> None:
    def census(day: int, count: float) -> SeriesPoint:
        exact = Interval(lower=count, upper=count, level=0.95, method="census")
        return replace(point(day, count), effect_interval=exact, estimator="census")

    assert drift([census(day, count) for day, count in enumerate(counts)])[0].state is state


def test_a_run_that_measured_nothing_is_seen_wherever_it_lies() -> None:
    """The newest gate's probe crashed: a figure that only older runs have is not stable."""
    *steady, crashed = line([*STEADY, 0.0])
    whole = [one.run for one in (*steady, crashed)]
    assert branch_drift("f", "b", steady, "r00").state is DriftState.STABLE
    found = branch_drift("f", "b", steady, "r00", runs=whole)
    assert (found.state, found.runs) == (DriftState.INCOMPARABLE, 7)
    assert found.metrics[0].statement == "The newest run that was to measure it, r06, did not."
    gap = branch_drift("f", "b", [*steady[:3], *steady[4:]], "r00", runs=whole[:6])
    assert gap.metrics[0].points[3].breaks == ("not measured in run r03",)


def test_what_changed_near_a_move_is_named_where_noise_hides_where_it_began() -> None:
    shifted = [point(day, 0.02 if day >= 6 else 0.0, engine_version="1" if day < 8 else "2") for day in range(12)]
    (found,) = drift(shifted, "r00")
    assert (found.since_run_id, found.changed_there) == ("r06", ())
    assert (found.near_run_id, found.changed_near) == ("r08", ("engine version 1 -> 2",))
    assert found.what_changed == "nothing in the deployment (near it, with run r08: engine version 1 -> 2)"
    assert "nothing in the deployment changed there, but near it, with run r08: engine" in found.statement


def test_branch_watches_what_it_is_told_and_knows_nothing_as_nothing_fine() -> None:
    stable, worse = line([0.0] * 10, metric="accuracy"), line(STEADY) + moved(0.02)
    both = branch_drift("f", "b", stable + worse, "r00")
    assert (both.state, both.worse, both.watched, both.runs) == (DriftState.DRIFTING, True, 2, 10)
    assert "1 since run r06, where nothing in the deployment changed" in both.statement
    one = branch_drift("f", "b", stable + worse, "r00", {"evals.accuracy[all]"})
    assert (one.state, one.worse, one.watched) == (DriftState.STABLE, False, 1)
    few = branch_drift("f", "b", stable + line([0.0])[:1], None)
    assert few.state is DriftState.INCOMPARABLE  # the newest runs were to measure it
    assert branch_drift("f", "b", []).state is DriftState.TOO_FEW_RUNS


def test_what_no_run_ever_measured_is_named_and_sets_no_state() -> None:
    watched = {"evals.perplexity[all]", "canaries.failure_rate[tools]", "canaries.failure_rate[czech]"}
    found = branch_drift("f", "b", line(STEADY), "r00", watched)
    assert (found.state, found.watched) == (DriftState.STABLE, 1)
    assert found.never_measured == ("canaries.failure_rate[czech]", "canaries.failure_rate[tools]")
    assert found.statement.endswith("are stable. 2 more that the policy judges were never measured.")


def test_changes_of_the_deployment_are_listed_once_newest_first_and_stay_without_the_points() -> None:
    series = line(STEADY) + line(STEADY, metric="accuracy") + moved(0.0, engine_version="2")
    found = branch_drift("f", "b", series, "r00").without_points()
    assert [(one.run_id, one.changed) for one in found.changes] == [("r06", ("engine version 1 -> 2",))]
    assert all(metric.points == () and metric.statement for metric in found.metrics)
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_the_reference_s_own_noise_is_no_drift_of_the_branch() -> None:
    quiet = point(1, 0.0)
    floor = replace(quiet, probe=ProbeName.KL, metric="kl_divergence_noise_floor", key="kl.kl_divergence_noise_floor")
    assert [found.key for found in drift([quiet, floor])] == ["evals.perplexity[all]"]
    assert drift([]) == []


ANEW = "raise FINDINGS_VERSION with a line on what changed, then record: python -m tests.assets.drift_findings"


def test_the_same_series_are_said_to_be_the_same() -> None:
    """Nothing that drift says moves without a new `FINDINGS_VERSION`: what history keeps is kept by it."""
    assert RECORDED.exists(), f"nothing is recorded for version {FINDINGS_VERSION}; {ANEW}"
    before, now = json.loads(RECORDED.read_text(encoding="utf-8")), findings()
    assert set(now) == set(before), ANEW
    for name, found in now.items():
        assert found == before[name], f"{name}: {ANEW}"
    assert {each["state"] for name in before if name != "a branch" for each in before[name]} >= {
        "stable",
        "drifting",
        "incomparable",
        "too_few_runs",
    }
