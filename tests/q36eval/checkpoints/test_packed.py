"""Weights that stay packed give the bits of decoded ones, in every format, take less, and are refused as strictly."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from q36eval.checkpoints import load_model
from q36eval.checkpoints import weight_slots as loading
from q36eval.checkpoints.packed import PackedWeight, weight_bytes
from q36eval.errors import CorruptCheckpointError
from tests.branches import folder_of
from tests.raising import raises

from .inspection.damage import WEIGHTS, one
from .test_golden import GOLDEN, GROUPS_WIDER_THAN_THE_MODEL, NAMES

GGUFS = GOLDEN.with_name("ggufs")


def logits(model: Any) -> torch.Tensor:
    ids = torch.arange(60).reshape(2, 30) % model.config.vocab_size
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_format_computes_the_same_bits_packed(name: str) -> None:
    options: dict[str, Any] = {"emulate_activations": name not in GROUPS_WIDER_THAN_THE_MODEL}
    decoded, packed = (load_model(GOLDEN / name, placement=how, **options) for how in ("decoded", "packed"))
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
def test_what_cannot_be_decoded_is_refused_by_name(tmp_path: Path, part: str, change: Any, code: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(GOLDEN / "ct-nvfp4", folder)
    name = next(key for key in sorted(load_file(folder / WEIGHTS)) if key.endswith(f"experts.1.up_proj.{part}"))
    one(name, change)(folder)
    with raises(CorruptCheckpointError, code, "experts.1.up_proj.weight"):
        load_model(folder, placement="packed")


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
