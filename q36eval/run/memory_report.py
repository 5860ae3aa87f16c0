"""A memory plan: one line in words for every run, and the complete plan for programs."""

from collections.abc import Mapping
from typing import Any

from q36eval.checkpoints.placements import DECODED, LAYERS, PACKED
from q36eval.engines.memory_plan import MemoryPlan

GIB = 1 << 30
MIB = 1 << 20

BATCHES = "batches"
"""In a run's provenance: the limits of the branch's batches when it began."""

_WEIGHTS = {DECODED: "decoded weights", PACKED: "packed weights", LAYERS: "weights outside the layers"}

SHORT = "Memory is short here, so batches are smaller than this device has them, and last digits of numbers may differ."


def size(count: int) -> str:
    """Bytes in readable form: `20.9 GiB`, `13 MiB`."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"


def batches_line(plan: MemoryPlan) -> str:
    """The batch limits, the location of weights, and their size."""
    answers = "" if plan.room.placement == LAYERS else f" and {plan.rows} answers"
    # for a host: free memory before the weights were loaded
    whole = plan.room.free + plan.room.weights if plan.room.host else plan.room.total
    line = f"Batches on {plan.room.device}: {plan.score_tokens:,} tokens scored{answers} at a time; "
    line += f"{_WEIGHTS[plan.room.placement]} take {size(plan.room.weights)} of {size(whole)}."
    line += f" This model does not support {' and '.join(plan.unused)}." if plan.unused else ""
    return f"{line} {SHORT}" if plan.short else line


def limits(plan: MemoryPlan) -> str:
    """The batch limits, as stored with a run."""
    return f"{plan.score_tokens:,} tokens scored, {plan.prompt_tokens:,} read and {plan.rows} answers at a time"


def other_batches(begun: str, now: str) -> str:
    """The message if a resumed run's batches differ from those it began with."""
    return f"The run was begun with {begun}; from here on it has {now}, so last digits of numbers may differ."


def plan_document(plan: MemoryPlan) -> Mapping[str, Any]:
    """The complete plan for programs; all sizes in bytes."""
    room = plan.room
    return {
        "device": room.device,
        "placement": room.placement,
        "bytes": {
            "device": room.total,
            "free_beside_weights": room.free,
            "weights": room.weights,
            "decoded_at_a_time": room.decoded,
            "logits_of_scored_texts": plan.costs.logits_tile,
            "left_for_fragmentation": room.margin,
            "for_batches": plan.batches,
            **{f"each_{name}": value for name, value in vars(plan.costs).items() if name != "logits_tile"},
        },
        "score_tokens": plan.score_tokens,
        "prompt_tokens": plan.prompt_tokens,
        "rows": plan.rows,
        "rows_limited_to_bytes": plan.cache_bytes,
        "smaller_for_lack_of_memory": plan.short,
    }
