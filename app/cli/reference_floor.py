"""`q36eval reference floor`: the noise floor of the reference, as it is kept or measured now."""

import json
from typing import TYPE_CHECKING

from q36eval.app.cli.options import (
    ContextOption,
    CorpusOption,
    DeviceOption,
    FamilyOption,
    JsonOption,
    ReferenceOption,
    SuiteOption,
    check_device,
    print_json,
)
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode

if TYPE_CHECKING:
    from q36eval.kl.floor_file import FloorFigures, ReferenceFloor

COLUMNS = ("perturbation", "KL", "95 % interval", "p99", "max", "top-1", "PPL ratio", "docs", "tokens", "s")


def floor(
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    corpus: CorpusOption = None,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the reference judged against itself, measuring what is missing; exit 4 when the engine knows no way."""
    from q36eval.app.console import ConsoleProgress
    from q36eval.app.targets import load_family, resolve
    from q36eval.run.floor import reference_floor
    from q36eval.run.plan import Scored

    paths = Paths.default()
    chosen = load_family(family, paths)
    check_device(device)
    target = resolve(reference or chosen.reference, chosen, paths)
    with ConsoleProgress() as progress:
        scored = Scored(suite or chosen.suite, chosen.context_length, corpus, context)
        found = reference_floor(target, scored, device, paths, progress)
    if as_json:
        print_json(json.loads(found.model_dump_json()))
    else:
        _print(found)
    whole = any("all" in row.slices for row in found.perturbations) and not any(r.failed for r in found.perturbations)
    return int(ExitCode.PASS if whole else ExitCode.NOT_MEASURED)


def _print(found: "ReferenceFloor") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*COLUMNS, title="the reference against itself, in nats/token")
    for row in found.perturbations:
        if "all" in row.slices:
            table.add_row(*(Text(cell) for cell in _cells(row.name, row.slices["all"], row.seconds)))
    by_slice = Table("slice", "KL, nats/token", "under", "documents", title="largest of each slice")
    for name in dict.fromkeys(name for row in found.perturbations for name in row.slices):
        largest = found.largest("kl_divergence", name)
        if largest is not None:
            figures = largest.slices[name]
            by_slice.add_row(
                *(Text(cell) for cell in (name, f"{figures.kl:.3g}", largest.name, str(figures.documents)))
            )
    console = Console()
    console.print(table)
    console.print(by_slice)
    for row in found.perturbations:
        if row.skipped is not None:
            console.print(Text(f"not measured: {row.name} ({row.what}): {row.skipped}"))
        elif not row.moved:
            console.print(Text(f"did not move: {row.name} is bit-identical here, so it says nothing about the noise"))


def _cells(name: str, figures: "FloorFigures", seconds: float) -> tuple[str, ...]:
    interval = figures.kl_interval
    return (
        name,
        f"{figures.kl:.2g}",
        f"[{interval.lower:.2g}, {interval.upper:.2g}]",
        f"{figures.kl_p99:.2g}",
        f"{figures.kl_max:.2g}",
        f"{figures.top1_agreement:.2%}",
        f"{figures.perplexity_ratio:.6f}",
        str(figures.documents),
        str(figures.tokens),
        f"{seconds:.1f}",
    )
