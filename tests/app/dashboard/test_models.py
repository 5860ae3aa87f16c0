"""The view models: pure functions from records to what is drawn."""

import math
from pathlib import Path
from typing import Any

import pytest
from written_history import HOSTILE, POLICY, evidence, identity, outcome

from q36eval.app.dashboard.drawing.charts import margin_figure, margin_scatter, recovery_figure, scores_figure
from q36eval.app.dashboard.drawing.kl_charts import points_figure
from q36eval.app.dashboard.escape import block, figure_text, line
from q36eval.app.dashboard.models.drift import margin_as_effect
from q36eval.app.dashboard.models.run import identity_rows, margin_bars, not_drawn
from q36eval.app.figures.canary_items import Filter, MarginPoint, outcome_label, reasons, select
from q36eval.app.figures.evals import RecoveryPoint, ScorePair
from q36eval.app.figures.kl import Point
from q36eval.gate import decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.history.run_comparison import compare
from q36eval.records import Direction, Interval

Written = tuple[Path, dict[str, Any]]


def test_margin_bars_are_shares_of_the_margin_and_finite(written: Written) -> None:
    criteria = written[1]["ruined"].report.criteria
    bars = {bar.id: bar for bar in margin_bars(criteria)}
    kl = next(result for result in criteria if result.id == "kl")
    assert bars["kl"].share == pytest.approx(kl.value / 0.014)
    assert set(bars) | set(not_drawn(criteria)) == {result.id for result in criteria}
    assert "checkpoint-intact" in not_drawn(criteria)
    open_ended = Interval(lower=0.01, upper=math.inf, level=0.95, method="test")
    (bar,) = margin_bars([kl.model_copy(update={"loss_interval": open_ended})])
    assert bar.upper is None
    assert margin_bars([kl.model_copy(update={"loss": math.nan})]) == []


def test_names_in_figures_are_no_markup() -> None:
    name = f"{HOSTILE}<b>bold</b>"
    for figure in (
        recovery_figure([RecoveryPoint(name, 0.9, 0.8, 1.0, name)]),
        scores_figure([ScorePair(name, 0.9, 0.8, 10)]),
        margin_scatter([MarginPoint(name, 1.0, 1.0, "both right", name)]),
        points_figure([Point(name, 10, 0.1, None, None)], "slice"),
    ):
        strings = "".join(map(str, _strings(figure.to_plotly_json())))
        assert "script&gt;" in strings
        assert "<script" not in strings
        assert "<b>" not in strings
        assert not set("\x1b\x07\u202e") & set(strings)


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [string for each in value for string in _strings(each)]
    return [value] if isinstance(value, str) else []


def test_margin_axis_turns_logarithmic_and_keeps_the_order(written: Written) -> None:
    bars = margin_bars(written[1]["ruined"].report.criteria)
    figure = margin_figure(bars)
    assert "logarithmic" in figure.layout.xaxis.title.text
    line_at_one = figure.layout.shapes[0].x0
    drawn = [trace for trace in figure.data if trace.error_x.array is not None]
    for bar, trace in zip(bars, drawn, strict=True):
        assert (trace.x[0] > line_at_one) == (bar.share > 1)
        # on the stretched axis the arms must still end where the bounds are
        assert trace.x[0] + trace.error_x.array[0] == pytest.approx(math.asinh(bar.upper))
        assert trace.x[0] - trace.error_x.arrayminus[0] == pytest.approx(math.asinh(bar.lower))
        assert trace.x[0] == pytest.approx(math.asinh(bar.share))
        assert all(math.isfinite(x) for x in (*trace.x, *trace.error_x.array, *trace.error_x.arrayminus))
    assert "logarithmic" not in margin_figure(margin_bars(written[1]["pass"].report.criteria)).layout.xaxis.title.text


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


def test_inert_text() -> None:
    assert block("a\tb\r\nc\x1b[31m\u202e\ud800") == "a\tb\nc\ufffd[31m\ufffd\ufffd"
    assert "\n" not in line("a\nb")
    assert figure_text("<a href='x'>$y$</a>") == "&lt;a href='x'&gt;＄y＄&lt;/a&gt;"
    assert block("x" * 30_000).endswith("30000 characters in all]")


@pytest.mark.parametrize("damage", [0.05, 4.0])
def test_the_margin_that_a_chart_draws_parts_what_the_gate_parts(damage: float) -> None:
    policy = read_policy(POLICY)
    found = evidence(policy, damage, 1)
    measured = {(one.probe, one.metric, one.slice): one for one in found}
    kinds = set()
    for result in decide(policy, found).criteria:
        drawn, one = margin_as_effect(result), measured.get((result.probe, result.metric, result.slice))
        if drawn is None or one is None or result.loss is None or result.limit is None:
            continue
        higher = one.direction is Direction.HIGHER_IS_BETTER
        beyond = one.effect < drawn if higher else one.effect > drawn
        assert beyond is (result.loss > result.limit), result.id
        kinds.add(result.margin.kind)
    assert kinds == {"max_value", "max_count", "max_increase", "min_retention", "min_recovery"}


def test_counts_of_other_prompts_are_no_better_and_no_worse(written: Written) -> None:
    """Three faults of a hundred prompts beside none of five: fewer, and not for the better."""
    path, runs = written
    a, b = runs["ruined"], runs["pass"]
    history = History.open(path)
    same, other = (
        compare(history, a, b.model_copy(update={"suites": {**b.suites, "canaries": suite}}))
        for suite in (b.suites["canaries"], "another")
    )
    history.close()
    moved = [{one.id: one.movement for one in each.criteria} for each in (same, other)]
    assert moved[0]["must-pass-freeform"] == "better"
    assert moved[1]["must-pass-freeform"] is None
    assert {each["checkpoint-intact"] for each in moved} == {"same"}
