"""Every supported architecture loads as transformers loads it, and nothing of a checkpoint is dropped silently."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints.architecture import base_of
from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.supported_architectures import SUPPORTED
from q36eval.engines.logits import LogitsForm, OwnHead, check_form
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.q36eval.checkpoints.architectures import EXPERT, NAMES, SETTINGS, WRAPPERS, quantize, saved, tiny_model
from tests.raising import raises
from tests.stored_formats import formats_of, left_out

from .inspection.damage import config, edit_tensors

TOKENS = torch.randint(3, 256, (2, 40), generator=torch.Generator().manual_seed(1))


def logits(model: torch.nn.Module) -> Tensor:
    with torch.inference_mode():
        return model(TOKENS, use_cache=False).logits  # type: ignore[no-any-return]


def test_every_supported_architecture_is_in_the_table() -> None:
    assert set(SUPPORTED) == SETTINGS.keys() | WRAPPERS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_bit_for_bit_as_transformers_loads_it(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = saved(name, tmp_path / "model")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ours = load_model(folder).model
    assert {key: value.dtype for key, value in ours.state_dict().items()} == {
        key: value.dtype for key, value in theirs.state_dict().items()
    }
    assert torch.equal(logits(ours), logits(theirs))


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_judged_by_its_text_model(name: str, tmp_path: Path) -> None:
    loaded = load_model(saved(name, tmp_path / "model"))
    assert torch.equal(logits(loaded.model), logits(tiny_model(name)))
    assert set(left_out(tmp_path / "model")) == {"vision tower"}


Change = Callable[[dict[str, Tensor]], object]


def renamed(before: str, after: str) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if before in name]:
            tensors[name.replace(before, after)] = tensors.pop(name)

    return change


def copied(before: str, after: str) -> Change:
    return lambda tensors: tensors.update(
        {name.replace(before, after): value.clone() for name, value in tensors.items() if before in name}
    )


def added(name: str, *shape: int) -> Change:
    return lambda tensors: tensors.update({name: torch.zeros(shape, dtype=torch.bfloat16)})


MISSING, UNEXPECTED, TWICE = "tensor-missing", "tensor-unexpected", "tensor-duplicate"
UP = "model.layers.1.mlp.experts.1.up_proj.weight"
SINKS, BIAS = "model.layers.1.self_attn.sinks", "model.layers.1.mlp.gate.e_score_correction_bias"
LAYER, OTHER_NAME = "model.layers.0.mlp", "model.language_model.layers.0.mlp"
TOGETHER, K_BIAS = "model.layers.1.mlp.experts.down_proj", "model.layers.0.self_attn.k_proj.bias"


def one_too_few(tensors: dict[str, Tensor]) -> None:
    tensors |= {name: value[:3] for name, value in tensors.items() if "experts.down_proj" in name}


FAULTS: dict[str, tuple[str, Change, str, str]] = {
    "an expert under another number": ("qwen3_moe", renamed("experts.3.", "experts.7."), UNEXPECTED, "experts.7."),
    "a projection that is missing": ("qwen3_moe", lambda tensors: tensors.pop(UP), MISSING, UP),
    "an expert too many": ("mixtral", copied("experts.3.", "experts.4."), UNEXPECTED, "experts.4."),
    "a layer too many": ("deepseek_v3", added("model.layers.61.eh_proj.weight", 4, 4), UNEXPECTED, "layers.61."),
    "a bias that is not configured": ("llama", added(K_BIAS, 32), UNEXPECTED, "k_proj"),
    "a wrong shape": ("llama", added("model.layers.0.mlp.up_proj.weight", 64, 128), "tensor-shape", "up_proj"),
    "a parameter without a module that is missing": ("gpt_oss", lambda tensors: tensors.pop(SINKS), MISSING, SINKS),
    "a buffer that is missing": ("deepseek_v3", lambda tensors: tensors.pop(BIAS), MISSING, BIAS),
    "the head's bias that is missing": ("phi", lambda tensors: tensors.pop("lm_head.bias"), MISSING, "lm_head"),
    "an expert too few of those stored together": ("gpt_oss", one_too_few, "tensor-shape", "experts.down_proj"),
    "experts together and one by one": ("qwen3_moe", added(TOGETHER, 4, 64, 32), TWICE, "experts.0.down_proj"),
    "a layer under two names": ("llama", copied(LAYER, OTHER_NAME), TWICE, "language_model"),
    "a scale that no scheme has": ("llama", added("lm_head.weight_scale", 2, 1), UNEXPECTED, "lm_head.weight_scale"),
    "a tied model with a head of its own": ("llama-tied", added("lm_head.weight", 256, 64), "head-not-tied", "lm_head"),
}


@pytest.mark.parametrize(("name", "change", "code", "what"), FAULTS.values(), ids=FAULTS.keys())
def test_what_transformers_drops_or_invents_is_refused(
    name: str, change: Change, code: str, what: str, tmp_path: Path
) -> None:
    edit_tensors(saved(name, tmp_path), change)
    with raises(CorruptCheckpointError, code, what):
        load_model(tmp_path)


def test_what_is_no_part_of_the_text_model_is_listed_with_its_reason(tmp_path: Path) -> None:
    beside = {
        "multi-token prediction": "mtp.fc.weight",
        "vision tower": "vision_tower.patch_conv.weight",
        "KV-cache scales": "model.layers.0.self_attn.k_scale",
    }
    saved("llama", tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update(dict.fromkeys(beside.values(), torch.ones(2))))
    load_model(tmp_path)
    assert left_out(tmp_path) == {reason: (name,) for reason, name in beside.items()}


def test_an_unknown_architecture_is_refused_with_those_that_are_supported(tmp_path: Path) -> None:
    config(model_type="other", auto_map={"AutoModel": "a.B"})(saved("llama", tmp_path))
    with raises(UsageError, "architecture-unsupported", "'other'", "smollm3"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_form_of_the_models_own_forward(name: str) -> None:
    model = tiny_model(name)
    check_form(model, LogitsForm.of(model.config))
    states = base_of(model)(input_ids=TOKENS, use_cache=False).last_hidden_state[0]
    rounded_once = OwnHead.of(model).plain.logits(states)
    assert torch.allclose(
        logits(model)[0].float(), rounded_once, rtol=2**-7, atol=2**-7 * float(rounded_once.abs().max())
    )


@pytest.mark.parametrize("name", ["granite", "cohere2", "gemma2"])
def test_a_form_that_is_not_the_models_own_is_refused(name: str) -> None:
    model = tiny_model(name)
    with raises(UsageError, "architecture-unsupported", type(model).__name__):
        check_form(model, LogitsForm())


def test_the_form_of_the_logits_takes_no_setting_of_another_architecture() -> None:
    settings = tiny_model("llama").config
    settings.logit_scale = 0.5
    assert LogitsForm.of(settings) == LogitsForm()


def test_settings_of_another_text_model_are_refused(tmp_path: Path) -> None:
    config(text_config={"model_type": "qwen3"})(saved("llama", tmp_path))
    with raises(CorruptCheckpointError, "config-invalid", tmp_path):
        load_model(tmp_path)


FUSED = {"gpt_oss", "granitemoe", "granitemoehybrid", "llama4_text"}
"""Architectures whose experts are stored as one tensor, which no producer of this format quantizes."""


@pytest.mark.parametrize("name", NAMES)
def test_fp8_weights_come_where_transformers_puts_the_decoded_ones(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder, plain = saved(name, tmp_path / "model"), saved(name, tmp_path / "plain")
    decoded = quantize(folder)
    edit_tensors(plain, lambda tensors: tensors.update(decoded))
    theirs = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).state_dict()
    loaded = load_model(folder)
    ours = loaded.model.state_dict()
    assert [each for each, value in theirs.items() if not torch.equal(value, ours[each])] == []
    stored = formats_of(folder)
    assert sum(formats["float-quantized"] for formats in stored.values()) == len(decoded)
    assert bool(decoded) == (name != "gpt2")
    has_experts = "routed experts" in stored
    assert any(EXPERT.search(each) for each in decoded) == (has_experts and name not in FUSED)
