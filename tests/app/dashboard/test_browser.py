"""The dashboard as a person sees it: `q36eval ui` in a real Chromium, in the light and the dark theme."""

from collections.abc import Iterator
from typing import Any

import pytest
from driving import IN_A_BROWSER, WAIT_S, drawn, problems_of, serving
from written_history import HOSTILE, write_history

from q36eval.history import History

pytestmark = IN_A_BROWSER
LONG = 1_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    path = tmp_path_factory.mktemp("ui") / "history.sqlite"
    runs = write_history(path)
    history = History.open(path)
    flips = history.items(runs["ruined"].id, flips_only=True, limit=2)
    long = flips[0].branch.model_copy(update={"text": f"{'long ' * (LONG // 5)}{HOSTILE}"})
    history.add_items(runs["ruined"].id, [flips[0].model_copy(update={"branch": long, "cluster": "long/1"})])
    history.close()
    with serving(path) as root:
        yield root, runs


@pytest.fixture(scope="module")
def context(browser: Any) -> Any:
    """One for all: each page then need not fetch and compile the client's scripts again."""
    return browser.new_context(viewport={"width": 1400, "height": 1000})


def visit(context: Any, url: str, *wanted: str, theme: str = "light") -> tuple[Any, list[str]]:
    """A page once each of `wanted` shows and all is drawn, and what goes wrong on it."""
    page = context.new_page()
    page.emulate_media(color_scheme=theme)
    problems = problems_of(page)
    page.goto(url)
    for text in wanted:
        page.get_by_text(text).first.wait_for(timeout=WAIT_S * 1000)
    drawn(page)
    links = page.eval_on_selector_all("a, img, script", "nodes => nodes.map(n => n.href || n.src || '')")
    problems += [link for link in links if link.startswith("javascript:") or link.startswith("http://x/")]
    problems += [error.inner_text() for error in page.locator("[data-testid=stException]").all()]
    return page, problems


@pytest.mark.parametrize(
    ("theme", "address", "wanted"),
    [
        ("light", "/", "✗ FAIL"),
        ("dark", "/run?run={crashed}", "NOT MEASURED"),
        ("light", "/branch?family=sandbox&branch=fp8-head", "lessed"),
        ("dark", "/canaries?run={ruined}", "REGRESSION"),
        ("light", "/evals?run={pass}", "Recovery is"),
        ("dark", "/kl?run={pass}", "Mean KL"),
    ],
)
def test_every_page_draws_and_model_text_stays_inert(
    context: Any, served: tuple[str, dict[str, Any]], theme: str, address: str, wanted: str
) -> None:
    root, runs = served
    url = root + address.format(**{short: run.id for short, run in runs.items()})
    hostile = ("<script>alert('owned')</script> [a link]",) if "canaries" in address else ()
    page, problems = visit(context, url, wanted, *hostile, theme=theme)
    text = page.locator("[data-testid=stMain]").inner_text()
    page.close()
    assert problems == []
    if "canaries" in address:
        # shown letter by letter, which is only so when nothing read it as markup
        assert "<script>alert('owned')</script> [a link](javascript:alert(1))" in text
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_an_answer_of_a_million_characters_is_cut_and_inert(context: Any, served: tuple[str, dict[str, Any]]) -> None:
    root, runs = served
    page, problems = visit(
        context, f"{root}/canaries?run={runs['ruined'].id}&item=long/1", "REGRESSION", "characters in all]"
    )
    text = page.locator("[data-testid=stMain]").inner_text()
    page.close()
    assert problems == []
    assert "characters in all]" in text
    assert len(text) < LONG / 10


def test_what_differs_is_marked_and_can_be_reached_by_keyboard(
    context: Any, served: tuple[str, dict[str, Any]]
) -> None:
    root, runs = served
    page, _ = visit(context, f"{root}/canaries?run={runs['ruined'].id}&outcome=regression", "REGRESSION")
    for mark, words in (("del", "90"), ("ins", "80")):
        page.locator(mark, has_text=words).first.wait_for(timeout=WAIT_S * 1000)
    missing = {"PRE ", "tool-calls/8", "Waive tool-calls", "Prompt", "CSV"}
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate("[document.activeElement.tagName, document.activeElement.innerText].join(' ')")
        missing -= {words for words in missing if (at.startswith(words) if words == "PRE " else words in at)}
        if not missing:
            break
    page.close()
    assert not missing


def test_what_is_open_stands_in_the_address(context: Any, served: tuple[str, dict[str, Any]]) -> None:
    """And only of what is open the contents are sent."""
    root, runs = served
    page, _ = visit(context, f"{root}/run?run={runs['ruined'].id}", "Criteria against their margins")
    identity = page.locator("summary", has_text="Identity and provenance")
    assert page.locator(".q36-table").count() == 0
    identity.click()
    page.wait_for_url("**open=identity*")
    page.locator(".q36-table").first.wait_for(timeout=WAIT_S * 1000)
    shared, problems = visit(context, page.url, "Criteria against their margins")
    shared.locator(".q36-table").first.wait_for(timeout=WAIT_S * 1000)
    drawn(page)
    identity.click()
    page.wait_for_url(lambda url: "open=" not in url)
    shared.goto(f"{root}/review?run={runs['ruined'].id}")
    shared.get_by_role("tab", name="Bless").wait_for()
    drawn(shared)
    shared.get_by_role("tab", name="Bless").click()
    shared.wait_for_url("**tab=bless*")
    shared.close()
    page.close()
    assert problems == []


def test_what_is_shown_can_be_saved(context: Any, served: tuple[str, dict[str, Any]]) -> None:
    root, runs = served
    page, _ = visit(context, f"{root}/run?run={runs['ruined'].id}", "Criteria against their margins")
    page.locator("summary", has_text="criteria").click()
    with page.expect_download(timeout=WAIT_S * 1000) as download:
        page.get_by_role("button", name="CSV").first.click()
    saved = download.value
    assert saved.suggested_filename == f"criteria-{runs['ruined'].id}.csv"
    assert saved.path().read_text("utf-8-sig").startswith("criterion,id,verdict,judged")
    page.locator(".js-plotly-plot").first.hover()
    with page.expect_download(timeout=WAIT_S * 1000) as download:
        page.locator(".modebar-btn[data-title]").first.click()
    assert download.value.suggested_filename == f"margins-{runs['ruined'].id}.svg"
    assert download.value.path().read_bytes().startswith(b"<svg")
    page.close()
