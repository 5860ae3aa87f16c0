"""What pages are made of: models, charts, text that cannot act, and files to save."""

import csv
import io
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from driving import Visit, Written, markup_of, tables_of, words_of
from written_history import HOSTILE, POLICY, evidence, identity, outcome, worst_token, write_run

from q36eval.app.cli.report_formats import document_of
from q36eval.app.dashboard.drawing.charts import drift_figure
from q36eval.app.dashboard.drawing.parts import csv_bytes, file_name
from q36eval.app.dashboard.drawing.tables import Plot, table_html
from q36eval.app.dashboard.escape import block, figure_text, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.compare import default_pair, unlike
from q36eval.app.dashboard.models.overview import live_runs, needs_of
from q36eval.app.figures.answers import last_lines
from q36eval.app.figures.canary_items import Filter, outcome_label, reasons, select
from q36eval.app.figures.kl import by_context
from q36eval.app.figures.sizes import family_sizes
from q36eval.app.standing import BranchStanding, LaneStanding, Standing
from q36eval.drift import branch_drift
from q36eval.gate import Waiver
from q36eval.gate.policy_file import read_policy
from q36eval.history import Blessing, BranchSummary, History, RunFilter, RunProgress, RunRecord
from q36eval.history.run_comparison import compare
from q36eval.locks import exclusive
from q36eval.provenance import STORED
from q36eval.records import Lane, ProbeName, Verdict
from q36eval.reports.html_report import to_html
from q36eval.reports.plots import CRITERIA, Axis, Row, decades
from q36eval.reports.plots import criteria_rows as interval_rows
from q36eval.reports.size_plot import SizedBranch, front, size_plot


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


# -- the pages of branches


shown = partial(words_of, kinds=("text", "markdown", "caption", "code"))


@pytest.fixture(scope="module")
def branches(written: Written) -> dict[str, BranchSummary]:
    history = History.open(written[0])
    found = {of.branch: of for of in history.branches()}
    history.close()
    return found


def links(app: Any) -> list[str]:
    return [element.proto.label.replace("\\", "") for element in app.get("page_link")]


@pytest.mark.long
def test_a_run_whose_process_has_ended_is_not_said_to_run(visit: Visit, history: History, tmp_path: Path) -> None:
    """On no page that shows it: its lock is there, and nobody holds it."""
    path, about = Path(history.name), {"family": "sandbox", "branch": "w4a16"}
    run = history.start_run(**about, identity=None, reference_identity=None)
    with exclusive(tmp_path / "runs" / f"{run.id}.lock"):
        assert any("– running" in link for link in links(visit(path, "branch", **about)))
    assert any("its process has ended" in link for link in links(visit(path, "branch", **about)))
    for app in (visit(path), visit(path, "run", run=run.id)):
        assert "has ended" in "\n".join((shown(app), *markup_of(app), *links(app)))
    assert f"--resume {run.id}" in shown(app)


def test_a_branch_asks_for_a_person_when_time_passes(branches: dict[str, BranchSummary]) -> None:
    of = branches["fp8-head"]
    begun, ships = of.judged.started, LaneStanding(Standing.SHIP, "")
    blessing = Blessing(run_id=of.judged.id, family="sandbox", branch="fp8-head", owner="Jana", reason="ok", at=begun)
    row = BranchStanding(of, dict.fromkeys(Lane, ships), blessing)
    assert list(needs_of(row, begun)) == []
    assert ["not blessed" in need for need in needs_of(replace(row, blessing=None), begun)] == [True]
    for days, wanted in ((13, ["expires"]), (-1, ["expired"]), (15, [])):
        expires = (begun + timedelta(days=days)).date()
        waiver = Waiver(owner="Jana", reason="known", criterion="kl", expires=expires)
        needs = list(needs_of(replace(row, waivers=(waiver,)), begun))
        assert len(needs) == len(wanted)
        assert all(f"{word} on {expires}" in need for word, need in zip(wanted, needs, strict=True))


def test_a_run_that_says_nothing_for_long_is_called_silent(branches: dict[str, BranchSummary]) -> None:
    run = branches["w4a16"].newest
    now = run.started + timedelta(minutes=30)
    said = RunProgress(run_id=run.id, stage="kl", done=30, total=120, at=now - timedelta(seconds=2))
    live, silent = live_runs([(run, None), (run, said)], now)
    assert (live.silent, live.share, live.words) == (False, 0.25, "kl 30 of 120 · begun 30 minutes ago")
    known = said.model_copy(update={"remaining": "kl ≈ 4 min"})
    assert live_runs([(run, known)], now)[0].words == "kl 30 of 120 · remaining: kl ≈ 4 min · begun 30 minutes ago"
    assert silent.silent
    assert "killed, or no report" in silent.pulse
    alive, dead = (
        live_runs([(run, None), (run, said)], now, {run.id: True}.get),
        live_runs([(run, said)], now, lambda _: False),
    )
    assert not any(each.silent for each in alive), "its process lives, however long it loads"
    assert alive[0].pulse.startswith("alive, last report ")
    assert dead[0].pulse.startswith("killed: its process has ended")


def test_lines_break_where_runs_do_not_compare(written: Written) -> None:
    path, runs = written
    history = History.open(path)
    series = history.metric_series("fp8-head", "sandbox")
    metric = branch_drift("sandbox", "fp8-head", series, history.measurements, runs["blessed"].id).metrics[0]
    history.close()
    apart = metric.points[0].model_copy(update={"apart": ("another engine",)})
    broken = metric.model_copy(update={"points": (apart, *metric.points[1:]), "since_run_id": runs["pass"].id})
    drawn = {trace.name: list(trace.x) for trace in drift_figure(broken).data}
    assert drawn == {
        "effect": [None, 1, 2],
        "does not compare": [0],
        "blessed run": [1],
        "drifts since": [2],
    }
    (label,) = next(trace.text for trace in drift_figure(broken).data if trace.name == "does not compare")
    assert "another engine" in label


@pytest.mark.long
def test_drift_is_one_page_of_small_charts(visit: Visit, written: Written) -> None:
    """One run of a branch is no drift, and no chart."""
    path, runs = written
    app = visit(path, "drift", family="sandbox", branch="fp8-head", metric="nope")
    judged = [each for each in runs["pass"].report.criteria if each.margin.kind != "max_count"]
    assert len(app.get("plotly_chart")) >= len(judged)
    app = visit(path, "drift", family="sandbox", branch="int2-experts")
    assert not app.get("plotly_chart")


def test_a_run_that_was_begun_earlier_and_ends_later_is_drawn(history: History) -> None:
    """Two gates of one branch at once: the newest run stays the newest when the other one ends."""
    found = [one for one in evidence(read_policy(POLICY), 0.1, 1) if one.probe is ProbeName.KL]
    about = {"family": "sandbox", "branch": "main", "identity": identity("a"), "reference_identity": identity("a")}
    runs = [history.start_run(**about).id for _ in range(2)]
    reader, seen = Reader(Path(history.name)), []
    for run in reversed(runs):
        history.add_measurements(run, found)
        history.finish_run(run)
        (followed,) = reader.followed("sandbox", "main", [found[0].key])
        seen.append((len(followed.points), reader.drift("sandbox", "main").runs))
    assert seen == [(1, 1), (2, 2)]


# -- KL against size


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """Two branches that compare with `w4a16`; one under another policy, on another corpus, and of unknown size each."""
    path = tmp_path_factory.mktemp("sizes") / "history.sqlite"
    history = History.open(path)
    other = read_policy(POLICY).model_copy(update={"lineage": ("older",)})
    apart = {"policy": {"policy": other}, "corpus": {"suites": {"kl": "other"}}}
    for gib, name in enumerate(("unknown", "policy", "corpus", "int2", "fp8", "w4a16")):
        stored = {STORED: {"bytes": gib * 2**30, "values": 2**32}} if gib else {}
        run = write_run(history, name, 0.4, 7, provenance=stored, **apart.get(name, {}))
    write_run(history, "stopped", 4.0, 8, stopped=True)
    history.close()
    return path, run


def test_only_branches_that_compare_are_drawn_together(family: tuple[Path, RunRecord]) -> None:
    history = History.open(family[0])
    sizes = family_sizes(history, family[1])
    page = to_html(document_of(family[1], history))
    history.close()
    assert [each.name for each in sizes.branches] == ["fp8", "int2", "w4a16"]
    assert [each.size("GiB") for each in sizes.branches] == [4, 3, 5]
    assert sizes.branches[0].size("bits") == 8
    assert {name: why.split()[0] for name, why in sizes.left_out.items()} == {
        "corpus": "another",
        "policy": "judged",
        "stopped": "no",
        "unknown": "its",
    }
    assert page.count('class="half"') == 2
    assert "corpus" not in page.partition("KL against size")[2].partition("</figure>")[0]


def test_the_page_lists_them_by_size(visit: Visit, family: tuple[Path, RunRecord]) -> None:
    app = visit(family[0], "sizes", family="sandbox")
    assert tables_of(app)[0]["branch"].tolist() == ["int2", "fp8", "w4a16"]
    assert any(one.value.startswith("unknown: ") for one in app.text)


def test_the_front_is_what_no_other_branch_beats() -> None:
    def sized(name: str, size: int, kl: float, verdict: Verdict = Verdict.PASS) -> SizedBranch:
        return SizedBranch(name, name, verdict, kl, kl / 2, kl * 2, size * 2**30, 2**33)

    branches = [sized("c", 3, 0.02, Verdict.FAIL), sized("a", 1, 0.1), sized("b", 2, 0.01), sized("d", 4, 0.0)]
    assert [each.name for each in front(branches, "GiB")] == ["a", "b", "d"]
    svg = size_plot(branches, "bits")
    assert svg.count("font-weight") == 3
    assert {"bits per weight", "PASS", "FAIL"} <= {part.partition("<")[0] for part in svg.split(">")}
