"""What `q36eval attribute --engine` prints: the checkpoint's error and the engine's."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from q36eval.gate.fault_layer import ARITHMETICS, CONCLUSIONS
from q36eval.kl.serving_error import LayerError, ServingError


def print_serving_error(error: ServingError, title: str) -> None:
    """A table of four divergences, and one sentence on which is at fault."""
    console = Console()
    console.print(Text(f"{title}: {error.documents} documents, {error.tokens:,} tokens"))
    table = Table("KL, nats/token", "", "95 %", box=None, padding=(0, 1))
    for name, layer in _rows(error):
        bounds = f"[{layer.interval.lower:.3g}, {layer.interval.upper:.3g}]" if layer else ""
        table.add_row(Text(name), Text(f"{layer.kl:.3g}" if layer else "not measured"), Text(bounds))
    console.print(table)
    console.print(Text(CONCLUSIONS[error.at_fault]))
    console.print(Text(ARITHMETICS[error.arithmetic]))


def _rows(error: ServingError) -> list[tuple[str, LayerError | None]]:
    return [
        ("checkpoint: reference against the branch decoded here", error.checkpoint),
        (f"engine: the branch decoded here against {error.engine}", error.serving),
        (f"both: reference against the branch by {error.engine}", error.whole),
        (f"floor: reference here against the reference by {error.engine}", error.floor),
    ]
