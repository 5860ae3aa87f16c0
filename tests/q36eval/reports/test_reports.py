"""Every format says the same verdict, the same bytes every time, and lets no text act."""

import io
import json
import xml.etree.ElementTree as ET
from datetime import UTC, date, datetime

import pytest
from rich.console import Console

from q36eval.gate import Criterion, GateReport, Margin, Policy, Waiver, decide
from q36eval.history.records import RunRecord, RunState
from q36eval.records import Counts, Direction, Interval, Lane, Measurement, ProbeFailure, ProbeName
from q36eval.reports import to_console, to_json, to_junit, to_markdown

HOSTILE = "\x1b[31m[red]a|b</b><script>\x00\u202e`x` ![i](http://evil) @all #1\n# big"
DAY = date(2026, 5, 1)


def census(metric: str, count: float) -> Measurement:
    return Measurement(
        probe=ProbeName.CANARIES,
        metric=metric,
        unit="flips",
        direction=Direction.LOWER_IS_BETTER,
        estimator="census",
        value=count,
        effect=count,
        effect_interval=Interval(lower=count, upper=count, level=0.95, method="census"),
        counts=Counts(total=5, scored=5, errored=0),
    )


def criterion(name: str, tier: str = "blocking") -> Criterion:
    return Criterion(
        id=name,
        probe=ProbeName.CANARIES,
        metric=name,
        tier=tier,
        margin=Margin(kind="max_count", value=0, source="test"),
        lanes=(Lane.STRUCTURED,),
    )


def report(*, waive: bool = False) -> GateReport:
    policy = Policy(
        name=f"p {HOSTILE}",
        criteria=(criterion("good"), criterion("bad"), criterion("gone"), criterion("hint", "advisory")),
    )
    waivers = [Waiver(owner="eva", reason=HOSTILE, criterion="bad", expires=DAY)] if waive else []
    failures = [ProbeFailure(probe=ProbeName.CANARIES, reason=HOSTILE, kind="skipped")]
    measured = [census("good", 0), census("bad", 1), census("hint", 2)]
    return decide(policy, measured, waivers, failures, on=DAY)


def run() -> RunRecord:
    return RunRecord(
        id="20260501-101112-abcdef",
        family="sandbox",
        branch=HOSTILE,
        identity=None,
        reference_identity=None,
        provenance={"note": HOSTILE},
        state=RunState.FINISHED,
        started=datetime(2026, 5, 1, 10, 11, 12, tzinfo=UTC),
    )


def console_text(judged: GateReport, width: int = 120) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=False).print(to_console(judged, run()))
    return stream.getvalue()


def test_json_is_the_same_bytes_and_holds_everything() -> None:
    clean = report().model_copy(update={"failures": (), "criteria": report().criteria[:2], "policy": "p"})
    text = to_json(clean, run().model_copy(update={"branch": "main"}))
    assert text == to_json(
        GateReport.model_validate_json(clean.model_dump_json()), run().model_copy(update={"branch": "main"})
    )
    document = json.loads(text)
    assert GateReport.model_validate(document["report"]) == clean
    assert list(document["report"]) == sorted(document["report"])
    assert text.isascii()


def test_junit_is_red_where_the_gate_is() -> None:
    suite = ET.fromstring(to_junit(report(), run())).find("testsuite")
    assert suite is not None
    found = {
        case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in suite.iter("testcase")
    }
    assert found == {
        "good": [],
        "bad": ["failure"],
        "gone": ["error"],
        "hint": ["skipped"],
        "lane structured": ["failure"],
        "verdict": ["failure"],
    }
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "3",
        "errors": "1",
        "skipped": "1",
    }
    waived = ET.fromstring(to_junit(report(waive=True)))
    skipped = waived.find(".//testcase[@name='bad']/skipped")
    assert skipped is not None
    assert "waived by eva until 2026-05-01" in skipped.get("message", "")


def test_verdict_first_and_every_reason_shown() -> None:
    for text in (to_markdown(report(), run()), console_text(report())):
        assert text.lstrip("# ").startswith("FAIL")
        assert "counted more than the margin allows" in text
        assert "gone" in text
        assert "NOT MEASURED" in text
        assert "hint" in text


@pytest.mark.parametrize("waive", [False, True])
def test_hostile_text_stays_text(waive: bool) -> None:
    judged = report(waive=waive)
    terminal, markdown, junit = console_text(judged), to_markdown(judged, run()), to_junit(judged, run())
    for text in (terminal, markdown, junit):
        assert not {c for c in text if c != "\n" and (ord(c) < 32 or c in "\x7f\u202e\x00")}
        text.encode("utf-8")
    assert "[red]a|b</b>" in terminal  # read as text, not as a style
    assert "<script>" not in markdown
    assert "\n# big" not in markdown
    assert "http://" not in markdown
    assert "@all" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {4, 11}
    ET.fromstring(junit)


def test_narrow_terminals_lose_columns_not_verdicts() -> None:
    text = console_text(report(), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "NOT MEASURED" in text
