"""`q36eval history export` and `import`: whole runs from one history into another."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.history_list import (
    RunsOfBranch,
    RunsOfFamily,
    SinceOption,
    StateOption,
    UntilOption,
    VerdictOption,
    check_known,
    run_filter,
)
from q36eval.app.cli.options import JsonOption, note, open_history, print_json
from q36eval.config.paths import Paths
from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.history import History, RunFilter, RunSummary


def export(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Run ids, unique prefixes, or latest.", metavar="RUN…"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Archive to write; into a folder, one archive per run.", metavar="FILE|DIR")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs, or all that match the filters.")] = False,
    family: RunsOfFamily = None,
    branch: RunsOfBranch = None,
    state: StateOption = None,
    verdict: VerdictOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export runs as an archive.

    It holds runs with their items, verdicts and files; signatures, blessings and waivers stay here.
    """
    wanted = run_filter(family, branch, state, verdict, since, until)
    history = open_history()
    chosen = _chosen(history, runs or [], everything, wanted)
    if out is None:
        raise UsageError("option-missing", "Name the archive to write with --out.")
    written = _export_archive(history, [run.id for run in chosen], out)
    if as_json:
        print_json({"runs": [run.id for run in chosen], "files": [str(file) for file in written]})


def _chosen(history: "History", named: Sequence[str], everything: bool, wanted: "RunFilter") -> "list[RunSummary]":
    """The selected runs, oldest first.

    Raises:
        UsageError: none is selected, or two ways to select are mixed.
    """
    from q36eval.history import RunFilter

    filtered = wanted != RunFilter()
    if named and (everything or filtered):
        raise UsageError("option-conflict", "Name runs, or choose them with --all and filters; not both.")
    if named:
        ids = {history.get_run(name).id for name in named}
        return [run for run in reversed(history.summaries()) if run.id in ids]
    if not (everything or filtered):
        raise UsageError(
            "run-required", "Name the runs to export, or choose them with --all or a filter such as --branch."
        )
    matching = history.summaries(wanted)
    if not matching:
        check_known(history, wanted)
        raise UsageError("run-unmatched", "No run matches, so there is nothing to export.")
    return matching[::-1]


def _export_archive(history: "History", run_ids: Sequence[str], out: Path) -> list[Path]:
    from q36eval.app.history.import_export import export as write

    paths = Paths.default()
    if out.is_dir():
        files = [out / f"{run_id}.zip" for run_id in run_ids]
        for run_id, file in zip(run_ids, files, strict=True):
            write(history, paths, [run_id], file)
        note(f"{len(run_ids):,} runs are in {out}, one archive each.")
        return files
    write(history, paths, run_ids, out)
    note(f"{len(run_ids):,} runs are in {out}, {out.stat().st_size / 1024 / 1024:,.1f} MiB; `history import` reads it.")
    return [out]


def take_in(
    archives: Annotated[list[Path], typer.Argument(help="Archives that `history export` wrote.", metavar="FILE…")],
    as_json: JsonOption = False,
) -> None:
    """Import the runs of archives.

    Nothing is overwritten: a run that is here with the same content is skipped; with other content the archive is
    refused. Every run is decided again from its evidence, with the blessings of this history and without waivers.
    """
    from q36eval.app.cli.tables import print_plain
    from q36eval.app.history.import_export import take_in as read

    paths = Paths.default()
    history = open_history(paths, writing=True)
    done = []
    for file in archives:
        imported = read(history, paths, file)
        done.append(
            {
                "archive": str(file),
                "added": imported.added,
                "known": imported.known,
                "verdicts_differ": imported.says,
            }
        )
        if as_json:
            continue
        print_plain(f"{file}: {len(imported.added):,} runs imported, {len(imported.known):,} were here already.")
        for sentence in imported.says:
            print_plain(f"  {sentence}")
    if as_json:
        print_json(done)
