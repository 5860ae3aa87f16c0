"""Starts Streamlit's server: `python -m q36eval.app.dashboard.server --address A --port P … -- ARGUMENTS OF main.py`.

What the pages import is imported before anybody opens one: charts, tables and statistics take a second otherwise, of
whoever comes first. And where the branches stand over their runs is found by another process, of those that history
does not keep it of: another version may have kept it, or none.
"""

import argparse
import inspect
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from q36eval.app.cli.streams import tolerant_output
from q36eval.app.dashboard import views
from q36eval.app.dashboard.front_page import FrontPage
from q36eval.app.dashboard.guard import LOOPBACK, Guard
from q36eval.app.dashboard.verdict_style import PRIMARY

LATE = ("pandas", "plotly.graph_objects", "plotly.io", "scipy.stats", "pyarrow.parquet", "PIL.Image")
"""What charts, tables, tests of significance and the browser tab's icon import when they are first drawn."""

FIRST = "overview"
"""The page that stands at the address without a name."""

SCRIPT = Path(__file__).parent / "main.py"
EVERYWHERE = ("0.0.0.0", "::", "")
"""Addresses that stand for all of a machine's, and are none that anybody asks under."""

CONFIGURATION = {
    "server.headless": True,
    "server.fileWatcherType": "none",
    "server.enableCORS": True,
    "server.enableXsrfProtection": True,
    "server.enableStaticServing": False,
    "server.enableAgentApi": False,
    "server.scriptHealthCheckEnabled": False,
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "type",
    "theme.light.primaryColor": PRIMARY["light"],
    "theme.dark.primaryColor": PRIMARY["dark"],
}
"""Whatever a configuration in the folder it is started from says of these."""


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--allow-host", action="append", default=[])
    own, page = _parted(sys.argv[1:])
    options = parser.parse_args(own)
    imported()
    sys.argv = [sys.argv[0], *page]
    configuration = CONFIGURATION | {"server.address": options.address, "server.port": options.port}
    with tolerant_output():  # a server whose log is gone goes on
        guarded(hosts_of(options.address, options.allow_host)).run(config=configuration)


def guarded(hosts: list[str]) -> Any:
    """The app that answers under these names alone."""
    import streamlit as st
    from starlette.middleware import Middleware
    from streamlit import config
    from streamlit.runtime.secrets import secrets_singleton

    def guard(app: Any) -> Guard:  # called when the server is built: its configuration is known then
        pages = {page.name for page in iter_modules(views.__path__)} - {FIRST}
        has_login = secrets_singleton.load_if_toml_exists() and bool(secrets_singleton.get("auth"))
        return Guard(app, hosts, config.get_option("server.baseUrlPath"), pages, has_login=has_login)

    return st.App(SCRIPT, middleware=[Middleware(guard), Middleware(FrontPage)])


def hosts_of(address: str, allowed: list[str]) -> list[str]:
    """Names that it answers under, beside the address of this machine that is asked."""
    return [*LOOPBACK, *([] if address in EVERYWHERE else [address]), *allowed]


def _parted(arguments: list[str]) -> tuple[list[str], list[str]]:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :]


def imported() -> None:
    """Import every page, and what pages import late."""
    for page in iter_modules(views.__path__):
        import_module(f"q36eval.app.dashboard.views.{page.name}")
    for name in LATE:
        import_module(name)
    with suppress(ImportError):  # not every version has it; 60 ms of the first page with a warning on it
        import_module("streamlit.emojis")
    _drawn_once()
    inspect.stack()  # Streamlit asks for it once, and Python looks through every module then


def _drawn_once() -> None:
    """A chart with every kind of trace: Plotly imports the classes of each, and of its template, with the first."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for trace in (go.Scatter, go.Bar, go.Histogram, go.Heatmap):
        figure.add_trace(trace())
    errors = {"array": [0]}
    figure.update_traces(error_x=errors, error_y=errors, line={}, selector={"type": "scatter"})
    figure.add_hline(0, annotation_text="")
    figure.add_vrect(0, 1)
    figure.add_annotation(font={}, text="")
    figure.update_layout(legend={}, margin={}, hoverlabel={}, font={}, title={}, template="plotly_white")
    figure.update_xaxes(title="").update_yaxes(title="")
    figure.to_plotly_json()


if __name__ == "__main__":
    main()
