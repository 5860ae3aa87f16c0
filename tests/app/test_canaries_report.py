"""What a canary run says to people: hand-made outcomes, the probe's own measurements, a real history."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.cli.canaries_report import print_summary
from q36eval.app.figures.canaries import CanaryRun, canaries_json, fails_words, margin_rows, rate_rows
from q36eval.app.figures.canary_items import (
    at_risk,
    details_of,
    flips,
    margin_words,
    reasons,
)
from q36eval.canaries.specification import load_specs
from q36eval.canaries.summary import summarize_outcomes
from q36eval.history import History, RunRecord
from q36eval.records import Answer, ItemOutcome, Measurement
from tests.app.canary_records import HOSTILE, answer, item, outcomes
from tests.app.dashboard.written_history import record


def measured(items: list[ItemOutcome]) -> list[Measurement]:
    """The probe's own measurements of these outcomes."""
    family = load_specs(only=["discount-compare"], n=1)[0].model_copy(update={"id": "discount"})
    fixed = load_specs(only=["discount-compare-must-pass"])[0].model_copy(update={"id": "fixed"})
    return list(summarize_outcomes([family, fixed], items))


@pytest.fixture
def run(tmp_path: Path) -> tuple[History, RunRecord]:
    path = tmp_path / "history.sqlite"
    done = record(path, outcomes(), measured(outcomes()))
    return History.open(path), done


def test_the_summary_names_what_flipped_and_why(run: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(run[1], run[0])
    text = capsys.readouterr().out
    for flip in ("✗ confirmed flip  fixed/flip: ", "~ unstable  fixed/unstable: ", "discount/2: margin 3 → 0.25 nats"):
        assert flip in text
    assert "[bold red]x[/]" in text, "markup is shown, not obeyed"
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_rates_are_those_of_the_measurements_and_differences_those_of_passing(run: Any) -> None:
    found = CanaryRun.of(run[0].measurements(run[1].id), run[0].items(run[1].id))
    rate = found.get("failure_rate", "discount")
    rows = {row["canary"]: tuple(row.values()) for row in rate_rows(found)}
    assert next(iter(rows)) == "discount", "canaries come before their sums"
    assert rows["discount"][1:3] == ("75.0 %", "75.0 %")
    assert rows["discount"][5:] == ("1", "1", "1", "branch 1 errored, 1 wrong; reference 1 wrong")
    assert fails_words(rate.model_copy(update={"value": math.nan})).startswith("– of")
    worse = [item(f"discount/{n}", answer(1.0), answer(float(n > 7))) for n in range(10)]
    lost = next(row for row in rate_rows(CanaryRun.of(measured(worse), worse)) if row["canary"] == "discount")
    assert lost["difference [95 %]"].startswith("-80.0 % [-"), "what fails more passes less, and its interval with it"
    margins = {row["canary"]: row for row in margin_rows(found)}
    assert margins["discount"]["items"] == "3", "questions without a margin are not counted"


@pytest.mark.parametrize("odd", [3, ["odd"], {"nats": "x"}, [{"code": 1}]])
def test_details_of_any_shape_are_borne(odd: Any) -> None:
    found = Answer(score=0.0, text="x", detail={name: odd for name in ("margin", "divergence", "failures")})
    assert details_of(found).margin is None
    assert all(isinstance(line, str) for line in reasons(found))


def test_a_margin_that_is_no_number_is_the_most_at_risk() -> None:
    """Flips lead with lost must-pass prompts."""
    items = [item(f"d/{nats}", answer(1.0, nats=3.0), answer(1.0, nats=nats)) for nats in (0.2, math.nan, 0.6, -1.0)]
    assert [one.cluster for one in at_risk(items)] == ["d/nan", "d/-1.0", "d/0.2"]
    assert "nan nats" in (margin_words(items[1]) or "")
    assert [one.cluster for one in flips(outcomes())] == ["fixed/flip", "fixed/unstable", "discount/3", "discount/4"]


def test_json_has_the_flips_in_full_and_only_numbers_json_has() -> None:
    items = [*outcomes(), item("d/inf", answer(1.0, nats=math.inf), answer(1.0, nats=-math.inf))]
    body = canaries_json(CanaryRun((), tuple(items)))
    assert json.loads(json.dumps(body, allow_nan=False)) == body
    assert body["must_pass"]["passed"] == 1
    assert [one["name"] for one in body["must_pass"]["flipped"]] == ["fixed/flip"]
    flip = body["flips"][0]
    assert flip["branch"]["text"] == HOSTILE
    assert flip["first_divergent_token"] == 1
    assert flip["margin_nats"] == {"reference": 4.0, "branch": -1.5}
    assert body["at_risk"][0]["name"] == "d/inf"
    assert body["failed_checks"][0] == {"check": "discount", "code": "wrong_conclusion", "branch": 4, "reference": 2}
