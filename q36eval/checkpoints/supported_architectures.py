"""The architectures that are supported, and a refusal of any other that needs no heavy import."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from q36eval.checkpoints.gguf.files import is_gguf
from q36eval.checkpoints.reader import Checkpoint, open_checkpoint, read_json
from q36eval.errors import CorruptCheckpointError, Q36Error, UsageError

UNSUPPORTED = "architecture-unsupported"

SUPPORTED = (
    *(
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "gemma2",
        "gemma3",
        "gemma3_text",
    ),
    *("glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoehybrid"),
    *("hunyuan_v1_dense", "lfm2", "llama", "llama4", "llama4_text", "minimax_m2", "ministral3", "mistral", "mistral3"),
    *("mixtral", "nemotron", "olmo2", "olmoe", "phi", "phi3", "phimoe", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2"),
)
"""The values of `model_type` whose models are tested against transformers (`architectures.py`).

A wrapper of several modalities is judged by its text model.
"""


def check_supported(checkpoint: Checkpoint) -> None:
    """Refuse an architecture without importing transformers.

    Raises:
        UsageError: a `model_type`, of the model or of its text model, is not in `SUPPORTED`; or there is none and the
            model comes with code of its own.
        CorruptCheckpointError: there is none.
    """
    _check(checkpoint.config, checkpoint.path)


def check_named(path: Path) -> None:
    """Refuse the architecture of a folder or GGUF from its configuration alone; opening it reports any other fault.

    Raises:
        UsageError: as `check_supported`.
    """
    try:
        if is_gguf(path):
            open_checkpoint(path)
        elif (path / "config.json").is_file():
            _check(read_json(path / "config.json"), path)
    except Q36Error as error:
        if error.code == UNSUPPORTED:
            raise


def _check(config: Mapping[str, Any], path: Path) -> None:
    text = config.get("text_config")
    kinds = [config.get("model_type"), text.get("model_type") if isinstance(text, dict) else None]
    named = [kind for kind in kinds if isinstance(kind, str)]
    if not isinstance(kinds[0], str) and "auto_map" not in config:
        raise CorruptCheckpointError("config-invalid", f"{path}/config.json names no model_type.")
    unknown = [kind for kind in named if kind not in SUPPORTED]
    if unknown or not named:
        what = f"model_type {unknown[0]!r}" if unknown else "a model with its own Python code"
        raise UsageError(UNSUPPORTED, f"{path}: {what} is not supported; supported: {', '.join(SUPPORTED)}.")
