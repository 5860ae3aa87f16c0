"""llama.cpp's blocks: decoded as its own C code decodes them, bounded by what its quantizer can cost, damage found."""

import hashlib
import math
import os
import struct
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES, get_tensor_name_map

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.formats import gguf as decoder
from q36eval.checkpoints.gguf import names
from q36eval.checkpoints.gguf.entries import GgufEntry, columns_side_by_side
from q36eval.checkpoints.gguf.plain_models import PLAIN_MODELS, TOP, llama3_scaling
from q36eval.checkpoints.gguf.settings import MetadataError
from q36eval.checkpoints.gguf.types import BY_NAME, QUANTIZED
from q36eval.checkpoints.inspection import Section, inspect_checkpoint
from q36eval.checkpoints.inspection.findings import Severity
from q36eval.checkpoints.inspection.gguf_grids import rounding_to_blocks
from q36eval.checkpoints.inspection.grids import sums_of, usages
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.weights import index_weights
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.q36eval.checkpoints.architectures import saved
from tests.q36eval.checkpoints.gguf_files import GOLDEN, MANIFEST, Gguf, RawTensor, blocking, take_apart
from tests.q36eval.checkpoints.inspection.damage import config
from tests.q36eval.checkpoints.test_experts_together import quantized
from tests.raising import raises

from .test_golden import assert_holds

package = pytest.importorskip("gguf.quants", reason="the gguf extra is not installed")

NAMES = sorted(name for name, entry in MANIFEST.items() if entry["decoded"])


def reference_of(name: str, references: dict[str, Path]) -> Path:
    return references[MANIFEST[name]["model"]]


def test_every_type_that_is_decoded_has_a_golden_file() -> None:
    written = {told.split()[0] for entry in MANIFEST.values() for told in entry["decoded"].values()}
    assert written == {*QUANTIZED}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_decode_to_what_llama_cpp_decodes_them_to(name: str) -> None:
    """By its own C code, whose results were hashed: as stored, before rows and columns are put in order."""
    parsed, checked = take_apart(GOLDEN / f"{name}.gguf"), 0
    for stored, told in MANIFEST[name]["decoded"].items():
        kind, digest = told.split()
        tensor = parsed.tensors[stored]
        assert tensor.type_name == kind
        shape = tuple(reversed(tensor.sizes))
        entry = GgufEntry(stored, GOLDEN, kind, shape, 0, len(tensor.data))
        values = decoder.decode(
            {"weight": entry.tensor(bytearray(tensor.data))}, Scheme("gguf", settings=(("type", kind),))
        )
        assert tuple(values.shape) == shape
        assert hashlib.sha256(values.numpy().tobytes()).hexdigest() == digest, stored
        checked += 1
    assert checked


@pytest.mark.parametrize("kind", QUANTIZED)
def test_any_bytes_decode_in_slabs_as_they_do_whole(kind: str) -> None:
    """And as the package decodes them; columns of tiled heads are put in order after that."""
    block, (keys, each, size) = BY_NAME[kind], (2, 4, 64)
    columns = keys * each * size
    generator = torch.Generator().manual_seed(len(kind))
    shape = (256, columns // block.values * block.n_bytes)
    stored = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    scheme = Scheme("gguf", settings=(("type", kind), ("column_heads", (keys, each, size))))
    layout = FORMATS["gguf"]
    parts = {"weight": stored}
    whole = layout.decode(parts, scheme)
    assert layout.shape(parts, scheme) == tuple(whole.shape) == (256, columns)
    slabs = [layout.decode(layout.rows(parts, scheme, start, start + 128), scheme) for start in (0, 128)]
    assert torch.equal(torch.cat(slabs).view(torch.int32), whole.view(torch.int32))
    with np.errstate(all="ignore"):
        theirs = torch.from_numpy(package.dequantize(stored.numpy(), package.GGMLQuantizationType[kind]))
    ordered = columns_side_by_side(theirs, (keys, each, size))
    assert torch.equal(whole.view(torch.int32), ordered.view(torch.int32))
    head = theirs.reshape(256, each, keys, size)[:, 3, 1]  # the last value head of the second key head
    assert torch.equal(whole.reshape(256, keys, each, size)[:, 1, 3].view(torch.int32), head.view(torch.int32))


@pytest.mark.parametrize("name", NAMES)
def test_the_loaded_model_holds_those_weights_rounded_once(name: str, references: dict[str, Path]) -> None:
    with opened_once() as folders:
        folders.measure_against(reference_of(name, references))
        loaded = load_model(GOLDEN / f"{name}.gguf")
        weights = index_weights(open_checkpoint(GOLDEN / f"{name}.gguf")).weights
    assert_holds(loaded.model, {key: weight.read()[0] for key, weight in weights.items()})


@pytest.mark.parametrize("name", NAMES)
def test_no_rounding_of_llama_cpp_leaves_what_rounding_can_cost(name: str, references: dict[str, Path]) -> None:
    inspection = inspect_checkpoint(GOLDEN / f"{name}.gguf", reference_of(name, references))
    assert blocking(inspection) == set()
    assert set(Section) == {*inspection.measured}
    assert inspection.unbounded_weights == 0
    usages = {row.stored: row.worst_bound_usage for row in inspection.errors if row.worst_bound_usage is not None}
    assert usages.keys() == {told.split()[0] for told in MANIFEST[name]["decoded"].values()}
    assert all(0.2 < usage < 0.95 for usage in usages.values()), usages
    quantized = [row for row in inspection.coverage if row.declared != "unquantized"]
    assert all(row.declared == row.stored for row in quantized)
    told = next(one.message for one in inspection.findings if one.rule == "activations-not-emulated")
    assert all(kind in told for kind in usages)


def test_experts_and_attention_that_were_fused_are_the_same_model(tmp_path: Path) -> None:
    """`--fuse-gate-up-exps` and `--fuse-qkv` of the converter put one above the other."""
    parsed = take_apart(GOLDEN / "bf16.gguf")
    for layer in (0, 1):
        gate, up = (parsed.tensors.pop(f"blk.{layer}.ffn_{which}_exps.weight") for which in ("gate", "up"))
        halves = zip(*(halved(each.data) for each in (gate, up)), strict=True)
        gate.data, gate.sizes = b"".join(part for pair in halves for part in pair), [gate.sizes[0], 64, 2]
        parsed.tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = gate
    query, key, value = (parsed.tensors.pop(f"blk.1.attn_{which}.weight") for which in ("q", "k", "v"))
    query.data, query.sizes[1] = query.data + key.data + value.data, query.sizes[1] + key.sizes[1] + value.sizes[1]
    parsed.tensors["blk.1.attn_qkv.weight"] = query
    fused, apart = (
        index_weights(open_checkpoint(path)).weights
        for path in (parsed.write(tmp_path / "x.gguf"), GOLDEN / "bf16.gguf")
    )
    assert fused.keys() == apart.keys()
    for name, weight in fused.items():
        assert torch.equal(weight.read()[0], apart[name].read()[0]), name


def halved(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


NVFP4 = 40
SCALED = {
    "ffn_gate_exps": "mlp.experts.0.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
}


@pytest.mark.parametrize("stored", SCALED)
def test_a_scale_of_the_whole_weight_counts(stored: str, tmp_path: Path) -> None:
    """NVFP4 that was repacked from another checkpoint keeps it in a tensor of its own; its input scale is left out."""
    parsed = take_apart(GOLDEN / "mixed.gguf")
    weight = parsed.tensors[f"blk.0.{stored}.weight"]
    numbers = math.prod(weight.sizes)
    weight.type, weight.data = NVFP4, (parsed.tensors["output.weight"].data * 64)[: numbers // 64 * 36]
    plain = index_weights(open_checkpoint(parsed.write(tmp_path / "plain.gguf")))
    for ending, value in (("scale", 0.5), ("input_scale", 3.0)):
        parsed.tensors[f"blk.0.{stored}.{ending}"] = RawTensor([1], 0, struct.pack("<f", value))
    scaled = index_weights(open_checkpoint(parsed.write(tmp_path / "x.gguf")))
    module = f"model.layers.0.{SCALED[stored]}"
    before = plain.weights[f"{module}.weight"].read()[0]
    assert before.any()
    assert torch.equal(scaled.weights[f"{module}.weight"].read()[0], before / 2)
    assert scaled.left_out == {"GGUF input scales": (f"{module}.gguf_input_scale",)}


@pytest.mark.parametrize(
    ("golden", "stored", "told"),
    [
        ("bf16", "ffn_down_shexp", "blk.0.ffn_down_shexp.weight is BF16"),
        ("mixed", "ffn_down", "blk.0.ffn_down.weight"),
    ],
)
def test_a_scale_beside_another_type_is_refused(
    golden: str, stored: str, told: str, references: dict[str, Path], tmp_path: Path
) -> None:
    """Else its weight would count as quantized, and by a type that bounds no error."""
    parsed = take_apart(GOLDEN / f"{golden}.gguf")
    weight = parsed.tensors.get(f"blk.0.{stored}.weight")
    if weight is not None:
        weight.data = bytes(reversed(weight.data))
    parsed.tensors[f"blk.0.{stored}.scale"] = RawTensor([1], 0, struct.pack("<f", 1.0))
    file = parsed.write(tmp_path / "x.gguf")
    found = [one for one in inspect_checkpoint(file, reference_of(golden, references)).blocking]
    assert any(one.rule == "unexpected-tensor" and told in one.message for one in found), found
    with raises(CorruptCheckpointError, "tensor-unexpected", told):
        load_model(file)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And calls no weight damaged; a folder of that name in the way is no package."""
    for absent in (None, ModuleSpec("gguf", None, is_package=True)):
        monkeypatch.setattr(decoder, "find_spec", lambda name, found=absent: found)
        for read in (load_model, inspect_checkpoint):
            with raises(UsageError, "package-missing"):
                read(GOLDEN / "q8_0.gguf")


Damage = Callable[[Gguf], None]
EXPERT, SHARED = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_shexp.weight"


HALF_SCALE = {"Q6_K": 208, "Q2_K": 80, "Q3_K": 108}
"""Where the 16-bit scale of a block begins, if not at its own beginning."""


def times_sixteen(name: str, block: int) -> Damage:
    def damage(parsed: Gguf) -> None:
        tensor = parsed.tensors[name]
        at = block * BY_NAME[tensor.type_name].n_bytes + HALF_SCALE.get(tensor.type_name, 0)
        (scale,) = struct.unpack("<e", tensor.data[at : at + 2])
        tensor.data = tensor.data[:at] + struct.pack("<e", 16 * scale) + tensor.data[at + 2 :]

    return damage


def with_data(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(parsed: Gguf) -> None:
        parsed.tensors[name].data = change(parsed.tensors[name].data)

    return damage


def exchanged(one: str, other: str) -> Damage:
    def damage(parsed: Gguf) -> None:
        first, second = parsed.tensors[one], parsed.tensors[other]
        first.data, second.data = second.data, first.data

    return damage


def halves_exchanged(data: bytes) -> bytes:
    return b"".join(reversed(halved(data)))


DAMAGED: dict[str, tuple[str, Damage]] = {
    "a scale times 16 (Q8_0)": ("q8_0", times_sixteen(EXPERT, 5)),
    "a scale times 16 (Q4_K)": ("q4_k_m", times_sixteen("blk.0.attn_gate.weight", 7)),
    "a scale times 16 (Q6_K)": ("mixed", times_sixteen("blk.0.ffn_up_exps.weight", 7)),
    "a scale times 16 (IQ4_XS)": ("mixed", times_sixteen(EXPERT, 7)),
    "a scale times 16 (Q2_K)": ("mixed", times_sixteen(SHARED, 7)),
    "a scale times 16 (Q4_0)": ("mixed", times_sixteen("blk.0.ssm_alpha.weight", 7)),
    # the exponent of the third block
    "an exponent four higher (MXFP4)": ("mxfp4", with_data(EXPERT, lambda d: d[:34] + bytes([d[34] + 4]) + d[35:])),
    "a local scale of zero (NVFP4)": ("mixed", with_data("output.weight", lambda data: data[:36] + b"\0" + data[37:])),
    "a scale of NaN": ("q4_k_m", with_data("output.weight", lambda data: data[:208] + b"\1\x7e" + data[210:])),
    "swapped experts": ("q8_0", with_data(EXPERT, halves_exchanged)),
    "a norm exchanged": ("q8_0", exchanged("blk.0.attn_norm.weight", "blk.1.attn_norm.weight")),
    "shifted by a byte": ("q4_k_m", with_data(SHARED, lambda data: data[1:] + data[:1])),
    "heads in another order": ("q8_0", with_data("blk.0.ssm_alpha.weight", halves_exchanged)),
    "another type of equal size (IQ4_NL as Q4_0)": (
        "mixed",
        lambda parsed: setattr(parsed.tensors["blk.0.ffn_down_exps.weight"], "type", 2),
    ),
    "rows and columns exchanged": ("q8_0", lambda parsed: parsed.tensors["blk.0.attn_qkv.weight"].sizes.reverse()),
}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_damage_is_found(name: str, references: dict[str, Path], tmp_path: Path) -> None:
    golden, damage = DAMAGED[name]
    parsed = take_apart(GOLDEN / f"{golden}.gguf")
    damage(parsed)
    inspection = inspect_checkpoint(parsed.write(tmp_path / "x.gguf"), reference_of(golden, references))
    sections = {finding.section for finding in inspection.blocking}
    assert sections & {Section.INTEGRITY, Section.WEIGHTS, Section.WEIGHTS, Section.WEIGHTS}, inspection.findings


def test_an_importance_matrix_widens_the_bound_and_is_no_excuse(references: dict[str, Path], tmp_path: Path) -> None:
    def share(change: Damage, importance: bool) -> Any:
        parsed = take_apart(GOLDEN / "q4_k_m.gguf")
        change(parsed)
        if importance:
            parsed.put("quantize.imatrix.file", "imatrix.gguf")
        inspection = inspect_checkpoint(parsed.write(tmp_path / "x.gguf"), references["wide"])
        return max(row.worst_bound_usage for row in inspection.errors if row.stored == "Q4_K")

    damage = times_sixteen("blk.0.attn_gate.weight", 7)
    assert 1 < share(damage, True) < share(damage, False)


@pytest.mark.parametrize(("kind", "end"), [("Q6_K", 31), ("Q5_0", 15), ("Q4_0", 7)])
def test_one_column_of_importance_may_halve_a_scale_and_damage_is_found(kind: str, end: int) -> None:
    """As in SmolLM2's down_proj: a column of half a step became level 1, and large values were clipped."""
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(3))
    rounding = rounding_to_blocks({}, Scheme("gguf", settings=(("type", kind), ("importance", True))), weight)
    blocks = weight.reshape(64, -1, rounding.width)
    honest = blocks.abs().amax(-1, keepdim=True) / end

    def share(scale: torch.Tensor, size: torch.Tensor | float = 1.0) -> float:
        decoded = (blocks / scale).round().clamp(-end - 1, end) * scale * size
        sums = sums_of((decoded.reshape(weight.shape) - weight)[None], weight[None], rounding)
        return usages(sums, sums.on_grid, rounding)[0].share

    at_seven = torch.arange(64)[:, None, None] == 7
    of_block = at_seven & (torch.arange(blocks.shape[1])[:, None] == 3)
    assert share(honest) < share(torch.where(of_block, honest / 2, honest)) < 1
    assert min(share(honest, ~at_seven), share(honest, ~of_block), share(honest, 0.5)) > 1


# -- models as llama.cpp's converter writes them


TOKENS = torch.arange(3, 33).reshape(2, 15)
LLAMA = os.environ.get("Q36EVAL_LLAMA_CPP")
MODELS = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
EXPERTS = {"ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj"}
EXPERTS |= {"ffn_down_exps": "mlp.experts.down_proj"}
CONVERTED_HYBRID = names.ANY | names.FULL | names.LINEAR
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
        return CONVERTED_HYBRID | experts | {"ssm_a": "linear_attn.A_log", "ssm_dt": "linear_attn.dt_proj"}
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
