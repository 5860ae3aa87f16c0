"""Starts Streamlit's server: `python -m q36eval.app.dashboard.server ARGUMENTS OF streamlit run`, as `q36eval ui` does.

What the pages import is imported before anybody opens one: charts, tables and statistics take a second otherwise, of
whoever comes first. And where the branches stand over their runs is found by another process, of those that history
does not keep it of: another version may have kept it, or none.
"""

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

from q36eval.app.dashboard import views
from q36eval.app.dashboard.started import READ_ONLY

LATE = ("pandas", "plotly.graph_objects", "plotly.subplots", "plotly.io", "scipy.stats", "pyarrow.parquet")
"""What charts, tables and tests of significance import when they are first drawn."""


def main() -> None:
    """Serve until stopped."""
    from streamlit.web.cli import main as streamlit

    if READ_ONLY not in sys.argv:
        quiet = subprocess.DEVNULL
        subprocess.Popen([sys.executable, "-P", "-m", "q36eval.run.drift"], stdin=quiet, stdout=quiet, stderr=quiet)
    imported()
    sys.argv = ["streamlit", "run", *sys.argv[1:]]
    streamlit()


def imported() -> None:
    """Import every page, and what pages import late."""
    for page in iter_modules(views.__path__):
        import_module(f"q36eval.app.dashboard.views.{page.name}")
    for name in LATE:
        import_module(name)


if __name__ == "__main__":
    main()
