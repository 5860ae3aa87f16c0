"""GGUFs of every architecture that is read: names as llama.cpp's own tables have them, weights as its converter has."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES, get_tensor_name_map

from q36eval.checkpoints import load_model
from q36eval.checkpoints.gguf import names
from q36eval.checkpoints.gguf.plain_models import PLAIN_MODELS, TOP, llama3_scaling
from q36eval.checkpoints.gguf.settings import MetadataError
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.inspection.findings import Severity
from tests.q36eval.checkpoints.architectures import saved
from tests.q36eval.checkpoints.inspection.damage import config
from tests.q36eval.checkpoints.test_experts_together import quantized

TOKENS = torch.arange(3, 33).reshape(2, 15)
LLAMA = os.environ.get("Q36EVAL_LLAMA_CPP")
MODELS = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
EXPERTS = {"ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj"}
EXPERTS |= {"ffn_down_exps": "mlp.experts.down_proj"}
HYBRID = names.ANY | names.FULL | names.LINEAR
NOT_WRITTEN = {
    "llama": {"attn_rot_embd", "ffn_gate_inp", *EXPERTS},  # the latter are Mixtral's
    "qwen35": set(),
    "qwen35moe": {"ffn_gate_up_exps"},
}
"""In llama.cpp's tables, and in no file of a model that is read here, or read elsewhere."""


def modules_of(kind: str) -> Mapping[str, str]:
    """The modules of a layer, by the stem of the tensor that holds them."""
    model = PLAIN_MODELS.get(kind)
    if model is None:
        experts = EXPERTS if kind == "qwen35moe" else {}
        return HYBRID | experts | {"ssm_a": "linear_attn.A_log", "ssm_dt": "linear_attn.dt_proj"}
    return {**model.names, **(EXPERTS if model.experts else {})}


@pytest.mark.parametrize("kind", [*PLAIN_MODELS, *names.HYBRIDS])
def test_names_are_those_of_the_converters_own_table(kind: str) -> None:
    table, modules = get_tensor_name_map(MODELS[kind], 2), modules_of(kind)
    stems = {TENSOR_NAMES[tensor].removeprefix("blk.{bid}.") for tensor in MODEL_TENSORS[MODELS[kind]]}
    assert stems - modules.keys() - TOP.keys() - {"rope_freqs"} == NOT_WRITTEN.get(kind, set())
    for stem in stems & modules.keys():
        stored = table.get_name(f"model.layers.1.{modules[stem]}", try_suffixes=(".weight",))
        assert stored == f"blk.1.{stem}", stem
    for stem, module in TOP.items():
        assert table.get_name(module, try_suffixes=(".weight",)) == stem


def test_llama_3s_scaling_comes_back_from_its_factors_or_is_refused() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192}
    config = LlamaConfig(head_dim=64, rope_parameters={**scaling, "rope_theta": 500_000.0})
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    factors = (plain / frequencies.double()).float().tolist()
    metadata = {"general.architecture": "llama", "llama.rope.freq_base": 500_000.0}
    assert llama3_scaling(metadata, factors, []) == scaling
    with pytest.raises(MetadataError, match="rope_freqs"):
        llama3_scaling(metadata, [*factors[:-1], 5.0], [])


CONVERTED = (
    "llama",
    "llama-tied",
    "llama-bias",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_5_text",
    "gemma3_text",
    "gpt_oss",
    "gpt_oss in MXFP4",
)


@pytest.mark.long
@pytest.mark.skipif(LLAMA is None, reason="Q36EVAL_LLAMA_CPP names no folder with llama.cpp")
@pytest.mark.parametrize("name", CONVERTED)
def test_what_the_converter_wrote_is_the_model_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from golden_gguf import convert, write_texts

    monkeypatch.setenv("LLAMA_CPP", f"{LLAMA}/source")
    reference, file = saved(name.partition(" ")[0], tmp_path / "reference"), tmp_path / "model.gguf"
    if "MXFP4" in name:
        reference = quantized(reference, tmp_path / "published")
    write_texts(reference, 256)
    as_published = {"norm_topk_prob": True} if name == "qwen3_moe" else {}  # and as llama.cpp computes
    config(eos_token_id=32, pad_token_id=30, **as_published)(reference)
    convert(reference, file, "--outtype", "bf16", *(["--no-mtp"] if name == "qwen3_5_text" else []))
    mine, theirs = load_model(file).model, load_model(reference).model
    expected: dict[str, Any] = theirs.state_dict()
    for key, value in mine.state_dict().items():
        # of Gemma's embeddings the converter keeps those that have a token
        assert torch.equal(value, expected[key][: len(value)] if value.dim() else expected[key]), key
    with torch.inference_mode():
        logits = theirs(TOKENS, use_cache=False).logits
        assert torch.equal(mine(TOKENS, use_cache=False).logits, logits[..., : mine.config.vocab_size])
    if name != "gemma3_text":
        findings = inspect_checkpoint(file, reference).findings
        assert [one for one in findings if one.severity is Severity.BLOCKING] == []
