"""`q36eval drift`: how a branch moves over its runs."""

from typing import Annotated

import typer

from app.cli.options import FamilyOption, JsonOption, OneBranch, open_history, print_json
from q36eval.config.paths import Paths


def drift(
    branch: OneBranch,
    family: FamilyOption = None,
    metric: Annotated[str | None, typer.Option(help="Only metrics whose key holds this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Each metric over the branch's runs and against its blessed run, with the runs' own intervals."""
    import json

    from app.targets import load_family
    from q36eval.history import drift as find_drift

    chosen = load_family(family, Paths.default())
    history = open_history()
    series = history.metric_series(branch, chosen.name)
    blessed = history.blessed(branch, chosen.name)
    found = find_drift(series, blessed_run_id=None if blessed is None else blessed.id)
    found = [entry for entry in found if metric is None or metric in entry.key]
    if as_json:
        print_json([json.loads(entry.model_dump_json()) for entry in found])
        return
    from app.cli.tables import print_plain
    from q36eval.reports._text import plain

    if not found:
        print_plain(f"No finished runs of {branch}; q36eval gate --branch {branch} makes one.")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    base = "none" if blessed is None else blessed.id
    table = Table(
        "metric", "runs", "last value", "statement", title=Text(plain(f"{branch} (blessed: {base})"), style="italic")
    )
    for entry in found:
        last = entry.points[-1]
        table.add_row(
            *(Text(cell) for cell in (entry.key, str(len(entry.points)), f"{last.value:.4g}", entry.statement))
        )
    Console().print(table)
