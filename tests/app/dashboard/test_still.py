"""Still charts: every mark of the figure stands where it belongs, with its words, unit, margin and noise floor."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from written_history import HOSTILE

from q36eval.app.dashboard.drawing.charts import (
    drift_figure,
    margin_figure,
    margin_scatter,
    recovery_figure,
    scores_figure,
)
from q36eval.app.dashboard.drawing.static_axes import axis_of
from q36eval.app.dashboard.drawing.static_charts import Still, still
from q36eval.app.dashboard.models.drift import DriftPicture, Mark
from q36eval.app.dashboard.models.run import margin_bars
from q36eval.app.figures.canary_items import MarginPoint
from q36eval.app.figures.evals import RecoveryPoint, ScorePair
from q36eval.app.figures.kl import Point
from q36eval.app.figures.kl_plots import layers_figure, points_figure

Written = tuple[Path, dict[str, Any]]
SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart: Still) -> ET.Element:
    return ET.fromstring(chart.file("what it shows"))


def words(chart: Still) -> list[str]:
    return ["".join(node.itertext()) for node in parsed(chart).iter(f"{SVG}text")]


def hovers(chart: Still) -> list[str]:
    return [node.text or "" for node in parsed(chart).iter(f"{SVG}title")][1:]


def places(chart: Still) -> list[tuple[float, float]]:
    """Of its marks: per cent from the left, pixels from the top."""
    marks = re.findall(r'<svg x="([-\d.]+)%" y="([-\d.]+)"><title>', chart.body)
    return [(float(x), float(y)) for x, y in marks]


def picture(**changed: Any) -> DriftPicture:
    marks = tuple(Mark(place, f"run-{place}", 0.01 * place, 0.005, 0.005, f"run {place}") for place in range(10))
    labels = tuple(f"2026-03-{day:02d} 06:52" for day in range(1, 11))
    fields: dict[str, Any] = dict.fromkeys(("apart", "baseline", "changes"), ())
    fields |= {"labels": labels, "lines": (marks[:5], marks[5:]), "band": None, "margin": 0.3, "floor": 0.002}
    return DriftPicture(**fields | changed)


@pytest.mark.parametrize("log", [False, True])
def test_a_value_and_its_place_agree(log: bool) -> None:
    axis = axis_of({"type": "log"} if log else {}, [0.01, 1.0, None, math.nan, math.inf], 0.0, 100.0)
    assert axis.at(0.01) < 10 < 90 < axis.at(1.0)
    assert axis.at(0.1 if log else 0.505) == pytest.approx(50)
    assert math.isnan(axis.at(None))
    assert math.isnan(axis.at(0.0)) is log
    assert axis.within(1e9) == 100


def test_every_criterion_stands_by_its_margin(written: Written) -> None:
    for short in ("ruined", "pass"):
        bars = margin_bars(written[1][short].report.criteria)
        chart = still(margin_figure(bars))
        (limit,) = {float(x) for x in re.findall(r'<line x1="([\d.]+)%"[^>]*stroke-dasharray="6 4"', chart.body)}
        assert [x > limit for x, _ in places(chart)] == [bar.share > 1 for bar in bars]
        assert all(0 <= x <= 100 for x, _ in places(chart))
        shown = words(chart)
        for bar in bars:
            assert any(bar.id in line for line in shown)
            assert any(bar.detail in hover for hover in hovers(chart))
        assert "the policy's margin" in shown
        assert any("loss, in margins" in line for line in shown)


def test_runs_have_unit_margin_floor_and_dates_that_fit_a_phone() -> None:
    chart = still(drift_figure(picture(), "nats/token"))
    shown = words(chart)
    assert {"effect, nats/token", "start of the run, UTC", "margin", "noise floor", "effect"} <= set(shown)
    dates = [line for line in shown if re.fullmatch(r"2026-03-\d\d", line)]
    assert len(dates) == 4
    lines = re.findall(r'<line x1="([\d.]+)%" y1="([\d.]+)" x2="([\d.]+)%"[^>]*stroke="#3b7dd8"', chart.body)
    joined = [one for one in lines if one[0] != one[2]]
    assert len(joined) == 8, "the line breaks where runs cannot be compared"
    assert hovers(chart) == [f"run {place}" for place in range(10)]
    heights = [y for _, y in places(chart)]
    assert heights == sorted(heights, reverse=True), "more is drawn higher"


def test_what_is_higher_and_further_right_is_drawn_so() -> None:
    points = [MarginPoint(str(i), float(i), 2.0 - i, "both right", f"question {i}") for i in range(3)]
    chart = still(margin_scatter(points))
    (first, middle, last) = places(chart)
    assert first[0] < middle[0] < last[0]
    assert first[1] < middle[1] < last[1]
    assert {"reference's margin, nats", "branch's margin, nats", "both right"} <= set(words(chart))


def test_names_stand_whole_beside_their_rows() -> None:
    names = ["mmlu/high_school_european_history", "law"]
    scores = still(scores_figure([ScorePair(name, 0.9, 0.8, 10) for name in names]))
    assert set(names) <= set(words(scores))
    assert hovers(scores)[0] == f"{names[0]}: reference 90.0% of 10 items"
    assert scores.left > 6 * len(names[0])
    far = [RecoveryPoint(names[0], 0.9, 0.1, 12.0, "far"), RecoveryPoint(names[1], 1.0, None, None, "open")]
    recovery = still(recovery_figure(far))
    arms = re.findall(r'<line x1="([\d.]+)%" y1="[\d.]+" x2="([\d.]+)%"', recovery.body)
    assert max(float(right) for _, right in arms) == 100, "an interval that goes on ends at the edge"
    assert len(places(recovery)) == 2


def test_groups_that_would_collide_are_tilted_and_those_of_two_series_stand_apart() -> None:
    few = [Point(name, 100, 0.1 * i, 0.05 * i, 0.2 * i) for i, name in enumerate(("0-63", "64-127"), 1)]
    many = [Point(f"slice number {i}", 100, 0.1, None, None) for i in range(20)]
    against = {"margin": {"0-63": 0.3}, "noise floor": {"64-127": 0.01}}
    chart = still(points_figure(few, "tokens to the left", line=True, held_against=against))
    assert "rotate" not in chart.body
    assert {"0-63", "64-127", "margin", "noise floor", "KL(ref‖branch), nats/token"} <= set(words(chart))
    assert hovers(chart)[0] == "0-63: 0.1 nats/token over 100 tokens"
    assert still(points_figure(many, "slice")).body.count("rotate") == 20
    (one, other) = places(still(layers_figure({"restored": few[:1], "alone": few[:1]})))
    assert one[0] < other[0]


def test_what_somebody_called_something_is_no_markup() -> None:
    name = f'{HOSTILE}<b>bold</b><span style="color:red">&amp;'
    charts = [
        still(recovery_figure([RecoveryPoint(name, 0.9, 0.8, 1.0, name)])),
        still(margin_scatter([MarginPoint(name, 1.0, 1.0, "both right", name)])),
        still(drift_figure(picture(), name)),
    ]
    for chart in charts:
        shown = [*words(chart), *hovers(chart)]
        assert any("<script>" in text for text in shown)
        assert not {node.tag for node in parsed(chart).iter()} - {
            f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "line", "circle", "path", "text", "tspan")
        }
        page = chart.html(name)
        assert "<script" not in page
        assert "<b>" not in page
        assert not set("\x1b\x07\u202e") & set(page)
