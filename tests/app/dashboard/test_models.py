"""What pages are made of: models, charts, text that cannot act, and files to save."""

import csv
import io
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from written_history import HOSTILE, outcome, worst_token

from q36eval.app.dashboard.drawing.parts import csv_bytes, file_name
from q36eval.app.dashboard.drawing.tables import Plot, table_html
from q36eval.app.dashboard.escape import block, figure_text, line
from q36eval.app.dashboard.models.compare import default_pair, unlike
from q36eval.app.figures.answers import last_lines
from q36eval.app.figures.canary_items import Filter, outcome_label, reasons, select
from q36eval.app.figures.kl import by_context
from q36eval.history import History, RunFilter
from q36eval.history.run_comparison import compare
from q36eval.reports.plots import CRITERIA, Axis, Row, decades
from q36eval.reports.plots import criteria_rows as interval_rows

Written = tuple[Path, dict[str, Any]]


def test_criteria_are_drawn_as_shares_of_their_margins(written: Written) -> None:
    report = written[1]["ruined"].report
    rows = {row.below: row for row in interval_rows(report)}
    kl = next(result for result in report.criteria if result.id == "kl")
    assert rows["kl"].value == pytest.approx(1 + math.log10(kl.value / 0.014)), "beyond its margin logarithmic"
    assert "coverage-as-declared" not in rows


def test_a_bar_ends_at_the_axis_and_few_tokens_draw_none() -> None:
    rows = [
        Row("a", "w", 0.5, 0.2, 3.0, limit=1.0),
        Row("b", "w", math.nan, math.nan, 1.0),
        Row("c", "w", 9.0, -1.0, math.inf, floor=0.1),
        Row("d", "w", 1.0, 0.0, 1.5),
    ]
    cells = [{"name": row.name, "verdict": "✗ FAIL"} for row in rows]
    plot = Plot(rows, Axis(0.0, 2.0, {0.0: "0", 1.0: "1"}, "share"), 1.0, few=("d",), few_words="few tokens")
    drawn = [
        _marks(each)
        for each in ET.fromstring(table_html(cells, HOSTILE, plot)).iter("td")
        if "plot" in str(each.attrib)
    ]
    assert drawn[0] == {"bar": ("10.00%", "100%", "100.00%"), "right": None, "dot": ("25.00%",), "limit": ("50.00%",)}
    assert drawn[1] == {}
    assert drawn[2] == {"bar": ("0.00%", "100%", "100.00%"), "left": None, "right": None, "floor": ("5.00%",)}
    assert drawn[3] == {"dot hollow": ("50.00%",)}
    assert decades(rows[:1], "KL").share(1.0) == pytest.approx(0.5)


def _marks(cell: ET.Element) -> dict[str, tuple[str, ...] | None]:
    """What a row draws, with its places in %, without the ticks and the margin of all rows."""
    marks = {mark.attrib["class"]: re.findall(r"[\d.]+%", mark.attrib["style"]) for mark in cell.iter("i")}
    return {name: tuple(at) or None for name, at in marks.items() if name not in ("tick", "inside")}


def test_a_table_holds_no_markup_of_its_cells() -> None:
    name = f"{HOSTILE}<b>bold</b>"
    html = table_html([{name: name}], name, Plot([Row(name, name, 0.9, 0.8, 1.0)], CRITERIA))
    assert "script&gt;" in html
    assert not {"<script", "<b>", "\x1b", "\x07", "\u202e"} & {part for part in re.split(r"(<\w+>?|.)", html) if part}


def test_the_end_of_a_prompt_is_what_was_asked() -> None:
    turn = "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\none\ntwo\n\nthree<|im_end|>\n"
    assert last_lines(f"{turn}<|im_start|>assistant\n<think>\n\n</think>\n\n") == "…one\ntwo\nthree"
    assert last_lines("<b>Which?</b>") == "<b>Which?</b>"


def test_the_same_token_after_the_same_text_is_listed_once() -> None:
    worst = [worst_token(place, forward_kl=9.0 - place, before="the ", text="x") for place in range(3)]
    other = worst_token(9, forward_kl=1.0, before="a ", text="x")
    assert by_context([worst[0], other, *worst[1:]]) == [worst, [other]]


def test_missing_score_is_not_a_wrong_answer() -> None:
    errored = outcome(1, "json", "ok", None, scores=(1.0, 1.0))
    wrong = outcome(2, "json", "ok", "no", scores=(1.0, 0.0))
    assert "NOT SCORED" in outcome_label(errored)[0]
    assert "REGRESSION" in outcome_label(wrong)[0]
    assert select([errored, wrong], Filter(outcome="not scored")) == [errored]
    assert reasons(errored.branch) == ["errored: the engine gave up"]


def test_inert_text() -> None:
    """A file name is only a name."""
    assert block("a\tb\r\nc\x1b[31m\u202e\ud800") == "a\tb\nc\ufffd[31m\ufffd\ufffd"
    assert "\n" not in line("a\nb")
    assert figure_text("<a href='x'>$y$</a>") == "&lt;a href='x'&gt;＄y＄&lt;/a&gt;"
    assert block("x" * 30_000).endswith("30000 characters in all]")
    assert file_name("../../etc/passwd", "mmlu by task", "<b>") == "etc-passwd-mmlu-by-task-b"


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
    assert moved[0]["required-freeform"] == "better"
    assert moved[1]["required-freeform"] is None
    assert {each["coverage-as-declared"] for each in moved} == {"same"}


def test_a_pair_to_compare_is_of_two_judged_gates_of_one_branch(written: Written) -> None:
    path, runs = written
    history = History.open(path)
    newest = history.summaries(RunFilter(branch="fp8-head"))
    history.close()
    blessed, (last, before, _) = runs["blessed"].id, [run.id for run in newest]
    assert default_pair(newest, blessed) == (blessed, last)
    assert default_pair(newest, last) == default_pair(newest, None) == (before, last)
    assert default_pair(newest[:1], last) is default_pair([], None) is None
    rounds = [run.model_copy(update={"branch": "watch:prod"}) for run in newest]
    assert default_pair(rounds, None) is None
    assert unlike(runs["pass"], runs["ruined"]) is None
    assert unlike(runs["pass"], runs["pass"])
    assert unlike(runs["pass"], runs["ruined"].model_copy(update={"family": "mine"}))


def read(data: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(data.decode("utf-8-sig"))))


def test_a_table_comes_back_as_it_was_shown() -> None:
    rows = [{"task": "Kč, „sleva“", "loss": "-0.0017 [-0.02, 0.03]"}, {"task": 'a "b"', "extra": "+1.2 %"}]
    assert read(csv_bytes(rows)) == [
        ["task", "loss", "extra"],
        ["Kč, „sleva“", "-0.0017 [-0.02, 0.03]", ""],
        ['a "b"', "", "+1.2 %"],
    ]


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2+3+cmd|x", "@S\n\x1b", "-1e5=A1", "\t=1"])
def test_no_spreadsheet_runs_what_a_model_said(text: str) -> None:
    _, (cell,) = read(csv_bytes([{"answer": text}]))
    assert not cell.startswith(("=", "+", "-", "@", "\t"))
    assert line(text) in cell
