"""The English canaries of the suite `standard`: right answers, distinct draws, tools, and figures of their own."""

import random
from collections import Counter
from pathlib import Path

import pytest

from q36eval.canaries.answers import judged_answer
from q36eval.canaries.cases import cases_of, draws
from q36eval.canaries.checks import check_tools, decisions, run_checks
from q36eval.canaries.checks.json_schema import schema_failures
from q36eval.canaries.details import Details
from q36eval.canaries.generators.standard.calls import LISTS, offered_call, requested, schema_of, tools
from q36eval.canaries.outcomes import TEXT_AROUND, WRONG, cause_of, failure_causes
from q36eval.canaries.specification import STANDARD, CanarySpec, draws_per_family, load_specs
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.examples import ChatExample, split_of
from q36eval.files import canonical_json
from q36eval.records import ProbeName
from q36eval.run.probe_set import Limits, build_probes
from q36eval.run.suites import named_canaries
from tests.canaries.runs import outcome
from tests.raising import failing, raises

SPECS = load_specs(skills=None, named=STANDARD)
FAMILIES = [spec for spec in SPECS if spec.family]
FIXED = [spec for spec in SPECS if spec.must_pass]
REQUIRED = {"en_json_flat", "en_tool_call", "en_enum_choice", "en_discount", "en_copy"}
"""Skills that a release must not lose."""
BY_TOOLS = {"en-tool-call-8": 8, "en-tool-call-16": 16, "en-tool-call-32": 32, "en-tool-call-64": 64}
FEWEST_CHARACTERS = 3
"""Of a token, in English and JSON, whatever vocabulary."""


@pytest.mark.parametrize("spec", FAMILIES, ids=lambda spec: spec.id)
def test_draws_are_distinct_and_deterministic_and_only_right_answers_pass(spec: CanarySpec) -> None:
    """Wherever a right answer decides, another choice there is wrong."""
    many = draws(spec.family.model_copy(update={"n": 60}), spec.id)
    assert [one.key for one in draws(spec.family, spec.id)] == [one.key for one in many[: spec.family.n]]
    assert len({canonical_json([one.messages, one.tools]) for one in many}) == 60
    assert {split_of(one.key) for one in many} == {"test"}
    for one in many[:20]:
        assert run_checks(one.answer, spec.checks, one.expected, one.tools) == [], one.answer
        decided = decisions(one.answer, spec.checks, one.expected, one.tools)
        assert decided or "style" in spec.checks
        for choice in decided:
            for wrong in choice.wrong or ("#",):
                changed = one.answer[: choice.start] + wrong + one.answer[choice.end :]
                assert run_checks(changed, spec.checks, one.expected, one.tools), (choice, changed)


def test_recall_has_as_many_draws_as_a_person_may_ask_for() -> None:
    """`--draws` takes a thousand, and this family half of them; it has the fewest records."""
    recall = next(spec for spec in FAMILIES if spec.id == "en-recall")
    assert len(draws(recall.family.model_copy(update={"n": 500}), recall.id)) == 500


def test_tools_are_schemas_and_requests_call_for_what_they_allow() -> None:
    asked = [name for name, tool in tools().items() if "requests" in tool]
    assert len(tools()) >= 64
    assert len(asked) >= 24
    check_tools([schema_of(name) for name in tools()])
    rng = random.Random(3)
    for name in asked:
        schema = schema_of(name)["function"]["parameters"]
        assert set(schema["required"]) <= set(schema["properties"]), name
        drawn = [requested(rng, name) for _ in range(40)]
        for text, arguments in drawn:
            assert schema_failures("arguments", arguments, schema) == [], (name, arguments)
            assert "{" not in text
        meant: dict[str, str] = {}
        for text, arguments in drawn:
            assert meant.setdefault(text, canonical_json(arguments)) == canonical_json(arguments)
        extras = tools()[name].get("extras", ())
        assert not extras or len({frozenset(arguments) for _, arguments in drawn}) > 1 or name == "convert_file"


def test_the_number_of_tools_is_all_that_differs_and_the_right_one_stands_anywhere() -> None:
    families = {spec.id: spec.family for spec in FAMILIES}
    for name, count in BY_TOOLS.items():
        family = families[name]
        assert family.settings == {"offered": count}
        drawn = draws(family, name)
        assert {len(one.tools) for one in drawn} == {count}
        # few lists: what stands before the request is read once for many
        assert len({canonical_json([one.messages[0], one.tools]) for one in drawn}) <= LISTS
        places = Counter(3 * _place(one) // count for one in drawn)
        assert all(places[third] >= len(drawn) // 8 for third in range(3)), places
    generators = {family.generator for name, family in families.items() if family and name.startswith("en-tool-call")}
    assert generators == {"offered_call"}
    rng = random.Random(5)
    pairs = [one for _ in range(900) if len((one := offered_call(rng)).tools) == 2]
    assert 0.4 < sum(map(_place, pairs)) / len(pairs) < 0.6


def _place(one: ChatExample) -> int:
    names = [tool["function"]["name"] for tool in one.tools]
    assert len(set(names)) == len(names)
    return names.index(one.expected["name"])


@pytest.mark.parametrize("spec", [spec for spec in FAMILIES if spec.context], ids=lambda spec: spec.id)
def test_prompts_and_budgets_fit_the_context_that_is_asked_for(spec: CanarySpec) -> None:
    for case in cases_of(spec):
        characters = len(canonical_json([case.messages, case.tools]))
        assert characters / FEWEST_CHARACTERS + spec.generation.max_new_tokens <= spec.context


def test_required_prompts_are_five_each_and_no_draw_of_a_family() -> None:
    assert {spec.skill for spec in FIXED} == REQUIRED
    for spec in FIXED:
        assert spec.absolute
        assert len(spec.must_pass or ()) == 5
        family = next(other for other in FAMILIES if other.skill == spec.skill)
        assert (family.checks, family.generation, family.lanes) == (spec.checks, spec.generation, spec.lanes)
        drawn = {one.key for one in draws(family.family.model_copy(update={"n": 200}), family.id)}  # type: ignore[union-attr]
        for prompt in spec.must_pass or ():
            assert prompt.key not in drawn
            assert split_of(prompt.key) == "test"
            assert decisions(prompt.answer, spec.checks, prompt.expected, prompt.tools)


def test_the_set_stands_beside_the_first_one_and_is_chosen_by_name() -> None:
    first = load_specs(skills=None)
    assert not {spec.id for spec in first} & {spec.id for spec in SPECS}
    assert not {spec.skill for spec in first} & {spec.skill for spec in SPECS}
    assert not {s.family.generator for s in first if s.family} & {s.family.generator for s in FAMILIES if s.family}
    said = {message["content"] for spec in SPECS for case in cases_of(spec) for message in case.messages}
    assert all(text.isascii() for text in said)
    short = {spec.id for spec in load_specs(skills=None, named=STANDARD, context=2048)}
    assert {spec.id for spec in SPECS} - short == set(BY_TOOLS)
    assert draws_per_family("release", STANDARD) < draws_per_family("quick")
    with raises(UsageError, "canaries-unknown", "'standart'"):
        load_specs(named="standart")


def test_a_suite_names_its_set(tmp_path: Path) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text("name: mine\ncanaries: standard\ngroups: []\n", encoding="utf-8")
    paths = Paths.default()
    assert named_canaries(str(suite), paths) == STANDARD
    assert named_canaries("quick", paths) is None
    no_texts = failing(pytest.fail.Exception("canaries need no texts"))
    probes = build_probes([ProbeName.CANARIES], str(suite), paths, no_texts, Limits())
    (probe,) = (probe for probe in probes if probe.name is ProbeName.CANARIES)
    assert {spec.id for spec in probe.specs} == {spec.id for spec in SPECS}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ending", "finish", "cause"),
    [
        ("", "stop", None),
        ("\n\nThis object has the same keys.", "stop", TEXT_AROUND),
        ("\n```json\n{", "length", TEXT_AROUND),
        ("}", "stop", TEXT_AROUND),
        ("", "length", "cut_off"),
    ],
)
def test_a_right_object_with_text_after_it_is_counted_apart(ending: str, finish: str, cause: str | None) -> None:
    """It is wrong all the same; an object that is itself wrong has the cause of any wrong answer."""
    (spec,) = [spec for spec in FAMILIES if spec.id == "en-json-flat"]
    case = cases_of(spec)[0]
    answer = judged_answer(case, case.answer + ending, finish, 20)
    assert (answer.score, cause_of(answer)) == (1.0 if cause is None else 0.0, cause)
    wrong = judged_answer(case, case.answer.replace('": "', '": "x', 1) + ending, finish, 20)
    assert "wrong_value" in Details.of(wrong).codes
    assert cause_of(wrong) == ("cut_off" if finish == "length" else WRONG)
    reference = judged_answer(case, case.answer, "stop", 20)
    outcomes = [outcome(f"{case.canary}/{n}", branch, reference) for n, branch in enumerate([answer, wrong, wrong])]
    counts = Counter(map(cause_of, (answer, wrong, wrong)))
    assert failure_causes(outcomes).branch == {name: count for name, count in counts.items() if name is not None}
