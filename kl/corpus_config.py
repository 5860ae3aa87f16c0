"""The corpus file: the documents for measuring a divergence, written by a person."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.errors import UsageError
from q36eval.files import read_yaml
from q36eval.kl.corpus import CorpusDocument, check_documents, read_json_lines, read_text
from q36eval.kl.on_policy import OnPolicySettings


class _Written(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class JsonLinesSource(_Written):
    """A JSON Lines file: one document per line, with its own `slice` unless one is given here."""

    path: Path
    slice: Annotated[str, Field(min_length=1)] | None = None


class TextSource(_Written):
    """A plain-text file, or a folder in which each file that matches `pattern` is one document."""

    path: Path
    slice: Annotated[str, Field(min_length=1)]
    pattern: str = "**/*.txt"
    cluster: Literal["file", "folder"] = "file"
    """The independent unit: each file, or each folder of files (a book, a repository)."""


class CorpusConfig(_Written):
    """The sources of documents, and how they are scored; relative paths are relative to the file's folder.

    At most `context` tokens are fed at a time, and in a longer document every token is scored after at least `overlap`
    others. `on_policy` sets how the reference's own answers are sampled; null omits them.

    With `most_loss` (nats per token), texts that the reference cannot model are left out by name. A reference that
    cannot read raw text reads them after a chat prompt; this is measured if it answers prompts.
    """

    name: Annotated[str, Field(min_length=1)]
    json_lines: tuple[JsonLinesSource, ...] = ()
    texts: tuple[TextSource, ...] = ()
    context: Annotated[int, Field(ge=2)] | None = None
    overlap: Annotated[int, Field(ge=1)] | None = None
    on_policy: OnPolicySettings | None = OnPolicySettings()
    most_loss: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _overlap_within_context(self) -> Self:
        if self.context is not None and self.overlap is not None and self.overlap >= self.context:
            raise ValueError(f"an overlap of {self.overlap} leaves nothing to score in a context of {self.context}")
        return self


def load_corpus_config(path: Path) -> CorpusConfig:
    """Read a corpus file.

    Raises:
        UsageError: the file is missing or malformed, with the key that is wrong.
    """
    return read_yaml(path, CorpusConfig, "corpus file")


def load_configured_corpus(path: Path, config: CorpusConfig) -> list[CorpusDocument]:
    """The documents of all sources, in the order of the file at `path`.

    Raises:
        UsageError: no documents, a duplicate, or an unreadable source, which the message names.
    """
    folder = path.parent
    documents: list[CorpusDocument] = []
    for lines in config.json_lines:
        # files of the same name in several folders are not duplicates
        documents += read_json_lines(folder / lines.path, lines.slice, lines.path.as_posix())
    for source in config.texts:
        documents += _read_texts(folder, source)
    check_documents(documents, str(path))
    return documents


def _read_texts(folder: Path, source: TextSource) -> list[CorpusDocument]:
    where = folder / source.path
    if not where.is_dir():
        return [CorpusDocument(id=source.path.as_posix(), slice=source.slice, text=read_text(where))]
    try:
        files = sorted(file for file in where.glob(source.pattern) if file.is_file())
    except (ValueError, NotImplementedError) as error:
        raise UsageError(
            "pattern-malformed", f"The pattern {source.pattern!r} for {where} is not one: {error}."
        ) from error
    if not files:
        raise UsageError(
            "corpus-empty", f"The folder {where} holds no file that matches {source.pattern!r}; name another."
        )
    return [
        CorpusDocument(
            id=(source.path / file.relative_to(where)).as_posix(),
            slice=source.slice,
            text=read_text(file),
            cluster=(source.path / file.parent.relative_to(where)).as_posix() if source.cluster == "folder" else None,
        )
        for file in files
    ]
