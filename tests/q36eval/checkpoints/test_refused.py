"""What is refused from config.json alone: quantizations that are not decoded, and sizes that no model has."""

import json
from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.loader import load_model
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.errors import CorruptCheckpointError, ExitCode, UsageError
from tests.commands import q36eval
from tests.raising import raises

UNDECODED: dict[str, dict[str, Any]] = {
    "bitsandbytes": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    "torchao": {"quantization_config": {"quant_method": "torchao", "quant_type": {"default": "int4_weight_only"}}},
    "HQQ": {"quantization_config": {"quant_method": "hqq", "quant_config": {}}},
    "EXL3": {"quantization_config": {"quant_method": "exl3", "bits": 4.0}},
    "MLX": {"quantization": {"group_size": 64, "bits": 4}, "quantization_config": {"group_size": 64, "bits": 4}},
    "quanto": {"text_config": {"quantization_config": {"quant_method": "quanto"}}},
}


def configured(folder: Path, **settings: Any) -> Path:
    """A folder with a config.json and no weights: whatever needs them comes later."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"} | settings))
    return folder


@pytest.mark.parametrize("name", UNDECODED)
def test_a_quantization_that_is_not_decoded_is_refused_before_weights_are_looked_for(name: str, tmp_path: Path) -> None:
    folder = configured(tmp_path / "model", **UNDECODED[name])
    for refused in (load_model, inspect_checkpoint):
        with raises(UsageError, "scheme-unsupported", folder, f"by {name!r}", "compressed-tensors"):
            refused(folder)


def test_the_command_refuses_it_as_wrong_usage(tmp_path: Path) -> None:
    folder = configured(tmp_path / "model", **UNDECODED["MLX"])
    done = q36eval("inspect", str(folder), state=tmp_path / "state")
    assert (done.returncode, done.stderr.count("\n")) == (ExitCode.USAGE, 1), done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"n_routed_experts": 10**9},
        {"num_local_experts": 10**9},
        {"moe_num_experts": -1},
        {"num_local_experts": 2048, "num_hidden_layers": 2048},
        {"n_layer": 10**9},
        {"intermediate_size": 2**40},
        {"kv_lora_rank": "many"},
    ],
)
def test_sizes_that_no_model_has_are_refused_whatever_the_architecture_calls_them(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with raises(CorruptCheckpointError, "config-invalid", "experts" if len(settings) > 1 else next(iter(settings))):
        open_checkpoint(configured(tmp_path / "model", **settings))


def test_a_hybrid_without_experts_is_none_of_them(tmp_path: Path) -> None:
    with raises(UsageError, "file-missing"):
        open_checkpoint(configured(tmp_path / "model", num_local_experts=0, mamba_d_head="auto"))
