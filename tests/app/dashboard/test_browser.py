"""The dashboard as a person sees it: `q36eval ui` in a real Chromium, in the light and the dark theme."""

from collections.abc import Iterator
from typing import Any

import pytest
from driving import IN_A_BROWSER, WAIT_S, Visit, button, chromium, drawn, problems_of, serving
from written_history import write_history

from q36eval.history import History
from q36eval.run.drift import standing_drift
from tests.q36eval.history.conftest import fresh, postgresql

CUT = """() => [...document.querySelectorAll('.stMain :is([data-testid=stHtml], [data-testid=stPageLink-NavLink])')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 || e.clientWidth < 80 && e.scrollHeight > 44).map(e => e.innerText)"""
"""What is wider than its page, and links that are written letter below letter."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    path = tmp_path_factory.mktemp("ui") / "history.sqlite"
    runs = write_history(path)
    with serving(path) as root:
        yield root, runs


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    """One for all: each page then need not fetch and compile the client's scripts again."""
    with chromium() as browser:
        yield browser.new_context(viewport={"width": 1400, "height": 1000})


def visit(context: Any, url: str, *wanted: str, theme: str = "light") -> tuple[Any, list[str]]:
    """A page once each of `wanted` shows and all is drawn, and what goes wrong on it."""
    page = context.new_page()
    page.emulate_media(color_scheme=theme)
    problems = problems_of(page)
    page.goto(url)
    for text in wanted:
        page.get_by_text(text).filter(visible=True).first.wait_for(timeout=WAIT_S * 1000)
    drawn(page)
    links = page.eval_on_selector_all("a, img, script", "nodes => nodes.map(n => n.href || n.src || '')")
    problems += [link for link in links if link.startswith("javascript:") or link.startswith("http://x/")]
    problems += [error.inner_text() for error in page.locator("[data-testid=stException]").all()]
    return page, problems


@IN_A_BROWSER
@pytest.mark.parametrize(
    ("theme", "address", "wanted"),
    [
        ("light", "/", "✗ BLOCKED"),
        ("dark", "/run?run={crashed}", "NOT MEASURED"),
        ("light", "/branch?family=sandbox&branch=fp8-head", "Blessed run {blessed}, by Jana"),
        ("dark", "/canaries?run={ruined}", "REGRESSION"),
        ("light", "/evals?run={pass}", "Recovery is"),
        ("dark", "/kl?run={pass}", "Tokens by their KL"),
    ],
)
def test_every_page_draws_and_model_text_stays_inert(
    context: Any, served: tuple[str, dict[str, Any]], theme: str, address: str, wanted: str
) -> None:
    root, runs = served
    ids = {short: run.id for short, run in runs.items()}
    url = root + address.format(**ids)
    hostile = ("<script>alert('owned')</script> [a link]",) if "canaries" in address else ()
    page, problems = visit(context, url, wanted.format(**ids), *hostile, theme=theme)
    text = page.locator("[data-testid=stMain]").inner_text()
    page.set_viewport_size({"width": 820, "height": 1000})  # beside its sidebar a page is as narrow as on a phone
    drawn(page)
    problems += page.evaluate(CUT)
    page.close()
    assert problems == []
    if "canaries" in address:
        # shown letter by letter, which is only so when nothing read it as markup
        assert "<script>alert('owned')</script> [a link](javascript:alert(1))" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


# -- served from another machine


__all__ = ["postgresql"]  # a fixture


@pytest.mark.long
def test_pages_are_drawn_and_a_reviewer_s_word_is_written(visit: Visit, postgresql: str) -> None:
    url = fresh(postgresql, template="head")
    runs = write_history(url)
    history = History.open(url)
    for page in ("overview", "compare", "branch", "run"):
        assert not visit(url, page).error
    app = visit(url, "review", run=runs["pass"].id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="bless_reason").set_value("the level to hold")
    button(app, "Bless this run").click().run()
    assert history.blessings("fp8-head", "sandbox")[0].owner == "Eva"
    assert standing_drift(history, "sandbox", "fp8-head").blessed_run_id == runs["pass"].id
    history.close()
