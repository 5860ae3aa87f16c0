"""What a shell offers after an option or for a run: names that exist, found without opening a history or a library.

A shell waits for this at every press of Tab. Whatever goes wrong, nothing is offered and nothing is said.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import typer

from q36eval.config.paths import Paths

NEWEST_RUNS = 50
"""So many runs are offered; older ones are found by typing the beginning of their ids."""

Offered = list[tuple[str, str]]
Complete = Callable[[typer.Context, str], Offered]


def _silent(offer: Callable[[typer.Context, str], Iterator[tuple[str, str]]]) -> Complete:
    """What begins as what was typed; the parser hands over arguments by these two names."""

    def complete(ctx: typer.Context, incomplete: str) -> Offered:
        try:
            return [(value, words) for value, words in offer(ctx, incomplete) if value.startswith(incomplete)]
        except Exception:
            return []

    return complete


def _shipped(folder: Callable[[Paths], Path]) -> Complete:
    """The names of the YAML files in a folder; nothing is read."""
    return _silent(lambda *_: ((file.stem, "") for file in sorted(folder(Paths.default()).glob("*.yaml"))))


families = _shipped(lambda paths: paths.families)
policies = _shipped(lambda paths: paths.policies)
suites = _shipped(lambda paths: paths.repository / "evals" / "suites")


@_silent
def engines(_ctx: typer.Context, _incomplete: str) -> Iterator[tuple[str, str]]:
    """The kinds of engines."""
    from q36eval.engines.opening import KINDS

    return ((kind, "") for kind in KINDS)


@_silent
def branches(ctx: typer.Context, _incomplete: str) -> Iterator[tuple[str, str]]:
    """The branches of the family named before, else of the sandbox."""
    import yaml

    named = ctx.params.get("family") or "sandbox"
    file = Path(named) if named.endswith((".yaml", ".yml")) else Paths.default().families / f"{named}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    declared: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), loader)["branches"]
    return ((name, str(branch.get("scheme", ""))) for name, branch in declared.items())


@_silent
def runs(ctx: typer.Context, incomplete: str) -> Iterator[tuple[str, str]]:
    """The newest runs of the history file, and `latest`; none of a database that is no file."""
    paths = Paths.default()
    yield "latest", "the newest run"
    if "://" in paths.history_url:
        return
    uri = f"{Path(paths.history_url).resolve().as_uri()}?mode=ro"
    query = "SELECT id, family, branch, verdict, state FROM runs WHERE id LIKE ? || '%' ORDER BY number DESC LIMIT ?"
    with closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as database:
        for id, family, branch, verdict, state in database.execute(query, (incomplete, NEWEST_RUNS)):
            yield id, f"{family}/{branch} {verdict or state}"
