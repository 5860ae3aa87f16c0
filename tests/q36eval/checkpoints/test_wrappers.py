"""A wrapper of several modalities loads as its text model; what is stored for images is left out by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.supported_architectures import SUPPORTED
from tests.q36eval.checkpoints.architectures import SETTINGS, SIZES

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "patch_size": 14,
    "num_position_embeddings": 16,
}
WRAPPERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma3": ("gemma3_text", VISION, {"mm_tokens_per_image": 4}),
    "llama4": (
        "llama4_text",
        VISION | {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
        {},
    ),
    "mistral3": ("mistral", VISION | {"head_dim": 16, "model_type": "pixtral"}, {}),
    "qwen3_5": ("qwen3_5_text", QWEN, {}),
    "qwen3_5_moe": ("qwen3_5_moe_text", QWEN, {}),
}
"""By `model_type`, the text model's, the settings of its vision tower, and its own."""
TOKENS = torch.randint(3, 250, (2, 20), generator=torch.Generator().manual_seed(1))


def test_every_supported_wrapper_is_here() -> None:
    assert {*SUPPORTED} - SETTINGS.keys() == WRAPPERS.keys()


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_loads_as_its_text_model(name: str, tmp_path: Path) -> None:
    from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

    kind, vision, own = WRAPPERS[name]
    text = SIZES | SETTINGS[kind] | {"model_type": kind}
    config = CONFIG_MAPPING[name](text_config=text, vision_config=vision, **own)
    torch.manual_seed(0)
    theirs = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    seen = sum("visual" in key or "vision" in key or "projector" in key for key in theirs.state_dict())
    assert {reason: len(names) for reason, names in ours.report.left_out.items()} == {"vision tower": seen}
    with torch.inference_mode():
        logits = theirs(input_ids=TOKENS, use_cache=False).logits
        assert torch.equal(ours.model(TOKENS, use_cache=False).logits, logits)
