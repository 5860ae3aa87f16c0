"""Starts Streamlit's server behind the guard."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware

from q36eval.app.dashboard.guard import LOOPBACK, Guard
from q36eval.app.dashboard.verdict_style import PRIMARY

SCRIPT = Path(__file__).parent / "main.py"
EVERYWHERE = ("0.0.0.0", "::", "")
"""Addresses that mean all of a machine's. Nobody asks under them."""

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
"""These hold whatever a configuration file in the current folder contains."""


def serve(address: str, port: int, allowed: list[str], page: list[str]) -> None:
    """Serve until a signal stops it; `page` are the arguments of `main.py`, `allowed` further host names."""
    sys.argv = [str(SCRIPT), *page]
    hosts = [*LOOPBACK, *([] if address in EVERYWHERE else [address]), *allowed]
    app: Any = st.App(SCRIPT, middleware=[Middleware(Guard, hosts)])
    with suppress(KeyboardInterrupt):
        app.run(config=CONFIGURATION | {"server.address": address, "server.port": port})
