"""`q36eval data`: the frozen data that eval suites read."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from q36eval.app.cli.options import JsonOption, print_json
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.run.suites import corpus_beside, suite_place

app = typer.Typer(no_args_is_help=True, help="The frozen data that eval suites read.")


@app.command("freeze")
def freeze(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="A shipped suite, or a suite file.")],
    tokenizer: Annotated[
        Path,
        typer.Option("--tokenizer", help="Checkpoint folder; its tokens measure RULER's lengths.", metavar="FOLDER"),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write into this folder, instead of where runs look.", metavar="DIR")
    ] = None,
    part: Annotated[
        Literal["all", "corpus"],
        typer.Option("--part", help="corpus: freeze only the texts that the KL is measured on."),
    ] = "all",
    as_json: JsonOption = False,
) -> None:
    """Fetch and freeze a suite's data.

    Fetches datasets at their pinned revisions and generates RULER, as JSON Lines with a manifest; after that, runs
    fetch nothing. Reads the network or the local cache (HF_HOME, HF_DATASETS_CACHE, NLTK_DATA); exit 2 says what is
    missing.
    """
    from q36eval.evals.freezing import freeze_suite
    from q36eval.run.corpora import freeze_corpus

    paths = Paths.default()
    place = suite_place(suite, paths)
    if not tokenizer.is_dir():
        raise UsageError("folder-missing", f"There is no folder {tokenizer}; name a checkpoint folder.")
    target = out if out is not None else place.data
    frozen = []
    if place.corpus is not None:  # first, since it takes minutes where RULER takes hours
        texts = corpus_beside(out) if out is not None else place.corpus
        if (corpus := freeze_corpus(suite.partition("=")[0], tokenizer, texts, _tell)) is not None:
            frozen.append((texts, corpus))
    if part != "corpus":
        frozen.append((target, freeze_suite(place.file, tokenizer, target, notify=_tell)))
    if as_json:
        shown = {"name", "made_from", "sources"}
        summaries = [
            {"folder": str(folder), **manifest.model_dump(mode="json", include=shown)} for folder, manifest in frozen
        ]
        print_json(summaries[-1] | {"corpus": summaries[0] if len(summaries) > 1 else None})
        return
    for folder, manifest in frozen:
        lines = sum(entry.lines for name, entry in manifest.files.items() if name.endswith(".jsonl"))
        print(f"Froze {lines:,} rows of {manifest.name} in {len(manifest.files)} files below {folder}.")
        for source in manifest.sources:
            config = f" ({source.config})" if source.config else ""
            print(f"  {source.repository}{config} {source.split} at {source.revision[:12]}, {source.licence}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
