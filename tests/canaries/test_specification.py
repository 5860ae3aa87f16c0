"""Specifications: the shipped ones, and one clear sentence for each way to write one wrong.

Specifications written wrong: refused with the file and the key, never with a traceback.
"""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.canaries.cases import cases_of, draws
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.specification import (
    FEW,
    MANY,
    STANDARD,
    CanarySpec,
    Family,
    FixedPrompt,
    left_out,
    left_out_sentence,
    load_specs,
    read_spec,
)
from q36eval.config import Family as ModelFamily
from q36eval.errors import UsageError
from q36eval.examples import ChatExample, split_of
from tests.canaries.runs import GREETING
from tests.raising import raises

FAMILIES = Path(__file__).parents[2] / "data" / "families"
SPECS = load_specs(skills=None)
FIXED = [(spec, prompt) for spec in SPECS for prompt in spec.must_pass or ()]


def test_every_skill_has_a_family_and_fixed_prompts() -> None:
    every = (*SPECS, *load_specs(skills=None, named=STANDARD))
    assert {spec.family.generator for spec in every if spec.family} == set(GENERATORS)
    # reasoning is sampled: no single answer of it is one that must not flip, but for models whose thoughts are a line
    for skill in {spec.skill for spec in SPECS if not spec.generation.enable_thinking}:
        of_skill = [spec for spec in SPECS if spec.skill == skill]
        assert any(spec.family for spec in of_skill), skill
        assert any(spec.must_pass for spec in of_skill), skill


@pytest.mark.parametrize(("spec", "prompt"), FIXED, ids=[f"{s.id}/{p.name}" for s, p in FIXED])
def test_fixed_prompts_are_kept_from_training(spec: CanarySpec, prompt: FixedPrompt) -> None:
    """The key puts the prompt on the test side, and it is the prompt's own: its numbers are those asked about."""
    assert split_of(prompt.key) == "test"
    same = {other.skill for other in SPECS if other.checks[0] == spec.checks[0]}
    drawn_by = {other.family.generator for other in SPECS if other.family and other.skill in same}
    assert prompt.key.partition(":")[0] in drawn_by
    prompt_text = json.dumps(prompt.messages, ensure_ascii=False).replace(" ", "")
    for number in re.findall(r"\d{3,}", prompt.key.replace(" ", "")):
        assert number in prompt_text


@pytest.mark.long
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.family], ids=lambda spec: spec.id)
def test_a_release_draws_distinct_problems_that_training_never_saw(spec: CanarySpec) -> None:
    """And the quick suite's are the first of them."""
    many = draws(spec.family.model_copy(update={"n": MANY}), spec.id)
    keys = [example.key for example in many]
    assert len(set(keys)) == MANY
    assert {split_of(key) for key in keys} == {"test"}
    assert spec.family.n == FEW
    assert draws(spec.family, spec.id) == many[:FEW]


def test_loading_can_select_and_resize() -> None:
    chosen = load_specs(only=["json-flat", "json-flat-must-pass"], n=3)
    assert {spec.id for spec in chosen} == {"json-flat-must-pass", "json-flat"}
    assert sum(len(cases_of(spec)) for spec in chosen if spec.family) == 3
    with raises(UsageError, "canary-unknown", "'json'"):
        load_specs(only=["json"])


def test_what_a_family_has_not_declared_is_left_out_and_said() -> None:
    everything, nothing = load_specs(skills=None), load_specs()
    declared = load_specs(skills=["enum_long"])
    assert {spec.id for spec in declared} - {spec.id for spec in nothing} == {"enum-long", "enum-long-must-pass"}
    missing = left_out(everything, ["enum_long"])
    assert {spec.id for spec in everything} - {spec.id for spec in declared} == {spec.id for spec in missing}
    sentence = left_out_sentence([spec for spec in missing if spec.skill == "json_types"], "sandbox")
    assert "family sandbox does not declare" in sentence
    assert "2 canaries" in sentence
    assert "json_types" in sentence
    with raises(UsageError, "canary-not-of-family", "enum-long", "'enum_long'"):
        load_specs(only=["enum-long"])


@pytest.mark.parametrize("file", sorted(FAMILIES.glob("*.yaml")), ids=lambda file: file.stem)
def test_families_declare_skills_that_canaries_need(file: Path) -> None:
    """The sandbox is asked at least what it was trained on, a real family everything."""
    skills = ModelFamily.load(file).skills
    needed = {spec.skill for spec in SPECS if spec.only_where_declared}
    learnt = {skill for skill in needed if skill.endswith("_last_line")} | {"thinking_greedy"}
    assert set(skills) == (learnt if file.stem == "sandbox" else needed - {"thinking_greedy"})


def test_canaries_of_ones_own_stand_beside_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "greeting.yaml").write_text(GREETING, encoding="utf-8")
    assert [spec.id for spec in load_specs(own=tmp_path)] == [*(spec.id for spec in load_specs()), "greeting"]
    (tmp_path / "copy.yaml").write_text(GREETING.replace("greeting", "json-flat"), encoding="utf-8")
    with raises(UsageError, "canary-duplicate", "copy.yaml", "'json-flat'"):
        load_specs(own=tmp_path)


# -- bad files

FAMILY = GREETING[: GREETING.index("must_pass")]
ROWS = yaml.safe_load(Path(__file__).with_name("bad_specifications.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["names"][0])
def test_a_bad_file_is_refused_in_one_sentence(
    tmp_path: Path, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns that would take all time too."""
    monkeypatch.setattr("q36eval.canaries.checks.patterns.PATTERN_SECONDS", 0.05)
    text = f"{FAMILY}family: {row['family']}\n" if "family" in row else GREETING
    for old, new in row.get("replace", {}).items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "greeting.yaml"
    file.write_text(text, encoding="utf-8")
    with raises(UsageError, "file-invalid", file, *row["names"]) as error:
        read_spec(file)
    assert "\n" not in str(error.value)


def test_an_empty_folder_and_a_repeated_id_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "canaries-missing"):
        load_specs(own=tmp_path)
    (tmp_path / "one.txt").write_text(GREETING, encoding="utf-8")
    with raises(UsageError, "path-is-file", "one.txt"):
        load_specs(own=tmp_path / "one.txt")
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GREETING, encoding="utf-8")
    with raises(UsageError, "canary-duplicate"):
        load_specs(own=tmp_path)


def test_a_generator_that_repeats_or_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1, 1, 0]

    def few(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"few:{rng.randrange(50)}", messages=(), answer="")

    def broken(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"test:{1 // left.pop(0)}:b:{len(left)}", messages=(), answer="")

    monkeypatch.setitem(GENERATORS, "few", few)
    monkeypatch.setitem(GENERATORS, "broken", broken)
    with raises(UsageError, "canary-draws-exhausted", "x: few", "40"):
        draws(Family(generator="few", seed=1, n=40), "x")
    monkeypatch.setattr("q36eval.examples.split_of", lambda key: "test")
    with raises(UsageError, "canary-generator-failed", "x: broken", "draw 3", "ZeroDivisionError"):
        draws(Family(generator="broken", seed=1, n=9), "x")


@pytest.mark.parametrize(
    ("checks", "value"), [("[tool_call]", "expected.name"), ("[no_tool_call, exact_lines]", "expected.lines")]
)
def test_a_family_whose_checks_do_not_fit_its_generator_is_refused(tmp_path: Path, checks: str, value: str) -> None:
    text = FAMILY.replace("[exact_text]", checks)
    (tmp_path / "greeting.yaml").write_text(f"{text}family: {{generator: json_flat, seed: 1}}\n", encoding="utf-8")
    (spec,) = load_specs(own=tmp_path, only=["greeting"])
    with raises(UsageError, "canary-checks-unusable", "greeting", value):
        cases_of(spec)
