"""The fixed prompts asked of the sandbox's reference itself."""

from pathlib import Path

import pytest

from canaries.probe import CanaryProbe
from canaries.specification import load_specs
from q36eval.engines.base import Engine
from q36eval.probes import ItemResults
from q36eval.records import ItemOutcome

BF16 = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"

pytestmark = pytest.mark.skipif(
    not (BF16 / "model.safetensors").exists(), reason="the sandbox has no trained weights in this checkout"
)


def ask(probe: CanaryProbe, engine: Engine) -> list[ItemOutcome]:
    """Every item of `probe`, the engine judged against itself."""
    items = {item.key: item for item in probe.plan(engine.tokenizer)}
    outcomes = []
    for generated in engine.generate([request for item in items.values() for request in item.generations]):
        item, results = items[generated.request.key], ItemResults(generated={generated.request.key: generated})
        outcomes += probe.compare(engine, item, results, probe.digest(engine, item, results))
    return outcomes


@pytest.mark.slow
def test_the_reference_passes_its_must_pass_prompts() -> None:
    """At least 97 %: what the sandbox promises, and what makes a flip worth reporting."""
    from q36eval.engines.in_process import InProcessEngine

    probe = CanaryProbe([spec for spec in load_specs() if spec.must_pass])
    outcomes = ask(probe, InProcessEngine.load(BF16))
    failed = [outcome.cluster for outcome in outcomes if outcome.reference.score != 1.0]
    assert len(failed) <= 0.03 * len(outcomes), failed
    flips = next(m for m in probe.summarize(outcomes) if m.metric == "must_pass_flips" and m.slice == "all")
    assert (flips.value, flips.counts.scored) == (0.0, len(outcomes) - len(failed))
