"""The fixed prompts asked of the sandbox's reference itself."""

from pathlib import Path

import pytest

from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.probes import Probe
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.rounds import run_probes
from tests.canaries.test_steps import Told
from tests.profiles import sized

BF16 = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"

pytestmark = pytest.mark.skipif(
    not (BF16 / "model.safetensors").exists(), reason="the sandbox has no trained weights in this checkout"
)


@pytest.mark.long
@pytest.mark.sized
def test_the_reference_passes_its_must_pass_prompts(tmp_path: Path) -> None:
    """At least 97 %, in every batch: what the sandbox promises, and what makes a flip worth reporting.

    The quick profile asks the prompts of every fourth canary, 16 of 56, and lets one be wrong: it misses 3 % of the
    references that fail three prompts in ten, and 14 % of those that fail two.
    """
    from q36eval.engines import open_engine

    sink, engine = Told(), open_engine(BF16)

    def open_capture(probe: Probe) -> Capture:
        return Capture(tmp_path, engine.identity, probe.name, probe.suite_sha256)

    probe = CanaryProbe([spec for spec in load_specs() if spec.must_pass][:: sized(4, 1)])
    captures = lambda works: captured(works, open_capture, lambda: engine, sink)  # noqa: E731
    run_probes(engine, engine.tokenizer, captures, [probe], sink, sink)
    assert not sink.failures
    failed = [outcome.cluster for outcome in sink.items.values() if outcome.reference.score != 1.0]
    assert len(failed) <= max(1, 0.03 * len(sink.items)), failed
    flips, rate = (sink.measurements[f"{name}[all]"] for name in ("must_pass_flips", "fixed_prompt_failure_rate"))
    assert (flips.value, rate.effect) == (0.0, 0.0)
    assert flips.counts.scored >= sized(1, 20), "the policy asks for so many of the absolute list"
    assert flips.counts.scored + rate.counts.scored == len(sink.items), "what is not on the list is judged as a rate"
