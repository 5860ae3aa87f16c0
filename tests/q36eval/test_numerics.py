"""What the engine computes in float32 on a CPU moves only with `NUMERICS_VERSION`, by which references are captured."""

import numpy as np
import pytest
import torch

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.weights import index_weights
from q36eval.engines import identity_of
from q36eval.engines.numerics import NUMERICS_VERSION
from tests.assets import numerics
from tests.assets.numerics import BF16, GOLDEN, GROUPS_WIDER_THAN_THE_MODEL

ANEW = "raise NUMERICS_VERSION with a line on what changed, then record: python -m tests.assets.numerics"


@pytest.mark.long
def test_every_number_is_what_was_recorded_for_this_version() -> None:
    assert numerics.RECORDED.exists(), f"nothing is recorded for version {NUMERICS_VERSION}; {ANEW}"
    now, before = numerics.figures(), numerics.recorded()
    assert set(now) >= {name for name in before if not name.startswith("sandbox/")}
    for name, value in now.items():
        assert value.shape == before[name].shape, f"{name} has another length: {ANEW}"
        off = np.abs(value - before[name]).max()
        assert off <= numerics.TOLERANCES[name.rpartition("/")[2]], f"{name} moved by {off:.3g}: {ANEW}"


def quantizes_inputs(name: str) -> bool:
    weights = index_weights(open_checkpoint(GOLDEN / name)).weights.values()
    return name not in GROUPS_WIDER_THAN_THE_MODEL and any(weight.activations() is not None for weight in weights)


WRITTEN = sorted(file.parent.name for file in GOLDEN.glob("*/config.json"))
EMULATED = [name for name in WRITTEN if quantizes_inputs(name)]


@pytest.mark.long
@pytest.mark.parametrize("name", EMULATED)
def test_a_number_that_moves_is_seen(name: str) -> None:
    """What is done to inputs, the least of what makes a number, moves it well beyond the tolerance: in every format."""
    model = load_model(GOLDEN / name, emulate_activations=False).model.float()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(40).reshape(2, 20)).logits[:, ::6].double().numpy()
    assert np.abs(logits - numerics.recorded()[f"{name}/logits"]).max() > 5 * numerics.TOLERANCES["logits"]


def test_every_format_whose_inputs_are_quantized_has_recorded_numbers() -> None:
    formats = {
        weight.scheme.format
        for name in EMULATED
        for weight in index_weights(open_checkpoint(GOLDEN / name)).weights.values()
    }
    # of integers in words, and of the plain layout, no producer here quantizes inputs: test_emulation.py
    assert formats - {"plain"} == {
        name for name, each in FORMATS.items() if each.activations is not FORMATS["plain"].activations
    } - {
        "pack-quantized",
        "naive-quantized",
    }


def test_the_version_is_the_whole_of_what_an_identity_says_of_our_code() -> None:
    """A comment makes no other deployment, another version does."""
    if not (BF16 / "model.safetensors").exists():
        pytest.skip("no trained weights in this checkout")
    settings = identity_of(BF16).settings
    assert settings["numerics"] == str(NUMERICS_VERSION)
    assert "code" not in settings
