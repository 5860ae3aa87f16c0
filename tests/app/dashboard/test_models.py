"""The view models: pure functions from records to what is drawn."""

import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from written_history import identity, outcome

from app.canary_details import reasons
from app.dashboard.canary_model import Filter, outcome_label, select
from app.dashboard.charts import drift_figure, margin_figure
from app.dashboard.drift_model import drift_lines
from app.dashboard.inert import block, figure_text, line
from app.dashboard.overview_model import Review, overview
from app.dashboard.run_model import identity_rows, margin_bars, not_drawn
from q36eval.drift import drift
from q36eval.gate import Waiver
from q36eval.history import Blessing, History
from q36eval.records import Answer, Interval

Written = tuple[Path, dict[str, Any]]


def test_margin_bars_are_shares_of_the_margin_and_finite(written: Written) -> None:
    criteria = written[1]["ruined"].report.criteria
    bars = {bar.id.removesuffix(" (advisory)"): bar for bar in margin_bars(criteria)}
    kl = next(result for result in criteria if result.id == "kl")
    assert bars["kl"].share == pytest.approx(kl.value / 0.014)
    assert set(bars) | set(not_drawn(criteria)) == {result.id for result in criteria}
    assert "checkpoint-intact" in not_drawn(criteria)
    open_ended = Interval(lower=0.01, upper=math.inf, level=0.95, method="test")
    (bar,) = margin_bars([kl.model_copy(update={"loss_interval": open_ended})])
    assert bar.upper is None
    assert margin_bars([kl.model_copy(update={"loss": math.nan})]) == []


def test_margin_axis_turns_logarithmic_and_keeps_the_order(written: Written) -> None:
    bars = margin_bars(written[1]["ruined"].report.criteria)
    figure = margin_figure(bars)
    assert "logarithmic" in figure.layout.xaxis.title.text
    line_at_one = figure.layout.shapes[0].x0
    for bar, trace in zip(bars, figure.data, strict=True):
        assert (trace.x[0] > line_at_one) == (bar.share > 1)
        # on the stretched axis the arms must still end where the bounds are
        assert trace.x[0] + trace.error_x.array[0] == pytest.approx(math.asinh(bar.upper))
        assert trace.x[0] - trace.error_x.arrayminus[0] == pytest.approx(math.asinh(bar.lower))
        assert trace.x[0] == pytest.approx(math.asinh(bar.share))
        assert all(math.isfinite(x) for x in (*trace.x, *trace.error_x.array, *trace.error_x.arrayminus))
    assert "logarithmic" not in margin_figure(margin_bars(written[1]["pass"].report.criteria)).layout.xaxis.title.text


def test_drift_line_breaks_at_runs_that_cannot_be_compared(written: Written) -> None:
    path, runs = written
    history = History.open(path)
    metric = drift(history.metric_series("fp8-head", "sandbox"), runs["blessed"].id)[0]
    history.close()
    lines = drift_lines(metric)
    assert [mark.y is None for mark in lines.comparable] == [True, False, False]
    assert [mark.run_id for mark in lines.incomparable] == [runs["first"].id]
    assert "engine version" in lines.incomparable[0].detail
    assert [mark.run_id for mark in lines.baseline] == [runs["blessed"].id]
    assert all(trace.connectgaps is False for trace in drift_figure(lines, "blessed run").data)
    effect = metric.points[1]
    assert lines.comparable[1].above == pytest.approx(effect.effect_interval.upper - effect.effect)


def test_overview_asks_for_a_person_when_time_passes(written: Written) -> None:
    runs = [run for run in written[1].values() if run.branch == "fp8-head"]
    judged = written[1]["pass"]
    later = judged.started + timedelta(days=31)
    (row,) = overview(runs, {}, later)
    assert row.freshness == "judged 31 days ago (stale)"
    assert any("Passed and not blessed" in need for need in row.needs)
    assert any("older than 30 days" in need for need in row.needs)
    waiver = Waiver(owner="Jana", reason="known", criterion="kl", expires=date.fromordinal(later.toordinal() + 3))
    blessing = Blessing(
        run_id=judged.id, family="sandbox", branch="fp8-head", owner="Jana", reason="ok", at=judged.started
    )
    (row,) = overview(runs, {("sandbox", "fp8-head"): Review(blessing=blessing, waivers=(waiver,))}, later)
    assert not any("not blessed" in need for need in row.needs)
    assert any("expires on" in need for need in row.needs)
    assert row.blessing.endswith("this run")
    (row,) = overview(runs, {("sandbox", "fp8-head"): Review(blessing=blessing)}, judged.started)
    assert row.needs == ()


def test_identity_rows_say_what_differs(written: Written) -> None:
    rows = {row["field"]: row["agree"] for row in identity_rows(written[1]["first"])}
    assert rows["engine version"] == "differs"
    assert rows["tokenizer sha256"] == "same"
    unknown = written[1]["first"].model_copy(update={"identity": None, "reference_identity": identity("a")})
    assert {row["agree"] for row in identity_rows(unknown)} == {"–"}


def test_missing_score_is_not_a_wrong_answer() -> None:
    errored = outcome(1, "json", "ok", None, scores=(1.0, 1.0))
    wrong = outcome(2, "json", "ok", "no", scores=(1.0, 0.0))
    assert "NOT SCORED" in outcome_label(errored)[0]
    assert "REGRESSION" in outcome_label(wrong)[0]
    assert select([errored, wrong], Filter(flips_only=True)) == [wrong]
    assert select([errored, wrong], Filter(outcome="not scored")) == [errored]
    assert reasons(errored.branch) == ["errored: the engine gave up"]


@pytest.mark.parametrize("failures", [None, 3, "text", [], ["odd"], [{"code": 1}], {"a": 1}])
def test_failures_of_any_shape_become_lines(failures: object) -> None:
    answer = Answer(score=0.0, text="x", detail={"failures": failures})
    assert all(isinstance(text, str) for text in reasons(answer))


def test_inert_text() -> None:
    assert block("a\tb\r\nc\x1b[31m\u202e\ud800") == "a\tb\nc\ufffd[31m\ufffd\ufffd"
    assert "\n" not in line("a\nb")
    assert figure_text("<a href='x'>$y$</a>") == "&lt;a href='x'&gt;＄y＄&lt;/a&gt;"
    assert block("x" * 30_000).endswith("30000 characters in all]")
