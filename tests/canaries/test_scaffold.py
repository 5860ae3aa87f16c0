"""From a production transcript to a canary: the transcript, the guessed checks, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.canaries.checks import run_checks
from q36eval.canaries.generators.tools import tool_schema
from q36eval.canaries.scaffold import Transcript, answer_text, guess_check, read_transcript, scaffold, yaml_text
from q36eval.canaries.specification import load_specs
from q36eval.errors import UsageError
from tests.raising import raises

LIGHT = tool_schema("set_light")
QUESTION = {"role": "user", "content": "Rozsviť světlo v hale, jas 73 %."}


def calling(arguments: str, name: str = "set_light") -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


WRONG = calling('{"room": "hall", "on": true, "level": 7}')
RIGHT = answer_text(json.dumps(calling('{"room": "hall", "on": true, "level": 73}')))
INCIDENT = Transcript.model_validate({"messages": [QUESTION, WRONG], "tools": [LIGHT], "temperature": 0.7})


def plain(right: str, *answers: str, **wanted: Any) -> dict[str, Any]:
    transcript = {"messages": [QUESTION, *({"role": "assistant", "content": answer} for answer in answers)]}
    return scaffold(Transcript.model_validate(transcript), right, "inc", "why", **wanted)


def test_openai_calls_become_what_a_template_and_a_model_write() -> None:
    earlier = calling('{"room": "hall", "on": false}')
    transcript = Transcript.model_validate(
        {
            "messages": [QUESTION, earlier, {"role": "tool", "tool_call_id": "c1", "content": "done"}, WRONG],
            "tools": [LIGHT],
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
            "chat_template_kwargs": {"enable_thinking": True},
        }
    )
    assert transcript.conversation[1]["tool_calls"][0]["function"]["arguments"] == {"room": "hall", "on": False}
    assert transcript.conversation[2] == {"role": "tool", "content": "done"}
    assert transcript.tools == [LIGHT]
    assert transcript.answer is not None
    assert "<function=set_light>\n<parameter=room>\nhall\n</parameter>\n<parameter=on>\ntrue\n" in transcript.answer
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    joined = Transcript.model_validate({"messages": [{"role": "user", "content": parts}]})
    assert joined.conversation == [{"role": "user", "content": "ab"}]
    thinking = scaffold(transcript, RIGHT, "light", "why")["generation"]
    assert thinking == {"enable_thinking": True, "max_new_tokens": 2 * len(RIGHT) + 2048}
    (asked,) = scaffold(transcript, '{"a": 1}', "light", "why", checks={"json": {}})["must_pass"]
    assert asked["expected"] == {"object": {"a": 1}, "schema": {"type": "object"}}


@pytest.mark.parametrize(
    "body",
    [
        '{"messages": NaN}',
        '[{"role": "user", "content": "\\ud800"}]',
        {"prompt": "hello"},
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
        [QUESTION, calling("{room")],
        {"messages": [QUESTION], "tools": [{"function": {"name": "f", "parameters": {"type": "x"}}}]},
    ],
)
def test_a_document_that_is_not_a_transcript_is_refused(tmp_path: Path, body: Any) -> None:
    file = tmp_path / "incident.json"
    file.write_text(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False), encoding="utf-8")
    with raises(UsageError, "transcript-invalid", file) as refused:
        read_transcript(file)
    assert "\n" not in str(refused.value)


def test_a_text_file_is_one_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Co je to?", encoding="utf-8")
    assert read_transcript(tmp_path / "prompt.txt").conversation == [{"role": "user", "content": "Co je to?"}]


@pytest.mark.parametrize(
    ("right", "check", "expected"),
    [
        ('{"a": 1, "b": [true, null]}', "json", {"object": {"a": 1, "b": [True, None]}}),
        ("Ano, souhlasím.", "exact_text", {"text": "Ano, souhlasím."}),
    ],
)
def test_the_form_of_the_right_answer_gives_the_check(right: str, check: str, expected: dict[str, Any]) -> None:
    body = plain(right)
    assert body["checks"] == [check]
    inferred = body["must_pass"][0]["expected"]
    assert {key: inferred[key] for key in expected} == expected
    assert run_checks(right, body["checks"], inferred) == []


def test_calls_are_typed_by_their_schema_and_wrong_ones_fail() -> None:
    body = scaffold(INCIDENT, RIGHT, "light", "lost a digit")
    (prompt,) = body["must_pass"]
    assert prompt["expected"] == {"name": "set_light", "arguments": {"room": "hall", "on": True, "level": 73}}
    assert run_checks(INCIDENT.answer or "", body["checks"], prompt["expected"], prompt["tools"])
    assert guess_check("Na to nemám nástroj.", INCIDENT) == "no_tool_call"
    assert guess_check(f"{RIGHT}\n{RIGHT}", INCIDENT) == "tool_calls"


@pytest.mark.parametrize(
    ("right", "checks", "code"),
    [
        ("bug", {"enum_member": {}}, "canary-invalid"),  # needs options
        ("bug", {"nope": {}}, "canary-invalid"),
        ("bug", {"tool_call": {}}, "canary-invalid"),
        ("bug", {"json": {}}, "canary-invalid"),
        ("bug", {"exact_text": {"text": "question"}}, "canary-invalid"),
        (RIGHT.replace("set_light", "set_lamp"), {"tool_call": {}}, "tool-unknown"),
        (f"{RIGHT}\n{RIGHT}", {"tool_call": {}}, "canary-invalid"),
    ],
)
def test_a_right_answer_that_cannot_be_judged_or_fails_is_refused(right: str, checks: Any, code: str) -> None:
    with raises(UsageError, code):
        scaffold(INCIDENT, right, "light", "x", checks=checks)


def test_a_wrong_answer_that_passes_is_refused() -> None:
    assert plain("bug", wrong=["question"])["checks"] == ["exact_text"]
    for attempt in (lambda: plain("bug", "bug "), lambda: plain("bug", wrong=["bug"])):
        with raises(UsageError, "canary-shows-nothing"):
            attempt()


@pytest.mark.parametrize(
    "text",
    [
        "  indented\n\n  code  \n",
        "'quoted' # no comment",
        "\x85\u2028",
        "a: b\n- c",
        "\n",
        "😀 ok ",
    ],
)
def test_every_text_comes_back_from_the_file_as_it_was(tmp_path: Path, text: str) -> None:
    transcript = Transcript.model_validate({"messages": [{"role": "system", "content": text}, QUESTION]})
    body = scaffold(transcript, "bug", "inc", f"why {text}", checks={"exact_text": {}})
    file = tmp_path / "inc.yaml"
    file.write_text(yaml_text(body, ["a remark\nin two lines"]), encoding="utf-8")
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == body
    (spec,) = load_specs(own=tmp_path, only=["inc"])
    assert spec.must_pass is not None
    assert (spec.must_pass[0].messages[0]["content"], spec.must_pass[0].answer) == (text, "bug")
