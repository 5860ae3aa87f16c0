"""The generators: right answers, stable draws, and training and test draws that never meet."""

import json
import random
import re

import pytest

from q36eval.canaries.cases import draws
from q36eval.canaries.checks import run_checks
from q36eval.canaries.checks.discount import ExpectedDiscount
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.generators.recall import DOCUMENTS
from q36eval.canaries.generators.tool_calls import _two_requests
from q36eval.canaries.generators.tools import TOOLS, call_text
from q36eval.canaries.specification import CanarySpec, load_specs
from q36eval.examples import draw, split_of

KINDS = sorted(GENERATORS)
SPECS = load_specs(skills=None)
CHECKS_OF = {spec.family.generator: spec.checks for spec in SPECS if spec.family}


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_gives_the_same_examples(kind: str) -> None:
    first, second = random.Random(3), random.Random(3)
    assert [GENERATORS[kind](first) for _ in range(50)] == [GENERATORS[kind](second) for _ in range(50)]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_passes_its_own_checks(kind: str) -> None:
    rng = random.Random(11)
    for _ in range(200):
        example = GENERATORS[kind](rng)
        assert run_checks(example.answer, CHECKS_OF[kind], example.expected, example.tools) == [], example.answer


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_one_prompt_has_one_answer(kind: str) -> None:
    rng = random.Random(5)
    answers: dict[str, str] = {}
    for _ in range(1000):
        example = GENERATORS[kind](rng)
        prompt = json.dumps([example.messages, example.tools], sort_keys=True)
        assert answers.setdefault(prompt, example.answer) == example.answer


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_training_and_test_draws_share_no_problem(kind: str) -> None:
    rng = random.Random(7)
    train = {draw(GENERATORS[kind], rng, "train").key for _ in range(1000)}
    test = {draw(GENERATORS[kind], rng, "test").key for _ in range(200)}
    assert not train & test
    assert all(split_of(key) == "test" for key in test)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_depends_on_the_content_and_not_on_the_wording(kind: str) -> None:
    """Every number of the key is in the question, so the key can be told from the question alone."""
    rng = random.Random(13)
    for _ in range(100):
        example = GENERATORS[kind](rng)
        prompt = json.dumps([example.messages, example.tools], ensure_ascii=False).replace(" ", "")
        numbers = set(re.findall(r"\d{2,}", re.sub(r"\[[\d, ]*\]$", "", example.key.replace(" ", ""))))
        assert all(number in prompt for number in numbers), example.key


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_draws_hardly_ever_repeat(kind: str) -> None:
    """At most 3 % of 3,000 draws repeat: the space is far larger than what a test suite takes."""
    rng = random.Random(17)
    assert len({GENERATORS[kind](rng).key for _ in range(3000)}) > 2910


def test_discount_problems_hold_near_ties_ties_and_both_winners() -> None:
    rng = random.Random(19)
    decisions, near = [], 0
    for _ in range(2000):
        expected = GENERATORS["discount_compare"](rng).expected
        offers = ExpectedDiscount.model_validate(expected)
        finals = [offer.final for offer in offers.offers.values()]
        decisions.append(offers.decision)
        near += 0 < abs(finals[0] - finals[1]) <= 60
    assert 0.2 < near / 2000 < 0.6
    assert min(decisions.count("A"), decisions.count("B")) > 700
    assert 40 < decisions.count("tie") < 400


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS if spec.family and "characters" in spec.family.settings], ids=lambda spec: spec.id
)
def test_a_long_context_is_as_long_as_asked_and_holds_the_answer(spec: CanarySpec) -> None:
    """And its questions share their texts, which an engine then reads once."""
    assert spec.family is not None
    wanted = int(spec.family.settings["characters"])
    drawn = draws(spec.family, spec.id)
    prompts = [example.messages[-1]["content"] for example in drawn]
    assert all(wanted <= len(prompt) < wanted * 1.2 for prompt in prompts)
    assert len({prompt[: wanted // 2] for prompt in prompts}) <= 2 * DOCUMENTS
    for example, prompt in zip(drawn, prompts, strict=True):
        values = example.expected.get("object", {}).values()
        assert all(str(value) in prompt[: int(len(prompt) * 0.6)] for value in values)


def test_other_lengths_and_more_records_are_settings() -> None:
    short, long = (GENERATORS["recall"](random.Random(1), characters=count) for count in (300, 3000))
    assert short.key == long.key
    assert len(long.messages[0]["content"]) - len(short.messages[0]["content"]) > 2500
    several = GENERATORS["recall"](random.Random(1), characters=3000, records=6)
    assert several.messages[0]["content"].count("\nZáznam ") + several.messages[0]["content"].count("\nRecord ") == 6


def test_values_that_easily_change_their_type_do_not_in_the_answer() -> None:
    """Over 400 draws: null, empty arrays, decimals, digits in strings and each kind of escape occur."""
    rng = random.Random(23)
    answers = " ".join(GENERATORS["json_types"](rng).answer for _ in range(400))
    for part in (":null", ":[]", '"zip":"0', '"password":"true"', "\\\\", '\\"', "Ł", '"temperature":-'):
        assert part in answers, part
    assert re.search(r'"weight":\d+\.\d', answers)
    assert re.search(r'"serial":\d{17}', answers)


def test_a_follow_up_needs_a_value_that_only_the_tool_gave() -> None:
    rng = random.Random(29)
    for _ in range(100):
        example = GENERATORS["tool_follow_up"](rng)
        request, _, result = (json.dumps(message, ensure_ascii=False) for message in example.messages)
        value = str(next(iter(example.expected["arguments"].values())))
        assert value in result
        assert value not in request


def test_two_calls_differ_and_both_tools_are_offered() -> None:
    rng = random.Random(31)
    same = 0
    for _ in range(200):
        example = GENERATORS["tool_parallel"](rng)
        first, second = example.expected["calls"]
        assert first != second
        assert {first["name"], second["name"]} <= {tool["function"]["name"] for tool in example.tools}
        same += first["name"] == second["name"]
    assert 40 < same < 120
    weather = next(tool for tool in TOOLS if tool.name == "get_weather")
    for _ in range(500):  # its requests alone are few enough to come twice
        first_asked, second_asked = _two_requests(rng, False, [weather, weather])
        assert first_asked[2] != second_asked[2]


def test_check_numbers_of_accounts_are_right() -> None:
    """ISO 13616: the country and check digits moved to the end, letters as numbers, leaves 1 modulo 97."""
    rng, accounts = random.Random(37), []
    for _ in range(60):
        accounts += re.findall(r"IBAN: CZ(\d{2})(\d{20})", GENERATORS["copy_references"](rng).messages[0]["content"])
    assert len(accounts) > 10
    assert all(int(f"{account}1235{check}") % 97 == 1 for check, account in accounts)


def test_the_wire_format_of_a_call() -> None:
    arguments = {"city": "Děčín", "nights": 3, "paid": True, "people": ["Jana", "Petr"]}
    assert call_text("book", arguments) == (
        "<tool_call>\n<function=book>\n<parameter=city>\nDěčín\n</parameter>\n<parameter=nights>\n3\n</parameter>\n"
        '<parameter=paid>\ntrue\n</parameter>\n<parameter=people>\n["Jana", "Petr"]\n</parameter>\n</function>\n'
        "</tool_call>"
    )
