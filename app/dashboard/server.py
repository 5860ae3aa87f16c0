"""Starts Streamlit's server behind the guard."""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware

from q36eval.app.dashboard.guard import LOOPBACK, Guard
from q36eval.app.dashboard.verdict_style import PRIMARY
from q36eval.errors import UsageError

SCRIPT = Path(__file__).parent / "main.py"
EVERYWHERE = ("0.0.0.0", "::", "")
"""Addresses that mean all of a machine's. Clients never connect to them by name."""

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
    "logger.hideWelcomeMessage": True,
    "theme.light.primaryColor": PRIMARY["light"],
    "theme.dark.primaryColor": PRIMARY["dark"],
}
"""These override any configuration file in the current folder."""


def serve(address: str, port: int, allowed: list[str], page: list[str]) -> None:
    """Serve until a signal stops it; port 0 takes a free one, `page` are the arguments of `main.py`, `allowed` further
    host names.

    Raises:
        UsageError: nobody can listen on that port.
    """
    try:
        with socket.create_server((address, port), family=(socket.AF_INET, socket.AF_INET6)[":" in address]) as tried:
            port = tried.getsockname()[1]
    except OSError as error:
        why = f"Nothing can listen on {address} port {port}: {error.strerror}; name another --address or --port."
        raise UsageError("port-unusable", why) from error
    sys.argv = [str(SCRIPT), *page]
    hosts = [*LOOPBACK, *([] if address in EVERYWHERE else [address]), *allowed]

    @asynccontextmanager
    async def started(_: Any) -> AsyncIterator[None]:
        shown = f"[{address}]" if ":" in address else address
        print(f"The dashboard is at http://{shown}:{port}; Ctrl-C stops it.", flush=True)
        yield

    app: Any = st.App(SCRIPT, lifespan=started, middleware=[Middleware(Guard, hosts)])
    with suppress(KeyboardInterrupt):
        app.run(config=CONFIGURATION | {"server.address": address, "server.port": port})
