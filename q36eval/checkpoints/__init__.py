"""Checkpoints: reading Hugging Face folders exactly, decoding every format, filling every parameter once.

A tensor goes from `header` (where its bytes lie) and `reader` (the folder) through `names` and `schemes`
(what the configuration says of it) to a `LogicalWeight` of `weights`, is decoded by a module of `formats`, and put into
its parameter by `loader`, which also installs what `emulation` and `kv_cache` do to activations, keys and values.
`hashing` and `tokenizer` say what a checkpoint is, `inspection` whether it is what it says.

Of q36eval it imports `errors`, `records` and `schemes`. Importing the package brings in nothing heavy: torch comes with
`loader`, and where a tensor is read.
"""

from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.hashing import checkpoint_sha256
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.checkpoints.tokenizer import chat_template_sha256, load_tokenizer, tokenizer_sha256

if TYPE_CHECKING:
    from q36eval.checkpoints.loader import LoadedModel, load_model

__all__ = [
    "LoadedModel",
    "chat_template_sha256",
    "checkpoint_sha256",
    "load_model",
    "load_tokenizer",
    "open_checkpoint",
    "tokenizer_sha256",
]


def __getattr__(name: str) -> Any:
    """`load_model` and its type, imported only when asked for: they need torch."""
    if name in ("LoadedModel", "load_model"):
        from q36eval.checkpoints import loader

        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
