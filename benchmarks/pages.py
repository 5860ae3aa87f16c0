"""How long the dashboard's pages take on a big history, in Chromium: `python -m benchmarks.pages FILE`.

Each page is opened as the first one after the server has started, and once more. Beside it stands a page of the same
server that reads nothing (of a history without a run): what Streamlit and the browser take by themselves. Milliseconds
from the request of the address until all is drawn; the median of several servers.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from q36eval.history import History
from tests.app.dashboard.driving import chromium, drawn, serving

PAGES = ("", "branch", "run", "kl", "evals", "canaries", "compare", "review")
"""By their addresses; the first is the Overview."""


def opened(page: Any, address: str) -> float:
    """Milliseconds until a page is drawn."""
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("h1, [data-testid=stAlert]")
    drawn(page)
    assert page.locator("[data-testid=stException]").count() == 0
    return (time.perf_counter() - began) * 1000


def visits(browser: Any, history: Path, path: str) -> tuple[float, float]:
    """First visit and second of one page of a new server, by a browser that has Streamlit's own files already."""
    with serving(history) as address:
        context = browser.new_context()
        page = context.new_page()
        page.route("**/_stcore/**", lambda route: route.abort())
        page.goto(address, wait_until="load")  # without a connection: files alone, and no page is drawn
        page.unroute("**/_stcore/**")
        found = opened(page, f"{address}/{path}"), opened(page, f"{address}/{path}")
        context.close()
        return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("history", type=Path)
    parser.add_argument("--servers", type=int, default=3, help="started for each page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        empty = Path(folder) / "history.sqlite"
        History.open(empty).close()
        print("| page | first visit after a start | again |\n|---|---|---|", flush=True)
        for name, history, path in (
            ("nothing to read", empty, ""),
            *((path or "overview", given.history.resolve(), path) for path in PAGES),
        ):
            times = [visits(browser, history, path) for _ in range(given.servers)]
            first, again = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"| {name} | {first:,.0f} ms | {again:,.0f} ms |", flush=True)


if __name__ == "__main__":
    main()
