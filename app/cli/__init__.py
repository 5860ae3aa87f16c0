"""The command line. `main` is the only place where an error becomes a sentence and an exit code."""

from q36eval.app.cli.main import main

__all__ = ["main"]
