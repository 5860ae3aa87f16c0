"""A view can be passed on: its address holds what was chosen, the tab says what it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driving import IN_A_BROWSER, WAIT_S, chromium, serving
from written_history import write_history

from q36eval.config import Paths
from q36eval.history import History
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.token_files import WORST, WorstToken, write_worst

Written = tuple[Path, dict[str, Any]]


@IN_A_BROWSER
def test_the_tab_names_page_branch_and_run(written: Written) -> None:
    run = written[1]["ruined"].id
    named = {
        "": "What may ship · q36eval",
        "branch?branch=int2-experts&family=sandbox": "Branch · int2-experts · family sandbox · q36eval",
        f"review?run={run}": f"Review · int2-experts · {run} · q36eval",
    }
    named |= {
        f"{page.lower()}?run={run}": f"{page} · int2-experts · {run} · q36eval"
        for page in ("Run", "KL", "Evals", "Canaries")
    }
    with serving(written[0]) as root, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(WAIT_S * 1000)
        for address, title in named.items():
            page.goto(f"{root}/{address}")
            page.wait_for_function("title => document.title === title", arg=title)


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
    write_worst(folder / WORST, [token(number) for number in range(20)])
    return path, runs


def flip(number: int) -> ItemOutcome:
    sides = {"reference": Answer(score=1.0, text="A"), "branch": Answer(score=0.0, text="B")}
    key = f"{number:02d}".ljust(64, "f")
    return ItemOutcome(probe=ProbeName.EVALS, group="mmlu", item_key=key, cluster=str(number), prompt="Which?", **sides)


def token(number: int) -> WorstToken:
    figures = {"reference_entropy": 0.5, "reference_logprob": -0.1, "branch_logprob": -9.0, "top1_rank": 3}
    words = {"before": "the ", "text": f"word {number}", "after": " after", "document": "d"}
    kind = ("word", "number")[number % 2]
    return WorstToken(slice="czech", kind=kind, index=number, forward_kl=9.0 - number / 10, **words, **figures)


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "short", "kind", "key", "value", "name", "written_as"),
    [
        ("branch", "pass", "text_input", "drift_text", "perplexity", "q", "perplexity"),
        ("branch", "pass", "segmented_control", "drift_which", "everything measured", "metrics", "everything measured"),
        ("branch", "pass", "segmented_control", "drift_runs", "all", "runs", "all"),
        ("branch", "pass", "number_input", "drift_page", 2, "drift_page", "2"),
        ("compare", "ruined", "segmented_control", "compare_which", "moved", "show", "moved"),
        ("canaries", "ruined", "selectbox", "canary_canary", "tool-calls", "canary", "tool-calls"),
        ("canaries", "ruined", "toggle", "canary_flips", True, "flips", "yes"),
        ("canaries", "ruined", "toggle", "canary_must", True, "must", "yes"),
        ("canaries", "ruined", "number_input", "canaries_page", 2, "page", "2"),
        ("kl", "ruined", "selectbox", "kl_kind", "word", "kind", "word"),
        ("kl", "ruined", "number_input", "kl_page", 2, "page", "2"),
        ("evals", "ruined", "selectbox", "evals_direction", "lost", "direction", "lost"),
        ("evals", "ruined", "number_input", "evals_page", 2, "page", "2"),
        ("evals", "ruined", "selectbox", "evals_group", "mmlu", "group", "mmlu"),
        ("kl", "ruined", "selectbox", "kl_slice", "czech", "slice", "czech"),
        ("canaries", "ruined", "selectbox", "canary_outcome", "regression", "outcome", "regression"),
        ("canaries", "ruined", "selectbox", "canary_standing", "confirmed", "standing", "confirmed"),
        ("compare", "ruined", "segmented_control", "compare_way", "lost", "way", "lost"),
        ("overview", "ruined", "text_input", "overview_text", "int2", "q", "int2"),
        ("overview", "ruined", "segmented_control", "overview_which", "Blocked", "show", "Blocked"),
        ("branch", "pass", "selectbox", "runs_state", "finished", "state", "finished"),
        ("branch", "pass", "selectbox", "runs_verdict", "PASS", "verdict", "PASS"),
    ],
)
def test_what_is_chosen_stands_in_the_address(
    visit: Callable[..., Any],
    full: Written,
    page: str,
    short: str,
    kind: str,
    key: str,
    value: Any,
    name: str,
    written_as: str,
) -> None:
    """And a session that begins with that address shows the same."""
    path, runs = full
    of = {"family": "sandbox", "branch": runs[short].branch} if page == "branch" else {"run": runs[short].id}
    if page == "compare":
        of = {"a": runs["pass"].id, "b": runs[short].id}
    if page == "overview":
        of = {}
    if key.startswith("runs_"):
        of |= {"tab": "runs"}
    before = visit(path, page, **of)
    app = getattr(before, kind)(key=key).set_value(value).run()
    assert not app.exception
    address = {one: many[0] if isinstance(many, list) else many for one, many in app.query_params.items()}
    # its figures stay open where they were, although a link to answers begins with them closed
    stays = {"open": "figures"} if page == "canaries" and name != "page" else {}
    assert address == of | {name: written_as} | stays
    again = visit(path, page, **address)
    assert getattr(again, kind)(key=key).value == value
    assert again.query_params == app.query_params
    shown, drawn = ([one.value for one in side.caption] for side in (app, again))
    assert shown == drawn


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "name"), [("evals", "group"), ("kl", "slice"), ("kl", "kind"), ("canaries", "canary")]
)
def test_a_filter_for_what_is_not_there_shows_none(
    visit: Callable[..., Any], full: Written, page: str, name: str
) -> None:
    """All of them would be taken for what was asked for; and who chooses again sees what there is."""
    app = visit(full[0], page, run=full[1]["ruined"].id, **{name: "<b>nope</b>"})
    assert "has no question of what the address asks for" in app.warning[0].value
    assert [one.value for one in app.caption if one.value.startswith("0 of ")]
    assert [one.value for one in app.text if "<b>nope</b>" in one.value]
