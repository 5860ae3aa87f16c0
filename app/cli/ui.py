"""`q36eval ui`: the dashboard."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from q36eval.config.paths import Paths
from q36eval.errors import UsageError


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Address to listen on; loopback by default.")] = "127.0.0.1",
    history: Annotated[Path | None, typer.Option(help="Another history file.")] = None,
) -> int:
    """Open the dashboard in a browser; stop it with Ctrl-C."""
    from importlib.util import find_spec

    if find_spec("streamlit") is None:
        raise UsageError('The dashboard needs the "ui" extra; install it with: pip install "q36eval[ui]".')
    script = Path(__file__).parents[1] / "dashboard" / "main.py"
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.address", address]
    command += ["--server.port", str(port), "--browser.gatherUsageStats", "false", "--server.headless", "true"]
    command += ["--server.fileWatcherType", "none", "--client.toolbarMode", "minimal"]
    try:
        return subprocess.call([*command, "--", str(history or Paths.default().history_url)])
    except KeyboardInterrupt:
        return 0
