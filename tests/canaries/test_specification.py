"""Specifications: the shipped ones, and one clear sentence for each way to write one wrong."""

import json
import random
import re
from pathlib import Path

import pytest

from canaries.cases import cases_of, draws
from canaries.generators import GENERATORS
from canaries.specification import SPECS_FOLDER, CanarySpec, Family, FixedPrompt, load_specs, read_spec
from q36eval.errors import UsageError
from q36eval.examples import ChatExample, split_of

SPECS = load_specs()
FIXED = [(spec, prompt) for spec in SPECS for prompt in spec.must_pass or ()]

VALID = """
id: greeting
skill: greeting
lanes: [freeform]
why: to have one
generation: {max_new_tokens: 8}
checks: [exact_text]
must_pass:
  - name: hello
    key: hello
    messages: [{role: user, content: "Say hello."}]
    expected: {text: Hello}
    answer: Hello
"""


def test_every_skill_has_a_family_and_fixed_prompts() -> None:
    for kind in GENERATORS:
        of_skill = [spec for spec in SPECS if spec.skill == kind]
        assert any(spec.family is not None and spec.family.generator == kind for spec in of_skill), kind
        assert any(spec.must_pass for spec in of_skill), kind


@pytest.mark.parametrize(("spec", "prompt"), FIXED, ids=[f"{s.id}/{p.name}" for s, p in FIXED])
def test_fixed_prompts_are_kept_from_training(spec: CanarySpec, prompt: FixedPrompt) -> None:
    """The key puts the prompt on the test side, and it is the prompt's own: its numbers are those asked about."""
    assert split_of(prompt.key) == "test"
    assert prompt.key.startswith(f"{spec.skill}:")
    asked = json.dumps(prompt.messages, ensure_ascii=False).replace(" ", "")
    for number in re.findall(r"\d{3,}", prompt.key.replace(" ", "")):
        assert number in asked


def test_families_draw_distinct_problems_that_training_never_saw() -> None:
    for spec in SPECS:
        if spec.family is not None:
            keys = [example.key for example in draws(spec.family, spec.id)]
            assert len(set(keys)) == spec.family.n
            assert {split_of(key) for key in keys} == {"test"}


def test_draws_that_repeat_are_drawn_again() -> None:
    family = Family(generator="discount_threshold", seed=1, n=3000)
    assert len({example.key for example in draws(family, "x")}) == 3000


def test_a_family_larger_than_its_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"few:{rng.randrange(50)}", messages=(), answer="")

    monkeypatch.setitem(GENERATORS, "few", few)
    with pytest.raises(UsageError, match=r"x: few has only \d+ distinct draws, not n = 40"):
        draws(Family(generator="few", seed=1, n=40), "x")


def test_a_longer_family_starts_with_the_shorter_one() -> None:
    short = Family(generator="tool_call", seed=1, n=5)
    assert draws(short.model_copy(update={"n": 9}), "x")[:5] == draws(short, "x")


def test_names_of_cases_are_unique() -> None:
    names = [case.name for spec in SPECS for case in cases_of(spec)]
    assert len(set(names)) == len(names)


def test_loading_can_select_and_resize() -> None:
    chosen = load_specs(only=["json-flat", "json-flat-must-pass"], n=3)
    assert {spec.id for spec in chosen} == {"json-flat-must-pass", "json-flat"}
    assert sum(len(cases_of(spec)) for spec in chosen if spec.family) == 3
    with pytest.raises(UsageError, match=r"'json'; choose from .*json-flat"):
        load_specs(only=["json"])


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "greeting.yaml").write_text(VALID, encoding="utf-8")
    (spec,) = load_specs(tmp_path)
    assert (spec.id, spec.generation.enable_thinking, spec.generation.decoding) == ("greeting", False, "greedy")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("why: to have one", "why: to have one\ncolour: red", "colour: unknown key"),
        ("max_new_tokens: 8", "max_new_tokens: 0", "generation.max_new_tokens: Input should be greater"),
        ("max_new_tokens: 8", "max_new_tokens: 8, temperature: 1", "generation.temperature: unknown key"),
        ("skill: greeting\n", "", "skill: missing"),
        ("[freeform]", "[prose]", "lanes.0: Input should be 'structured' or 'freeform'"),
        ("[exact_text]", "[exact]", "no check is called 'exact'; there are exact_text"),
        ("{text: Hello}", "{txt: Hello}", "must_pass 'hello': expected.text: missing"),
        ("answer: Hello", "answer: Hi", "must_pass 'hello': its own answer fails"),
        (
            "must_pass:",
            "family: {generator: json_flat, seed: 1, n: 2}\nmust_pass:",
            "exactly one of must_pass and family",
        ),
        ("lanes: [freeform]", "lanes: [freeform", "not valid YAML"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in VALID
    file = tmp_path / "greeting.yaml"
    file.write_text(VALID.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_spec(file)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(file))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("{generator: jsn, seed: 1, n: 2}", "no generator is called 'jsn'; there are discount_compare"),
        ("{generator: json_flat, seed: 1, n: 2, split: train}", "family.split: Input should be 'test'"),
    ],
)
def test_a_bad_family_is_refused(tmp_path: Path, family: str, said: str) -> None:
    file = tmp_path / "greeting.yaml"
    file.write_text(VALID[: VALID.index("must_pass")] + f"family: {family}\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_spec(file)
    assert said in str(caught.value)


def test_an_empty_folder_and_a_repeated_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no canary specification"):
        load_specs(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(VALID, encoding="utf-8")
    with pytest.raises(UsageError, match="already used"):
        load_specs(tmp_path)


def test_the_shipped_files_are_named_after_their_ids() -> None:
    assert {file.stem for file in SPECS_FOLDER.glob("*.yaml")} == {spec.id for spec in SPECS}
