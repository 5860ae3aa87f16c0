"""What a gate leaves in a terminal: the verdict fits one screen at three widths, and its commands can be copied.

The records in tests/assets/gates are of gates on the sandbox: the run, without its provenance, and its deciding
answers. Every format of every run of written histories: nothing of Python shows, the worst is first, a page loads
nothing.
"""

import html
import io
import json
import math
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import lxml.html
import pytest
from rich.cells import cell_len
from rich.console import Console

from q36eval.app.cli.report_formats import FORMATS, document_of
from q36eval.gate import Waiver
from q36eval.gate.declaration import DECLARED, Declaration, recorded_policy_sha256
from q36eval.gate.report import CriterionVerdict, SignOff, Stage, StageState
from q36eval.history import History, RunRecord
from q36eval.records import Interval, Lane, Verdict
from q36eval.reports import Document, to_console
from q36eval.reports.deciding_answers import DecidingAnswer
from q36eval.reports.html_report import to_html
from q36eval.reports.next_step import Since
from tests.app.dashboard.written_history import HOSTILE, write_history
from tests.app.judged_runs import items_of, judge_run
from tests.q36eval.reports.report_samples import accuracy

GATES = Path(__file__).parents[1] / "assets" / "gates"
ROWS = 24


def gate(branch: str, since: Since = Since(), **changes: object) -> Document:  # noqa: B008 - it is frozen
    body = json.loads((GATES / f"{branch}.json").read_text(encoding="utf-8"))
    run = RunRecord.model_validate(body["run"])
    run = run.model_copy(update={"report": run.report.model_copy(update=changes)})
    answers = tuple(DecidingAnswer(**answer) for answer in body["answers"])
    return Document(run.report, run, (), answers, since)


passed = partial(gate, "gptq-int4")


def waived() -> Document:
    document = gate("int2-experts")
    waiver = Waiver(owner="eva", reason="served without tools", criterion="kl", expires=date(2026, 12, 24))
    criteria = tuple(
        one.model_copy(update={"waived_by": (waiver,) if one.verdict != "PASS" else ()})
        for one in document.report.criteria
    )
    lanes = tuple(
        lane.model_copy(update={"verdict": Verdict.PASS, "headline": "PASS with waivers", "decisive": ()})
        for lane in document.report.lanes
    )
    now = {"verdict": Verdict.PASS, "headline": "PASS with waivers", "exit_code": 0, "decisive": ()}
    return gate("int2-experts", criteria=criteria, lanes=lanes, **now)


def stopped() -> Document:
    stages = (
        Stage(name="kl", state=StageState.MEASURED, items=246, planned=246, settled=("kl",)),
        Stage(name="evals", state=StageState.NOT_EVALUATED, items=0, planned=2166),
    )
    return gate("int2-experts", stages=stages)


UNSIGNED = {"verdict": Verdict.INCONCLUSIVE, "headline": "INCONCLUSIVE", "exit_code": 3, "awaiting_sign_off": True}


def hostile() -> Document:
    document = gate("int2-experts")
    name = HOSTILE + "x" * 300
    criteria = tuple(
        one.model_copy(update={"title": f"{name} of {one.id}", "id": f"{one.id}-{'y' * 90}"}) if one.id == "kl" else one
        for one in document.report.criteria
    )
    run = document.run.model_copy(update={"branch": name, "family": "f" * 200})
    answers = tuple(DecidingAnswer(name, "?<|im_end|>\n", "a", "") for _ in range(3))
    return Document(document.report.model_copy(update={"criteria": criteria, "policy": name}), run, (), answers)


def declared(**says: str) -> Document:
    """A PASS of a family whose declaration says so."""
    document = passed()
    own = recorded_policy_sha256(document.run.policy)
    said = Declaration(lanes=tuple(Lane), **{"policy": "strict", "policy_sha256": own or "", **says})
    run = document.run.model_copy(update={"provenance": {DECLARED: said.model_dump(mode="json")}})
    return Document(document.report, run)


def unmeasured() -> Document:
    """The evals crashed: nothing they judge has a figure."""
    document = gate("int2-experts")
    reason = "the evals probe crashed: out of memory while scoring 2,166 items of mmlu and ruler on cuda:0"
    missing = {"verdict": CriterionVerdict.NOT_MEASURED, "reason": reason, "figure": None, "to_turn": None}
    criteria = tuple(
        one.model_copy(update=missing) if one.probe == "evals" else one for one in document.report.criteria
    )
    ids = tuple(one.id for one in criteria if one.probe == "evals")
    lanes = tuple(
        lane.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "headline": "INCONCLUSIVE", "decisive": ids})
        for lane in document.report.lanes
    )
    now = {"verdict": Verdict.INCONCLUSIVE, "headline": "INCONCLUSIVE", "exit_code": 4, "decisive": ids}
    return Document(document.report.model_copy(update={"criteria": criteria, "lanes": lanes, **now}), document.run)


STATES = {
    "fail": lambda: gate("int2-experts"),
    "fail-stopped-early": stopped,
    "pass": passed,
    "pass-blessed": lambda: passed(Since(blessed=True)),
    "pass-waived": waived,
    "pass-other-policy": lambda: declared(policy_sha256="0"),
    "pass-other-reference": lambda: declared(against="int2-experts"),
    "unsigned": lambda: passed(**UNSIGNED),
    "signed-since": lambda: passed(Since(signed_by=("eva",)), **UNSIGNED),
    "not-measured": unmeasured,
    "hostile": hostile,
}


def printed(document: Document, columns: int, *, details: bool) -> str:
    stream = io.StringIO()
    Console(file=stream, width=columns, color_system=None).print(to_console(document, details=details))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def test_the_verdict_of_every_state_is_on_one_screen_and_its_commands_can_be_copied() -> None:
    """With the prompt of the shell below it; the verdict itself begins the first line."""
    for name, made in STATES.items():
        document = made()
        text = printed(document, 80, details=False)
        lines = text.splitlines()
        assert len(lines) < ROWS, name
        assert max(map(cell_len, lines)) <= 80, name
        assert lines[0].startswith(document.report.headline)
        assert document.run is None or f", run {document.run.id}" in lines[0], "a long name gives way"
        lanes = [line.split()[:2] for line in lines if line.startswith("  ")]
        assert all([str(lane.lane), lane.headline.split()[0]] in lanes for lane in document.report.lanes), name
        whole = re.sub(r" \\\n\s*", " ", text)
        assert name == "hostile" or all(step.command in whole for step in document.next_steps), name


def test_hostile_names_are_cut_and_never_wider_than_the_terminal() -> None:
    for details in (True, False):
        text = printed(hostile(), 40, details=details)
        assert max(map(len, text.splitlines())) <= 40
        assert text.replace("\n", "").isprintable()
        assert "FAIL" in text
        assert ("prompt: ?\n" in text, "branch: (nothing)" in text) == (details, details)


def test_next_steps_know_what_was_done() -> None:
    """A blessed run is not to be blessed, a signed one not to be signed; waivers lapse, and need the full record."""
    signed = SignOff(owner="eva", reason="read", at=datetime(2026, 5, 2, tzinfo=UTC), report_sha256="0" * 64)
    steps = {name: "\n".join(one.command for one in state().next_steps) for name, state in STATES.items()}
    assert "bless" not in steps["pass-blessed"]
    own = "\n".join(one.command for one in declared().next_steps)
    assert own == steps["pass"], "a policy that is the family's own approves a release"
    assert "--format card" in steps["pass"]
    for name in ("pass-other-policy", "pass-other-reference"):
        assert steps[name].startswith("q36eval gate --branch gptq-int4\n"), "it approves no release"
        assert "card" not in steps[name], "nor to be published"
    assert "sign-off 2" not in steps["signed-since"]
    assert "--require-sign-off" in steps["signed-since"]
    assert "sign-off" not in "\n".join(one.command for one in passed(signed_by=(signed,)).next_steps)
    whys = [one.why for one in waived().next_steps]
    assert whys[0] == "before 2026-12-24 is over, when the waiver by eva lapses"


# -- every format of every run of written histories

PYTHON = re.compile(
    r"\bNone\b|\bTrue\b|\bFalse\b|\bnan\b|\{'|\['|\(\)|<[A-Z]\w+\.|\b(Verdict|CriterionVerdict|ProbeName|Lane|StageState)\."
)
"""What a value looks like that nobody put into words."""

MOST_BYTES = 200_000


def texts(document: Document) -> dict[str, str]:
    """Each format but JSON, which is not for people to read; as they read it."""
    written = [name for name in FORMATS if name != "json" and (name != "card" or document.report.verdict == "PASS")]
    named = {name: FORMATS[name].text(document) for name in written}
    named["html"] = re.sub(r"<style>.*?</style>", "", named["html"], flags=re.DOTALL)
    named |= {f"console {details}": printed(document, 120, details=details) for details in (True, False)}
    return {name: html.unescape(text.replace("\\", "")) for name, text in named.items()}


def judged(folder: Path) -> History:
    history = History.open(folder / "judged.sqlite")
    today = date(2026, 5, 1)
    judge_run(history, 120, today, items=items_of(120))
    judge_run(history, 0, today, branch="unsigned", require_sign_off=True)
    soon = Waiver(owner="eva", reason="known", criterion="tools", expires=today + timedelta(days=9))
    history.add_waiver("sandbox", "waived", soon)
    judge_run(history, 120, today, branch="waived")
    return history


def recorded(document: Document) -> RunRecord:
    """Its run with all that a gate writes down of how it was measured: nested, and not all of it known."""
    nested = {
        "all": {"title": "prompts", "part": None, "whole": True},
        "tasks": ["mmlu", None],
        "share": math.nan,
    }
    return document.run.model_copy(update={"provenance": {"measured_on": nested, "commit": None, "exhaustive": False}})


RECOVERY = accuracy("mmlu", 30, 4).model_copy(
    update={
        "metric": "recovery",
        "value": 0.93,
        "effect": 0.93,
        "effect_interval": Interval(lower=0.9, upper=0.96, level=0.95, method="betting"),
    }
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """Of two written histories, and of the gates whose records are kept."""
    folder = tmp_path_factory.mktemp("histories")
    write_history(folder / "written.sqlite")
    histories = [History.open(folder / "written.sqlite"), judged(folder)]
    runs = [(history, history.get_run(run.id)) for history in histories for run in history.summaries(limit=100)]
    written = [document_of(run, history) for history, run in runs if run.report is not None]
    kept = [replace(document, run=recorded(document)) for document in (state() for state in STATES.values())]
    kept[0] = replace(kept[0], measurements=[*max((one.measurements for one in written), key=len), RECOVERY])
    return [*written, *kept]


@pytest.mark.long
def test_nothing_of_python_shows_in_any_format(documents: list[Document]) -> None:
    assert len(documents) > 10
    for document in documents:
        for name, text in texts(document).items():
            shown = PYTHON.search(text)
            assert shown is None, (name, document.subject, text[max(0, shown.start() - 80) : shown.end() + 80])


LOADING = {"src", "srcset", "data", "poster", "xlink:href", "background"}


@pytest.mark.long
def test_a_page_is_one_small_file_that_loads_nothing_and_labels_every_figure(documents: list[Document]) -> None:
    most_figures = 0
    for document in documents:
        text = to_html(document)
        page = lxml.html.document_fromstring(text)
        loaded = [value for one in page.iter("*") for name, value in one.attrib.items() if name in LOADING]
        loaded += [one.get("href", one.tag) for one in page.iter("link", "image", "base")]
        svgs = [one.get("aria-label", "") if one.get("role") == "img" else "" for one in page.iter("svg")]
        figures = [one.text_content() for one in page.iter("figcaption")]
        assert len(text.encode()) < MOST_BYTES
        assert [address for address in loaded if not address.startswith("#")] == []
        assert list(page.iter("script", "iframe", "img", "link", "object", "embed", "video", "audio")) == []
        assert not re.search(r"@import|url\(", text)
        assert len(svgs) == len(figures)
        assert all(len(label) > 20 for label in (*svgs, *figures))
        most_figures = max(most_figures, len(figures))
    assert most_figures == 4


@pytest.mark.long
def test_the_first_three_deciding_answers_are_in_every_format_for_people(documents: list[Document]) -> None:
    answered = [document for document in documents if len(document.answers) == 3]
    assert answered
    for document in answered:
        for name, text in texts(document).items():
            if name in ("junit", "card"):
                continue
            for answer in document.answers:
                assert " ".join(answer.name.split())[:30] in " ".join(text.split()), (name, document.subject)
            if name in ("html", "markdown", "github"):
                assert document.answers[0].branch.split("\n")[0][:30] in text
