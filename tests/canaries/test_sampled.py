"""Canaries with reasoning as users run it: sampled with common random numbers, all seeds of a prompt one cluster."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from q36eval.canaries.cases import cases_of
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import CanarySpec, for_family, load_specs
from q36eval.canaries.summary import declared_figures
from q36eval.config import Family
from q36eval.config.answer_budgets import THINKING as THINKING_SKILL
from q36eval.config.answer_budgets import Answering
from q36eval.errors import UsageError
from tests.canaries.runs import BF16, TRAINED, run_of
from tests.profiles import sized
from tests.raising import raises

ROOT = Path(__file__).parents[2]
SANDBOX = Family.load(ROOT / "data" / "families" / "sandbox.yaml")
THINKING = ("discount-thinking", "tool-call-thinking")

SHORT = Answering.model_validate(
    {
        "thinking": {
            "tokens": sized(100, 320),
            "need": "as the sandbox's fixed prompts",
            "sampling": {"temperature": 2.0, "top_p": 0.99, "top_k": 20, "seeds": 3},
        }
    }
)


def sampled(n: int) -> list[CanarySpec]:
    return for_family(load_specs(only=THINKING, n=n, skills=None), SANDBOX.model_copy(update={"answers": SHORT}))


def test_a_family_says_budgets_and_how_reasoning_is_sampled() -> None:
    family = Family.load(ROOT / "data" / "families" / "qwen3.6-35b-a3b.yaml")
    before = load_specs(skills=None)
    after = {spec.id: spec.generation for spec in for_family(before, family)}
    assert after["discount-compare"].max_new_tokens >= 768
    assert after["discount-thinking"].max_new_tokens == after["discount-thinking-must-pass"].max_new_tokens == 8192
    assert after["discount-thinking"].sampling == family.answers.thinking.sampling  # type: ignore[union-attr]
    # what it says nothing of stays as the canary has it, and the sandbox's as they were
    assert after["enum-select"] == next(spec.generation for spec in before if spec.id == "enum-select")
    assert for_family(before, SANDBOX) == before
    budgeted = {skill for budget in family.answers.budgets for skill in budget.skills}
    assert budgeted <= {spec.skill for spec in before}, "a budget of a skill that no canary has"


def test_every_seed_is_an_item_and_every_prompt_a_cluster() -> None:
    (spec,) = (each for each in sampled(8) if each.id == "discount-thinking")
    cases = cases_of(spec)
    assert len(cases) == 18
    assert len({case.content for case in cases}) == 18
    assert len({case.question for case in cases}) == 6, "three quarters of the draws"
    figures = {figure.key: figure for figure in declared_figures([spec])}
    rate = figures["canaries.thinking_failure_rate[freeform]"]
    assert (rate.items, rate.clusters, rate.metric.estimator) == (18, 6, "paired_mean")
    assert not any(".failure_rate[" in key for key in figures), "sampled answers are no part of the greedy rates"


def test_reasoning_is_judged_by_all_that_the_same_question_is_judged_by_without() -> None:
    """A loop or another script after the thoughts is as wrong as without any."""
    by_generator = {(s.family.generator, s.skill == THINKING_SKILL): s for s in load_specs(skills=None) if s.family}
    for generator, thinking in by_generator:
        if thinking:
            assert by_generator[generator, True].checks == by_generator[generator, False].checks


def test_a_budget_for_a_skill_that_no_canary_has_is_refused() -> None:
    answers = Answering.model_validate({"budgets": [{"skills": ["discount_compar"], "tokens": 768, "need": "x"}]})
    with raises(UsageError, "skill-unknown", "discount_compar"):
        for_family(load_specs(), SANDBOX.model_copy(update={"answers": answers}))


@pytest.mark.parametrize(
    "answers",
    [
        {"budgets": [{"skills": ["thinking"], "tokens": 768, "need": "x"}], "thinking": {"tokens": 9, "need": "x"}},
        {"budgets": [{"skills": ["tool_call"], "tokens": True, "need": "x"}]},
    ],
)
def test_answers_of_a_family_file_with_a_slip_are_refused(answers: dict) -> None:
    with pytest.raises(ValidationError):
        Answering.model_validate(answers)


@pytest.mark.long
@TRAINED
@pytest.mark.sized
def test_the_reference_against_itself_draws_the_same_to_the_last_character(tmp_path: Path) -> None:
    from q36eval.engines import open_engine

    engine = open_engine(BF16)
    sink = run_of(CanaryProbe(sampled(4)), engine, tmp_path, engine)
    assert len(sink.items) == 18
    assert all(outcome.branch.text == outcome.reference.text for outcome in sink.items.values())
    texts: dict[str, set[str]] = {}
    for outcome in sink.items.values():
        texts.setdefault(outcome.cluster, set()).add(outcome.branch.text)
    assert max(map(len, texts.values())) > 1, "every seed draws numbers of its own"
    found = sink.measurements["thinking_budget_used[all]"]
    assert (found.effect, found.counts.total) == (0.0, 18)
    assert found.clusters.units == (3,) * 6
