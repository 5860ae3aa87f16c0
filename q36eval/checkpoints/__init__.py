"""Checkpoints: reading Hugging Face folders exactly, decoding every format, filling every parameter once.

This package imports nothing heavy; `q36eval.checkpoints.loader` is what brings in torch and transformers.
"""

from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.hashing import chat_template_sha256, checkpoint_sha256, tokenizer_sha256
from q36eval.checkpoints.reader import Checkpoint, TensorEntry, load_tokenizer, open_checkpoint

if TYPE_CHECKING:
    from q36eval.checkpoints.loader import LoadedModel, LoadReport, load_model

__all__ = [
    "Checkpoint",
    "LoadReport",
    "LoadedModel",
    "TensorEntry",
    "chat_template_sha256",
    "checkpoint_sha256",
    "load_model",
    "load_tokenizer",
    "open_checkpoint",
    "tokenizer_sha256",
]


def __getattr__(name: str) -> Any:
    """`load_model` and its types, imported only when asked for: they need torch."""
    if name in ("LoadReport", "LoadedModel", "load_model"):
        from q36eval.checkpoints import loader

        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
