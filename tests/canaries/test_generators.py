"""The generators: right answers, stable draws, and training and test draws that never meet."""

import json
import random
import re

import pytest

from canaries.checks import run_checks
from canaries.generators import GENERATORS
from canaries.generators._tools import call_text
from canaries.specification import load_specs
from q36eval.examples import draw, split_of

KINDS = sorted(GENERATORS)
CHECKS_OF = {spec.skill: spec.checks for spec in load_specs()}


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_gives_the_same_examples(kind: str) -> None:
    first, second = random.Random(3), random.Random(3)
    assert [GENERATORS[kind](first) for _ in range(50)] == [GENERATORS[kind](second) for _ in range(50)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_passes_its_own_checks(kind: str) -> None:
    rng = random.Random(11)
    for _ in range(300):
        example = GENERATORS[kind](rng)
        assert run_checks(example.answer, CHECKS_OF[kind], example.expected, example.tools) == [], example.answer


@pytest.mark.parametrize("kind", KINDS)
def test_one_prompt_has_one_answer(kind: str) -> None:
    rng = random.Random(5)
    answers: dict[str, str] = {}
    for _ in range(2000):
        example = GENERATORS[kind](rng)
        prompt = json.dumps([example.messages, example.tools], sort_keys=True)
        assert answers.setdefault(prompt, example.answer) == example.answer


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_test_draws_share_no_problem(kind: str) -> None:
    rng = random.Random(7)
    train = {draw(GENERATORS[kind], rng, "train").key for _ in range(2000)}
    test = {draw(GENERATORS[kind], rng, "test").key for _ in range(300)}
    assert not train & test
    assert all(split_of(key) == "test" for key in test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_depends_on_the_content_and_not_on_the_wording(kind: str) -> None:
    """Every number of the key is in the question, so the key can be told from the question alone."""
    rng = random.Random(13)
    for _ in range(100):
        example = GENERATORS[kind](rng)
        asked = json.dumps([example.messages, example.tools], ensure_ascii=False).replace(" ", "")
        numbers = set(re.findall(r"\d{2,}", re.sub(r"\[[\d, ]*\]$", "", example.key.replace(" ", ""))))
        assert all(number in asked for number in numbers), example.key


@pytest.mark.parametrize("kind", KINDS)
def test_draws_hardly_ever_repeat(kind: str) -> None:
    """At most 3 % of 5,000 draws repeat: the space is far larger than what a test suite takes."""
    rng = random.Random(17)
    assert len({GENERATORS[kind](rng).key for _ in range(5000)}) > 4850


def test_discount_problems_hold_near_ties_ties_and_both_winners() -> None:
    rng = random.Random(19)
    decisions, near = [], 0
    for _ in range(2000):
        expected = GENERATORS["discount_compare"](rng).expected
        finals = [amounts[-1] for amounts in expected["amounts"].values()]
        decisions.append(expected["decision"])
        near += 0 < abs(finals[0] - finals[1]) <= 60
    assert 0.2 < near / 2000 < 0.6
    assert min(decisions.count("A"), decisions.count("B")) > 700
    assert 40 < decisions.count("tie") < 400


def test_the_wire_format_of_a_call() -> None:
    arguments = {"city": "Děčín", "nights": 3, "paid": True, "people": ["Jana", "Petr"]}
    assert call_text("book", arguments) == (
        "<tool_call>\n<function=book>\n<parameter=city>\nDěčín\n</parameter>\n<parameter=nights>\n3\n</parameter>\n"
        '<parameter=paid>\ntrue\n</parameter>\n<parameter=people>\n["Jana", "Petr"]\n</parameter>\n</function>\n'
        "</tool_call>"
    )
