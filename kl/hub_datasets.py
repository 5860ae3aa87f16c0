"""Documents from dataset splits of the Hugging Face hub, the sources of frozen corpora."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.errors import UsageError
from q36eval.hub import called
from q36eval.kl.corpus import CorpusDocument, cluster_of

WIKITEXT_TITLE = re.compile(r"^ = [^=].* = $")
"""An article's first line in wikitext-2 and wikitext-103; sections have ` = = Title = = `."""


class HubDataset(BaseModel):
    """One split of a dataset at a commit, under an open licence, and how its rows become documents.

    `rows`: every row is a document. `articles`: rows are lines of WikiText; a title between blank lines begins a
    document, and lines before the first title are left out. Long texts are cut into at most `max_pieces` of at most
    `piece_characters`, each a document; all pieces of one text are one cluster.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    config: str | None = None
    split: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    licence: Annotated[str, Field(min_length=1)]
    column: str = "text"
    more_columns: tuple[str, ...] = ()
    """Columns whose texts are appended, each after `joined_by`."""
    joined_by: str = ""
    cluster: str | None = None
    """The column that identifies related rows; rows with equal values are one cluster, across splits and languages."""
    slice: Annotated[str, Field(min_length=1)]
    documents: Literal["rows", "articles"] = "rows"
    skip_documents: Annotated[int, Field(ge=0)] = 0
    max_documents: Annotated[int, Field(ge=1)]
    """Before the cut into pieces; required for every split, so that a corpus' size is known before it is fetched."""
    piece_characters: Annotated[int, Field(ge=100)] | None = None
    max_pieces: Annotated[int, Field(ge=1)] = 1
    drop_duplicates: bool = False
    """Keep the first of several equal texts; otherwise they are refused."""

    @model_validator(mode="after")
    def _rows_have_clusters(self) -> Self:
        if self.cluster is not None and self.documents != "rows":
            raise ValueError("a cluster column is of rows, and these documents are made of several")
        return self

    @property
    def called(self) -> str:
        """The display name."""
        return called(self.name, self.config)

    @property
    def prefix(self) -> str:
        """The prefix of its documents' ids: other texts of the same corpus have a different one."""
        where = [self.name, self.config, self.split, None if self.column == "text" else self.column]
        how = [self.slice, None if self.documents == "rows" else self.documents]
        return ":".join("/".join(part for part in parts if part is not None) for parts in (where, how))


def documents_of(source: HubDataset, columns: Mapping[str, Sequence[Any]]) -> list[CorpusDocument]:
    """The documents made from the rows of a split, in its order.

    Raises:
        UsageError: a column is missing or has no text, or no document remains.
    """
    wanted = [source.column, *source.more_columns, *([] if source.cluster is None else [source.cluster])]
    for column in wanted:
        if column not in columns:
            raise UsageError(
                "dataset-column-unknown",
                f"The dataset {source.called} has no column {column!r}; its columns are {', '.join(columns)}.",
            )
    shared: Sequence[Any] = columns[source.cluster] if source.cluster is not None else ()
    texts = list(_texts(source, columns))
    kept = dict.fromkeys(number for number, text in enumerate(texts) if text.strip())
    if source.drop_duplicates:
        first: dict[str, int] = {}
        kept = dict.fromkeys(first.setdefault(texts[number], number) for number in kept)
    chosen = list(kept)[source.skip_documents : source.skip_documents + source.max_documents]
    if not chosen:
        raise UsageError(
            "dataset-empty", f"The split {source.split!r} of {source.called} gives no document as {source.documents}."
        )
    width = len(str(len(chosen)))
    documents = []
    for place, number in enumerate(chosen):
        name = f"{source.prefix}-{place:0{width}d}"
        parts = list(pieces(texts[number], source.piece_characters, source.max_pieces))
        cluster = f"{name}." if len(parts) > 1 else None
        if source.cluster is not None:
            row = f"Row {number} of the split {source.split!r} of {source.called}"
            cluster = f"{source.name}#{cluster_of(shared[number], source.cluster, row)}"
        for part, text in enumerate(parts):
            own = name if len(parts) == 1 else f"{name}.{part}"
            documents.append(CorpusDocument(id=own, slice=source.slice, text=text, cluster=cluster))
    return documents


def pieces(text: str, characters: int | None, count: int) -> Iterator[str]:
    """The first `count` pieces of a text of at most `characters` each, cut at the last line end or space.

    Only the second half of a piece is searched for one: text without spaces is cut at the limit.
    """
    if characters is None or len(text) <= characters:
        yield text
        return
    for _ in range(count):
        if not text.strip():
            return
        part = text[:characters]
        if len(text) > characters:
            breaks = [part.rfind(mark, characters // 2) + 1 for mark in ("\n", " ")]
            part = part[: next((place for place in breaks if place), characters)]
        yield part
        text = text[len(part) :]


def articles(lines: Sequence[str]) -> Iterator[str]:
    """Lines joined per article: each begins at a title between blank lines."""
    bare = [line.rstrip("\n") for line in lines]
    starts = [
        number
        for number, line in enumerate(bare)
        if WIKITEXT_TITLE.match(line)
        and (number == 0 or not bare[number - 1].strip())
        and (number + 1 == len(bare) or not bare[number + 1].strip())
    ]
    for begin, end in pairwise([*starts, len(lines)]):
        # the hub stores a blank line as an empty row, without its line feed
        yield "".join(f"{line}\n" for line in bare[begin:end])


def _texts(source: HubDataset, columns: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    parts = [list(columns[name]) for name in (source.column, *source.more_columns)]
    for name, lines in zip((source.column, *source.more_columns), parts, strict=True):
        wrong = next((number for number, line in enumerate(lines) if not isinstance(line, str)), None)
        if wrong is not None:
            raise UsageError(
                "dataset-column-not-text",
                f"The column {name!r} of {source.called} holds no text in row {wrong}; name another.",
            )
    rows = [source.joined_by.join(row) for row in zip(*parts, strict=True)]
    yield from articles(rows) if source.documents == "articles" else rows
