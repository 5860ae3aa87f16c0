"""Every page over a real history: it draws, says the verdict in words, and keeps hostile text inert.

A view can be passed on: its address holds what was chosen.
"""

import ast
import math
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from driving import Visit, Written, answers_of, markup_of, tables_of
from streamlit.testing.v1 import AppTest
from written_history import HOSTILE, worst_token, write_history

from q36eval.config import Paths
from q36eval.history import History, RunProgress
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.token_files import WORST, write_worst

VIEWS = Path(__file__).parents[3] / "app" / "dashboard" / "views"
PAGES = ("overview", "review", "compare", "run", "kl", "evals", "branch", "drift", "canaries")
BRANCH = "fp8; touch /tmp/owned"


def texts(app: Any) -> str:
    return "\n".join(element.value for element in app.text)


def codes(app: Any) -> list[str]:
    return [element.value for element in app.code]


@pytest.mark.long
@pytest.mark.parametrize(
    ("short", "word", "colour"),
    [("pass", "✓ PASS", "green"), ("ruined", "✗ FAIL", "red"), ("crashed", "? INCONCLUSIVE", "orange")],
)
def test_run_page_follows_its_address(visit: Visit, written: Written, short: str, word: str, colour: str) -> None:
    run = written[1][short]
    app = visit(written[0], "run", run=run.id)
    assert app.selectbox(key="run_page_run").value == run.id
    assert app.title[0].value.startswith(f":{colour}[{word}] · ")
    criteria, reasons = (next(f for f in tables_of(app) if name in f) for name in ("lane", "reason"))
    assert list(criteria) == ["criterion", "lane", "branch", "reference", "judged [interval]", "margin", "verdict"]
    criteria["reason"] = reasons["reason"]
    assert len(answers_of(app)) == {"ruined": 3, "crashed": 1, "pass": 0}[short], "what was lost, whatever decided"
    by_id = {row["criterion"].rpartition("(")[2].strip("*)"): row for row in criteria.to_dict("records")}
    assert sorted(by_id) == sorted(result.id for result in run.report.criteria)
    for result in run.report.criteria:
        assert result.verdict.value.replace("_", " ") in by_id[result.id]["verdict"]
        assert by_id[result.id]["reason"].startswith(result.reason.split(" <")[0])


@pytest.mark.long
def test_choosing_a_run_changes_the_address_and_it_is_kept_between_pages(visit: Visit, written: Written) -> None:
    runs = written[1]
    app = visit(written[0], "run", run=runs["ruined"].id)
    app = app.selectbox(key="run_page_run_branch").set_value(("sandbox", "fp8-head")).run()
    assert app.query_params["run"] == runs["pass"].id
    assert "✓ PASS" in app.title[0].value
    chosen = runs["ruined"].id
    app = visit(written[0], "run", run=chosen)
    del app.query_params["run"]
    app = app.switch_page("views/canaries.py").run()
    assert app.selectbox(key="canaries_run").value == chosen
    app.query_params.clear()
    app = app.switch_page("views/branch.py").run()
    assert app.selectbox(key="branch_branch").value == ("sandbox", "int2-experts")


@pytest.mark.long
def test_unknown_run_in_the_address_is_said(visit: Visit, written: Written) -> None:
    """Another run in its place would be taken for the one that was linked to."""
    runs, branches = [(page, "run") for page in ("run", "canaries", "review")], ["branch", "compare"]
    for page, name in (*runs, ("compare", "a"), *((page, name) for page in branches for name in ("branch", "family"))):
        app = visit(written[0], page, **{name: "<b>nothing</b>"})
        assert [element.value for element in app.error], page
        assert "Nothing is shown" in app.error[0].value, page
        assert "<b>nothing</b>" in texts(app)
        assert app.query_params[name] == "<b>nothing</b>", "the address is left as it was"
        assert not tables_of(app)


def test_turned_page_survives_a_filter_that_shortens_the_list(visit: Visit, written: Written) -> None:
    app = visit(written[0], "canaries", run=written[1]["ruined"].id)
    app = app.number_input[0].set_value(2).run()
    shown_last = answers_of(app)
    app = app.selectbox(key="canary").set_value("tool-calls").run()
    assert answers_of(app) not in ([], shown_last)


@pytest.mark.long
def test_evals_page_shows_a_run_that_counted_no_flips(visit: Visit, written: Written) -> None:
    app = visit(written[0], "evals", run=written[1]["pass"].id)
    groups = tables_of(app)[0]
    assert groups["group"].tolist() == ["mmlu", "short_answers", "ruler"]
    assert set(groups["lost"]) == {"–"}
    app = visit(written[0], "evals", run=written[1]["crashed"].id)
    assert "No item of the evals" in app.warning[0].value
    assert "evals probe broke off" in texts(app)


def test_hostile_text_of_a_worst_token_stays_inert(visit: Visit, written: Written) -> None:
    run = written[1]["ruined"]
    of_text = dict.fromkeys(("document", "slice", "kind", "before", "text", "after"), HOSTILE)
    worst = worst_token(3, forward_kl=math.nan, branch_logprob=-math.inf, top1_rank=7, **of_text)
    folder = Paths.tokens_beside(written[0], run.id)
    folder.mkdir(parents=True)
    write_worst(folder / WORST, [worst])
    app = visit(written[0], "kl", run=run.id)
    assert not any("script" in text for text in markup_of(app))
    (shown,) = [code for code in codes(app) if "⟦" in code]
    assert "<script>" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown + texts(app))
    assert "nan nats" in texts(app)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("exists", [False, True])
def test_empty_history_says_which_command_to_run(visit: Visit, tmp_path: Path, page: str, exists: bool) -> None:
    path = tmp_path / "history.sqlite"
    if exists:
        History.open(path).close()
    app = visit(path, page)
    assert "q36eval gate --branch fp8-head" in codes(app)
    assert any("history" in one.help and "sqlite" in one.value for one in app.sidebar.caption if one.help)
    assert path.exists() is exists


def test_file_that_is_no_history_is_one_sentence(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_text("not a database, but long enough to be taken for one " * 20)
    live = f"from q36eval.app.dashboard.views import overview as o; o._draw_running(o.Reader({str(path)!r}))"
    for app in (visit(path), AppTest.from_string(live).run()):  # the whole page, and what is drawn again every 2 s
        assert ("cannot be read" in app.error[0].value, "cannot be used" in texts(app)) == (True, True)


@pytest.mark.long
def test_dashboard_loads_no_model_library() -> None:
    code = (
        "import sys, pkgutil, importlib, q36eval.app.dashboard as d\n"
        "for m in pkgutil.walk_packages(d.__path__, 'q36eval.app.dashboard.'):\n"
        "    if m.name != 'q36eval.app.dashboard.main': importlib.import_module(m.name)\n"
        "ours = {f'q36eval.{name}' for name in ('kl', 'evals', 'canaries.checks', 'canaries.probe')}\n"
        "heavy = {'torch', 'transformers', 'lm_eval', *ours}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("file", sorted(VIEWS.glob("*.py")), ids=lambda file: file.stem)
def test_a_page_shows_no_text_that_is_meant_for_its_readers_in_the_code(file: Path) -> None:
    """Streamlit draws every expression that stands alone in a page's file, a constant's docstring too."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    assert not [part.lineno for part in body[1:] if isinstance(part, ast.Expr)]


@pytest.fixture
def running(history: History) -> tuple[Path, str]:
    """A history of one run that is going on: of a hostile branch, in a stage of a hostile name."""
    run = history.start_run(family="sandbox", branch=BRANCH, identity=None, reference_identity=None)
    history.set_progress(RunProgress(run_id=run.id, stage=HOSTILE, done=3, total=9, at=datetime.now(UTC)))
    return Path(history.name), run.id


@pytest.mark.long
@pytest.mark.parametrize("page", ["review", "kl", "evals", "canaries"])
def test_a_command_to_be_copied_runs_nothing_else(visit: Visit, running: tuple[Path, str], page: str) -> None:
    path, run = running
    commands = [one.value for one in visit(path, page, run=run).code if one.value.startswith("q36eval ")]
    assert commands
    assert all(shlex.split(command)[2:] == ["--branch", "BRANCH"] for command in commands)


def test_the_stage_of_a_run_is_no_markup(visit: Visit, running: tuple[Path, str]) -> None:
    path, run = running
    app = visit(path, "run", run=run)
    assert any("<script>alert('owned')</script>" in one.value for one in app.text)
    assert "<script>" not in "".join(str(one.proto) for one in app.get("progress"))


# -- addresses


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A history whose ruined run has flips of the evals and its worst tokens, more than one page of each."""
    path = tmp_path_factory.mktemp("links") / "history.sqlite"
    runs = write_history(path)
    history = History.open(path)
    history.add_items(runs["ruined"].id, [flip(number) for number in range(12)])
    history.close()
    folder = Paths.tokens_beside(path, runs["ruined"].id)
    folder.mkdir(parents=True)
    write_worst(
        folder / WORST, [worst_token(n, kind=("word", "number")[n % 2], forward_kl=9.0 - n / 10) for n in range(20)]
    )
    return path, runs


def flip(number: int) -> ItemOutcome:
    sides = {"reference": Answer(score=1.0, text="A"), "branch": Answer(score=0.0, text="B")}
    key = f"{number:02d}".ljust(64, "f")
    group = ("mmlu", "other")[number > 7]
    return ItemOutcome(probe=ProbeName.EVALS, group=group, item_key=key, cluster=str(number), prompt="Which?", **sides)


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "name", "value", "listed"),
    [
        ("canaries", "canary", "tool-calls", "11 of 32"),
        ("canaries", "outcome", "regression", "5 of 32"),
        ("canaries", "standing", "confirmed", "3 of 32"),
        ("canaries", "standing", "fixed", "9 of 32"),
        ("kl", "kind", "word", "10 of 20"),
        ("kl", "slice", "czech", "20 of 20"),
        ("evals", "group", "mmlu", "8 of 12"),
        ("evals", "direction", "gained", "0 of 12"),
        ("canaries", "lane", "<b>nope</b>", "0 of 32"),
        ("kl", "kind", "nope", "0 of 20"),
        ("evals", "group", "<b>nope</b>", "0 of 12"),
    ],
)
def test_an_address_chooses_what_is_listed(
    visit: Visit, full: Written, page: str, name: str, value: str, listed: str
) -> None:
    app = visit(full[0], page, run=full[1]["ruined"].id, **{name: value})
    assert any(one.value.startswith(f"{listed} ") or one.value.startswith(f"{listed},") for one in app.caption)
    assert app.query_params[name] in (value, [value])
