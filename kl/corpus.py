"""The corpus for measuring a divergence: documents with a slice name, read from JSON Lines, and their clusters."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from q36eval.errors import UsageError
from q36eval.files import read_listed


@dataclass(frozen=True)
class CorpusDocument:
    """One held-out document. `cluster` names the common source of several (a book, a repository, a conversation).

    Clusters are the independent units of the tests; a document that names none is a cluster of one.
    """

    id: str
    slice: str
    text: str
    cluster: str | None = None

    @property
    def key(self) -> str:
        """Content hash of the scored text."""
        return hashlib.sha256(f"kl\0{self.slice}\0{self.text}".encode()).hexdigest()


def load_corpus(folder: Path, listed: Mapping[str, str] | None = None) -> list[CorpusDocument]:
    """Read every `*.jsonl` of `folder`; lines hold `id`, `slice` and `text`. `listed` are the hashes of its files.

    Raises:
        ChangedError: a file's hash differs from the listed one, or the file is not listed.
        UsageError: the folder is missing, has no document, a malformed line (named), or two documents of equal content.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise UsageError("corpus-empty", f"The corpus folder {folder} holds no .jsonl file; name one that does.")
    hashes = [None if listed is None else listed.get(path.name, "") for path in paths]
    texts = zip(paths, hashes, strict=True)
    documents = [document for path, sha256 in texts for document in read_json_lines(path, sha256=sha256)]
    check_documents(documents, str(folder))
    return documents


def check_documents(documents: Sequence[CorpusDocument], where: str) -> None:
    """Refuse documents that are not independent.

    Raises:
        UsageError: there are no documents, two have the same id or text, or a cluster has the name of a document
            outside it; the message names them and `where` they are.
    """
    if not documents:
        raise UsageError("corpus-empty", f"The corpus in {where} is empty; it needs at least one document.")
    texts: dict[str, CorpusDocument] = {}
    ids: set[str] = set()
    for document in documents:
        if document.id in ids:
            raise UsageError(
                "document-duplicate",
                f"The corpus in {where} has two documents with the id {document.id!r}; rename one of them.",
            )
        ids.add(document.id)
        other = texts.setdefault(document.text, document)
        if other is not document and document.text.strip():
            raise UsageError(
                "document-duplicate",
                f"The corpus in {where} holds the same document twice, as {other.id!r} and {document.id!r}; "
                f"remove one of them.",
            )
    outside = {document.id for document in documents if document.cluster != document.id}
    for document in documents:
        if document.cluster in outside:
            raise UsageError(
                "corpus-cluster-invalid",
                f"The corpus in {where} has a cluster {document.cluster!r} and a document of that name which is not in "
                f"it; rename one of them.",
            )


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...


ItemT = TypeVar("ItemT", bound=_Keyed)


def in_turn(items: Iterable[ItemT], slice_of: Callable[[ItemT], str]) -> list[ItemT]:
    """One item of each slice, then the next of each; within a slice by content hash, so nobody selects items."""
    slices: dict[str, list[ItemT]] = {}
    for item in sorted(items, key=lambda item: item.key):
        slices.setdefault(slice_of(item), []).append(item)
    ranks = range(max(map(len, slices.values()), default=0))
    return [members[rank] for rank in ranks for _, members in sorted(slices.items()) if rank < len(members)]


def clusters_sha256(clusters: Mapping[str, str | None]) -> str:
    """Content hash of the assignment of keys to named clusters; empty text without named clusters."""
    named = sorted(f"{key}\0{cluster}" for key, cluster in clusters.items() if cluster is not None)
    return hashlib.sha256("\0\0".join(named).encode()).hexdigest() if named else ""


def corpus_sha256(documents: Sequence[CorpusDocument]) -> str:
    """Content hash of a corpus, independent of the order of its documents."""
    return hashlib.sha256("".join(sorted(document.key for document in documents)).encode()).hexdigest()


def read_json_lines(
    path: Path, slice_name: str | None = None, called: str | None = None, sha256: str | None = None
) -> list[CorpusDocument]:
    """One document per line `{"id", "slice", "text"}`, and `cluster` if it is not independent of others.

    With `slice_name` the lines need no `slice`, and theirs is ignored; a line without `id` is named by `called`
    (default: the file's name) and line number.

    With `sha256` the file is read only if its hash matches.

    Raises:
        ChangedError: the hash differs.
        UsageError: the file is missing, not UTF-8 (with the byte offset), or a line is malformed (it is named).
    """
    documents, called = [], called or path.name
    for number, line in enumerate(read_text(path, sha256).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
            text = body["text"]
            if not isinstance(text, str):
                raise TypeError("'text' is no string")
            text.encode()
            name = str(body["slice"]) if slice_name is None else slice_name
            cluster = cluster_of(body["cluster"], "cluster", f"{path}:{number}") if "cluster" in body else None
            documents.append(
                CorpusDocument(
                    id=str(body.get("id", f"{called}:{number}")),
                    slice=name,
                    text=text,
                    cluster=cluster,
                )
            )
        except KeyError as error:
            raise UsageError(
                "corpus-field-missing",
                f"{path}:{number} has no {error.args[0]!r}; give it one (a slice may stand in the corpus file).",
            ) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(
                "document-malformed", f'{path}:{number} is not a document {{"id", "slice", "text"}}: {error}.'
            ) from error
    return documents


def cluster_of(named: object, field: str, where: str) -> str:
    """The name of a document's cluster, as written.

    Raises:
        UsageError: it is not a text or empty; the message names the field and `where` it is.
    """
    if not isinstance(named, str) or not named.strip():
        raise UsageError(
            "corpus-cluster-invalid",
            f"{where} has {json.dumps(named, default=repr)} for {field!r}, the name of a cluster; write text that "
            f"is not empty, or remove it if the document is independent.",
        )
    return named


def read_text(path: Path, sha256: str | None = None) -> str:
    """A file's text, without a byte order mark.

    Raises:
        ChangedError: its hash is not `sha256`.
        UsageError: the file is missing, unreadable, or not UTF-8, with the offset of the first wrong byte.
    """
    try:
        return read_listed(path, sha256).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UsageError("file-not-utf8", f"{path} is not UTF-8 at byte {error.start}; save it as UTF-8.") from error
    except OSError as error:
        raise UsageError("file-unreadable", f"{path} cannot be read: {error.strerror}; check the path.") from error
