"""The files a run keeps beside history: every token's figures, and the worst tokens with their text.

`kl` writes them; whoever shows a run reads them without it.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from q36eval.files import write_atomically
from q36eval.records import Record

TOKENS = "tokens.parquet"
WORST = "worst_tokens.json"


class WorstToken(Record):
    """One token: where it is, the text around it, and its figures in nats; p is the reference's, q the branch's.

    A divergence that is no finite number comes before all others. `reference_top` and `branch_top` are the tokens that
    each held likeliest there, with their log-probabilities; None in older files, and where logits are no distribution.
    """

    document: str
    slice: str
    kind: str
    index: int
    before: str
    text: str
    after: str
    forward_kl: float
    reference_entropy: float
    reference_logprob: float
    branch_logprob: float
    top1_rank: int
    reference_top: str | None = None
    reference_top_logprob: float | None = None
    branch_top: str | None = None
    branch_top_logprob: float | None = None


_LIST = TypeAdapter(list[WorstToken])


def write_worst(path: Path, worst: Sequence[WorstToken]) -> None:
    """Write them as JSON, whole or not at all."""
    write_atomically(path, _LIST.dump_json(list(worst), indent=1))


def read_worst(path: Path) -> list[WorstToken]:
    """What `write_worst` wrote; none where nothing was written."""
    return _LIST.validate_json(path.read_bytes()) if path.exists() else []
