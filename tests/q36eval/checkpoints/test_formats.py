"""What decoders refuse, the scales of inputs, and block scales as Model Optimizer squeezes them.

That they decode what is stored is in `test_round_trips.py`, against naive code, and in `test_golden.py`.
"""

import pytest
import torch
from compressed_tensors.quantization import preset_name_to_scheme

from q36eval.checkpoints.formats import FORMATS, modelopt
from q36eval.checkpoints.inspection.stored_schemes import grid_of
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises


def test_a_producer_divides_by_the_scale_of_inputs_and_another_multiplies() -> None:
    compressed = Scheme("nvfp4-pack-quantized", compressed=preset_name_to_scheme("NVFP4", ["Linear"]))
    optimizer = Scheme("modelopt-nvfp4", settings=(("inputs", "local"),))
    for scheme, part, stored in ((compressed, "input_global_scale", 4.0), (optimizer, "input_scale", 0.25)):
        inputs = FORMATS[scheme.format].activations({part: torch.tensor([stored])}, scheme)
        assert inputs is not None
        assert (inputs.kind, inputs.global_scale) == ("nvfp4", 4.0)


def test_integers_without_a_scale_are_refused() -> None:
    with raises(CorruptCheckpointError, "scale-missing", "int8"):
        FORMATS["plain"].decode({"weight": torch.zeros(2, 2, dtype=torch.int8)}, Scheme("plain"))


def test_scales_of_another_shape_are_refused_rather_than_broadcast() -> None:
    scheme = Scheme("float-quantized", compressed=preset_name_to_scheme("FP8_BLOCK", ["Linear"]))
    parts = {"weight": torch.zeros(128, 128).to(torch.float8_e4m3fn), "weight_scale": torch.ones(1, 2).bfloat16()}
    with raises(CorruptCheckpointError, "tensor-shape", "weight_scale"):
        FORMATS["float-quantized"].decode(parts, scheme)


def test_blocks_that_begin_before_a_run_of_rows_are_refused() -> None:
    """Rows 128 and on begin inside the second block of 96: its scale would be taken for another row of blocks."""
    scheme = Scheme("fp8", settings=(("block", (96, 128)),))
    parts = {"weight": torch.zeros(384, 128).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(4, 1)}
    with raises(UsageError, "format-unsupported", "96 rows"):
        FORMATS["fp8"].rows(parts, scheme, 128, 256)


@pytest.mark.parametrize(
    ("shape", "stored"), [((32, 300), (3,)), ((300, 32), (3,)), ((32, 32), ()), ((300, 300), (3, 3))]
)
def test_model_optimizer_leaves_axes_of_size_one_out_of_its_block_scales(
    shape: tuple[int, int], stored: tuple[int, ...]
) -> None:
    """As 0.47 writes `fp8_pb_wo`, whose scales it squeezes; every row cut out decodes to the same."""
    scheme = Scheme("modelopt-fp8", settings=(("block", (128, 128)),))
    whole = tuple(-(-size // 128) for size in shape)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(whole, generator=generator) + 0.5
    expected = weight.float() * scale.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
    parts = {"weight": weight, "weight_scale": scale.reshape(stored)}
    assert torch.equal(modelopt.decode_fp8(parts, scheme), expected)
    for start in range(0, shape[0], 128):
        rows = modelopt.fp8_rows(parts, scheme, start, min(start + 128, shape[0]))
        assert torch.equal(modelopt.decode_fp8(rows, scheme), expected[start : start + 128])
    assert grid_of(stored, shape, (128, 128)) == whole
