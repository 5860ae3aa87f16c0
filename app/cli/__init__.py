"""The command line: one file per command, named like it (`history_compare.py` is `q36eval history compare`).

Beside them `options.py` holds what commands share, and `*_report.py` what a command prints. `main` is the only place
where an error becomes a sentence and an exit code. May import all of q36eval; at the top of a file only what is cheap
(no numpy, torch, SQLAlchemy, rich), so that `q36eval --help` answers at once.
"""

from q36eval.app.cli.main import main

__all__ = ["main"]
