"""The command line: one file per command, with its name (`history_compare.py` is `q36eval history compare`).

In addition, `options.py` has what commands share, and `*_report.py` the output of a command. `main` is the only place
where an error becomes a sentence and an exit code. May import all of q36eval; at the top of a file only cheap modules
(no numpy, torch, SQLAlchemy, rich), so that `q36eval --help` responds immediately.
"""

from q36eval.app.cli.main import main

__all__ = ["main"]
