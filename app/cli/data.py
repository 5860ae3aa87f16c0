"""`q36eval data`: the frozen data of eval suites."""

import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from q36eval.app.cli.options import JsonOption, print_json
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.records import ProbeName
from q36eval.run.suites import corpus_beside, suite_place, texts_of

if TYPE_CHECKING:
    from q36eval.run.preflight import Problem

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
    from q36eval.app.derived_family import context_of
    from q36eval.evals.freezing import freeze_suite
    from q36eval.run.corpora import freeze_corpus

    paths = Paths.default()
    place = suite_place(suite, paths)
    if not tokenizer.is_dir():
        raise UsageError("folder-missing", f"There is no folder {tokenizer}; name a checkpoint folder.")
    target = out if out is not None else place.data
    frozen = []
    if place.corpus is not None:  # first, since it takes minutes and RULER takes hours
        texts = corpus_beside(out) if out is not None else place.corpus
        if (corpus := freeze_corpus(suite.partition("=")[0], tokenizer, texts, _tell)) is not None:
            frozen.append((texts, corpus))
    if part != "corpus":
        context = context_of(tokenizer)
        frozen.append((target, freeze_suite(place.file, tokenizer, target, context=context, notify=_tell)))
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


def freeze_first(
    suite: str,
    tokenizer: Path,
    context: int,
    probes: Collection[ProbeName],
    paths: Paths,
    problems: Callable[[], Iterable["Problem"]],
) -> None:
    """Freeze the missing part of a suite's data, after a line on its size.

    Args:
        suite: as `--suite` names it.
        tokenizer: a checkpoint folder.
        context: the maximum of tokens that its model reads.
        probes: the probes to measure.
        paths: the folders of frozen data.
        problems: what is in the gate's way. Where anything else is, nothing is frozen.

    Raises:
        UsageError: it cannot be had.
    """
    from q36eval.evals.freezing import freeze_suite
    from q36eval.evals.suite import read_suite
    from q36eval.hub import bytes_of
    from q36eval.kl.corpus_plan import plan_of
    from q36eval.run.corpora import freeze_corpus

    place = suite_place(suite, paths)
    tasks, texts = read_suite(place.file), plan_of(texts_of(suite))
    wanted: dict[str, str | None] = {}
    if lacks_tasks := ProbeName.EVALS in probes and bool(tasks.frozen_by_name) and not place.data.is_dir():
        wanted |= {name: source.revision for name, source in tasks.sources.items()}
    corpus = None if place.corpus is None or place.corpus.is_dir() or ProbeName.KL not in probes else place.corpus
    if texts is not None and corpus is not None:
        wanted |= {each.name: each.revision for each in texts.datasets}
    if not wanted or any(problem.blocks and problem.code != "frozen-data-missing" for problem in problems()):
        return
    size = bytes_of(wanted)
    amount = (
        "as much as the cache lacks (the Hub does not answer)" if size is None else f"at most {size / 2**20:,.0f} MiB"
    )
    _tell(f"Freezing the data of {suite} first, from {', '.join(wanted)}: {amount} to download.")
    if lacks_tasks and (longest := tasks.longest(context)):
        _tell(f"RULER is generated for up to {longest:,} tokens, which takes hours at 131,072.")
    if corpus is not None:
        freeze_corpus(texts_of(suite), tokenizer, corpus, _tell)
    if lacks_tasks:
        freeze_suite(place.file, tokenizer, place.data, context=context, notify=_tell)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
