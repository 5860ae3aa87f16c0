"""The dashboard in a real browser: `q36eval ui` over a history, and the system's Chromium driven by Playwright."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

Visit = Callable[..., Any]
"""The fixture `visit`, which opens a page."""
Written = tuple[Path, dict[str, Any]]
"""A history file, and its runs by short name."""
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
IN_A_BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine; install one: apt-get install chromium"
)
ROOT = Path(__file__).parents[3]
WAIT_S = 300.0
"""Long enough for a machine that does much else, and half of what a test may take: what never comes fails by name."""
WIDTH = 1400

_DRAWN = """() => {
  const app = document.querySelector('[data-testid=stApp]');
  const waits = document.querySelectorAll('[data-testid=stSkeleton], [data-testid=stStatusWidget]');
  return app && app.dataset.testScriptState !== 'running' && waits.length === 0;
}"""


@contextmanager
def free_port() -> Iterator[int]:
    """A port of loopback that one server may listen on: nobody else is given it in the meantime."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield int(held.getsockname()[1])


@contextmanager
def serving(history: Path, *options: str, port: int | None = None) -> Iterator[str]:
    """The dashboard over a history, on this port of loopback or a free one; its address.

    It is started beside the file, so that its pages name the file and not where on this machine it lies.
    """
    if port is None:
        with free_port() as port, serving(history, *options, port=port) as root:
            yield root
        return
    code = "from q36eval.app.cli import main; main()"
    command = [sys.executable, "-c", code, "ui", "--port", str(port), "--history", history.name, *options]
    quiet = {"stdout": subprocess.DEVNULL, "start_new_session": True}
    code_of = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with subprocess.Popen(command, cwd=history.parent, env=os.environ | code_of, **quiet) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def _wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the dashboard did not start")


@contextmanager
def chromium(*options: str) -> Iterator[Any]:
    """The system's browser, without a window; `options` of its command line."""
    driver = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *options])
        yield browser
        browser.close()


def tables_of(app: Any) -> list[Any]:
    """The tables of a page that `AppTest` drew, as data frames; without plots."""
    import pandas as pd

    static = []
    for body in (one.proto.body for one in app.get("html") if one.proto.body.startswith("<table")):
        rows = [
            {cell.attrib["data-of"]: "".join(cell.itertext()) for cell in row if "data-of" in cell.attrib}
            for row in ET.fromstring(body).iter("tr")
        ]
        static.append(pd.DataFrame(rows[1:]))
    return [*static, *(one.value for one in app.dataframe)]


def answers_of(app: Any) -> list[dict[str, Any]]:
    """What stands side by side on a page that `AppTest` drew, an entry for each question."""
    bodies = [one.proto.body for one in app.get("html") if one.proto.body.startswith('<div class="q36-answers"')]
    return [_shown(ET.fromstring(body)) for body in bodies]


def _shown(answers: ET.Element) -> dict[str, Any]:
    sides = [
        {
            "title": each.findtext("p"),
            "pieces": [
                [piece.text or "", piece.tag != "span"] for piece in each.iter() if piece.tag in ("span", "del", "ins")
            ],
        }
        for each in answers.findall("section")[:2]
    ]
    choices = [
        [cell.findall("span") for cell in row.findall("td")] + [row.findtext("td")] for row in answers.iter("tr")
    ]
    return {
        "sides": sides,
        "parting": answers.findtext("section[@class='parting']/p") or "",
        "choices": [
            {"token": cells[-1]}
            | {name: _held(cell) for name, cell in zip(("reference", "branch"), cells[1:3], strict=True)}
            for cells in choices
            if len(cells) > 1
        ],
    }


def _held(cell: list[ET.Element]) -> dict[str, Any] | None:
    if not cell:
        return None
    share = float(cell[0].attrib["style"].removeprefix("width: ").removesuffix("%")) / 45
    return {"share": share, "words": cell[1].text, "said": "class" in cell[1].attrib}


def markup_of(app: Any) -> list[str]:
    """All texts of a page that `AppTest` drew which the browser reads as Markdown."""
    kinds = ("markdown", "caption", "title", "header", "subheader", "error", "warning", "info")
    return [element.value for kind in kinds for element in app.get(kind)]


def words_of(app: Any, kinds: Sequence[str]) -> str:
    """What stands on a page that `AppTest` drew, in elements of these kinds."""
    return "\n".join(element.value for kind in kinds for element in app.get(kind))


def button(app: Any, label: str) -> Any:
    """By its words: its key holds what it stands beside."""
    return next(one for one in app.button if one.label == label)


def drawn(page: Any) -> None:
    """Wait until the page is drawn to its end, and nothing of it is still on its way.

    Before, wait for what is looked at: after a click the server may not have begun to draw anew, and a browser fetches
    what draws some elements (marked text among them) only when it meets the first.
    """
    page.wait_for_function(_DRAWN, timeout=WAIT_S * 1000)


def problems_of(page: Any) -> list[str]:
    """What goes wrong on a page from now on: errors of scripts, dialogs that only markup could have opened, what is
    asked of other machines, and what is not found.
    """
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("request", lambda request: found.append(request.url) if _is_elsewhere(request.url) else None)
    page.on("response", lambda got: found.append(f"{got.status} {got.url}") if _is_missing(got) else None)
    page.on("dialog", lambda dialog: (found.append(f"dialog {dialog.message}"), dialog.dismiss()))
    return found


def _is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1"


def _is_missing(response: Any) -> bool:
    """Streamlit first asks for its server below the page's own path, where it is not."""
    return response.status >= 400 and "/_stcore/" not in response.url
