"""`q36eval ui`: the dashboard."""

import ipaddress
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from q36eval.app.cli.options import say
from q36eval.errors import UsageError

BLUE = "#3b7dd8"
"""What is chosen is not drawn in the red of a FAIL, which Streamlit's own theme does."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names under which a browser on this machine asks. Under any other one, a web page elsewhere may have led it here by
letting its own name point to loopback (DNS rebinding), and could read and write as whoever sits at this machine."""

SERVER = "q36eval.app.dashboard.server"
SCRIPT = Path(__file__).parents[1] / "dashboard" / "main.py"

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def ui(
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    history: Annotated[
        str | None, typer.Option(help="Show another history: a file, or a database URL.", metavar="FILE|URL")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Host name of a reverse proxy in front of it; repeat it for several.", metavar="NAME"),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let no one waive, sign or bless.")] = False,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Let anyone who reaches the address write, under a name they type.")
    ] = False,
) -> int:
    """Start the dashboard; stop it with Ctrl-C.

    On loopback, reviewers type their name. On any other address, or behind a proxy (--host), only people who have
    logged in may write (Streamlit's OIDC login, docs/ui.md), unless the network is trusted.
    """

    if find_spec("streamlit") is None:
        raise UsageError('The dashboard needs the "ui" extra; install it with: pip install "q36eval[ui]".')
    hosts = tuple(map(_host_name, host or ()))
    reachable = bool(hosts) or not _is_loopback(address)
    if reachable:
        say(_warning(", ".join(hosts) or f"{address} port {port}", read_only, trust_network))
    arguments = ["--read-only"] * read_only + ["--shared"] * (reachable and not trust_network)
    command = [sys.executable, "-P", "-m", SERVER, str(SCRIPT), *_options(address, port, hosts), "--", *arguments]
    # -P: a folder `app` where somebody starts it is not ours
    # whoever may list processes reads arguments; a database URL may hold a password
    environment = os.environ | ({} if history is None else {"Q36EVAL_HISTORY": history})
    try:
        return subprocess.call(command, env=environment)
    except KeyboardInterrupt:
        return 0


def _options(address: str, port: int, hosts: Sequence[str]) -> list[str]:
    """How the server is started, whatever a configuration in the folder it is started from says of these."""
    options = {
        "server.address": address,
        "server.port": str(port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.enableCORS": "true",
        "server.enableXsrfProtection": "true",
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "type",
        "theme.light.primaryColor": BLUE,
        "theme.dark.primaryColor": BLUE,
    }
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    allowed = [*LOOPBACK, address, *hosts] if hosts or _is_loopback(address) else []
    return given + [part for name in dict.fromkeys(allowed) for part in ("--server.allowedHosts", name)]


def _host_name(text: str) -> str:
    if _HOST_NAME.fullmatch(text) is None:
        raise UsageError(f"--host takes a name without port or path, such as review.example.org, not {text!r}.")
    return text


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _warning(where: str, read_only: bool, trust_network: bool) -> str:
    reading = f"anyone who reaches {where} can read every prompt and answer in this history"
    if read_only:
        return f"{reading}; no one can write."
    if trust_network:
        return f"{reading}, and waive, sign and bless under any name."
    return f"{reading}; only people who log in can write (docs/ui.md says how to set that up)."
