"""Checkpoints written by the real producers decode, bit for bit, to what the producers' own code makes of them.

Decoded together into one parameter they are those of each alone, whichever of them are alike; weights that stay packed
give the bits of decoded ones, in every format, take less, and are refused as strictly.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from q36eval.checkpoints import load_model, open_checkpoint, stored_groups
from q36eval.checkpoints import weight_slots as loading
from q36eval.checkpoints.architecture import Outline
from q36eval.checkpoints.expert_stacks import Place, covers, decode_stack, finite_each, read_ahead, stacks_of
from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.formats.stacked import can_be_stacked
from q36eval.checkpoints.packed import PackedWeight, weight_bytes
from q36eval.checkpoints.stored_groups import read_alike
from q36eval.checkpoints.weights import LogicalWeight, index_weights
from q36eval.errors import CorruptCheckpointError
from tests.branches import folder_of
from tests.raising import raises
from tests.stored_formats import quantized_inputs

from .inspection.damage import WEIGHTS, one

GOLDEN = Path(__file__).parents[2] / "assets" / "golden"
MANIFEST = json.loads((GOLDEN / "MANIFEST.json").read_text())
NAMES = sorted(MANIFEST)


def test_golden_files_are_the_ones_their_producers_wrote() -> None:
    files = [file for file in GOLDEN.rglob("*") if file.is_file() and file.name != "MANIFEST.json"]
    found = {str(file.relative_to(GOLDEN)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert found == {file: digest for entry in MANIFEST.values() for file, digest in entry["files"].items()}
    assert all(file.stat().st_size < 100_000 for file in files)


def test_every_format_has_golden_files_with_the_inputs_that_are_emulated() -> None:
    emulated: dict[str, set[str]] = {}
    for place in (*(GOLDEN / name for name in NAMES), GOLDEN.with_name("ggufs") / "q8_0.gguf"):
        for weight in index_weights(open_checkpoint(place)).weights.values():
            inputs = weight.activations()
            emulated.setdefault(weight.scheme.format, set()).update({inputs.kind} if inputs else ())
    # GPT-OSS's is compared with what transformers decodes, in test_experts_together
    assert emulated.keys() == FORMATS.keys() - {"mxfp4"}
    as_they_are = {name for name, kinds in emulated.items() if not kinds}
    assert as_they_are == {"plain", "gptq", "awq", "gguf", "pack-quantized", "naive-quantized"}


def decoded_by_producer(name: str) -> dict[str, Tensor]:
    """Every quantized weight as the producer's own code decodes it, experts one by one."""
    return load_file(GOLDEN / "decoded" / f"{MANIFEST[name]['decoded']}.safetensors")


@pytest.mark.parametrize("name", NAMES)
def test_weights_equal_the_producers_own_decoding(name: str) -> None:
    expected = decoded_by_producer(name)
    weights = index_weights(open_checkpoint(GOLDEN / name)).weights
    quantized = {key for key, weight in weights.items() if weight.scheme.format != "plain"}
    assert quantized == set(expected)
    for key in quantized:
        ours = weights[key].read()[0]
        assert torch.equal(ours.to(expected[key].dtype), expected[key]), key


def assert_holds(model: Any, weights: Mapping[str, Tensor]) -> None:
    """These weights, rounded once, are the model's own, and it computes with them."""
    parameters, places = dict(model.named_parameters()), Outline(model).places(list(weights)).of
    for key, expected in weights.items():
        place = parameters[places[key].parameter]
        place = place if places[key].part is None else place[places[key].part]
        assert torch.equal(place, expected.bfloat16()), key
    with torch.no_grad():
        assert torch.isfinite(model(input_ids=torch.arange(40).reshape(2, 20), use_cache=False).logits).all()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_loaded_model_holds_those_weights_rounded_once(name: str) -> None:
    assert_holds(load_model(GOLDEN / name).model, decoded_by_producer(name))


@pytest.mark.parametrize(
    ("one", "other"), [("tf-fp8-fused", "tf-fp8-per-expert"), ("gptq-v1", "gptq-v2")], ids=lambda name: str(name)
)
def test_two_serializations_of_the_same_codes_are_the_same_model(one: str, other: str) -> None:
    """Also in what they do to inputs: with emulation, fused experts answer as those stored one by one."""
    first, second = (load_model(GOLDEN / name) for name in (one, other))
    for (name, ours), (_, theirs) in zip(first.model.named_parameters(), second.model.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert first.report == second.report
    ids = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        assert torch.equal(first.model(input_ids=ids).logits, second.model(input_ids=ids).logits)
        plain = load_model(GOLDEN / one, emulate_activations=False)
        differ = not torch.equal(first.model(input_ids=ids).logits, plain.model(input_ids=ids).logits)
    assert differ == (quantized_inputs(GOLDEN / one) > 0)


# -- weights decoded together

EXPERTS = 2
ALONE = ("ct-fp8-block", "modelopt-fp8-block", "ct-w4a16-ordered")
"""Lower than a block of scales, or with an order of columns of its own."""


def experts_of(folder: Path) -> list[tuple[Place, LogicalWeight]]:
    """The gate and up projections of the first layer, in the order of their names."""
    weights = index_weights(open_checkpoint(folder)).weights
    first = min(name.partition(".mlp.experts.")[0] for name in weights if ".mlp.experts." in name)
    placed: list[tuple[Place, LogicalWeight]] = []
    for name, weight in weights.items():
        layer, marker, rest = name.partition(".mlp.experts.")
        if marker and layer == first and not rest.endswith("down_proj.weight"):
            expert, projection, _ = rest.split(".")
            half = weight.decode(weight.read_parts()).shape[0]
            rows = slice(0, half) if projection == "gate_proj" else slice(half, None)
            placed.append(((int(expert), rows), weight))
    return placed


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("left_out", ["none", "an expert", "gates"])
@pytest.mark.parametrize("at_once", [1, 2**13])
def test_into_their_places_together_as_alone(name: str, left_out: str, at_once: int) -> None:
    placed = experts_of(GOLDEN / name)
    if left_out == "an expert":
        placed = [(place, weight) for place, weight in placed if place is not None and place[0] != 1]
    if left_out == "gates":
        placed = [(place, weight) for place, weight in placed if place is not None and place[1].start]
    alone = {
        place[0] * 2 + bool(place[1].start): weight.decode(weight.read_parts()) for place, weight in placed if place
    }
    rows, columns = next(iter(alone.values())).shape
    target = torch.full((EXPERTS, 2 * rows, columns), torch.nan, dtype=torch.bfloat16)
    expected = target.clone()
    for at, weight in alone.items():
        expected[at // 2, at % 2 * rows : (at % 2 + 1) * rows] = weight.bfloat16()
    for stack in stacks_of(list(reversed(placed))):
        parts = stack.read(pinned=False)
        if not can_be_stacked(parts, stack.scheme, rows):
            assert name in ALONE
            return
        in_order = covers(stack.places, target.shape)
        decode_stack(parts, stack.scheme, stack.places, target, at_once, in_order)
        assert in_order is (left_out == "none" and len(stack.places) == 2 * EXPERTS)
        assert finite_each(stack.places, target).tolist() == [True] * len(stack.places)
    assert torch.equal(target.nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("least", [1, 200, 2**26])
def test_several_threads_read_what_one_reads(least: int, pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into page-locked memory too, or into plain memory where none can be locked."""
    weights = [weight for _, weight in experts_of(GOLDEN / "ct-nvfp4")]
    monkeypatch.setattr(stored_groups, "READ_BYTES", least)
    read = read_alike(weights, pinned=pinned)
    for part in read:
        assert torch.equal(
            read[part].view(torch.uint8),
            torch.stack([weight.read_parts()[part] for weight in weights]).view(torch.uint8),
        )


@dataclass
class Sized:
    """A stack of that size, which notes when it is read."""

    stored_bytes: int
    begun: list[int]

    def read(self, *, pinned: bool) -> int:
        self.begun.append(self.stored_bytes)
        return self.stored_bytes


def test_what_is_ahead_stays_under_its_budget_and_comes_in_order() -> None:
    begun: list[int] = []
    done: list[int] = []
    sizes = [3, 2, 50, 4, 1, 60, 70, 2]
    for stack, result in read_ahead([Sized(size, begun) for size in sizes], 10, pinned=False):  # type: ignore[misc]
        assert result() == stack.stored_bytes
        done.append(stack.stored_bytes)
        assert sum(begun) - sum(done) <= 10
    assert done == sizes
    assert sorted(begun) == sorted(sizes)


# -- weights that stay packed

GGUFS = GOLDEN.with_name("ggufs")


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(60).reshape(2, 30) % model.config.vocab_size
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_format_computes_the_same_bits_packed(name: str) -> None:
    decoded, packed = (load_model(GOLDEN / name, placement=how) for how in ("decoded", "packed"))
    assert packed.report == decoded.report
    inside = [module for module in packed.model.modules() if isinstance(module, PackedWeight)]
    assert inside
    assert torch.equal(logits(packed.model), logits(decoded.model))
    assert not any(module.decoded_now for module in packed.model.modules() if hasattr(module, "decoded_now"))


@pytest.mark.parametrize("name", sorted(file.name for file in GGUFS.glob("*.gguf")))
def test_a_gguf_computes_the_same_bits_packed(name: str) -> None:
    pytest.importorskip("gguf")
    decoded, packed = (load_model(GGUFS / name, placement=how).model for how in ("decoded", "packed"))
    assert any(isinstance(module, PackedWeight) for module in packed.modules()) is (name != "bf16.gguf")
    assert torch.equal(logits(packed), logits(decoded))


@pytest.fixture(scope="module", params=["fp8-head", "nvfp4-modelopt"])
def sandbox(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A branch of the sandbox, decoded and packed."""
    folder = folder_of(str(request.param))
    return tuple(load_model(folder, placement=how).model for how in ("decoded", "packed"))  # type: ignore[return-value]


def test_a_packed_model_takes_its_stored_size(sandbox: tuple[Any, Any]) -> None:
    decoded, packed = sandbox
    quantized = dict(decoded.named_parameters()).keys() - dict(packed.named_parameters()).keys()
    full = sum(decoded.get_parameter(name).nbytes for name in quantized)
    others = sum(parameter.nbytes for name, parameter in decoded.named_parameters() if name not in quantized)
    assert weight_bytes(decoded) == full + others
    # 4.5 bits for 16 in NVFP4; an FP8 head has 8
    assert 4.5 / 16 * full <= weight_bytes(packed) - others < 0.55 * full


@pytest.mark.parametrize("kernels", ["eager", "grouped_mm"])
def test_each_kernel_of_experts_computes_with_packed_ones(sandbox: tuple[Any, Any], kernels: str) -> None:
    for model in sandbox:
        model.set_experts_implementation(kernels)
    assert torch.equal(logits(sandbox[1]), logits(sandbox[0]))


@pytest.mark.parametrize(
    ("part", "change", "code"),
    [
        ("weight_scale", lambda t: t.view(torch.uint8).fill_(0x7F).view(t.dtype), "tensor-not-finite"),
        ("weight_scale", lambda t: t[:-1], "tensor-shape"),
        ("weight_packed", lambda t: torch.cat([t, t]), "tensor-shape"),
    ],
)
@pytest.mark.parametrize("placement", ["packed", "decoded"])
def test_what_cannot_be_decoded_is_refused_by_name(
    tmp_path: Path, part: str, change: Any, code: str, placement: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(GOLDEN / "ct-nvfp4", folder)
    name = next(key for key in sorted(load_file(folder / WEIGHTS)) if key.endswith(f"experts.1.up_proj.{part}"))
    one(name, change)(folder)
    with raises(CorruptCheckpointError, code, "experts.1.up_proj.weight"):
        load_model(folder, placement=placement)


@pytest.mark.long
@pytest.mark.parametrize(
    ("free", "placement"),
    [(10**9, "decoded"), (13 * 10**6, "packed"), (10**6, "layers")],
)
def test_weights_lie_where_they_fit(monkeypatch: pytest.MonkeyPatch, free: int, placement: str) -> None:
    monkeypatch.setattr(loading, "free_bytes", lambda device: free)
    loaded = load_model(folder_of("nvfp4-modelopt"), placement=None)
    packed = any(isinstance(module, PackedWeight) for module in loaded.model.modules())
    assert (packed, loaded.layers is not None) == (placement == "packed", placement == "layers")
