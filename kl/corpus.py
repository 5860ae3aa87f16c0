"""The corpus a divergence is measured on: documents with a slice name, frozen as JSON Lines with a manifest."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from q36eval.errors import UsageError


@dataclass(frozen=True)
class CorpusDocument:
    """One held-out document; documents are the independent clusters of the judging."""

    id: str
    slice: str
    text: str

    @property
    def key(self) -> str:
        """Content hash of what is asked."""
        return hashlib.sha256(f"kl\0{self.slice}\0{self.text}".encode()).hexdigest()


def load_corpus(folder: Path) -> list[CorpusDocument]:
    """Read every `*.jsonl` of `folder`; lines hold `id`, `slice` and `text`.

    Raises:
        UsageError: no such folder, no document, a malformed line (named), or two documents of the same content.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise UsageError(f"The corpus folder {folder} holds no .jsonl file; name one that does.")
    documents: list[CorpusDocument] = []
    for path in paths:
        documents.extend(_read_documents(path))
    if not documents:
        raise UsageError(f"The corpus in {folder} is empty; it needs at least one document.")
    if len({document.key for document in documents}) != len(documents):
        raise UsageError(f"The corpus in {folder} holds the same document twice; remove one of them.")
    return documents


def corpus_sha256(documents: Sequence[CorpusDocument]) -> str:
    """Content hash of a corpus, whatever the order of its documents."""
    return hashlib.sha256("".join(sorted(document.key for document in documents)).encode()).hexdigest()


def _read_documents(path: Path) -> list[CorpusDocument]:
    found = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            found.append(CorpusDocument(id=str(body["id"]), slice=str(body["slice"]), text=str(body["text"])))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise UsageError(f'{path}:{number} is not a document {{"id", "slice", "text"}}: {error}.') from error
    return found


def windows(length: int, context: int, overlap: int) -> Sequence[tuple[int, int, int]]:
    """Windows `(begin, end, first)` over a document of `length` tokens so that tokens 1.. are each scored exactly once.

    Token i is scored in the window with `first <= i < end`, after at least `overlap` tokens of left context (or all
    that precede it). `first` counts from the document's start.
    """
    if context <= overlap:
        raise ValueError(f"a context of {context} tokens leaves nothing to score after an overlap of {overlap}")
    found: list[tuple[int, int, int]] = []
    first = 1
    while first < length:
        begin = 0 if not found else first - overlap
        end = min(length, begin + context)
        found.append((begin, end, first))
        first = end
    return found
