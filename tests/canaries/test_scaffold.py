"""From a production transcript to a canary: what is read, guessed, refused, and found decisive."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.canaries.checks import CHECKS, run_checks
from q36eval.canaries.scaffold import (
    EXPECTATIONS,
    Wanted,
    decisive_place,
    guess_checks,
    inferred_schema,
    scaffold,
    write_new,
    yaml_text,
)
from q36eval.canaries.specification import load_specs, read_spec
from q36eval.canaries.transcript import Transcript, answer_text, read_transcript, transcript_of
from q36eval.errors import UsageError
from tests.raising import raises

LIGHT = {
    "type": "function",
    "function": {
        "name": "set_light",
        "description": "Switch a light",
        "parameters": {
            "type": "object",
            "properties": {"room": {"type": "string"}, "on": {"type": "boolean"}, "level": {"type": "integer"}},
            "required": ["room", "on"],
        },
    },
}
QUESTION = {"role": "user", "content": "Rozsviť světlo v hale, jas 73 %."}


def calling(arguments: str, name: str = "set_light") -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


WRONG = calling('{"room": "hall", "on": true, "level": 7}')
INCIDENT = {"messages": [QUESTION, WRONG], "tools": [LIGHT], "model": "whatever", "temperature": 0.7}


def written(tmp_path: Path, body: Any) -> Path:
    file = tmp_path / "incident.json"
    file.write_text(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False), encoding="utf-8")
    return file


def plain(right: str, **wanted: Any) -> dict[str, Any]:
    return scaffold(Transcript(messages=(QUESTION,)), right, Wanted("inc", "why", **wanted))


def test_openai_calls_become_what_a_template_and_a_model_write() -> None:
    earlier = calling('{"room": "hall", "on": false}')
    transcript = transcript_of(
        {
            "messages": [QUESTION, earlier, {"role": "tool", "tool_call_id": "c1", "content": "done"}, WRONG],
            "tools": [LIGHT["function"]],
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
            "chat_template_kwargs": {"enable_thinking": True},
            "max_tokens": 99,
        }
    )
    assert transcript.messages[1]["tool_calls"][0]["function"]["arguments"] == {"room": "hall", "on": False}
    assert transcript.messages[2] == {"role": "tool", "content": "done"}
    assert transcript.tools == (LIGHT,)
    assert (transcript.schema, transcript.thinking, transcript.max_new_tokens) == ({"type": "object"}, True, 99)
    assert transcript.answer is not None
    assert "<function=set_light>\n<parameter=room>\nhall\n</parameter>\n<parameter=on>\ntrue\n" in transcript.answer
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert transcript_of([{"role": "user", "content": parts}]).messages == ({"role": "user", "content": "ab"},)


@pytest.mark.parametrize(
    ("body", "needle"),
    [
        ("{not json", "is not JSON (line 1, column 2"),
        ('{"messages": [NaN]}', "is not JSON that can be read"),
        ({"prompt": "hello"}, "it has no messages"),
        ({"messages": []}, "empty"),
        (["hello"], "message 1 is not a mapping"),
        ([{"role": "robot", "content": "x"}], "role 'robot'"),
        ([QUESTION, {"role": "assistant", "content": None}], "neither content nor tool calls"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url'"),
        ([QUESTION, calling("{room")], "message 2: the arguments of the call of 'set_light' are not JSON"),
        ([QUESTION, calling("[1]")], "not a JSON object"),
        (
            [QUESTION, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
            "two assistant",
        ),
        ([QUESTION, {"role": "system", "content": "late"}, QUESTION], "message 2 is a system message"),
        ([{"role": "system", "content": "only"}], "no user message"),
        ('[{"role": "user", "content": "\\ud800"}]', "half a surrogate"),
        ({"messages": [QUESTION], "tools": [{"name": 3}]}, "tool 1"),
    ],
)
def test_what_is_no_transcript_is_refused_in_one_sentence(tmp_path: Path, body: Any, needle: str) -> None:
    file = written(tmp_path, body)
    with pytest.raises(UsageError) as refused:
        read_transcript(file)
    message = str(refused.value)
    assert needle in message
    assert str(file) in message
    assert "\n" not in message


def test_a_transcript_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes('["č"]'.encode("iso8859-2"))
    for name, code in (("latin.json", "file-not-utf8"), ("none.json", "file-unreadable"), (".", "file-unreadable")):
        with raises(UsageError, code):
            read_transcript(tmp_path / name)


@pytest.mark.parametrize(
    ("right", "check", "expected"),
    [
        ('{"a": 1, "b": [true, null]}', "json", {"object": {"a": 1, "b": [True, None]}}),
        ('Tady je:\n{"a": 1}', "json_in_prose", {"object": {"a": 1}}),
        ("CZ49 2079\n2026-11-21", "exact_lines", {"lines": ["CZ49 2079", "2026-11-21"]}),
        ("low, medium, high", "ordered_list", {"items": ["low", "medium", "high"]}),
        ("Ano, souhlasím.", "exact_text", {"text": "Ano, souhlasím."}),
    ],
)
def test_the_right_answers_form_says_what_judges_it(right: str, check: str, expected: dict[str, Any]) -> None:
    body = plain(right)
    assert body["checks"] == [check]
    inferred = body["must_pass"][0]["expected"]
    assert {key: inferred[key] for key in expected} == expected
    assert run_checks(right, body["checks"], inferred) == []


def test_calls_are_typed_by_their_schema_and_wrong_ones_fail() -> None:
    transcript = transcript_of(INCIDENT)
    right = answer_text(json.dumps(calling('{"room": "hall", "on": true, "level": 73}')))
    body = scaffold(transcript, right, Wanted("light", "lost a digit"))
    (prompt,) = body["must_pass"]
    assert prompt["expected"] == {"name": "set_light", "arguments": {"room": "hall", "on": True, "level": 73}}
    assert prompt["decisive"] == [{"before": "<parameter=level>\n", "right": "73", "wrong": ["7"]}]
    assert run_checks(transcript.answer or "", body["checks"], prompt["expected"], prompt["tools"])
    assert guess_checks("Na to nemám nástroj.", transcript) == ["no_tool_call"]
    with raises(UsageError, "tool-unknown", "'set_lamp'"):
        scaffold(transcript, right.replace("set_light", "set_lamp"), Wanted("light", "x"))


def test_wrong_answers_of_models_are_decisive_too_and_right_ones_are_not() -> None:
    transcript = transcript_of(INCIDENT)
    right = answer_text(json.dumps(calling('{"room": "hall", "on": true, "level": 73}')))
    reworded = f"Jistě.\n{right}"
    other_tool = right.replace("set_light", "set_lamp")
    (prompt,) = scaffold(transcript, right, Wanted("light", "x"), [reworded, other_tool])["must_pass"]
    assert [place["wrong"] for place in prompt["decisive"]] == [["set_lamp"], ["7"]]


def test_the_strict_schema_takes_the_right_value_and_no_other_shape() -> None:
    import jsonschema

    value = {"a": 1, "b": [1, "x"], "c": None, "d": {"e": 0.5}}
    schema = inferred_schema(value)
    jsonschema.validate(value, schema)
    for wrong in (value | {"a": "1"}, value | {"z": 1}, {"a": 1}, value | {"b": [True]}, value | {"d": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_where_two_answers_first_part() -> None:
    assert decisive_place("Vyjde 73 Kč.", "Vyjde 7 Kč.") == {"before": "Vyjde ", "right": "73", "wrong": ["7"]}
    # the same words stand earlier: the line before tells the places apart
    repeated = decisive_place("x 1\ny\nx 1", "x 1\ny\nx 2")
    assert repeated == {"before": "y\nx ", "right": "1", "wrong": ["2"]}
    assert decisive_place("ano", "ano, ale") is None, "that it ends is decisive by itself"


@pytest.mark.parametrize(
    ("right", "wanted", "expected"),
    [
        ("bug", {"checks": ("enum_member",)}, ("canary-checks-unusable", "'options'")),
        ("bug", {"checks": ("nope",)}, ("check-unknown", "'nope'")),
        ("bug", {"checks": ("tool_call",)}, ("canary-answer-unreadable",)),
        ("bug", {"checks": ("json",)}, ("canary-answer-unreadable",)),
        ("bug", {"checks": ("exact_text",), "expected": {"text": "question"}}, ("canary-answer-fails",)),
    ],
)
def test_a_right_answer_that_cannot_be_judged_or_fails_is_refused(
    right: str, wanted: Any, expected: tuple[str, ...]
) -> None:
    with raises(UsageError, *expected):
        plain(right, **wanted)


def test_tools_that_are_none_are_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "objekt"}}}
    with raises(UsageError, "transcript-invalid"):
        scaffold(transcript_of({"messages": [QUESTION], "tools": [tool]}), "bug", Wanted("inc", "x"))


def test_an_answer_gets_tokens_enough_and_reasoning_its_own() -> None:
    assert plain("bug")["generation"]["max_new_tokens"] == 64
    assert plain("x" * 100)["generation"]["max_new_tokens"] == 256
    assert plain("bug", thinking=True)["generation"]["max_new_tokens"] == 64 + 2048
    assert plain("bug", max_new_tokens=7)["generation"]["max_new_tokens"] == 7


def test_a_transcript_whose_answer_passes_shows_no_incident() -> None:
    transcript = transcript_of([QUESTION, {"role": "assistant", "content": "bug"}])
    with raises(UsageError, "canary-shows-nothing", "exact_text"):
        scaffold(transcript, "bug", Wanted("inc", "x"))


def test_several_right_answers_are_refused() -> None:
    with raises(UsageError, "answer-ambiguous", "2 right"):
        answer_text(json.dumps([WRONG, WRONG]))


@pytest.mark.parametrize(
    "text",
    [
        "  indented\n\n  code  \n",
        "tab\there\r\n",
        "yes",
        "'quoted' # no comment",
        "\x85\u2028",
        "a: b\n- c",
        "\n",
        "😀 ok ",
    ],
)
def test_every_text_comes_back_from_the_file_as_it_was(tmp_path: Path, text: str) -> None:
    transcript = Transcript(messages=({"role": "system", "content": text or "x"}, QUESTION))
    body = scaffold(transcript, "bug", Wanted("inc", f"why {text}", checks=("exact_text",)))
    file = tmp_path / "inc.yaml"
    write_new(file, yaml_text(body, ["a remark\nin two lines"]))
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == body
    assert read_spec(file).must_pass[0].messages[0]["content"] == text  # type: ignore[index]


def test_the_file_loads_beside_the_shipped_ones_and_is_never_overwritten(tmp_path: Path) -> None:
    right = answer_text(json.dumps(calling('{"room": "hall", "on": true, "level": 73}')))
    text = yaml_text(scaffold(transcript_of(INCIDENT), right, Wanted("light", "lost a digit")), [])
    write_new(tmp_path / "light.yaml", text)
    (spec,) = load_specs(own=tmp_path, only=["light"])
    assert spec.must_pass is not None
    assert spec.must_pass[0].decisive[0].right == "73"
    with raises(UsageError, "file-exists"):
        write_new(tmp_path / "light.yaml", "")
    assert (tmp_path / "light.yaml").read_text(encoding="utf-8") == text


def test_every_check_that_an_answer_can_tell_is_known() -> None:
    assert set(EXPECTATIONS) <= set(CHECKS)
