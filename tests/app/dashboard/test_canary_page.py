"""The canary page over outcomes with everything that a run keeps, and over those of older runs."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from canary_records import answer, item, outcomes

from app.canary_figures import CanaryRun
from app.dashboard.canary_charts import margin_scatter
from app.dashboard.canary_model import Filter, margin_points, must_pass_rows, parting_rows, risk_rows, select
from q36eval.history import History


def test_margins_are_drawn_where_they_are_finite() -> None:
    odd = [item(f"d/{nats}", answer(1.0, nats=1.0), answer(1.0, nats=nats)) for nats in (math.nan, math.inf)]
    named = item("<script>$x$", answer(1.0, nats=2.0), answer(1.0, nats=2.0))
    points, undrawn = margin_points([*outcomes(), *odd, named])
    assert undrawn == 2
    assert {point.name: point.outcome for point in points}["discount/3"] == "regression"
    figure = margin_scatter(points)
    drawn = [(x, y) for trace in figure.data for x, y in zip(trace.x, trace.y, strict=True)]
    assert sorted(drawn) == sorted((point.reference, point.branch) for point in points)
    assert not any("<script" in text or "$" in text for trace in figure.data for text in trace.text)
    assert margin_points([item("old/1", answer(1.0), answer(0.0))]) == ([], 0)


def test_the_token_table_has_both_models_choices_and_marks_what_was_said() -> None:
    flip = next(one for one in outcomes() if one.cluster == "fixed/flip")
    rows = parting_rows(flip)
    assert rows[0]["reference"] == "' B' ◂"
    assert rows[0]["branch"].endswith(" ◂")
    assert rows[1]["reference"] == "' A'"
    assert rows[1]["branch, log p"] == "-1.9"
    assert parting_rows(outcomes()[0]) == []
    second = {"position": 0, "said": "b", "top": [["a", -0.7], ["b", -0.8]]}
    rows = parting_rows(item("d/1", answer(1.0, divergence=second), answer(0.0)))
    assert [row["reference"] for row in rows] == ["'a'", "'b' ◂"]
    assert [row["branch"] for row in rows] == ["", ""]


def test_filters_find_what_is_unstable_and_what_is_at_risk() -> None:
    items = outcomes()
    assert [one.cluster for one in select(items, Filter(outcome="unstable"))] == ["fixed/unstable"]
    assert [one.cluster for one in select(items, Filter(outcome="at risk"))] == ["discount/2"]
    assert [row["question"] for row in risk_rows(items)] == ["discount/2"]
    standings = {row["prompt"]: row["outcome"] for row in must_pass_rows(CanaryRun((), tuple(items)))}
    assert standings == {
        "fixed/flip": "confirmed flips",
        "fixed/unstable": "unstable",
        "fixed/none": "the reference itself fails",
        "fixed/errored": "not known",
    }


def test_the_page_shows_them_and_no_text_acts(tmp_path: Path, visit: Callable[..., Any]) -> None:
    path = tmp_path / "history.sqlite"
    history = History.open(path)
    begun = history.start_run(family="sandbox", branch="fp8-head", identity=None, reference_identity=None)
    history.add_items(begun.id, outcomes())
    history.finish_run(begun.id)
    history.close()
    app = visit(path, "canaries", run=begun.id)
    texts = "\n".join(element.value for element in app.text)
    assert "1 confirmed flips, 1 unstable" in texts
    assert "The answers part at token 2: the reference says ' B', the branch '<script>" in texts
    tabs = [tab.label for tab in app.tabs]
    assert tabs == ["Outcomes", "Decisive margins", "At risk: right, by less than 0.5 nats", "Failed checks"]
    frames = [frame.value for frame in app.dataframe]
    assert any("branch, log p" in frame for frame in frames)
    assert any("prompt" in frame and "fixed/unstable" in set(frame["prompt"]) for frame in frames)
    cells = "".join(str(value) for frame in frames for value in frame.to_numpy().ravel())
    assert "<script>" in cells
    assert not {"\x1b", "\x07", "\u202e"} & set(cells + texts)
    markup = [e.value for kind in ("markdown", "caption", "subheader", "warning") for e in app.get(kind)]
    assert not any("script" in text for text in markup)
    app = app.selectbox(key="canary_outcome").set_value("unstable").run()
    assert not app.exception
    assert "1 of 10" in app.caption[0].value
