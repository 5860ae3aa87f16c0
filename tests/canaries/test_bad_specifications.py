"""Specifications written wrong: refused with the file and the key, never with a traceback."""

import random
from pathlib import Path

import pytest

from q36eval.canaries.cases import cases_of, draws
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.specification import Family, load_specs, read_spec
from q36eval.errors import UsageError
from q36eval.examples import ChatExample
from tests.canaries.runs import GREETING
from tests.raising import raises

PROMPT = GREETING[GREETING.index("  - name") :]
FAMILY = GREETING[: GREETING.index("must_pass")]
PROMPT_KEYS = "expected: {text"
"""Where further keys of the fixed prompt can stand."""


def refused(folder: Path, text: str, *values: str, code: str = "file-invalid") -> None:
    """A canary with that text is refused in one sentence that names the file and the values."""
    file = folder / "greeting.yaml"
    file.write_text(text, encoding="utf-8")
    with raises(UsageError, code, file, *values) as error:
        read_spec(file)
    assert "\n" not in str(error.value)


def offering(parameters: str) -> str:
    """A prompt that offers one tool with these parameters."""
    return f"tools: [{{type: function, function: {{name: f, parameters: {parameters}}}}}]\n    {PROMPT_KEYS}"


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("why: to have one", "why: to have one\ncolour: red", "colour"),
        ("skill: greeting", "skill: greeting\nabsolute: 1", "absolute"),
        ("[exact_text]", "[exact]", "'exact'"),
        ("{text: Hello}", "{txt: Hello}", "'hello': expected.text"),
        ("answer: Hello", "answer: Hi", "'hello'"),
        ("must_pass:", "family: {generator: json_flat, seed: 1, n: 2}\nmust_pass:", "must_pass and family"),
        ("role: user", "role: robot", "'robot'"),
        ('content: "Say hello."', "content: 2024-01-01", "message 1"),
        (
            "[{role: user",
            '[{role: assistant, content: "", tool_calls: [{name: f, arguments: "{}"}]}, {role: user',
            "arguments of 'f'",
        ),
        (PROMPT_KEYS, offering("{type: objekt}"), "'f'"),
        ("{text: Hello}", "{text: Hello, when: 2026-01-31}", "expected.when"),
        ("{text: Hello}", "{text: Hello, most: .nan}", "expected.most"),
        ("{text: Hello}", "{text: Hello, any_ordr: true}", "expected.any_ordr"),
        ('content: "Say hello."', 'content: "Say hello.", sent: 2026-01-31', "messages[0].sent"),
        (PROMPT, PROMPT + PROMPT.replace("Say hello.", "Greet me."), "two prompts are called 'hello'"),
        (PROMPT, PROMPT + PROMPT.replace("name: hello", "name: again"), "'again'"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, value: str) -> None:
    assert old in GREETING
    refused(tmp_path, GREETING.replace(old, new), value)


@pytest.mark.parametrize(
    ("check", "expected", "answer", "value"),
    [
        ("pattern", "{pattern: {must_match: '(a'}}", "a", "expected.pattern"),
        ("pattern", "{pattern: {must_match: '^(a|aa)+$'}}", f"{'a' * 60}!", "ran out of its"),
    ],
)
def test_what_an_answer_cannot_be_judged_by_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, expected: str, answer: str, value: str
) -> None:
    """Patterns that would take all time too."""
    monkeypatch.setattr("q36eval.canaries.checks.patterns.PATTERN_SECONDS", 0.05)
    text = GREETING.replace("[exact_text]", f"[{check}]").replace("{text: Hello}", expected)
    refused(tmp_path, text.replace("answer: Hello", f"answer: '{answer}'"), value, "'hello'")


@pytest.mark.parametrize(
    ("family", "value"),
    [
        ("{generator: jsn, seed: 1, n: 2}", "'jsn'"),
        ("{generator: json_flat, seed: 1, n: 2, split: train}", "family.split"),
        ("{generator: recall, seed: 1, settings: {pages: 3}}", "'pages'; it has characters, records"),
    ],
)
def test_a_bad_family_is_refused(tmp_path: Path, family: str, value: str) -> None:
    refused(tmp_path, f"{FAMILY}family: {family}\n", value)


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
