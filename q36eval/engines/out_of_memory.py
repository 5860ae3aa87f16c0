"""A batch that runs out of memory is computed in parts: what was planned was too much, and no request pays for that."""

from collections.abc import Callable, Sequence

from q36eval.engines.base import failed
from q36eval.engines.batches import RequestT, ResultT
from q36eval.engines.device_memory import is_out_of_memory

DOES_NOT_FIT = "do not fit into the memory that the weights leave"


def in_parts(
    call: Callable[[list[RequestT], int], list[ResultT]],
    batch: Sequence[RequestT],
    *,
    smaller: Callable[[RequestT, int], bool],
    given_back: Callable[[], bool],
) -> list[ResultT]:
    """The results of `call` of a batch; where memory runs out, of its halves, and so on down to one row.

    A row that is too much alone is computed in smaller passes: `call` gets how often its passes are halved, as long as
    `smaller` says that they can be. What fits in no way is an error, with the reason. Between two attempts memory is
    `given_back`, which says whether that was memory of earlier batches: then the whole may fit now.

    Raises:
        Exception: what `call` raises for other reasons.
    """
    halvings = 0
    while True:
        results = _attempt(call, list(batch), halvings)
        if results is not None:
            return results
        if given_back():
            continue
        if len(batch) > 1:
            middle = (len(batch) + 1) // 2
            halves = (batch[:middle], batch[middle:])
            parts = (in_parts(call, each, smaller=smaller, given_back=given_back) for each in halves)
            return [result for part in parts for result in part]
        halvings += 1
        if not smaller(batch[0], halvings):
            reason = f"{len(batch[0].token_ids):,} tokens {DOES_NOT_FIT}"
            return [failed(batch[0], reason)]


def _attempt(
    call: Callable[[list[RequestT], int], list[ResultT]], batch: list[RequestT], halvings: int
) -> list[ResultT] | None:
    """None where memory ran out. Whoever calls this holds none of the error's frames, and of their tensors."""
    try:
        return call(batch, halvings)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
