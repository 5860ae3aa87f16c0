"""`q36eval ui`: the dashboard."""

import ipaddress
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import say
from q36eval.config.paths import Paths
from q36eval.errors import UsageError

BLUE = "#3b7dd8"
"""What is chosen is not drawn in the red of a FAIL, which Streamlit's own theme does."""


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    history: Annotated[
        str | None, typer.Option(help="Another history: a file, or a database URL.", metavar="FILE|URL")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let nobody waive, sign or bless.")] = False,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Let whoever reaches the address write under a name they type.")
    ] = False,
) -> int:
    """Open the dashboard in a browser; stop it with Ctrl-C.

    On loopback who reviews types a name. On any other address only who has logged in may write (Streamlit's OIDC
    login, docs/ui.md), unless the network is trusted.
    """
    from importlib.util import find_spec

    if find_spec("streamlit") is None:
        raise UsageError('The dashboard needs the "ui" extra; install it with: pip install "q36eval[ui]".')
    shared = not _is_loopback(address) and not trust_network
    if not _is_loopback(address):
        say(_warning(address, port, read_only, trust_network))
    script = Path(__file__).parents[1] / "dashboard" / "main.py"
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.address", address]
    command += ["--server.port", str(port), "--browser.gatherUsageStats", "false", "--server.headless", "true"]
    command += ["--server.fileWatcherType", "none", "--client.toolbarMode", "minimal"]
    command += ["--theme.light.primaryColor", BLUE, "--theme.dark.primaryColor", BLUE]
    command += ["--", history or Paths.default().history_url]
    command += ["--read-only"] * read_only + ["--shared"] * shared
    try:
        return subprocess.call(command)
    except KeyboardInterrupt:
        return 0


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _warning(address: str, port: int, read_only: bool, trust_network: bool) -> str:
    reading = f"whoever reaches {address} port {port} can read every prompt and answer in this history"
    if read_only:
        return f"{reading}; nobody can write."
    if trust_network:
        return f"{reading}, and waive, sign and bless under any name."
    return f"{reading}; only who logs in can write (docs/ui.md says how to set that up)."
