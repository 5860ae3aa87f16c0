"""`q36eval ui`: the dashboard."""

import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from q36eval.app.cli.options import say
from q36eval.app.dashboard.guard import is_loopback
from q36eval.app.dashboard.launch_options import LOCAL, READ_ONLY, TRUSTED
from q36eval.errors import UsageError
from q36eval.interrupts import closing

SERVER = "q36eval.app.dashboard.server"
SECONDS_TO_STOP = 10.0

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def ui(
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Answer under this host name too, such as a reverse proxy's; repeat it for several.", metavar="NAME"
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let no one waive, sign or bless.")] = False,
    trust_network: Annotated[
        bool, typer.Option("--trust-network", help="Let anyone who reaches the address write, under a name they type.")
    ] = False,
) -> int:
    """Start the dashboard; stop it with Ctrl-C.

    It answers under loopback names, its address and the names allowed. On loopback, reviewers type their name. On any
    other address, or under a name allowed, only people who have logged in may write (Streamlit's OIDC login,
    docs/ui.md), unless the network is trusted.
    """

    if find_spec("streamlit") is None:
        raise UsageError(
            "package-missing", 'The dashboard needs the "ui" extra; install it with: pip install "q36eval[ui]".'
        )
    hosts = tuple(map(_host_name, allow_host or ()))
    reachable = bool(hosts) or not is_loopback(address)
    if reachable:
        say(_warning(", ".join(hosts) or f"{address} port {port}", read_only, trust_network))
    who = [TRUSTED] if trust_network else [] if reachable else [LOCAL]
    # -P: a folder `app` where somebody starts it is not ours
    command = [sys.executable, "-P", "-m", SERVER, "--address", address, "--port", str(port)]
    command += [part for name in hosts for part in ("--allow-host", name)]
    return _serve([*command, "--", *[READ_ONLY] * read_only, *who])


def _serve(command: list[str]) -> int:
    """Until it ends, or this process is stopped: then it is stopped with it."""
    with subprocess.Popen(command) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            with closing():
                server.terminate()
                try:
                    server.wait(SECONDS_TO_STOP)
                except subprocess.TimeoutExpired:
                    server.kill()
            return 0


def _host_name(text: str) -> str:
    if _HOST_NAME.fullmatch(text) is None:
        raise UsageError(
            "option-value", f"--allow-host takes a name without port or path, such as review.example.org, not {text!r}."
        )
    return text


def _warning(where: str, read_only: bool, trust_network: bool) -> str:
    reading = f"anyone who reaches {where} can read every prompt and answer in this history"
    if read_only:
        return f"{reading}; no one can write."
    if trust_network:
        return f"{reading}, and waive, sign and bless under any name."
    return f"{reading}; only people who log in can write (docs/ui.md says how to set that up)."
