"""What llama.cpp's converter wrote of a model is that model: names, order of heads, norms, configuration, tokenizer."""

import hashlib
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.checkpoints import checkpoint_sha256, load_model, open_checkpoint, tokenizer_sha256
from q36eval.checkpoints.gguf.entries import MINUS_EXP, MOVED_BY, PLUS_ONE, GgufEntry
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.checkpoints.tokenizer import chat_template_sha256
from q36eval.checkpoints.weights import index_weights
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.q36eval.checkpoints.gguf_files import GOLDEN, MANIFEST, Gguf, blocking, take_apart
from tests.raising import raises

PLAIN = GOLDEN / "bf16.gguf"
F16, BF16 = 1, 30


@pytest.fixture
def reference(references: dict[str, Path]) -> Path:
    """The model that was converted."""
    return references["names"]


@pytest.fixture
def measured_against(reference: Path) -> Iterator[None]:
    with opened_once() as folders:
        folders.measure_against(reference)
        yield


def test_golden_files_are_the_ones_llama_cpp_wrote() -> None:
    found = {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in GOLDEN.glob("*.gguf")}
    assert found == {name: entry["sha256"] for name, entry in MANIFEST.items()}
    assert all(file.stat().st_size < 100_000 for file in GOLDEN.iterdir())


@pytest.mark.usefixtures("measured_against")
def test_every_weight_is_the_reference_s_bit_for_bit(reference: Path) -> None:
    """In float32, but for A_log, which comes back through exp and log; in BF16, in which the model is, that too."""
    mine, theirs = (index_weights(open_checkpoint(path)).weights for path in (PLAIN, reference))
    assert mine.keys() == theirs.keys()
    inexact = set()
    for name, weight in mine.items():
        ours, original = weight.read()[0], theirs[name].read()[0]
        assert ours.shape == original.shape, name
        assert torch.equal(ours.bfloat16(), original), name
        if not torch.equal(ours.float(), original.float()):
            inexact.add(name)
            assert float((ours.float() - original.float()).abs().max()) <= MOVED_BY[MINUS_EXP], name
    assert {name.rpartition(".")[2] for name in inexact} <= {"A_log"}


@pytest.mark.usefixtures("measured_against")
def test_the_multi_token_head_is_left_out_by_name_and_is_the_reference_s(reference: Path) -> None:
    mine, theirs = open_checkpoint(PLAIN), open_checkpoint(reference)
    left_out = index_weights(mine).left_out["multi-token prediction"]
    assert len(left_out) == 23
    for name in left_out:
        if ".experts." not in name:
            assert torch.equal(mine.read(name).float(), theirs.read(name).float()), name


@pytest.mark.usefixtures("measured_against")
def test_text_is_the_reference_s_and_the_template_its_own(reference: Path, tmp_path: Path) -> None:
    assert tokenizer_sha256(PLAIN) == tokenizer_sha256(reference)
    assert chat_template_sha256(PLAIN) == chat_template_sha256(reference)
    other = changed("tokenizer.chat_template", "{{ messages }}").write(tmp_path / "other.gguf")
    assert tokenizer_sha256(other) == tokenizer_sha256(reference)
    assert chat_template_sha256(other) != chat_template_sha256(reference)


def test_without_a_reference_its_texts_cannot_be_measured() -> None:
    with raises(UsageError, "reference-required", "bf16"):
        tokenizer_sha256(PLAIN)


def test_an_inspection_finds_nothing_wrong_with_it(reference: Path) -> None:
    inspection = inspect_checkpoint(PLAIN, reference)
    assert blocking(inspection) == set()
    assert all(row.worst_relative_error < 1e-6 for row in inspection.errors)
    told = {finding.rule: finding.message for finding in inspection.findings}
    assert "the reference's tokenizer" in told["tokenizer-of-the-reference"]
    assert inspection.left_out == {"multi-token prediction": 23}
    assert blocking(inspect_checkpoint(PLAIN)) == set()


def changed(key: str, value: object) -> Gguf:
    parsed = take_apart(PLAIN)
    if value is None:
        del parsed.entries[key]
    else:
        parsed.put(key, value)
    return parsed


def test_a_rotary_embedding_that_is_not_scaled_blocks_nothing(reference: Path, tmp_path: Path) -> None:
    for kind, factor in ((None, 0.0), (None, 1.0), ("none", 4.0)):
        parsed = take_apart(PLAIN)
        parsed.put("qwen35moe.rope.scaling.factor", factor)
        parsed.put("qwen35moe.rope.scale_linear", 4.0)  # the old name, which counts where the new is absent
        parsed.put("qwen35moe.rope.scaling.attn_factor", 1.0)
        if kind is not None:
            parsed.put("qwen35moe.rope.scaling.type", kind)
        assert blocking(inspect_checkpoint(parsed.write(tmp_path / "x.gguf"), reference)) == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qwen35moe.expert_count", 1),
        ("qwen35moe.expert_feed_forward_length", 16),
        ("qwen35moe.ssm.group_count", 4),
        ("qwen35moe.attention.recurrent_layers", [False, True, False]),
        ("qwen35moe.block_count", 2),
        ("qwen35moe.nextn_predict_layers", 0),
    ],
)
def test_sizes_that_the_tensors_do_not_have_block(key: str, value: object, reference: Path, tmp_path: Path) -> None:
    file = changed(key, value).write(tmp_path / "x.gguf")
    assert blocking(inspect_checkpoint(file, reference))
    with pytest.raises((CorruptCheckpointError, UsageError)):
        load_model(file)


def test_a_full_attention_interval_stands_for_the_layers(tmp_path: Path) -> None:
    parsed = changed("qwen35moe.attention.recurrent_layers", None)
    parsed.put("qwen35moe.full_attention_interval", 2)
    config = open_checkpoint(parsed.write(tmp_path / "x.gguf")).config
    assert config["layer_types"] == ["linear_attention", "full_attention"]


TOKENS, KINDS = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"


def listed(key: str) -> list[Any]:
    """A list of the converted file's metadata."""
    return list(hold(PLAIN).metadata[key])  # type: ignore[attr-defined]


OTHER_VALUES: list[tuple[str, Any, str]] = [
    ("qwen35moe.rope.freq_base", 20000.0, "rope_theta is 20000.0, the reference's 10000.0"),
    ("qwen35moe.expert_used_count", 2, "num_experts_per_tok is 2, the reference's 1"),
    ("qwen35moe.rope.dimension_sections", [4, 4, 0, 0], "mrope_section"),
    ("qwen35moe.rope.scaling.type", "yarn", 'rope_type is "yarn"'),
    ("qwen35moe.rope.scaling.factor", 4.0, 'rope_type is "linear"'),  # which llama.cpp takes where no type is given
    ("qwen35moe.rope.scaling.attn_factor", 2.0, "rope.scaling.attn_factor is 2.0: llama.cpp honours it"),
]
"""Another hyperparameter is a difference of the configuration, which its message names."""
OTHER_TEXTS: list[tuple[str, Any, str]] = [
    ("tokenizer.ggml.pre", "default", "tokenizer-differs"),
    ("tokenizer.ggml.merges", ["a b", "c d"], "tokenizer-differs"),
    (TOKENS, lambda words: ["b", "a", *words[2:]], "tokenizer-differs"),
    (TOKENS, lambda words: words[:-1], "vocabulary"),
    (TOKENS, None, "tokenizer-missing"),
    ("tokenizer.ggml.eos_token_id", 3, "special-token-differs"),
    ("tokenizer.ggml.bos_token_id", 30.0, "special-token-differs"),
    ("tokenizer.ggml.add_bos_token", True, "special-token-differs"),
    (KINDS, None, "tokenizer-differs"),
    (KINDS, lambda kinds: [*kinds, 1], "tokenizer-differs"),
    (KINDS, lambda kinds: [3, *kinds[1:]], "tokenizer-differs"),  # a word as a control token
    ("tokenizer.chat_template", "{{ messages }}", "chat-template-differs"),
    ("qwen35moe.expert_weights_scale", 2.5, "engines-read-otherwise"),
]
"""Another text side, by the rule that finds it."""


@pytest.mark.parametrize(
    ("key", "value", "told"), [*OTHER_VALUES, *(pytest.param(*row, marks=pytest.mark.long) for row in OTHER_TEXTS)]
)
def test_another_value_blocks(key: str, value: Any, told: str, reference: Path, tmp_path: Path) -> None:
    file = changed(key, value(listed(key)) if callable(value) else value).write(tmp_path / "x.gguf")
    findings = inspect_checkpoint(file, reference).blocking
    assert any(told == one.rule or told in one.message for one in findings), findings


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("tokenizer.ggml.normalizer.lowercase", True, "normalizer.lowercase (True) is compared with nothing"),
        ("qwen35moe.attention.scale", 0.5, "the entry attention.scale (0.5) is compared with nothing"),
        (KINDS, "another that is not a control token", "'a' is a token of its own, not a word"),
    ],
)
def test_what_llama_cpp_may_read_otherwise_is_named(
    key: str, value: object, told: str, reference: Path, tmp_path: Path
) -> None:
    file = changed(key, [4, *listed(KINDS)[1:]] if key == KINDS else value).write(tmp_path / "x.gguf")
    inspection = inspect_checkpoint(file, reference)
    assert blocking(inspection) == set()
    assert told in str([one.message for one in inspection.findings])


def test_ends_of_the_reference_block_nothing(reference: Path, tmp_path: Path) -> None:
    """And an id that begins texts, which llama.cpp's converter may write, and adds nothing by itself."""
    parsed = take_apart(PLAIN)
    for key, value in (("eot_token_id", 32), ("eom_token_id", 32), ("bos_token_id", 30), ("add_eos_token", False)):
        parsed.put(f"tokenizer.ggml.{key}", value)
    inspection = inspect_checkpoint(parsed.write(tmp_path / "x.gguf"), reference)
    assert blocking(inspection) == set()
    assert "entry-not-compared" not in {one.rule for one in inspection.findings}


def test_tensors_missing_left_over_or_renamed_are_found(reference: Path, tmp_path: Path) -> None:
    missing, left_over, twice = (take_apart(PLAIN) for _ in range(3))
    del missing.tensors["blk.0.ssm_dt.bias"]
    left_over.tensors["blk.0.attn_rel_b.weight"] = left_over.tensors["output_norm.weight"]
    twice.tensors["blk.1.ffn_gate_up_exps.weight"] = twice.tensors["blk.1.ffn_gate_exps.weight"]
    for parsed, rule in ((missing, "missing-tensor"), (left_over, "unexpected-tensor"), (twice, "unexpected-tensor")):
        file = parsed.write(tmp_path / "x.gguf")
        assert rule in blocking(inspect_checkpoint(file, reference))
        with pytest.raises(CorruptCheckpointError):
            load_model(file)


def split(parsed: Gguf, folder: Path, count: int = 3) -> list[Path]:
    """As `llama-gguf-split` does it: the first file has the metadata, all have their number."""
    names = list(parsed.tensors)
    files = []
    for number in range(count):
        part = Gguf(
            dict(parsed.entries) if number == 0 else {}, {name: parsed.tensors[name] for name in names[number::count]}
        )
        for key, value in (("split.no", number), ("split.count", count), ("split.tensors.count", len(names))):
            part.put(key, value)
        files.append(part.write(folder / f"model-{number + 1:05d}-of-{count:05d}.gguf"))
    return files


def test_a_split_set_is_one_model(reference: Path, tmp_path: Path) -> None:
    files = split(take_apart(PLAIN), tmp_path)
    for path in (tmp_path, files[0], files[2]):
        assert blocking(inspect_checkpoint(path, reference)) == set()
    whole = checkpoint_sha256(tmp_path)
    assert whole == checkpoint_sha256(files[1])
    other = take_apart(files[2])
    name, tensor = next(iter(other.tensors.items()))
    tensor.data = bytes(len(tensor.data))
    other.write(files[2])
    assert checkpoint_sha256(tmp_path) != whole, name


def test_a_split_set_that_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    files = split(take_apart(PLAIN), tmp_path)
    files[1].write_bytes(files[2].read_bytes())
    with raises(CorruptCheckpointError, "gguf-split-malformed", "00002-of-00003"):
        open_checkpoint(tmp_path)
    files[1].unlink()
    with raises(UsageError, "file-missing", "00002-of-00003"):
        open_checkpoint(files[0])


def test_a_folder_holds_one_model_and_perhaps_a_vision_tower(reference: Path, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(PLAIN.read_bytes())
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"GGUF")
    inspection = inspect_checkpoint(tmp_path, reference)
    assert blocking(inspection) == set()
    assert "vision-tower-not-judged" in {finding.rule for finding in inspection.findings}
    (tmp_path / "b.gguf").write_bytes(PLAIN.read_bytes())
    with raises(UsageError, "gguf-ambiguous"):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path / "a.gguf").config["num_experts"] == 2


def test_numbers_in_f16_are_the_reference_s(reference: Path, tmp_path: Path) -> None:
    parsed = take_apart(PLAIN)
    for tensor in parsed.tensors.values():
        if tensor.type == BF16:
            values = torch.frombuffer(bytearray(tensor.data), dtype=torch.bfloat16)
            tensor.type, tensor.data = F16, values.half().numpy().tobytes()
    assert blocking(inspect_checkpoint(parsed.write(tmp_path / "x.gguf"), reference)) == set()
    one = parsed.tensors["output.weight"]
    one.data = struct.pack("<e", 0.25) + one.data[2:]
    assert blocking(inspect_checkpoint(parsed.write(tmp_path / "x.gguf"), reference)) == {"unquantized-differs"}


def test_f16_moves_no_bf16_number_by_more_than_its_bound() -> None:
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[torch.isfinite(every) & (every.float().abs() <= 65_504)]
    moved = (every.half().double() - every.double()).abs()
    entry = GgufEntry("x", Path("x"), "F16", (1,), 0, 2)
    assert 0 < float(moved.max()) <= entry.moved_by


@pytest.mark.parametrize("stored_as", [PLUS_ONE, MINUS_EXP])
def test_what_converting_moves_is_within_its_bound(stored_as: str, tmp_path: Path) -> None:
    """Of every BF16 number that such a weight may be."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    most = 8.0 if stored_as == MINUS_EXP else 2.0**16
    original = every[torch.isfinite(every) & (every.abs() <= most)]
    written = original + 1 if stored_as == PLUS_ONE else -torch.exp(original)
    file = tmp_path / "x"
    entry = GgufEntry("x", file, "F32", tuple(original.shape), 0, 4 * len(original), stored_as=stored_as)
    back = entry.tensor(bytearray(written.numpy().tobytes()))
    moved = (back.double() - original.double()).abs()
    assert float(moved.max()) <= MOVED_BY[stored_as]
    exact = original.abs() >= 2.0**-16 if stored_as == PLUS_ONE else original.abs() > 2.0**-12
    assert torch.equal(back[exact].bfloat16().float(), original[exact])
    assert bool((moved[exact] == 0).all()) == (stored_as == PLUS_ONE)


def test_reading_a_header_needs_no_gguf_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert blocking(inspect_checkpoint(PLAIN)) == set()
