"""`q36eval inspect`: is this file what it says it is, and how far is it from the reference, tensor by tensor?

`examination` leads through it: the files (`opening`), config.json (`configuration`), the text side (`tokenizers`), what
is quantized (`stored`, `coverage`), the stored numbers (`values`), the error of each weight against what its grid can
cost (`error`, `grids`) once smoothing is folded out (`smoothing`), and another checkpoint byte for byte (`against`).
`findings` holds what comes out, free of torch. It imports the rest of `q36eval.checkpoints`, never an engine.
"""

from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.inspection.findings import (
    Finding,
    Inspection,
    Promise,
    Section,
    Severity,
)

if TYPE_CHECKING:
    from q36eval.checkpoints.inspection.examination import inspect_checkpoint

__all__ = [
    "Finding",
    "Inspection",
    "Promise",
    "Section",
    "Severity",
    "inspect_checkpoint",
]


def __getattr__(name: str) -> Any:
    """`inspect_checkpoint`, imported only when asked for: it needs torch."""
    if name == "inspect_checkpoint":
        from q36eval.checkpoints.inspection.examination import inspect_checkpoint

        return inspect_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
