"""Specifications written wrong: one clear sentence for each, with the file and the key, and never a traceback."""

import random
from pathlib import Path

import pytest

from q36eval.canaries.cases import cases_of, draws
from q36eval.canaries.checks.patterns import compiled
from q36eval.canaries.generators import GENERATORS
from q36eval.canaries.specification import Family, load_specs, read_spec
from q36eval.errors import UsageError
from q36eval.examples import ChatExample
from tests.raising import raises

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


PROMPT_KEYS = "expected: {text"
"""Where further keys of the fixed prompt can stand."""


def refusal(folder: Path, text: str) -> str:
    """What is said of a canary with that text: one sentence that begins with the file."""
    file = folder / "greeting.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_spec(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("why: to have one", "why: to have one\ncolour: red", "colour: unknown key"),
        ("max_new_tokens: 8", "max_new_tokens: 0", "generation.max_new_tokens: Input should be greater"),
        ("max_new_tokens: 8", "max_new_tokens: 8, temperature: 1", "generation.temperature: unknown key"),
        ("skill: greeting\n", "", "skill: missing"),
        *(
            (
                "skill: greeting",
                f"skill: greeting\nabsolute: {said}",
                f"absolute is true or false, not {held}; correct it",
            )
            for said, held in (("maybe", "'maybe'"), ("1", "1"), ('"yes"', "'yes'"))
        ),
        ("[freeform]", "[prose]", "lanes.0: Input should be 'structured' or 'freeform'"),
        ("[exact_text]", "[exact]", "no check is called 'exact'; there are exact_text"),
        ("{text: Hello}", "{txt: Hello}", "must_pass 'hello': expected.text: missing"),
        ("answer: Hello", "answer: Hi", "must_pass 'hello': its own answer fails its checks: "),
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
    assert said in refusal(tmp_path, VALID.replace(old, new))


def offering(parameters: str) -> str:
    """A prompt that offers one tool with these parameters."""
    tool = f"{{type: function, function: {{name: f, parameters: {parameters}}}}}"
    return f"tools: [{tool}]\n    {PROMPT_KEYS}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: user", "role: robot", "message 1 has the role 'robot'; there are system, user"),
        ('content: "Say hello."', "content: 2024-01-01", "message 1 has no text under content"),
        (
            "[{role: user",
            '[{role: assistant, content: "", tool_calls: [{name: f, arguments: "{}"}]}, {role: user',
            "message 1: the arguments of 'f' must be a mapping",
        ),
        (
            PROMPT_KEYS,
            f"tools: [{{type: function, function: {{}}}}]\n    {PROMPT_KEYS}",
            "must_pass.0: tool 1 has no name",
        ),
        (
            PROMPT_KEYS,
            offering("{type: objekt}"),
            "parameters of tool 'f': the schema is not a JSON Schema: $.type",
        ),
        (PROMPT_KEYS, offering('{properties: {a: {$ref: "http://x.example/s"}}}'), "does not resolve within it"),
        ("answer: Hello", "answer: Hello\n    decisive: [{before: Hell, right: a}]", "not hold 'a' after 'Hell'"),
        (
            "answer: Hello",
            "answer: Hello\n    decisive: [{before: Hell, right: o, wrong: [i, o]}]",
            "decisive: 'o' is listed as both right and wrong",
        ),
        ("answer: Hello", "answer: Hello\n    decisive: [{right: o}]", "must_pass.0.decisive.0.before: missing"),
        ("[exact_text]", "[exact_text]\ndecisive: [txt]", "no decision of kind 'txt' in its answers; there are text"),
    ],
)
def test_a_prompt_that_no_model_could_be_asked_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in VALID
    assert said in refusal(tmp_path, VALID.replace(old, new))


@pytest.mark.parametrize(
    ("check", "expected", "answer", "said"),
    [
        ("json", "{object: {}, schema: {type: 7}}", "{}", "expected: the schema is not a JSON Schema: $.type"),
        ("pattern", "{pattern: {must_match: '(a'}}", "a", "expected.pattern: must_match is not a regular expression"),
        ("pattern", "{pattern: {must_match: '^(a|aa)+$'}}", f"{'a' * 60}!", "ran out of its"),
    ],
)
def test_what_an_answer_cannot_be_judged_by_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str, expected: str, answer: str, said: str
) -> None:
    monkeypatch.setattr("q36eval.canaries.checks.patterns.PATTERN_SECONDS", 0.05)
    text = VALID.replace("[exact_text]", f"[{check}]").replace("{text: Hello}", expected)
    message = refusal(tmp_path, text.replace("answer: Hello", f"answer: '{answer}'"))
    assert said in message
    assert "must_pass 'hello'" in message


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("{generator: jsn, seed: 1, n: 2}", "no generator is called 'jsn'; there are discount_compare"),
        ("{generator: json_flat, seed: 1, n: 2, split: train}", "family.split: Input should be 'test'"),
        ("{generator: recall, seed: 1, settings: {pages: 3}}", "no setting 'pages'; it has characters, records"),
        ("{generator: json_flat, seed: 1, settings: {pages: 3}}", "json_flat has no setting 'pages'; it has none"),
    ],
)
def test_a_bad_family_is_refused(tmp_path: Path, family: str, said: str) -> None:
    assert said in refusal(tmp_path, VALID[: VALID.index("must_pass")] + f"family: {family}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list\n", "must hold one mapping with the keys id, skill"),
        ("", "must hold one mapping"),
        (VALID.replace("skill:", "id:", 1), "greeting.yaml:3: the key 'id' is given twice"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "an alias (*a) stands here"),
        ("a: &a [*a]\n", "an alias (*a) stands here"),
        ("id: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        (f"why: {'[' * 900_000}\n", "nested more than 60 levels deep"),
        (f"{VALID}# {'x' * 2_000_000}\n", "more than the 2,000,000 that a canary may have"),
    ],
    ids=["list", "empty", "key twice", "alias bomb", "alias of itself", "python object", "deep", "large"],
)
def test_yaml_that_is_no_canary_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_files_that_cannot_be_read_as_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "greeting.yaml"
    file.write_bytes("why: Příliš žluťoučký".encode("cp1250"))
    with raises(UsageError, "file-not-utf8", "greeting.yaml", "byte 6"):
        read_spec(file)
    (tmp_path / "folder.yaml").mkdir()
    for name in ("folder.yaml", "missing.yaml"):
        with raises(UsageError, "file-unreadable", name):
            read_spec(tmp_path / name)


def test_an_empty_folder_and_a_repeated_id_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "canaries-missing"):
        load_specs(tmp_path)
    (tmp_path / "one.txt").write_text(VALID, encoding="utf-8")
    with raises(UsageError, "path-is-file", "one.txt"):
        load_specs(tmp_path / "one.txt")
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(VALID, encoding="utf-8")
    with raises(UsageError, "canary-duplicate"):
        load_specs(tmp_path)


def test_a_family_larger_than_its_generator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"few:{rng.randrange(50)}", messages=(), answer="")

    monkeypatch.setitem(GENERATORS, "few", few)
    with raises(UsageError, "canary-draws-exhausted", "x: few", "40"):
        draws(Family(generator="few", seed=1, n=40), "x")


def test_a_generator_that_raises_is_named_with_its_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [1, 1, 0]

    def broken(rng: random.Random) -> ChatExample:
        return ChatExample(key=f"test:{1 // left.pop(0)}:b:{len(left)}", messages=(), answer="")

    monkeypatch.setattr("q36eval.examples.split_of", lambda key: "test")
    monkeypatch.setitem(GENERATORS, "broken", broken)
    with pytest.raises(UsageError) as caught:
        draws(Family(generator="broken", seed=1, n=9), "x")
    assert str(caught.value).startswith("Canary x: broken fails at draw 3 (ZeroDivisionError: ")


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("[tool_call]", ("canary-checks-unusable", "greeting", "'name'")),
        ("[no_tool_call, exact_lines]", ("canary-checks-unusable", "'lines'")),
        ("[json]\ndecisive: [value, sum]", ("canary-invalid", "'sum'")),
    ],
)
def test_a_family_whose_checks_do_not_fit_its_generator_is_refused(
    tmp_path: Path, checks: str, expected: tuple[str, ...]
) -> None:
    text = VALID[: VALID.index("must_pass")].replace("[exact_text]", checks)
    (tmp_path / "greeting.yaml").write_text(f"{text}family: {{generator: json_flat, seed: 1}}\n", encoding="utf-8")
    (spec,) = load_specs(tmp_path)
    with raises(UsageError, *expected):
        cases_of(spec)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{text: Hello}", "{text: Hello, when: 2026-01-31}", "expected.when is a YAML date (2026-01-31)"),
        ("{text: Hello}", "{text: Hello, most: .nan}", "expected.most is nan"),
        ("{text: Hello}", "{text: Hello, any_ordr: true}", "expected.any_ordr: no check reads this key"),
        (
            "answer: Hello",
            "answer: Hello\n    tools: [{name: f, description: 2026-01-31, parameters: {}}]",
            "tools[0].description is a YAML date",
        ),
        ('content: "Say hello."', 'content: "Say hello.", sent: 2026-01-31', "messages[0].sent is a YAML date"),
        ('"Say hello."}', '"Say hello."}, {role: system, content: Be short.}', "message 2 is a system message"),
        ("role: user", "role: system", "no message has the role user"),
        ('"Say hello."}', '"Say hello."}, {role: assistant, content: Hi}', "the last message has the role assistant"),
    ],
)
def test_what_no_model_could_be_asked_is_refused_before_a_run(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in VALID
    assert said in refusal(tmp_path, VALID.replace(old, new))


def test_two_prompts_of_a_file_differ_in_name_and_in_what_is_asked(tmp_path: Path) -> None:
    prompt = VALID[VALID.index("  - name") :]
    assert "two prompts are called 'hello'" in refusal(tmp_path, VALID + prompt.replace("Say hello.", "Greet me."))
    again = prompt.replace("name: hello", "name: again")
    assert "the prompts 'hello' and 'again' are identical; remove one" in refusal(tmp_path, VALID + again)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{$dynamicRef: "http://127.0.0.1:9/x.json"}', "does not resolve within it"),
        ('{$dynamicRef: "#here"}', "does not resolve within it"),
        ('{properties: {a: {$ref: "#/x"}}, x: {$ref: "http://127.0.0.1:9/x.json"}}', "does not lead to a schema"),
        ('{properties: {a: {$ref: "#/x"}}, x: {patternProperties: {"^(a+)+$": {}}}}', "does not lead to a schema"),
        (
            '{properties: {a: {$id: "http://other/", $ref: "#/$defs/b"}}, $defs: {b: {type: integer}}}',
            "a reference of the schema does not resolve",
        ),
    ],
)
def test_a_reference_leads_to_a_part_of_the_schema_that_is_checked_too(tmp_path: Path, schema: str, said: str) -> None:
    text = VALID.replace("[exact_text]", "[json]").replace("answer: Hello", "answer: '{\"a\": 1}'")
    assert said in refusal(tmp_path, text.replace("{text: Hello}", f"{{object: {{a: 1}}, schema: {schema}}}"))


@pytest.mark.parametrize("pattern", ["(?:(?:a{9999}){9999}){9999}", "(a|(?1)b|(?1))+$", "(?:a(?R)?)*b"])
def test_a_pattern_that_would_take_all_memory_is_refused_unread(tmp_path: Path, pattern: str) -> None:
    text = VALID.replace("[exact_text]", "[pattern]")
    assert "expected.pattern: must_match" in refusal(
        tmp_path, text.replace("{text: Hello}", f"{{pattern: {{must_match: '{pattern}'}}}}")
    )


@pytest.mark.parametrize("pattern", [r"(?s)^.{0,50000}$", r"^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$", r"[{(]{2}"])
def test_ordinary_repeats_are_no_explosion(pattern: str) -> None:
    assert compiled(pattern, "it")
