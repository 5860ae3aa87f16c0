"""`q36eval inspect`: what a checkpoint holds, and in which tensors it differs from another."""

from typing import Annotated, Any

import typer

from app.cli.options import FamilyOption, JsonOption, print_json
from q36eval.config.paths import Paths


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="Branch alias or path.", metavar="BRANCH|PATH")],
    against: Annotated[str | None, typer.Option(help="Another branch or path.", metavar="BRANCH|PATH")] = None,
    family: FamilyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a checkpoint strictly and show its coverage (exit 1 on damage), and what differs from another."""
    from app.targets import load_family, resolve
    from q36eval.checkpoints import load_model

    paths = Paths.default()
    chosen = load_family(family, paths)
    target = resolve(checkpoint, chosen, paths)
    loaded = load_model(target.folder)
    body: dict[str, Any] = {
        "checkpoint": str(target.folder),
        "formats": loaded.report.formats,
        "stored_bytes": loaded.report.stored_bytes,
        "left_out": {reason: list(names) for reason, names in loaded.report.left_out.items()},
        "quantized_inputs": loaded.report.quantized_inputs,
    }
    if against is not None:
        from q36eval.checkpoints.compare import stored_differences

        other = resolve(against, chosen, paths)
        body["against"] = str(other.folder)
        body["differences"] = stored_differences(target.folder, other.folder)
    if as_json:
        print_json(body)
        return
    _print(body)


def _print(body: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("class of tensor", "stored as", "weights", "bytes", title=body["checkpoint"])
    for kind, formats in sorted(body["formats"].items()):
        stored = ", ".join(f"{count} {name}" for name, count in sorted(formats.items()))
        cells = (kind, stored, str(sum(formats.values())), f"{body['stored_bytes'].get(kind, 0):,}")
        table.add_row(*(Text(cell) for cell in cells))
    console = Console()
    console.print(table)
    console.print(f"Every tensor used once; activation quantization emulated in {body['quantized_inputs']} modules.")
    for reason, names in body["left_out"].items():
        console.print(Text(f"left out ({reason}): {len(names)} tensors"))
    if "differences" in body:
        differences = body["differences"]
        console.print(Text(f"{len(differences)} tensors differ from {body['against']}:"))
        for name, how in differences.items():
            console.print(Text(f"  {name}: {how}"))
