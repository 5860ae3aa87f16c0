"""A folder is refused, with the tensor's name, unless every byte of its files belongs to exactly one tensor.

And from config.json alone: quantizations that are not decoded, and sizes that no model has.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from q36eval.checkpoints import header as header_module
from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.draft import DraftHead, load_draft_head
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.engines import EngineSettings, ScoreRequest, open_engine
from q36eval.engines.head import Head
from q36eval.engines.numerics import float32_logits
from q36eval.errors import CorruptCheckpointError, EngineError, UsageError
from tests.draft_heads import SANDBOX, head_tensors, with_head
from tests.q36eval.checkpoints.inspection.damage import config, edit_tensors, fused
from tests.q36eval.scoring import states_of
from tests.raising import raises

from .inspection.damage import ONE, TWO, WEIGHTS, Damage, edit_header, sharded, stray_file
from .test_schemes import DECLARED

NORM = "model.norm.weight"


shard = sharded(lambda folder, files: None)


def stored_in_both(folder: Path, files: dict[str, str]) -> None:
    for file in (ONE, TWO):
        save_file(load_file(folder / file) | {NORM: torch.zeros(128)}, folder / file)


def test_single_and_sharded_folders_hold_the_same_tensors(bf16_folder: Path, folder: Path) -> None:
    shard(folder)
    single, sharded = open_checkpoint(bf16_folder), open_checkpoint(folder)
    assert set(single.tensors) == set(sharded.tensors)
    assert len({entry.file for entry in sharded.tensors.values()}) == 2
    assert torch.equal(single.read(NORM), sharded.read(NORM))


def in_a_sidecar(*names: str) -> Callable[[Path, dict[str, str]], None]:
    return lambda folder, files: save_file({name: torch.zeros(2, 2) for name in names}, folder / "mtp.safetensors")


@pytest.mark.parametrize("name", ["model_mtp", "mtp", "model-mtp-of-00005", "model_extra_tensors"])
@pytest.mark.parametrize("index", [True, False])
def test_sidecars_outside_the_index_are_no_fault(folder: Path, name: str, index: bool) -> None:
    """A draft head is read whatever its file is called; what no model takes is left alone."""
    whole = open_checkpoint(folder).tensors
    if index:
        shard(folder)
    save_file({"mtp.fc.weight": torch.zeros(2, 2), "calibration.amax": torch.zeros(2)}, folder / f"{name}.safetensors")
    assert set(open_checkpoint(folder).tensors) == {*whole, "mtp.fc.weight"}


def test_a_draft_head_within_an_indexed_file_need_not_be_indexed(folder: Path) -> None:
    head = {"mtp.fc.weight": torch.zeros(2, 2)}
    sharded(lambda folder, files: save_file(load_file(folder / TWO) | head, folder / TWO))(folder)
    assert "mtp.fc.weight" in open_checkpoint(folder).tensors


def cut(count: int) -> Damage:
    """The file without its last bytes, or its first bytes alone where `count` is negative."""
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-count])


def header_with(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_header(folder, change)


def overlap(header: dict[str, Any]) -> None:
    header["model.embed_tokens.weight"]["data_offsets"] = header["lm_head.weight"]["data_offsets"]


def name_twice(folder: Path) -> None:
    blob = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(blob[:8], "little")
    doubled = blob[8 : 8 + length].rstrip()[:-1] + b',"model.norm.weight":{},"lm_head.weight":{}}'
    (folder / WEIGHTS).write_bytes(len(doubled).to_bytes(8, "little") + doubled + blob[8 + length :])


@pytest.mark.parametrize(
    ("damage", "code", "values"),
    [
        (cut(1), "header-malformed", [WEIGHTS]),
        (cut(5000), "header-malformed", [WEIGHTS]),
        (cut(-100), "file-truncated", []),
        (header_with(overlap), "header-malformed", ["overlaps"]),
        (header_with(lambda header: header[NORM].update(dtype="F7")), "header-malformed", [NORM, "'F7'"]),
        (header_with(lambda header: header[NORM].update(shape=[3])), "header-malformed", [NORM]),
        (name_twice, "header-malformed", ["lm_head.weight"]),
        (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes() + b"more"), "header-malformed", ["4 bytes"]),
        (sharded(stored_in_both), "tensor-duplicate", [NORM]),
        (sharded(lambda folder, files: files.pop(NORM)), "index-mismatch", [NORM]),
        (stray_file, "tensor-duplicate", ["extra.safetensors"]),
        (sharded(in_a_sidecar(NORM)), "tensor-duplicate", [NORM, "mtp.safetensors"]),
    ],
)
def test_files_whose_bytes_do_not_belong_to_one_tensor_each_are_refused(
    folder: Path, damage: Damage, code: str, values: list[str]
) -> None:
    damage(folder)
    with raises(CorruptCheckpointError, code, *values):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("MAX_HEADER_BYTES", ("header-too-large", "allows 40")),
        ("MAX_TENSORS", ("header-too-large",)),
    ],
)
def test_a_header_beyond_all_measure_is_refused(
    folder: Path, limit: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_module, limit, 40 if limit == "MAX_HEADER_BYTES" else 3)
    with raises(CorruptCheckpointError, *expected):
        open_checkpoint(folder)


@pytest.mark.parametrize("missing", ["config.json", WEIGHTS, "model-00002-of-00002.safetensors"])
def test_missing_file_is_a_usage_error(folder: Path, missing: str) -> None:
    if missing not in ("config.json", WEIGHTS):
        shard(folder)
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=missing):
        open_checkpoint(folder)


def test_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with raises(UsageError, "folder-missing"):
        open_checkpoint(tmp_path / "nowhere")


UNDECODED: dict[str, dict[str, Any]] = DECLARED["undecoded"]


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


# -- multi-token heads


def loaded(folder: Path) -> Any:
    return load_draft_head(open_checkpoint(folder), torch.device("cpu"), torch.bfloat16, emulate_activations=True)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm whose stored weight is one less than what it multiplies by."""
    scaled = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (scaled * (1 + weight.float())).bfloat16()


def test_it_is_the_token_then_the_state_through_one_layer(tmp_path: Path) -> None:
    """Against the definition, with transformers' own decoder layer alone in between."""
    tensors = head_tensors(256)
    head: DraftHead = loaded(with_head(tmp_path / "branch", tensors))
    states, embedded = (torch.randn(2, 20, 256, generator=torch.Generator().manual_seed(5)) * 2).bfloat16()
    joined = torch.cat(
        [
            normed(embedded, tensors["mtp.pre_fc_norm_embedding.weight"]),
            normed(states, tensors["mtp.pre_fc_norm_hidden.weight"]),
        ],
        dim=-1,
    )
    inputs = torch.nn.functional.linear(joined, tensors["mtp.fc.weight"]).unsqueeze(0)
    positions = torch.arange(7, 27).unsqueeze(0)
    with torch.no_grad():
        rotary = head.rotary_emb(inputs, positions.expand(3, 1, -1))
        layer = head.layers[0](inputs, position_embeddings=rotary, attention_mask=None, position_ids=positions)
    expected = normed(layer[0], tensors["mtp.norm.weight"])
    assert torch.equal(head.states(states, embedded, 7), expected)
    # a rotation is relative: another first position alone changes little, another order of the halves all
    assert not torch.allclose(head.states(embedded, states, 7).float(), expected.float(), atol=0.05)


def test_guesses_read_the_text_and_the_guess_before(tmp_path: Path) -> None:
    engine: Any = open_engine(EngineSettings(with_head(tmp_path / "branch", head_tensors(256))))
    assert engine.drafts
    states = torch.randn(12, 256, generator=torch.Generator().manual_seed(6)).bfloat16()
    tokens = list(range(40, 52))
    embedded = engine.model.model.embed_tokens(torch.tensor(tokens))
    first = engine.draft_head.states(states[:11], embedded[:11], 30)
    second = engine.draft_head.states(first[:10], embedded[1:11], 31)
    drafted = engine.drafted(states, tokens, 30, 2)
    assert [len(rows) for rows in drafted] == [11, 10]
    assert torch.equal(drafted[0], first)
    assert torch.equal(drafted[1], second)
    assert len(engine.drafted(states[:2], tokens[:2], 0, 3)) == 1  # a text ends before the further guesses
    later = engine.drafted(states, [*tokens[:6], 99, *tokens[7:]], 30, 1)[0]
    assert torch.equal(later[:6], first[:6])  # no guess sees a token that follows it
    assert not torch.equal(later[6:], first[6:])


def test_experts_may_be_fused_and_the_layout_multimodal(tmp_path: Path) -> None:
    apart = head_tensors(256)
    one, other = loaded(with_head(tmp_path / "apart", apart)), loaded(with_head(tmp_path / "fused", fused(apart)))
    prefixed = loaded(with_head(tmp_path / "prefixed", {f"model.{name}": tensor for name, tensor in apart.items()}))
    for head in (other, prefixed):
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.parameters(), head.parameters(), strict=True))


UP = "mtp.layers.0.mlp.experts.5.up_proj.weight"
SECOND_LAYER = {"mtp.layers.1.input_layernorm.weight": torch.ones(256)}
NOT_WHOLE: list[tuple[Any, dict[str, Any], type[Exception], tuple[str, ...]]] = [
    (lambda t: t.pop("mtp.fc.weight"), {}, CorruptCheckpointError, ("tensor-missing", "'mtp.fc.weight'")),
    (lambda t: t.pop(UP), {}, CorruptCheckpointError, ("tensor-missing", UP)),
    (lambda t: t.update(SECOND_LAYER), {}, CorruptCheckpointError, ("tensor-unexpected", "mtp.layers.1")),
    (lambda t: t.update({"mtp.norm.weight": torch.ones(255)}), {}, CorruptCheckpointError, ("tensor-shape", "[255]")),
    (lambda t: None, {"mtp_num_hidden_layers": 2}, UsageError, ("draft-head-unsupported", "2 layers")),
]


@pytest.mark.long
@pytest.mark.parametrize(("change", "config", "error", "expected"), NOT_WHOLE)
def test_what_is_not_a_whole_head_is_told_and_leaves_the_model_alone(
    tmp_path: Path, change: Any, config: dict[str, Any], error: type[Exception], expected: tuple[str, ...]
) -> None:
    tensors = head_tensors(256)
    change(tensors)
    folder = with_head(tmp_path / "branch", tensors, **config)
    with raises(error, *expected):
        loaded(folder)
    engine: Any = open_engine(EngineSettings(folder))
    assert not engine.drafts


def test_a_checkpoint_without_one_has_none() -> None:
    assert loaded(SANDBOX) is None
    assert not open_engine(EngineSettings(SANDBOX)).drafts


# -- the head

FP8_HEAD = SANDBOX.parent / "fp8-head"


@pytest.mark.parametrize("name", ["bf16", "fp8-head"])
def test_logits_are_the_whole_models(name: str) -> None:
    settings = EngineSettings(SANDBOX.parent / name)
    engine, head = open_engine(settings), Head.of(settings)
    states = states_of(engine, [ScoreRequest("x", tuple(range(20, 90)))])["x"]
    assert torch.equal(head.logits(states), engine.logits(states))


def test_only_a_head_that_takes_inputs_as_they_are_is_a_references() -> None:
    assert torch.equal(
        Head.of(EngineSettings(SANDBOX)).plain().weight,
        load_file(SANDBOX / "model.safetensors")["lm_head.weight"],
    )
    with raises(EngineError, "head-quantized"):
        Head.of(EngineSettings(FP8_HEAD)).plain()


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_head_there_are_the_embeddings_where_they_are_tied_and_nothing_else(
    tied: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "headless"
    shutil.copytree(SANDBOX, folder)
    edit_tensors(folder, lambda tensors: tensors.pop("lm_head.weight"))
    config(tie_word_embeddings=tied)(folder)
    if tied:
        embeddings = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(Head.of(EngineSettings(folder)).plain().weight, embeddings)
    else:
        with raises(CorruptCheckpointError, "tensor-missing", "lm_head.weight"):
            Head.of(EngineSettings(folder))


def test_a_head_that_changed_gives_other_logits() -> None:
    """Its float32 copy is kept between calls."""
    weight, states = torch.randn(8, 4).bfloat16(), torch.randn(3, 4).bfloat16()
    before = float32_logits(states, weight)
    assert torch.equal(float32_logits(states, weight), before)
    weight.mul_(2)
    assert torch.equal(float32_logits(states, weight), 2 * before)
    assert torch.equal(float32_logits(states, weight.clone() * 2), 4 * before)
