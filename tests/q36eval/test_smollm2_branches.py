"""A real model's branches by real producers: decoded as the producer does, inspected, scored, attributed.

Figures are of "SmolLM2 decoded from Q4_1, rescaled", on 929 tokens of English. AutoRound rounds to nearest there.
"""

from dataclasses import dataclass

import pytest

from q36eval.checkpoints import load_model
from q36eval.checkpoints.inspection import inspect_checkpoint
from tests import smollm2
from tests.assets.smollm2_decoded import sha256
from tests.smollm2_branches import PRODUCERS, branch
from tests.smollm2_kl import DOCUMENTS, WEIGHTS_ALONE, kl

pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Expected:
    """Nats per token of the weights alone, and with inputs and KV cache quantized where the branch does so."""

    weights: float
    emulated: float | None = None


EXPECTED = {
    "w8a8": Expected(0.0058, 0.0502),
    "fp8-dynamic": Expected(0.0188, 0.0314),
    "fp8-static-kv": Expected(0.0194, 0.0505),
    "nvfp4": Expected(0.285, 0.530),
    "w4a16-gptq": Expected(0.518),
    "autoround-4-gptq": Expected(0.453),
    "autoround-4-awq": Expected(0.460),
    "w4a16": Expected(0.551),
    "autoround-3": Expected(1.542),
    "autoround-2": Expected(9.09),
}
"""As measured on a CPU without BF16 instructions."""
TOLERANCE: dict[str, float] = {"rel": 0.1, "abs": 1.5e-3}
"""Other products of BF16 change the divergence of one and the same model by about 1e-3."""


def test_every_branch_of_a_producer_is_expected() -> None:
    assert EXPECTED.keys() == PRODUCERS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_weights_equal_the_producers_own_decoding(name: str) -> None:
    made = branch(name)
    loaded = load_model(made.folder)
    parameters = dict(loaded.model.named_parameters())
    assert len(made.decoded) == 210
    assert {key for key, decoded in made.decoded.items() if sha256(parameters[key]) != decoded} == set()
    formats = loaded.report.formats
    assert sum(count for name, counts in formats.items() for kind, count in counts.items() if kind != "plain") == 210


@pytest.mark.parametrize("name", EXPECTED)
def test_an_inspection_against_the_reference_blocks_nothing(name: str) -> None:
    inspection = inspect_checkpoint(branch(name).folder, smollm2.folder(), weights_workers=1)
    assert inspection.blocking == ()
    assert inspection.unbounded_weights == 0
    assert len(inspection.measured) == 7


@pytest.mark.parametrize("name", EXPECTED)
def test_the_divergence_is_the_one_that_was_measured(name: str) -> None:
    expected = EXPECTED[name]
    assert kl(branch(name).folder, **WEIGHTS_ALONE) == pytest.approx(expected.weights, **TOLERANCE)
    if expected.emulated is not None:
        assert kl(branch(name).folder) == pytest.approx(expected.emulated, **TOLERANCE)


def test_attribution_blames_what_is_quantized() -> None:
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.run.attribution import Plan, attribute

    plan = Plan(branch("w4a16").folder, smollm2.folder(), DOCUMENTS, budget=12_000, bands=1)
    with ConsoleProgress() as progress:
        attributed = attribute(plan, progress)
    assert attributed.kl == pytest.approx(EXPECTED["w4a16"].weights, **TOLERANCE)
    assert {"embeddings", "norms"} <= {*attributed.identical}
    restored = {blame.suspect: blame for blame in attributed.blames if blame.direction == "restored"}
    assert restored["dense MLP"].nats > restored["self-attention"].nats > 0
    alone = {blame.suspect: blame.nats for blame in attributed.blames if blame.direction == "alone"}
    assert max(alone.values()) == pytest.approx(attributed.kl, rel=1e-6)
