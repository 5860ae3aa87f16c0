"""An untouched checkpoint of any supported architecture raises no alarm, in BF16 and as llm-compressor writes FP8.

Nor does what is declared: fewer experts than the reference's (REAP, where an inspection lists what it cannot compare),
and a rotary embedding as another version of transformers writes it.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from q36eval.checkpoints.inspection import Inspection, inspect_checkpoint
from q36eval.checkpoints.loader import load_model
from tests.q36eval.checkpoints.architectures import NAMES, quantize, saved

from .damage import Tensors, config, edit_json, edit_tensors
from .tiny import write_texts


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
    assert sum(inspection.schemes.values()) > 0
    check_classes(name, inspection)


def test_a_checkpoint_without_a_template_is_as_whole_as_its_reference(tmp_path: Path) -> None:
    reference = written("llama", tmp_path / "reference")
    (reference / "chat_template.jinja").unlink()
    wanted = {("advisory", "nothing-quantized"), ("advisory", "chat-template-missing")}
    assert rules(inspect_checkpoint(reference, reference)) == wanted


@pytest.mark.parametrize(("settings", "blocks"), [({"sliding_window": None}, False), ({}, True)])
def test_a_mistral_with_a_window_is_no_llama(settings: dict[str, None], blocks: bool, tmp_path: Path) -> None:
    branch = written("llama", tmp_path / "branch")
    reference = Path(shutil.copytree(branch, tmp_path / "reference"))
    config(model_type="mistral", architectures=["MistralForCausalLM"], **settings)(reference)
    assert (("blocking", "computation-differs") in rules(inspect_checkpoint(branch, reference))) is blocks


@pytest.mark.parametrize(
    ("factor", "tied", "blocking"),
    [(1.0, True, []), (1.0, False, []), (2.0, True, ["tied-head"]), (2.0, False, ["computation-differs"])],
)
def test_a_stored_head_may_equal_the_embeddings(factor: float, tied: bool, blocking: list[str], tmp_path: Path) -> None:
    reference = written("llama-tied", tmp_path / "reference")
    branch = Path(shutil.copytree(reference, tmp_path / "branch"))
    config(tie_word_embeddings=tied)(branch)
    edit_tensors(branch, lambda own: own.update({"lm_head.weight": factor * own["model.embed_tokens.weight"]}))
    found = rules(inspect_checkpoint(branch, reference, weights_workers=1))
    assert found == {("advisory", "nothing-quantized"), *(("blocking", rule) for rule in blocking)}


OLDER: dict[str, Any] = {
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
NEWER: dict[str, Any] = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
}


def test_two_ways_of_writing_one_rotary_embedding_are_no_difference(tmp_path: Path) -> None:
    """Gemma 3's, as older and newer versions of transformers write it."""
    older, newer = saved("gemma3_text", tmp_path / "older"), saved("gemma3_text", tmp_path / "newer")

    def differing(changes: dict[str, Any]) -> list[str]:
        for folder, rope in ((older, OLDER | changes), (newer, NEWER)):
            edit_json(folder, "config.json", lambda own: [own.pop(key) for key in [*own] if key.startswith("rope")])
            config(**rope)(folder)
        both = (*inspect_checkpoint(newer, older).findings, *inspect_checkpoint(older, newer).findings)
        return [finding.message for finding in both if finding.rule == "computation-differs"]

    assert differing({}) == []
    assert [message.partition(" ")[0] for message in differing({"rope_local_base_freq": 50_000.0})] == [
        "sliding_attention",
        "sliding_attention",
    ]


KEPT = (0, 2, 3)


def pruned(reference: Path, folder: Path, changes: Tensors) -> Path:
    """The reference without its expert 1, the others numbered again; `changes` replace tensors."""
    shutil.copytree(reference, folder)

    def renumber(tensors: Tensors) -> None:
        stored = tensors.copy()
        tensors.clear()
        for name, value in stored.items():
            before, expert, after = name.partition(".experts.")
            if not expert:
                tensors[name] = value[list(KEPT)] if name.endswith(".mlp.gate.weight") else value
            elif int(after[0]) in KEPT:
                tensors[f"{before}.experts.{KEPT.index(int(after[0]))}{after[1:]}"] = value
        tensors |= changes

    def recount(document: dict[str, Any]) -> None:
        document[next(name for name in ("num_local_experts", "num_experts") if name in document)] = len(KEPT)

    edit_tensors(folder, renumber)
    edit_json(folder, "config.json", recount)
    return folder


def blocking(inspection: Inspection) -> list[tuple[str, str]]:
    return [(one.rule, one.subject) for one in inspection.blocking]


def test_a_branch_without_some_experts_is_compared_where_there_is_something_to_compare(tmp_path: Path) -> None:
    reference = saved("qwen3_moe", tmp_path / "reference")
    write_texts(reference)
    branch = pruned(reference, tmp_path / "branch", {})
    assert load_model(branch).model.config.num_experts == 3
    inspection = inspect_checkpoint(branch, reference)
    assert blocking(inspection) == blocking(inspect_checkpoint(reference, reference))
    (listed,) = (finding for finding in inspection.findings if finding.rule == "experts-pruned")
    assert "3 of the reference's 4 experts" in listed.message
    assert "20 tensors" in listed.message  # two layers of three experts of three projections, and a gate each
    assert inspection.compared_weights == len(load_file(branch / "model.safetensors")) - 20
    norm = "model.layers.1.input_layernorm.weight"
    damaged = pruned(reference, tmp_path / "damaged", {norm: load_file(reference / "model.safetensors")[norm] * 2})
    assert ("unquantized-differs", norm) in blocking(inspect_checkpoint(damaged, reference))
