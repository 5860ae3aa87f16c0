"""Documents from a dataset of the Hugging Face hub that `datasets` has in its cache; nothing is downloaded."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kl.corpus import CorpusDocument
from q36eval.errors import UsageError

WIKITEXT_TITLE = r"^ = [^=].* = $"
"""An article's first line in wikitext-2 and wikitext-103; sections have ` = = Title = = `."""


class HubDataset(BaseModel):
    """One split of a dataset, and how its rows become documents.

    `rows`: every row is a document. `articles`: rows are lines; a line that matches `title` between blank lines begins
    a document, what comes before the first is left out. `whole`: all rows joined are one document.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    config: str | None = None
    split: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")] | None = None
    """The commit that must be cached, or its first digits."""
    column: str = "text"
    slice: Annotated[str, Field(min_length=1)]
    documents: Literal["rows", "articles", "whole"] = "rows"
    title: str = WIKITEXT_TITLE
    max_documents: Annotated[int, Field(ge=1)] | None = None
    drop_duplicates: bool = False
    """Keep the first of several equal texts, which are refused otherwise."""

    @model_validator(mode="after")
    def _title_is_a_pattern(self) -> Self:
        try:
            re.compile(self.title)
        except re.error as error:
            raise ValueError(f"title is no regular expression: {error}") from error
        return self

    @property
    def called(self) -> str:
        """How a person calls it."""
        return self.name if self.config is None else f"{self.name} ({self.config})"

    @property
    def prefix(self) -> str:
        """What the ids of its documents begin with: other texts of the same corpus have another."""
        where = [self.name, self.config, self.split, None if self.column == "text" else self.column]
        how = [self.slice, None if self.documents == "rows" else self.documents]
        return ":".join("/".join(part for part in parts if part is not None) for parts in (where, how))


def read_dataset(source: HubDataset) -> list[CorpusDocument]:
    """The documents of a cached dataset, in its order.

    Raises:
        UsageError: it is not cached (says how to cache it) or only at another revision, or has no such split or column.
    """
    dataset = _cached(source)
    _check_revision(source, dataset)
    if source.column not in dataset.column_names:
        known = ", ".join(dataset.column_names)
        raise UsageError(f"The dataset {source.called} has no column {source.column!r}; its columns are {known}.")
    texts = [text for text in _texts(source, dataset[source.column]) if text.strip()]
    if not texts:
        raise UsageError(f"The split {source.split!r} of {source.called} gives no document as {source.documents}.")
    if source.drop_duplicates:
        texts = list(dict.fromkeys(texts))
    chosen = texts[: source.max_documents]
    width = len(str(len(chosen)))
    return [
        CorpusDocument(id=f"{source.prefix}-{number:0{width}d}", slice=source.slice, text=text)
        for number, text in enumerate(chosen)
    ]


def articles(lines: Sequence[str], title: str = WIKITEXT_TITLE) -> Iterator[str]:
    """Lines joined per article: each begins at a line that matches `title` and stands between blank lines."""
    pattern = re.compile(title)
    bare = [line.rstrip("\n") for line in lines]
    starts = [
        number
        for number, line in enumerate(bare)
        if pattern.match(line)
        and (number == 0 or not bare[number - 1].strip())
        and (number + 1 == len(bare) or not bare[number + 1].strip())
    ]
    for begin, end in pairwise([*starts, len(lines)]):
        # what the hub keeps of a blank line is an empty row, without its line feed
        yield "".join(f"{line}\n" for line in bare[begin:end])


def _texts(source: HubDataset, rows: Sequence[Any]) -> Iterator[str]:
    lines = list(rows)
    wrong = next((number for number, line in enumerate(lines) if not isinstance(line, str)), None)
    if wrong is not None:
        raise UsageError(f"The column {source.column!r} of {source.called} holds no text in row {wrong}; name another.")
    if source.documents == "articles":
        yield from articles(lines, source.title)
    elif source.documents == "whole":
        yield "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
    else:
        yield from lines


def _cached(source: HubDataset) -> Any:
    """The split as `datasets` has it in its cache."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError("Datasets need the package `datasets`; install it, or name files instead.") from error

    with _offline():
        try:
            # by its address, so that no folder of that name in the working directory is taken for it
            return datasets.load_dataset(f"hf://datasets/{source.name}", source.config, split=source.split)
        except (FileNotFoundError, ConnectionError) as error:
            raise UsageError(_not_cached(source)) from error
        except ValueError as error:
            if "cache" in str(error):  # the dataset is there and this configuration is not
                raise UsageError(_not_cached(source)) from error
            raise UsageError(f"The dataset {source.called} cannot be read: {_one_line(error)}.") from error
        except Exception as error:  # whatever a damaged cache makes it raise
            raise UsageError(f"The dataset {source.called} cannot be read: {_one_line(error)}.") from error


@contextmanager
def _offline() -> Iterator[None]:
    """What HF_HUB_OFFLINE=1 does, for a process that may have imported the libraries without it; and quietly."""
    import datasets
    import huggingface_hub.constants as hub

    before = datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE, datasets.logging.get_verbosity()
    bars = datasets.are_progress_bars_disabled()
    datasets.config.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE = before[:2]
        datasets.logging.set_verbosity(before[2])
        if not bars:
            datasets.enable_progress_bars()


def _check_revision(source: HubDataset, dataset: Any) -> None:
    """The cache keeps a dataset below the commit it came from."""
    commit = Path(dataset.cache_files[0]["filename"]).parent.name if dataset.cache_files else ""
    if source.revision is not None and not commit.startswith(source.revision):
        raise UsageError(
            f"The dataset {source.called} is cached at revision {commit or 'unknown'}, not at {source.revision}; "
            f"{_how_to_cache(source)}."
        )


def _not_cached(source: HubDataset) -> str:
    return f"The dataset {source.called} is not in the local cache of `datasets`; {_how_to_cache(source)}."


def _how_to_cache(source: HubDataset) -> str:
    arguments = [repr(source.name)]
    if source.config is not None:
        arguments.append(repr(source.config))
    if source.revision is not None:
        arguments.append(f"revision={source.revision!r}")
    return (
        f'with network run python -c "from datasets import load_dataset; load_dataset({", ".join(arguments)})", '
        f"or point HF_DATASETS_CACHE to where it is"
    )


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")
