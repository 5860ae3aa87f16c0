"""`q36eval ui`: the dashboard."""

import re
from importlib.util import find_spec
from typing import Annotated

import typer

from q36eval.app.cli.options import say
from q36eval.app.dashboard.guard import is_loopback
from q36eval.app.dashboard.launch_options import LOCAL, READ_ONLY
from q36eval.errors import UsageError

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def ui(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Answer under this host name too, such as a reverse proxy's; repeat it for several.", metavar="NAME"
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let no one waive, sign or bless.")] = False,
) -> None:
    """Start the dashboard; stop it with Ctrl-C.

    It answers under loopback names, its address and the names allowed. On loopback, reviewers type their name. On any
    other address, or under a name allowed, only people who have logged in may write (Streamlit's OIDC login,
    docs/ui.md).
    """
    if find_spec("streamlit") is None:
        raise UsageError(
            "package-missing", 'The dashboard needs the "ui" extra; install it with: pip install "q36eval[ui]".'
        )
    from q36eval.app.dashboard.server import serve

    hosts = allow_host or []
    if (wrong := next((name for name in hosts if _HOST_NAME.fullmatch(name) is None), None)) is not None:
        said = f"--allow-host takes a name without port or path, such as review.example.org, not {wrong!r}."
        raise UsageError("option-value", said)
    local = not hosts and is_loopback(address)
    if not local:
        who = "no one can write" if read_only else "only people who log in can write (docs/ui.md describes the setup)"
        where = ", ".join(hosts) or f"{address} port {port}"
        say(f"anyone who reaches {where} can read every prompt and answer in this history; {who}.")
    serve(address, port, hosts, [*[READ_ONLY] * read_only, *[LOCAL] * local])
