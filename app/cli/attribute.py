"""`q36eval attribute`: which classes of tensors and which layers cost the KL."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import (
    CorpusOption,
    DeviceOption,
    FamilyOption,
    JsonOption,
    OneBranch,
    ReferenceOption,
    SuiteOption,
    WeightsOnly,
    engine_options,
    open_history,
    print_json,
)
from q36eval.app.targets import load_family, resolve
from q36eval.config.paths import Paths

if TYPE_CHECKING:
    from q36eval.kl.attribution import Attribution, Blame


def attribute(
    branch: OneBranch,
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    corpus: CorpusOption = None,
    budget: Annotated[int, typer.Option(help="Forward at most this many tokens, over all passes.", min=1)] = 600_000,
    bands: Annotated[int, typer.Option(help="Split the layers into this many groups of neighbours.", min=1)] = 10,
    grid: Annotated[
        bool, typer.Option("--grid", help="Also measure each class of tensors within each group of layers.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the plot to this HTML file.", metavar="FILE")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show which tensors and layers cause the KL.

    Each part is measured twice: restored to the reference while the rest stays quantized, and quantized alone.
    """
    from q36eval.app.attribution_plot import check_plot, write_plot
    from q36eval.app.console import ConsoleProgress
    from q36eval.kl.corpus import corpus_sha256
    from q36eval.run.attribution import Plan, record
    from q36eval.run.attribution import attribute as run
    from q36eval.run.material import corpus_of

    paths = Paths.default()
    chosen = load_family(family, paths)
    if plot is not None:
        check_plot(plot)
    target = resolve(branch, chosen, paths)
    plan = Plan(
        branch=target.folder,
        reference=resolve(reference or chosen.reference, chosen, paths).folder,
        documents=corpus_of(suite or chosen.suite, corpus, paths)[1],
        budget=budget,
        bands=bands,
        grid=grid,
        engine=engine_options(device, weights_only),
    )
    with ConsoleProgress() as progress:
        attribution = run(plan, progress)
    run_id = record(attribution, chosen.name, target.name, corpus_sha256(plan.documents), open_history(paths), paths)
    if as_json:
        body = json.loads(attribution.model_dump_json(exclude={"blames": {"__all__": {"clusters"}}}))
        print_json({"run": run_id, "branch": target.name, **body})
    else:
        _print(attribution, f"{chosen.name}/{target.name}")
    if plot is not None:  # last, so that a disk that is full costs the plot and nothing else
        write_plot(attribution, f"{chosen.name}/{target.name}", plot)
    return 0


def _print(attribution: "Attribution", title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    interval = attribution.kl_interval
    console.print(
        Text(
            f"{title}: KL {attribution.kl:.4g} [{interval.lower:.4g}, {interval.upper:.4g}] nats/token over "
            f"{attribution.documents} documents, {attribution.tokens:,} tokens "
            f"({attribution.tokens_forwarded:,} forwarded)"
        )
    )
    for kind, heading in (("class", "class of tensors"), ("layers", "layers"), ("cell", "class and layers")):
        names = [b.suspect for b in ranked(attribution, kind)]
        if not names:
            continue
        table = Table(heading, "restored, KL falls", "share", "alone, KL is", "share", box=None, padding=(0, 1))
        for name in names:
            restored, alone = (_one(attribution, kind, name, direction) for direction in ("restored", "alone"))
            table.add_row(*(Text(cell) for cell in (name, *_cells(restored), *_cells(alone))))
        console.print(table)
    if attribution.identical:
        console.print(Text(f"identical to the reference: {', '.join(attribution.identical)}"))


def ranked(attribution: "Attribution", kind: str) -> "list[Blame]":
    """The suspects of one kind, the one whose restoration helps most first."""
    mine = [blame for blame in attribution.blames if blame.kind == kind and blame.direction == "restored"]
    return sorted(mine, key=lambda blame: -blame.nats)


def _one(attribution: "Attribution", kind: str, name: str, direction: str) -> "Blame":
    return next(b for b in attribution.blames if (b.kind, b.suspect, b.direction) == (kind, name, direction))


def _cells(blame: "Blame") -> tuple[str, str]:
    share = blame.share_interval
    return f"{blame.nats:.3g}", f"{blame.share:.0%} [{share.lower:.0%}, {share.upper:.0%}]"
