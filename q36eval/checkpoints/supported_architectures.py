"""The architectures that are supported, and a refusal of any other that needs no heavy import."""

from q36eval.checkpoints.reader import Checkpoint
from q36eval.errors import CorruptCheckpointError, UsageError

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
        UsageError: the `model_type` is not in `SUPPORTED`.
        CorruptCheckpointError: there is none.
    """
    kind = checkpoint.config.get("model_type")
    if not isinstance(kind, str):
        raise CorruptCheckpointError("config-invalid", f"{checkpoint.path}/config.json names no model_type.")
    if kind not in SUPPORTED:
        raise UsageError(
            "architecture-unsupported",
            f"{checkpoint.path}: model_type {kind!r} is not supported; supported: {', '.join(SUPPORTED)}.",
        )
