"""How long the dashboard's pages take on a big history: `python -m benchmarks.pages FILE`.

Each page is opened as the first one after the server has started, and once more: by Streamlit's `AppTest`, which is the
server's share, and in Chromium, from the request of the address until all is drawn. Beside it stands a page that reads
nothing (of a history without a run): what Streamlit and the browser take by themselves. Medians of several servers.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from q36eval.history import History
from tests.app.dashboard.driving import chromium, drawn, serving

PAGES = ("", "branch", "run", "kl", "evals", "canaries", "compare", "review")
"""By their addresses; the first is the Overview."""


MAIN = Path(__file__).parents[1] / "app" / "dashboard" / "main.py"

SERVED = """
import logging, sys, time
from streamlit.testing.v1 import AppTest
from q36eval.app.dashboard.server import imported
main, history, page = sys.argv[1:]
logging.disable(logging.CRITICAL)
sys.argv = [main, history]
imported()
for _ in range(2):
    app = AppTest.from_file(main, default_timeout=300)
    app.switch_page(f"views/{page}.py")
    began = time.perf_counter()
    app.run()
    print((time.perf_counter() - began) * 1000)
    assert not app.exception
"""


def served(history: Path, page: str) -> tuple[float, float]:
    """Milliseconds of the server at the first visit and the second of a page, in a process of its own."""
    command = [sys.executable, "-c", SERVED, str(MAIN), str(history), page]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=MAIN.parents[2])
    first, again = map(float, done.stdout.split())
    return first, again


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
        milliseconds = opened(page, f"{address}/{path}"), opened(page, f"{address}/{path}")
        context.close()
        return milliseconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("history", type=Path)
    parser.add_argument("--servers", type=int, default=3, help="started for each page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        empty = Path(folder) / "history.sqlite"
        History.open(empty).close()
        print(
            "| page | server, first visit | again | in Chromium, first visit | again |\n|---|---|---|---|---|",
            flush=True,
        )
        for name, history, path in (
            ("nothing to read", empty, ""),
            *((path or "overview", given.history.resolve(), path) for path in PAGES),
        ):
            times = [served(history, path or "overview") + visits(browser, history, path) for _ in range(given.servers)]
            medians = [statistics.median(column) for column in zip(*times, strict=True)]
            print(f"| {name} | {' | '.join(f'{one:,.0f} ms' for one in medians)} |", flush=True)


if __name__ == "__main__":
    main()
