"""The probe's steps on real models: the sandbox's reference against itself, and against itself with ruined experts."""

from pathlib import Path

import pytest

from q36eval.canaries.must_pass import Standing, standing, why_not_absolute
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from tests.canaries.runs import BF16, TRAINED, Told, run_of
from tests.profiles import sized
from tests.small_models import damage_experts

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

pytestmark = [pytest.mark.long, TRAINED]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    """The reference against itself, then with its experts rounded to two bits."""
    from q36eval.engines import open_engine

    engine, place = open_engine(BF16), tmp_path_factory.mktemp("pack")
    same = run_of(probe(), engine, place, engine)
    damage_experts(engine.model, 2)
    return same, run_of(probe(), engine, place)


def probe() -> CanaryProbe:
    return CanaryProbe(load_specs(only=CANARIES, n=DRAWS, skills=None))


def test_the_reference_against_itself_loses_nothing_to_the_last_bit(runs: tuple[Told, Told]) -> None:
    """Every right answer has a margin, and greedy decoding prefers it."""
    same, _ = runs
    assert len(same.items) == DRAWS // 2 + 2 * DRAWS + 6 + 2 + 4 + 4
    for outcome in same.items.values():
        assert outcome.branch.text == outcome.reference.text
        assert outcome.branch.detail.get("margin") == outcome.reference.detail.get("margin")
        assert "divergence" not in outcome.branch.detail
    assert same.measurements["must_pass_flips[all]"].value == 0
    assert same.measurements["decisive_margin_ratio[all]"].effect == 1.0
    assert same.measurements["failure_rate[all]"].effect == 0.0
    right = [outcome.reference for outcome in same.items.values() if outcome.reference.score == 1.0]
    assert len(right) > 0.8 * len(same.items)
    margins = [answer.detail["margin"]["nats"] for answer in right]
    # greedy decoding took these tokens; BF16 logits in another batch shape differ by hundredths
    assert min(margins) > -0.1
    wrong = [outcome.reference for outcome in same.items.values() if outcome.reference.score == 0.0]
    assert not any("margin" in answer.detail for answer in wrong)


def test_ruined_experts_shrink_margins_and_flip_what_is_asked_again(runs: tuple[Told, Told]) -> None:
    """Where two answers part, both choices are kept."""
    _, ruined = runs
    margin = ruined.measurements["decisive_margin_ratio[all]"]
    assert margin.effect_interval.upper < 1
    assert margin.reference_value > 0
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


@pytest.mark.sized
def test_the_reference_passes_its_must_pass_prompts(tmp_path: Path) -> None:
    """At least 97 %, in every batch: what the sandbox promises, and what makes a flip worth reporting.

    The quick profile asks the prompts of every fourth canary, 16 of 56, and lets one be wrong: it misses 3 % of the
    references that fail three prompts in ten, and 14 % of those that fail two.
    """
    from q36eval.engines import open_engine

    engine = open_engine(BF16)
    fixed = [spec for spec in load_specs() if spec.must_pass][:: sized(4, 1)]
    told = run_of(CanaryProbe(fixed), engine, tmp_path, engine)
    failed = [outcome.cluster for outcome in told.items.values() if outcome.reference.score != 1.0]
    assert len(failed) <= max(1, 0.03 * len(told.items)), failed
    flips, rate = (told.measurements[f"{name}[all]"] for name in ("must_pass_flips", "fixed_prompt_failure_rate"))
    assert (flips.value, rate.effect) == (0.0, 0.0)
    assert flips.counts.scored >= sized(1, 20), "the policy asks for so many required prompts"
    assert flips.counts.scored + rate.counts.scored == len(told.items), "what is not on the list is judged as a rate"
