"""Per-token figures on disk: one piece per compared document, one Parquet file per run, and the worst tokens.

A piece is written before its document's outcome reaches history, so every outcome of a killed run has its tokens. The
pieces are merged when a run is summarised; both files are written atomically.

Float columns are float32: their relative error is at most 6e-8 (half a unit in the last of 24 bits), six orders below
the sampling error of any figure made from them, and a divergence that is positive in float64 stays positive down to
1e-45. The sums over documents for criteria are computed in float64 before that.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from q36eval.files import replacing
from q36eval.token_files import TOKENS, WorstToken

FIGURES = ("forward_kl", "reverse_kl", "reference_entropy", "reference_logprob", "branch_logprob")
"""The float columns, in nats; p is the reference, q the branch: KL(p || q), KL(q || p), H(p), log p, log q(label)."""


class TokensLostError(Exception):
    """A document has an outcome in history, but its tokens are missing."""


def schema() -> pa.Schema:
    """The columns of a tokens file; one row per scored token, documents one after the other.

    `item_key` is that of the document's outcome in history; `index` is the token's index in its document, `position`
    the number of tokens to the left that the model saw (smaller than `index` if a document exceeds the context);
    `label` is its token id; `top1_rank` is the number of tokens more likely under the branch than the reference's most
    likely one.
    """
    names = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            ("item_key", names),
            ("document", names),
            ("slice", names),
            ("kind", names),
            ("index", pa.int32()),
            ("position", pa.int32()),
            ("label", pa.int32()),
            *((name, pa.float32()) for name in FIGURES),
            ("top1_agrees", pa.bool_()),
            ("top1_rank", pa.int32()),
        ]
    )


def document_table(
    item_key: str, document: str, slice_name: str, kinds: Sequence[str], columns: Mapping[str, Any]
) -> pa.Table:
    """One document's tokens as rows of `schema`.

    `kinds` name each token's kind; `columns` hold the other columns [T] by name, as NumPy arrays.
    """
    wanted = schema()
    fixed = {"item_key": item_key, "document": document, "slice": slice_name}
    arrays = []
    for field in wanted:
        if field.name in fixed:
            indices = pa.array(np.zeros(len(kinds), dtype=np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(indices, pa.array([fixed[field.name]], pa.string())))
        elif field.name == "kind":
            arrays.append(pa.array(list(kinds), pa.string()).dictionary_encode())
        else:
            arrays.append(pa.array(columns[field.name].astype(field.type.to_pandas_dtype())))
    return pa.Table.from_arrays(arrays, schema=wanted)


class TokenStore:
    """The tokens of one run, in a separate folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def merged(self) -> Path:
        """The run's Parquet file, once the run is summarised."""
        return self.folder / TOKENS

    @property
    def _pieces(self) -> Path:
        return self.folder / "pieces"

    def add(self, item_key: str, table: pa.Table) -> None:
        """Store one document's tokens, replacing an earlier version."""
        self._pieces.mkdir(parents=True, exist_ok=True)
        path = self._pieces / f"{item_key}.arrow"
        with (
            replacing(path) as temporary,
            pa.OSFile(str(temporary), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)

    def merge(self, item_keys: Iterable[str]) -> pa.Table:
        """All tokens of these documents, written as one Parquet file in their order; the pieces are then removed.

        A killed merge is repeated, and a finished one adds later pieces.

        Raises:
            TokensLostError: a document's tokens are missing.
        """
        pieces = {path.stem: path for path in sorted(self._pieces.glob("*.arrow"))}
        known = _by_item(read_tokens(self.merged)) if self.merged.exists() else {}
        wanted = list(item_keys)
        lost = [key for key in wanted if key not in pieces and key not in known]
        if lost:
            raise TokensLostError(
                f"the tokens of {len(lost)} measured documents are gone from {self.folder}; start a new run"
            )
        tables = [_read_piece(pieces[key]) if key in pieces else known[key] for key in wanted]
        table = pa.concat_tables(tables).unify_dictionaries() if tables else schema().empty_table()
        if pieces or set(known) != set(wanted) or not self.merged.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            with replacing(self.merged) as temporary:
                pq.write_table(table.combine_chunks(), temporary, compression="zstd")
        shutil.rmtree(self._pieces, ignore_errors=True)
        return table


def read_tokens(path: Path) -> pa.Table:
    """A run's tokens, in `schema`."""
    table: pa.Table = pq.read_table(path).cast(schema())
    return table


def _read_piece(path: Path) -> pa.Table:
    with pa.OSFile(str(path), "rb") as source:
        table: pa.Table = pa.ipc.open_file(source).read_all()
    return table


def _by_item(table: pa.Table) -> dict[str, pa.Table]:
    """Consecutive rows of equal `item_key`, each as a table."""
    if not len(table):
        return {}
    column = table["item_key"].combine_chunks()
    codes = column.indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    ends = np.append(starts[1:], len(codes))
    names = column.dictionary.to_pylist()
    return {names[codes[a]]: table.slice(a, b - a) for a, b in zip(starts, ends, strict=True)}


COUNT = 20
TOKENS_BEFORE = 40
TOKENS_AFTER = 12


def worst_tokens(
    table: pa.Table,
    token_ids: Mapping[str, Sequence[int]],
    tokenizer: Any,
    likeliest: Mapping[str, Mapping[str, Sequence[Any]]],
) -> list[WorstToken]:
    """The `COUNT` rows of a tokens table with the largest KL(p || q), worst first.

    `token_ids` are each document's by its item key; the context around a token is cut at the document's ends.
    `likeliest` holds the result of `Scorer.likeliest` by item key and index; it may be incomplete.
    """
    divergence = table["forward_kl"].to_numpy().astype(np.float64)
    ranked = np.where(np.isnan(divergence), np.inf, divergence)
    rows = np.argsort(-ranked, kind="stable")[:COUNT]
    chosen = [(row, row["item_key"]) for row in table.take(rows).to_pylist()]
    return [_described(row, token_ids[key], tokenizer, likeliest.get(key, {})) for row, key in chosen]


def _described(
    row: Mapping[str, Any], ids: Sequence[int], tokenizer: Any, likeliest: Mapping[str, Sequence[Any]]
) -> WorstToken:
    index = row["index"]
    kept: dict[str, Any] = {name: row[name] for name in WorstToken.model_fields if name in row}
    if tops := likeliest.get(str(index)):
        for side, top, log_prob in (("reference", *tops[:2]), ("branch", *tops[2:])):
            kept |= {f"{side}_top": tokenizer.decode([top]), f"{side}_top_logprob": log_prob}

    def text(begin: int, end: int) -> str:
        return str(tokenizer.decode(list(ids[max(0, begin) : end]), skip_special_tokens=False))

    return WorstToken(
        **kept,
        before=text(index - TOKENS_BEFORE, index),
        text=text(index, index + 1),
        after=text(index + 1, index + 1 + TOKENS_AFTER),
    )
