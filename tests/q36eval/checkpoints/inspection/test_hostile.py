"""Files made to break their reader end in a sentence that names them, in bounded time; a damaged reference is no fault
of the branch."""

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.checkpoints import load_model
from q36eval.checkpoints.inspection import Inspection, Section
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.branches import folder_of
from tests.raising import raises

from .damage import (
    EXPERT,
    INDEX,
    SANDBOX,
    WEIGHTS,
    Damage,
    edit_header,
    edit_json,
    inspected,
    one,
    quantization,
    truncated,
)

DEEP = 200_000
QUANTIZED = "model.layers.2.mlp.experts.0.down_proj"
"""A module that every quantized branch quantizes."""
MTP = "mtp.fc.weight"
FUSED = "model.layers.0.mlp.experts.gate_up_proj"


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


def header_of(blob: bytes) -> Damage:
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(blob)) + blob)


def empty_tensor(name: str, shape: list[int]) -> Damage:
    """A tensor without bytes, after the last one."""

    def add(header: dict[str, Any]) -> None:
        end = max(fields["data_offsets"][1] for key, fields in header.items() if key != "__metadata__")
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end]}

    return lambda folder: edit_header(folder, add)


def config(**changes: Any) -> Damage:
    def change(document: dict[str, Any]) -> None:
        document.pop("layer_types", None)
        document.update(changes)

    return lambda folder: edit_json(folder, "config.json", change)


ENDLESS = r"re:(?:\w|\.|[a-z])+\Z(?<=[0-9])"
"""Tries every way to cut a name into pieces before it gives up."""


def model_optimizers_file_of_nothing(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": None}))
    edit_json(folder, "config.json", lambda document: document.pop("quantization_config"))


def infinite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor([float("inf"), float(tensor[1])])


RULE_WITHOUT_END: dict[str, dict[str, Any]] = {"-:" + ENDLESS.removeprefix("re:"): {}}
LAYERS_OF_NUMBERS = {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 3}}
FILES: list[tuple[str, str, Damage, str]] = [
    ("deep header", "main", header_of(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"), WEIGHTS),
    ("deep config", "main", text("config.json", '{"a":' * DEEP), "config.json"),
    ("a billion experts", "main", config(num_experts=10**9), "num_experts"),
    ("many layers of many experts", "main", config(num_hidden_layers=4000, num_experts=4000), "experts 4000"),
    ("layers every 0", "main", config(full_attention_interval=0), "full_attention_interval"),
    ("broken size", "main", config(hidden_size=256.0), "hidden_size"),
    ("config of nothing", "main", text("config.json", "{}"), "config.json"),
    ("text part of text", "main", config(text_config="all"), "text_config"),
    ("quantization of text", "main", config(quantization_config="fp8"), "quantization_config"),
    ("group of a number", "main", quantization(config_groups={"group_0": 3}), "quantization_config"),
    ("rule of a number", "gptq-int4", quantization(dynamic={"+:.*": 3}), "dynamic"),
    ("layers of numbers", "nvfp4-modelopt", quantization(**LAYERS_OF_NUMBERS), "quantization configuration"),
    ("a pattern without end", "fp8-head", quantization(ignore=[ENDLESS]), "takes too long"),
    ("a rule without end", "gptq-int4", quantization(dynamic=RULE_WITHOUT_END), "takes too long"),
    ("an empty tensor without end", "main", empty_tensor(MTP, [0, 10**18, 10**18]), MTP),
    ("nothing in a table's place", "nvfp4-modelopt", model_optimizers_file_of_nothing, "hf_quant_config.json"),
]
"""What cannot be judged beyond its header or configuration: what a message must name."""
UP = f"{EXPERT}.up_proj"
TENSORS: list[tuple[str, str, Damage, str]] = [
    ("two billion empty experts", "main", empty_tensor(FUSED, [2_000_000_000, 0, 4]), FUSED),
    ("a global scale per group", "main", one(f"{UP}.weight_global_scale", lambda t: t.repeat(16)), f"{UP}.weight"),
    ("an infinite size", "w4a16", one(f"{QUANTIZED}.weight_shape", infinite), f"{QUANTIZED}.weight"),
    ("a scale without axes", "gptq-int4", one(f"{QUANTIZED}.scales", lambda t: t[0, 0]), f"{QUANTIZED}.weight"),
    ("words in a row, GPTQ", "gptq-int4", one(f"{QUANTIZED}.qweight", torch.flatten), f"{QUANTIZED}.weight"),
    ("words in a row", "w4a16", one(f"{QUANTIZED}.weight_packed", torch.flatten), f"{QUANTIZED}.weight"),
]
"""What is about one tensor, which is named while the others are judged."""
DTYPES: list[tuple[str, str, str]] = [
    ("main", ".weight_scale", "U8"),
    ("main", ".weight_global_scale", "I32"),
    ("nvfp4-modelopt", ".weight_scale_2", "I32"),
    ("fp8-head", "lm_head.weight", "F8_E5M2"),
    ("gptq-int4", ".qweight", "F32"),
    ("w4a16", ".weight_packed", "F32"),
]
"""Branch, part, and a dtype as wide as its own that would be read as other numbers."""
pytestmark = pytest.mark.timeout(20, method="signal")
"""An inspection takes one."""


def changed(branch: str, change: Damage, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    shutil.copytree(folder_of(branch), folder)
    change(folder)
    return folder


def blocking(found: Inspection) -> list[str]:
    return [f"{finding.subject}: {finding.message}" for finding in found.blocking]


@pytest.mark.long
@pytest.mark.parametrize(("branch", "change", "named"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_a_hostile_file_is_named(branch: str, change: Damage, named: str, tmp_path: Path) -> None:
    folder = changed(branch, change, tmp_path)
    assert any(named in message for message in blocking(inspected(folder)))
    with pytest.raises(CorruptCheckpointError) as refused:
        load_model(folder)
    assert named in str(refused.value) or named == "config.json"
    assert "\n" not in str(refused.value)


def pipe(name: str) -> Damage:
    """Opened, it would wait for a writer for ever."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def tebibyte(name: str) -> Damage:
    """A file with a hole in it takes no room on the disk, and all of the memory."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        os.truncate(folder / name, 2**40)

    return change


def many_templates(folder: Path) -> None:
    """Each may take seconds to be tried."""
    (folder / "additional_chat_templates").mkdir()
    for number in range(200):
        text = "{% for i in range(99999) %}{% for j in range(40) %}{% endfor %}{% endfor %}" + str(number)
        (folder / "additional_chat_templates" / f"other{number}.jinja").write_text(text)


def many_words(file: str, entry: str) -> Damage:
    """transformers takes minutes over them."""
    words = [f"<{number}>" for number in range(200_000)]
    return lambda folder: edit_json(folder, file, lambda own: own.update({entry: words}))


TEBIBYTE = "takes 1,099,511,627,776 bytes"
BESIDE: list[tuple[Damage, str]] = [
    (text("tokenizer.json", '{"a":' * DEEP), "tokenizer.json is not valid JSON"),
    *((pipe(name), "missing") for name in ("model.safetensors", "tokenizer.json")),
    (pipe("config.json"), "config.json is a pipe, a device or a folder"),
    (tebibyte("config.json"), f"config.json {TEBIBYTE}"),
    (tebibyte("tokenizer.json"), f"tokenizer.json {TEBIBYTE}"),
    (tebibyte("additional_chat_templates/other.jinja"), f"additional_chat_templates/other.jinja {TEBIBYTE}"),
    (many_templates, "holds 201 chat templates, and 16 are read at most"),
    (many_words("tokenizer_config.json", "extra_special_tokens"), "tokenizer_config.json adds 200,000 words"),
    (many_words("tokenizer.json", "added_tokens"), "tokenizer.json adds 200,000 words"),
    (text(INDEX, '{"weight_map": ["a"]}'), "weight_map does not map"),
    (text(INDEX, '{"weight_map": {"lm_head.weight": 3}}'), "weight_map does not map"),
]


@pytest.mark.long
@pytest.mark.parametrize(("change", "told"), BESIDE)
def test_a_hostile_file_beside_the_weights_is_named(change: Damage, told: str, tmp_path: Path) -> None:
    assert any(told in message for message in blocking(inspected(changed("main", change, tmp_path))))


@pytest.mark.parametrize(
    ("change", "code"),
    [(tebibyte("config.json"), "file-too-large"), (text(INDEX, '{"weight_map": null}'), "index-malformed")],
)
def test_the_strict_reader_refuses_them_by_code(change: Damage, code: str, tmp_path: Path) -> None:
    with raises(CorruptCheckpointError, code):
        load_model(changed("main", change, tmp_path))


@pytest.mark.long
@pytest.mark.parametrize(
    ("branch", "change", "named"), [case[1:] for case in TENSORS], ids=[case[0] for case in TENSORS]
)
def test_a_hostile_tensor_is_named_and_the_others_are_judged(
    branch: str, change: Damage, named: str, tmp_path: Path
) -> None:
    folder = changed(branch, change, tmp_path)
    found = inspected(folder)
    assert {finding.subject.removesuffix("_shape") for finding in found.blocking} == {named}
    assert set(found.measured) == set(Section)
    assert found.compared_weights >= inspected(folder_of(branch)).compared_weights - 1
    assert inspected(folder, None).blocking
    with pytest.raises(CorruptCheckpointError, match=named.removesuffix(".weight")):
        load_model(folder)


@pytest.mark.long
@pytest.mark.parametrize(("branch", "part", "dtype"), DTYPES)
def test_a_part_in_another_dtype_is_refused(branch: str, part: str, dtype: str, tmp_path: Path) -> None:
    """Its bytes as they are, of the same size; also without a reference, where no error could give it away."""

    def relabel(header: dict[str, Any]) -> None:
        for name in header:
            if name.endswith(part):
                header[name]["dtype"] = dtype

    folder = changed(branch, lambda folder: edit_header(folder, relabel), tmp_path)
    name = part.rpartition(".")[2]
    assert any(f"{name} is stored as torch." in message for message in blocking(inspected(folder, None)))
    with raises(CorruptCheckpointError, "tensor-dtype", name):
        load_model(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (one("lm_head.weight", torch.Tensor.double), "reference-unusable"),
        (one("lm_head.weight", lambda tensor: tensor * torch.nan), "reference-unusable"),
        (truncated, "header-malformed"),
        (text("config.json", '{"model_type": "qwen3_5_moe_text"}'), "tensor-unexpected"),
        (text("tokenizer.json", "{"), "json-malformed"),
        (lambda folder: edit_header(folder, lambda own: own["lm_head.weight"].update(dtype="F7")), "header-malformed"),
    ],
)
def test_a_damaged_reference_is_a_usage_error_that_names_it(damage: Damage, code: str, tmp_path: Path) -> None:
    reference = changed("bf16", damage, tmp_path)
    with raises(UsageError, code, reference):
        inspected(folder_of("main"), reference)


def test_a_folder_without_any_checkpoint_is_a_usage_error(tmp_path: Path) -> None:
    with raises(UsageError, "not-a-checkpoint"):
        inspected(SANDBOX)
    for name in ("config.json", "model.safetensors"):  # half a checkpoint is a damaged one
        folder = changed("main", lambda folder, name=name: (folder / name).unlink(), tmp_path / name)
        assert inspected(folder).blocking
