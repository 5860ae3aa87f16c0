"""The probe's steps on real models: the sandbox's reference against itself, and against itself with ruined experts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from q36eval.canaries.must_pass import Standing, standing, why_not_absolute
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.probes import Probe, Progress, Sink
from q36eval.records import ItemOutcome, Measurement, ProbeFailure
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.rounds import run_probes
from tests.small_models import damage_experts

BF16 = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
CANARIES = (
    "discount-compare",
    "discount-compare-must-pass",
    "discount-thinking-must-pass",
    "discount-three-shops-must-pass",
    "tool-call",
    "tool-none-must-pass",
    "enum-order",
)
DRAWS = 6

pytestmark = [
    pytest.mark.skipif(not (BF16 / "model.safetensors").exists(), reason="no trained weights in this checkout"),
]


class Told(Sink, Progress):
    """Keeps what a run is told; an outcome replaces the one before it, as in history."""

    def __init__(self) -> None:
        self.items: dict[str, ItemOutcome] = {}
        self.measurements: dict[str, Measurement] = {}
        self.failures: list[ProbeFailure] = []

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items |= {outcome.item_key: outcome for outcome in outcomes}

    def add_measurement(self, measurement: Measurement) -> None:
        self.measurements[f"{measurement.metric}[{measurement.slice}]"] = measurement

    def add_failure(self, failure: ProbeFailure) -> None:
        self.failures.append(failure)

    def known_items(self) -> list[ItemOutcome]:
        return list(self.items.values())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    """The reference against itself, then with its experts rounded to two bits."""
    from q36eval.engines import open_engine

    engine = open_engine(BF16)
    place = tmp_path_factory.mktemp("pack")

    def run(load: Callable[[], Any] | None) -> Told:
        sink = Told()

        def open_capture(probe: Probe) -> Capture:
            return Capture(place, engine.identity, probe.name, probe.suite_sha256)

        probe = CanaryProbe(load_specs(only=CANARIES, n=DRAWS, skills=None))
        captures = lambda works: captured(works, open_capture, load, sink)  # noqa: E731
        run_probes(engine, engine.tokenizer, captures, [probe], sink, sink)
        assert not sink.failures
        return sink

    same = run(lambda: engine)
    damage_experts(engine.model, 2)
    return same, run(None)


@pytest.mark.long
def test_the_reference_against_itself_loses_nothing_to_the_last_bit(runs: tuple[Told, Told]) -> None:
    same, _ = runs
    assert len(same.items) == DRAWS // 2 + 2 * DRAWS + 6 + 2 + 4 + 4
    for outcome in same.items.values():
        assert outcome.branch.text == outcome.reference.text
        assert outcome.branch.detail.get("margin") == outcome.reference.detail.get("margin")
        assert "divergence" not in outcome.branch.detail
    assert same.measurements["must_pass_flips[all]"].value == 0
    assert same.measurements["decisive_margin[all]"].effect == 0.0
    assert same.measurements["decisive_margin_ratio[all]"].effect == 1.0
    assert same.measurements["failure_rate[all]"].effect == 0.0
    assert same.measurements["call_trigger_agreement[tool-call]"].value == 1.0


@pytest.mark.long
def test_every_right_answer_has_a_margin_and_greedy_prefers_it(runs: tuple[Told, Told]) -> None:
    same, _ = runs
    right = [outcome.reference for outcome in same.items.values() if outcome.reference.score == 1.0]
    assert len(right) > 0.8 * len(same.items)
    margins = [answer.detail["margin"]["nats"] for answer in right]
    # greedy decoding took these tokens; BF16 logits in another batch shape differ by hundredths
    assert min(margins) > -0.1
    wrong = [outcome.reference for outcome in same.items.values() if outcome.reference.score == 0.0]
    assert not any("margin" in answer.detail for answer in wrong)


@pytest.mark.long
def test_ruined_experts_shrink_margins_and_flip_what_is_asked_again(runs: tuple[Told, Told]) -> None:
    _, ruined = runs
    margin = ruined.measurements["decisive_margin[all]"]
    assert margin.effect_interval.upper < 0 < margin.reference_value
    assert ruined.measurements["decisive_margin_ratio[all]"].effect < 1
    flipped = [o for o in ruined.items.values() if o.must_pass and o.flip == "regression"]
    assert flipped
    for outcome in flipped:
        repeats = outcome.branch.detail["repeats"]
        assert [repeat["rows"] for repeat in repeats] == [4, 1]
        assert standing(outcome) in (Standing.FLIPPED, Standing.UNSTABLE)
    listed = [o for o in flipped if o.group == "discount-compare-must-pass" and why_not_absolute(o.reference) is None]
    for metric, kind, outcomes in (
        ("must_pass_flips", Standing.FLIPPED, listed),
        ("must_pass_unstable", Standing.UNSTABLE, flipped),
    ):
        assert ruined.measurements[f"{metric}[all]"].value == sum(standing(outcome) is kind for outcome in outcomes)


@pytest.mark.long
def test_where_two_answers_part_both_choices_are_kept(runs: tuple[Told, Told]) -> None:
    _, ruined = runs
    parted = [o for o in ruined.items.values() if "divergence" in o.branch.detail]
    assert parted
    for outcome in parted:
        ours, theirs = outcome.branch.detail["divergence"], outcome.reference.detail["divergence"]
        assert ours["position"] == theirs["position"]
        assert ours["said"] != theirs["said"]
        assert theirs["said"] in [text for text, _ in theirs["top"]]
        log_probs = [value for _, value in ours["top"]]
        assert log_probs == sorted(log_probs, reverse=True)
    agreeing = sum(o.branch.detail["divergence"]["said"] == o.branch.detail["divergence"]["top"][0][0] for o in parted)
    assert agreeing >= 0.8 * len(parted)  # the rest are near ties that rounding to BF16 or the batch decides
