"""An untouched checkpoint of any supported architecture raises no alarm, in BF16 and as llm-compressor writes FP8."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from q36eval.checkpoints.inspection import Inspection, inspect_checkpoint
from tests.q36eval.checkpoints.architectures import NAMES, quantize, saved


def written(name: str, folder: Path) -> Path:
    """The model with a tokenizer of bytes and a chat template."""
    saved(name, folder)
    tokenizer = Tokenizer(BPE({byte: number for number, byte in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return folder


def quantized(source: Path, folder: Path) -> Path:
    """FP8 by rows of every linear module but the head, and of its inputs; experts stored as one stay as they are."""
    shutil.copytree(source, folder)
    quantize(folder, inputs=True)
    return folder


def rules(inspection: Inspection) -> set[tuple[str, str]]:
    return {(finding.severity.value, finding.rule) for finding in inspection.findings}


def check_classes(name: str, inspection: Inspection) -> None:
    """No class is unknown, and none is there that the architecture does not have."""
    classes = {row.tensor_class for row in inspection.coverage}
    assert "other" not in classes
    assert ("linear attention" in classes) == name.startswith(("qwen3_5", "qwen3_next"))
    has_experts = "moe" in name or name in {"deepseek_v2", "deepseek_v3", "gpt_oss", "llama4_text", "minimax_m2"}
    has_experts |= name in {"mixtral", "qwen3_next"}
    assert ("routed experts" in classes) == has_experts


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_untouched_checkpoint_raises_no_alarm(name: str, tmp_path: Path) -> None:
    reference = written(name, tmp_path / "reference")
    inspection = inspect_checkpoint(reference, reference, weights_workers=1)
    assert rules(inspection) == {("advisory", "nothing-quantized")}
    check_classes(name, inspection)
    inspection = inspect_checkpoint(quantized(reference, tmp_path / "fp8"), reference, weights_workers=1)
    if name == "gpt2":  # it has no linear modules, so the recipe quantized nothing
        assert rules(inspection) == {("blocking", "declared-scheme-absent")}
        return
    found = rules(inspection)
    if name.startswith(("qwen3_5", "qwen3_next")):
        assert found <= {("advisory", "usually-unquantized"), ("advisory", "router-gates-quantized")}
    else:
        assert found == set()
    assert inspection.schemes is not None
    assert sum(inspection.schemes.values()) > 0
    check_classes(name, inspection)


def test_a_checkpoint_without_a_template_is_as_whole_as_its_reference(tmp_path: Path) -> None:
    reference = written("llama", tmp_path / "reference")
    (reference / "chat_template.jinja").unlink()
    wanted = {("advisory", "nothing-quantized"), ("advisory", "chat-template-missing")}
    assert rules(inspect_checkpoint(reference, reference)) == wanted


def test_another_model_type_is_another_computation(tmp_path: Path) -> None:
    reference = written("llama", tmp_path / "reference")
    branch = Path(shutil.copytree(reference, tmp_path / "branch"))
    config = json.loads((branch / "config.json").read_text()) | {"model_type": "qwen3"}
    (branch / "config.json").write_text(json.dumps(config))
    assert ("blocking", "computation-differs") in rules(inspect_checkpoint(branch, reference, weights_workers=1))


@pytest.mark.parametrize(("settings", "blocks"), [({"sliding_window": None}, False), ({}, True)])
def test_a_mistral_with_a_window_is_no_llama(settings: dict[str, None], blocks: bool, tmp_path: Path) -> None:
    branch = written("llama", tmp_path / "branch")
    reference = Path(shutil.copytree(branch, tmp_path / "reference"))
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], **settings}
    (reference / "config.json").write_text(json.dumps(json.loads((reference / "config.json").read_text()) | mistral))
    assert (("blocking", "computation-differs") in rules(inspect_checkpoint(branch, reference))) is blocks


@pytest.mark.parametrize(("factor", "found"), [(1.0, set()), (2.0, {("blocking", "tied-head")})])
def test_a_tied_head_that_is_stored_too_is_the_embeddings(
    factor: float, found: set[tuple[str, str]], tmp_path: Path
) -> None:
    reference = written("llama-tied", tmp_path / "reference")
    file = Path(shutil.copytree(reference, tmp_path / "branch")) / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = factor * tensors["model.embed_tokens.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    inspection = inspect_checkpoint(file.parent, reference, weights_workers=1)
    assert rules(inspection) == {("advisory", "nothing-quantized"), *found}
