"""Tables on the console, in which no text is read as markup."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from q36eval.reports.text import SENTENCE, plain

if TYPE_CHECKING:
    from rich.table import Table


def plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int], whole: Sequence[int] = ()
) -> "Table":
    """A table of harmless text. `right` are the columns of numbers, `whole` those that are never broken or cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place in right else "left", overflow="fold", no_wrap=place in whole)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_line(cell)) for cell in row))
    return table


def print_plain(sentence: str) -> None:
    """A line of harmless text on standard output, with its indentation."""
    print(sentence[: len(sentence) - len(sentence.lstrip(" "))] + plain(sentence, SENTENCE))


def _line(cell: str) -> str:
    """Harmless, with the indentation of a headline's subordinate names."""
    return cell[: len(cell) - len(cell.lstrip())] + plain(cell)
