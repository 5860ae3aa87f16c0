"""The output head of a checkpoint folder, for packs that keep only its hash."""

from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.errors import UsageError

if TYPE_CHECKING:
    import torch

_HEADS = ("lm_head.weight",)
_EMBEDDINGS = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")


def stored_head(folder: Path) -> "torch.Tensor":
    """The head [V, H] of a plain BF16, FP16 or FP32 checkpoint, in BF16; tied embeddings where it has no own head.

    Whoever uses it compares its hash: nothing is assumed about how the checkpoint is loaded otherwise.

    Raises:
        UsageError: it stores no such tensor, or one that is quantized.
        CorruptCheckpointError: see `open_checkpoint`.
    """
    import torch

    from q36eval.checkpoints import open_checkpoint

    checkpoint = open_checkpoint(folder)
    for name in (*_HEADS, *_EMBEDDINGS):
        if name in checkpoint.tensors:
            weight = checkpoint.read(name)
            if weight.dtype in (torch.bfloat16, torch.float16, torch.float32):
                return weight.to(torch.bfloat16)
            break
    raise UsageError(f"{folder} stores no plain lm_head, so a pack must keep it; capture without --no-head.")
