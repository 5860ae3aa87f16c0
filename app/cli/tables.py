"""Tables on the console, in which no text is read as markup."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from q36eval.app.figures.answers import shortened
from q36eval.inert_text import SENTENCE, plain
from q36eval.records import ItemOutcome, branch_title

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from q36eval.history import History, RunRecord

PROMPT_CHARACTERS = 240
ANSWER_CHARACTERS = 160
"""Displayed characters of a prompt and of an answer in a flip."""


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


def rows_table(rows: Sequence[Mapping[str, Any]], right: Sequence[int], whole: Sequence[int] = ()) -> "Table":
    """As `plain_table`, of rows that all name the same columns."""
    return plain_table(tuple(rows[0]), [tuple(row.values()) for row in rows], right, whole)


def print_columns(rows: Iterable[Sequence[str]], indent: str = "") -> None:
    """Rows of harmless text without line breaks: an id is shown in full on any terminal."""
    kept = [tuple(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    for row in kept:
        print((indent + "  ".join(map(str.ljust, row, widths))).rstrip())


def print_plain(sentence: str) -> None:
    """A line of harmless text on standard output, with its indentation."""
    print(sentence[: len(sentence) - len(sentence.lstrip(" "))] + plain(sentence, SENTENCE))


def flip_parts(
    flips: Sequence[ItemOutcome],
    shown: Sequence[ItemOutcome],
    title: Callable[[ItemOutcome], str],
    remarks: Callable[[ItemOutcome], Iterable[str | None]] = lambda _: (),
) -> "Iterator[RenderableType]":
    """The number of flips each way, and for those shown the question, both answers and remarks; all of it harmless."""
    from rich.text import Text

    for direction, what in (("regression", "lost"), ("improvement", "gained")):
        whole, chosen = ([flip for flip in of if flip.flip == direction] for of in (flips, shown))
        if chosen:
            more = f", {len(chosen)} of them in full" if len(chosen) < len(whole) else ""
            yield Text(f"\n{len(whole)} items {what}{more}:")
        for flip in chosen:
            yield Text(plain(title(flip)), style="bold")
            yield Text(f"  prompt     {_short(flip.prompt or '', PROMPT_CHARACTERS)}")
            for name, text in (
                ("expected", flip.expected),
                ("reference", flip.reference.text or ""),
                ("branch", flip.branch.text or ""),
            ):
                if text is not None:
                    yield Text(f"  {name:<9}  {_short(text, ANSWER_CHARACTERS)}")
            yield from (Text(f"  {plain(remark)}") for remark in remarks(flip) if remark)


def _short(text: str, most: int) -> str:
    """One harmless line with the text's beginning and end."""
    return plain(shortened(text, most), limit=2 * most)


def print_run(run: "RunRecord", history: "History", parts: "Iterable[RenderableType]") -> None:
    """The run's name, its figures, and what was not measured."""
    from rich.text import Text

    title = Text(plain(f"{branch_title(run.family, run.branch)}, run {run.id}"), style="bold")
    failures = (plain(f"not measured: {each.probe}: {each.reason}") for each in history.failures(run.id))
    print_parts([title, *parts, *failures])


def print_parts(parts: "Iterable[RenderableType]") -> None:
    """Tables and lines of harmless text; a string is one line, never broken."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for part in parts:
        console.print(Text(part) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))


def _line(cell: str) -> str:
    """Harmless, with the indentation of a headline's subordinate names."""
    return cell[: len(cell) - len(cell.lstrip())] + plain(cell)
