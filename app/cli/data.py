"""`q36eval data`: the frozen data that eval suites read."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import JsonOption, print_json
from app.suites import shipped_suites, suite_place
from q36eval.config.paths import Paths

app = typer.Typer(no_args_is_help=True, help="Freeze and verify what eval suites read; after that nothing is fetched.")


@app.command("freeze")
def freeze(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A shipped suite, or a suite file.")],
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", help="Checkpoint folder; RULER's lengths count its tokens.", metavar="FOLDER")
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Write here, not where runs look.", metavar="DIR")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a suite's datasets at their pinned revisions and generate RULER, all into JSON Lines and a manifest.

    Reads the network or the local cache (HF_HOME, HF_DATASETS_CACHE, NLTK_DATA); exit 2 says what is missing.
    """
    from evals.freezing import freeze_suite

    paths = Paths.default()
    place = suite_place(suite, paths)
    target = out if out is not None else place.data
    manifest = freeze_suite(place.file, tokenizer, target, notify=lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print_json(
            {"folder": str(target), **manifest.model_dump(mode="json", include={"name", "made_from", "sources"})}
        )
        return
    lines = sum(entry.lines for name, entry in manifest.files.items() if name.endswith(".jsonl"))
    print(f"Froze {lines:,} rows of {manifest.name} in {len(manifest.files)} files below {target}.")
    for source in manifest.sources:
        config = f" ({source.config})" if source.config else ""
        print(f"  {source.repository}{config} {source.split} at {source.revision[:12]}, {source.licence}")


@app.command("verify")
def verify(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE|DIR", help="A shipped suite, a suite file (=DIR after either: frozen there), or a folder."
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Hash every frozen file anew; exit 2 names what is missing, changed or extra."""
    from evals.frozen import verify as verify_folder
    from evals.suite import LoadedSuite

    if suite not in shipped_suites() and Path(suite).is_dir():
        folder = Path(suite)
        manifest = verify_folder(folder)
    else:
        place = suite_place(suite, Paths.default())
        folder = place.data
        manifest = LoadedSuite(place.file, folder).manifest
    if as_json:
        print_json({"folder": str(folder), "files": len(manifest.files), "sha256": manifest.sha256})
        return
    print(f"{folder} holds {manifest.name} as frozen: {len(manifest.files)} files, {manifest.sha256[:16]}.")
