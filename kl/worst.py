"""The tokens on which a branch diverges most, with the text around them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from q36eval.token_files import WorstToken

if TYPE_CHECKING:
    import pyarrow as pa

COUNT = 20
TOKENS_BEFORE = 40
TOKENS_AFTER = 12


def worst_tokens(
    table: "pa.Table", token_ids: Mapping[str, Sequence[int]], tokenizer: Any, count: int = COUNT
) -> list[WorstToken]:
    """The `count` rows of a tokens table with the greatest KL(p || q), worst first.

    `token_ids` are each document's by its item key; what is around a token is cut at the document's ends.
    """
    divergence = table["forward_kl"].to_numpy().astype(np.float64)
    ranked = np.where(np.isnan(divergence), np.inf, divergence)
    rows = np.argsort(-ranked, kind="stable")[:count]
    return [_described(row, token_ids[row["item_key"]], tokenizer) for row in table.take(rows).to_pylist()]


def _described(row: Mapping[str, Any], ids: Sequence[int], tokenizer: Any) -> WorstToken:
    index = row["index"]

    def text(begin: int, end: int) -> str:
        return str(tokenizer.decode(list(ids[max(0, begin) : end]), skip_special_tokens=False))

    kept = {name: row[name] for name in WorstToken.model_fields if name in row}
    return WorstToken(
        **kept,
        before=text(index - TOKENS_BEFORE, index),
        text=text(index, index + 1),
        after=text(index + 1, index + 1 + TOKENS_AFTER),
    )
