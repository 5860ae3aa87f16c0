"""How long the dashboard's pages take on a big history: `python -m benchmarks.pages FILE [--runs 10000]`.

Where there is no such file yet, it is written: twelve branches, gated every night. Of each a few checkpoints were
measured and judged by the sandbox's own policy, and their runs share those rows. Every run stands in history's chain.

Each page is opened as the first one after the server has started, and once more: by Streamlit's `AppTest`, which is the
server's share, and in Chromium, from the request of the address until all is drawn. Beside it stands a page that reads
nothing (of a history without a run): what Streamlit and the browser take by themselves, and each page's time as a
multiple of that. Medians of several servers.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks.history_size import placed
from q36eval.gate import Circumstances, Policy, decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunFilter, RunRecord, RunState
from q36eval.history import _tables as tables
from q36eval.history._ledger import append_run
from q36eval.history._runs import add_run
from q36eval.history._texts import json_values
from q36eval.history.store import item_rows, measurement_rows
from q36eval.records import ProbeName
from q36eval.run.drift import keep_drifts
from tests.app.dashboard.driving import chromium, drawn, serving
from tests.app.dashboard.written_history import POLICY, canary_items, evidence, identity

PAGES = ("", "branch", "run", "kl", "evals", "canaries", "compare", "review")
"""By their addresses; the first is the Overview."""
BRANCHES = 12
DAMAGES = (0.05, 0.1, 0.05, 4.0)
"""Of a branch's checkpoints in turn, in margins; every fourth branch is damaged from the last one on."""
ITEMS = 60

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


def write_history(path: Path, runs: int, seed: int = 20) -> None:
    """As many finished runs, oldest first in each branch."""
    rng, policy = random.Random(seed), read_policy(POLICY)
    begun = datetime.now(UTC) - timedelta(days=-(-runs // BRANCHES))
    history = History.open(path)
    for branch in range(BRANCHES):
        days = range(len(range(branch, runs, BRANCHES)))
        for part, damage in enumerate(DAMAGES):
            some = days[part * len(days) // len(DAMAGES) : (part + 1) * len(days) // len(DAMAGES)]
            moments = [begun + timedelta(days=day, minutes=branch) for day in some]
            worse = damage if branch % 4 == 0 else min(damage, 0.1)
            write_checkpoint(history, policy, (f"branch-{branch:02d}", part), worse, moments, rng)
        newest = history.summaries(RunFilter(branch=f"branch-{branch:02d}"), limit=1)[0].id
        history.bless(newest, "Jana", "the level to hold")
    keep_drifts(history)  # as every gate does
    history.close()


def write_checkpoint(
    history: History, policy: Policy, of: tuple[str, int], damage: float, moments: list[datetime], rng: random.Random
) -> None:
    """The runs of one checkpoint, measured once."""
    branch, part = of
    found, items = evidence(policy, damage, part + sum(map(ord, branch))), canary_items(ITEMS, damage)
    rules, decided = json_values(policy), decide(policy, found)
    with history._write() as connection:
        measured = placed(measurement_rows(connection, 0, found))
        asked = placed(sorted(item_rows(connection, 0, items), key=lambda row: row["asked"]))
        for at in moments:
            run = RunRecord(
                id=f"{at:%Y%m%d-%H%M%S}-{rng.getrandbits(24):06x}",
                family="sandbox",
                branch=branch,
                identity=identity("d", engine_version=f"5.{part}.0"),
                reference_identity=identity("a"),
                policy=rules,
                suites={name.value: f"suite-{name}" for name in ProbeName},
                provenance={"git_commit": f"{rng.getrandbits(160):040x}"},
                state=RunState.FINISHED,
                started=at,
                finished=at + timedelta(minutes=6),
                verdict=decided.verdict,
                report=decided,
                circumstances=Circumstances(on=at.date()),
                timings={},
            )
            number = add_run(connection, run)
            connection.execute(insert(tables.measurements), [{**row, "run": number} for row in measured])
            connection.execute(insert(tables.items), [{**row, "run": number} for row in asked])
            append_run(connection, number)


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
    parser.add_argument("--runs", type=int, default=10_000, help="of the history, where it is written first")
    parser.add_argument("--pages", nargs="*", default=PAGES, help="by their addresses; all")
    given = parser.parse_args()
    if not given.history.exists():
        began = time.perf_counter()
        write_history(given.history, given.runs)
        print(f"{given.runs:,} runs written in {time.perf_counter() - began:.0f} s\n", flush=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        empty = Path(folder) / "history.sqlite"
        History.open(empty).close()
        print(
            "| page | server, first visit | again | in Chromium, first visit | again | as multiples |\n"
            "|---|---|---|---|---|---|",
            flush=True,
        )
        trivial: list[float] = []
        for name, history, path in (
            ("nothing to read", empty, ""),
            *((path or "overview", given.history.resolve(), path) for path in given.pages),
        ):
            times = [served(history, path or "overview") + visits(browser, history, path) for _ in range(given.servers)]
            medians = [statistics.median(column) for column in zip(*times, strict=True)]
            trivial = medians if history is empty else trivial
            multiples = ", ".join(f"{one / other:.1f}" for one, other in zip(medians[2:], trivial[2:], strict=True))
            print(f"| {name} | {' | '.join(f'{one:,.0f} ms' for one in medians)} | {multiples} |", flush=True)


if __name__ == "__main__":
    main()
