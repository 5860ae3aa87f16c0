"""Calls in the wire formats of Llama, Mistral and GPT-OSS: read, typed, judged, decided; from real renderings too.

Calls as the published Qwen3.5 template writes them, and conversations that it refuses. The template
(`template/strict.jinja`) is our own, with that one's habits; a real tokenizer object applies it.
"""

import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from q36eval.canaries.answers import answer_of, judged_answer
from q36eval.canaries.cases import Case, cases_of, in_format
from q36eval.canaries.checks import calls_fit, decisions, run_checks
from q36eval.canaries.checks.tool_parser import MAX_CALLS, parse_reply, schemas_by_name, typed_arguments
from q36eval.canaries.specification import for_family, load_specs, not_judged
from q36eval.chat import rendered_chat
from q36eval.chat.template_abilities import abilities_of
from q36eval.checkpoints import load_tokenizer
from q36eval.config.family import ChatTemplate, Family, ToolFormat
from tests.canaries.runs import BF16
from tests.canaries.test_checks import ARGUMENTS, BOOKING, HERMES, TOOLS
from tests.q36eval.chat.templates import BY_FORMAT, templated

SAID = '{"nights": 3, "board": "half", "paid": true, "guests": ["Jana", "Petr"]}'
CALLS: dict[str, tuple[ToolFormat, str]] = {
    "llama": ("llama_json", f'{{"name": "book", "parameters": {SAID}}}'),
    "llama, tagged": ("llama_json", f'<|python_tag|>{{"name": "book", "parameters": {SAID}}}'),
    "mistral list": ("mistral", f'[TOOL_CALLS] [{{"name": "book", "arguments": {SAID}, "id": "call00000"}}]'),
    "mistral name": ("mistral", f"[TOOL_CALLS]book[ARGS]{SAID}"),
    "mistral id": ("mistral", f"[TOOL_CALLS]book[CALL_ID]a1B2c3D4e[ARGS] {SAID}"),
    "harmony": ("harmony", f"<|channel|>commentary to=functions.book <|constrain|>json<|message|>{SAID}<|call|>"),
    "harmony, cut at its end token": ("harmony", f" to=functions.book<|channel|>commentary json<|message|>{SAID}"),
}


def _codes(text: str, tool_format: str, check: str = "tool_call", **more: Any) -> set[str]:
    expected = (BOOKING if check == "tool_call" else {}) | {"tool_format": tool_format} | more
    return {failure.code for failure in run_checks(text, [check], expected, TOOLS)}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_is_read_typed_judged_and_decided(kind: str) -> None:
    tool_format, text = CALLS[kind]
    for before in ("", "I book it.\n" if kind != "harmony, cut at its end token" else ""):
        reply = parse_reply(before + text, tool_format)
        (call,) = reply.calls
        assert (call.name, typed_arguments(call, schemas_by_name(TOOLS)["book"])) == ("book", ARGUMENTS)
        assert (reply.before, reply.after, reply.problems, reply.attempts) == (before, "", (), 1)
        assert _codes(before + text, tool_format) == set()
        assert calls_fit(before + text, TOOLS, tool_format) is True
    assert calls_fit(text.replace('"half"', '"none"'), TOOLS, tool_format) is False
    assert _codes(text.replace('"half"', '"full"'), tool_format) == {"wrong_value"}
    assert _codes(text.replace("book", "weather"), tool_format) == {"wrong_tool"}
    assert _codes(text.replace("3,", '"3",'), tool_format) == {"wrong_type", "schema"}
    assert _codes(f"{text} Done.", tool_format) == {"text_after_call"}
    assert _codes(text, tool_format, "no_tool_call") == {"unwanted_call"}
    decided = decisions(text, ["tool_call"], BOOKING | {"tool_format": tool_format}, TOOLS)
    chosen = [(one.kind, text[one.start : one.end].strip('"')) for one in decided]
    assert chosen[0][0] == "call"
    assert decided[0].start == 0
    assert ("tool", "book") in chosen
    assert [said for kind, said in chosen if kind == "argument"] == ["3", "half", "true", "Jana", "Petr"]
    assert [one.wrong for one in decided if one.kind == "tool"] == [("weather",)]
    assert chosen[-1] == ("close", "}")


@pytest.mark.parametrize("kind", CALLS)
def test_every_beginning_of_a_call_is_no_right_one(kind: str) -> None:
    tool_format, text = CALLS[kind]
    whole = text.rindex("}") + 1
    for end in range(len(text)):
        cut = text[:end]
        if end < whole:
            assert _codes(cut, tool_format), cut
        assert len(parse_reply(cut, tool_format).calls) <= 1


@pytest.mark.parametrize(
    ("text", "tool_format", "codes"),
    [
        ("No tool fits.", "llama_json", {"no_call"}),
        (f'{{"name": "book", "arguments": {SAID}}}', "llama_json", set()),  # servers read it too
        (f'{{"name": "book", "parameters": "{SAID[:0]}"}}', "llama_json", {"malformed_call"}),
        ('{"name": ["book"], "parameters": {}}', "llama_json", {"malformed_call"}),
        ("<|python_tag|>book.call(nights=3)", "llama_json", {"malformed_call"}),
        (HERMES, "llama_json", {"hermes_format"}),
        (HERMES, "mistral", {"hermes_format"}),
        (f"[TOOL_CALLS] {SAID}", "mistral", {"malformed_call"}),
        ("[TOOL_CALLS] []", "mistral", {"malformed_call"}),
        (f'[TOOL_CALLS] [{{"name": "book", "arguments": {SAID}}}', "mistral", {"malformed_call"}),
        (f'[{{"name": "book", "arguments": {SAID}}}]', "mistral", {"no_call"}),
        (f"[TOOL_CALLS]book{SAID}", "mistral", {"malformed_call"}),
        (f"<|channel|>commentary to=functions.book <|message|>{SAID[:-1]}", "harmony", {"malformed_call"}),
        (f"<|channel|>commentary to=functions.book {SAID}", "harmony", {"malformed_call"}),
        ("<|channel|>commentary to=functions.book <|message|>[3]", "harmony", {"malformed_call"}),
        ("</tool_call>", "harmony", {"stray_markup"}),
    ],
)
def test_what_is_wrong_with_a_call_is_named(text: str, tool_format: str, codes: set[str]) -> None:
    assert _codes(text, tool_format) == codes


def test_calls_of_other_formats_are_prose_to_those_that_do_not_write_them() -> None:
    for _, text in CALLS.values():
        assert not parse_reply(text).tries_a_call


FILLERS = [
    "[TOOL_CALLS]",
    '{"name":',
    "<|python_tag|>",
    " ",
    "{",
    '{"name": "f", "parameters": {}};',
    "to=functions.f ",
]
FILLERS += ["<|channel|>commentary to=functions.f<|message|>{}", '[TOOL_CALLS][{"name": "f", "arguments": {}},']
FILLERS += ["<|channel|>analysis<|message|>", "[TOOL_CALLS]f[ARGS]", "<|start|>assistant", '{"name": "f", "x": [']


@pytest.mark.parametrize("filler", FILLERS)
def test_long_answers_are_read_soon_and_few_calls_of_them(filler: str) -> None:
    text = filler * (300_000 // len(filler))
    (case, *_) = _cases("tool-none", 1)
    begun = time.process_time()
    for tool_format in ("llama_json", "mistral", "harmony"):
        assert len(parse_reply(text, tool_format).calls) <= MAX_CALLS
    answer_of(case, text)
    assert time.process_time() - begun < 5, "linear: hundredths of a second"


def _cases(canary: str, n: int) -> list[Case]:
    (spec,) = load_specs(only=[canary], n=n, skills=None)
    return cases_of(spec)


TOOL_CANARIES = [spec.id for spec in load_specs(skills=None) if spec.id.startswith("tool-")]


ENDS = ("<|im_end|>\n", "<|eot_id|>", "<|call|>")


@pytest.mark.parametrize("shape", BY_FORMAT)
def test_every_tool_canary_is_asked_and_judged_in_each_format(shape: str, tmp_path: Path) -> None:
    """The right answer of every question, and the right calls as the template itself writes them, are right."""
    tool_format, template = BY_FORMAT[shape]
    one_a_turn = tool_format in ("llama_json", "harmony")
    system = abilities_of(templated(tmp_path, template)).template.system
    tokenizer = load_tokenizer(BF16)
    tokenizer.chat_template = template
    for case in (case for canary in TOOL_CANARIES for case in _cases(canary, 3)):
        asked = in_format(case, tool_format, system=system)
        assert run_checks(asked.answer, asked.checks, asked.expected, asked.tools) == [], asked.answer
        wanted = case.expected.get("calls", [case.expected])
        turns = [*(message.get("tool_calls", ()) for message in case.messages), wanted]
        if wanted[0].get("name") is None or (one_a_turn and max(map(len, turns)) > 1):
            continue
        turn = {"role": "assistant", "content": "", "tool_calls": wanted}
        answered = in_format(replace(case, messages=(*case.messages, turn)), tool_format, system=system)
        prompt = rendered_chat(tokenizer, asked.messages, asked.tools, enable_thinking=False)
        whole = rendered_chat(
            tokenizer, answered.messages, asked.tools, enable_thinking=False, add_generation_prompt=False
        )
        assert whole.startswith(prompt)
        written = whole[len(prompt) :]
        for end in (*ENDS, str(tokenizer.eos_token)):
            written = written.removesuffix(end)
        assert run_checks(written, asked.checks, asked.expected, asked.tools) == [], written


def test_in_harmony_the_answer_is_what_follows_the_thoughts() -> None:
    (case, *_) = _cases("tool-call", 1)
    case = in_format(case, "harmony")
    thought = "<|channel|>analysis<|message|>Functions, to=functions.f{}.<|end|><|start|>assistant"
    for text in (case.answer, thought + case.answer, thought * 2 + case.answer):
        assert judged_answer(case, text, "stop", 9).score == 1.0
        assert judged_answer(case, text, "stop", 9).detail["schema_ok"] is True
    assert judged_answer(case, thought, "length", 9).score == 0.0
    (plain, *_) = _cases("json-flat", 1)
    for text in (thought + f"<|channel|>final<|message|>{plain.answer}", f"<|channel|>final<|message|>{plain.answer}"):
        assert judged_answer(plain, text, "stop", 9).score == 1.0
    unended = "<|channel|>analysis<|message|>" + plain.answer
    assert answer_of(plain, unended) == (len(unended), "")
    assert judged_answer(plain, unended, "stop", 9).score == 0.0


SANDBOX = Family.load(Path(__file__).parents[2] / "data" / "families" / "sandbox.yaml")


def _models(tool_format: ToolFormat | None = "hermes", **template: Any) -> Family:
    written = ChatTemplate().model_copy(update=template)
    return SANDBOX.model_copy(update={"tool_format": tool_format, "template": written})


def test_what_a_template_does_not_write_is_not_asked_and_reported() -> None:
    specs = load_specs(skills=None)
    everything = {spec.id for spec in specs}
    reasoning = {spec.id for spec in specs if spec.generation.enable_thinking}
    tools, results = set(TOOL_CANARIES), {each for each in TOOL_CANARIES if "follow-up" in each or "results" in each}
    for models, absent in (
        (_models(), set()),
        (_models(None), tools),
        (_models(None, tools=False, results=False), tools),
        (_models(results=False), results),
        (_models(thinking="never"), reasoning),
        (_models(None, present=False), everything),
    ):
        assert {spec.id for spec in for_family(specs, models)} == everything - absent
        sentences = not_judged(specs, models)
        assert (len(sentences) > 0) == (len(absent) > 0)
        assert all(any(each in sentence for sentence in sentences) for each in absent)


def test_models_that_always_reason_have_more_tokens_and_a_system_text_moves_to_the_user() -> None:
    specs = {spec.id: spec for spec in load_specs(skills=None)}
    models = _models(thinking="always", system=False)
    settings = {spec.id: spec.generation for spec in for_family(specs.values(), models)}
    for name, spec in specs.items():
        assert settings[name].enable_thinking
        assert settings[name].max_new_tokens >= spec.generation.max_new_tokens
    assert settings["json-flat"].max_new_tokens > specs["json-flat"].generation.max_new_tokens
    assert len(not_judged(specs.values(), models)) == 2
    for case in _cases("tool-none", 4):
        (system, user), (only,) = case.messages, in_format(case, "hermes", system=False).messages
        assert only == {"role": "user", "content": f"{system['content']}\n\n{user['content']}"}
        assert in_format(case, "qwen3_xml") is case


# -- the published template

STRICT = Path(__file__).parent / "template" / "strict.jinja"
CASES = [case for spec in load_specs(skills=None, n=6) for case in cases_of(spec) if "<tool_call>" in case.answer]
DONE = "<think>\n\n</think>\n\n"


@cache
def _tokenizer() -> Any:
    """The sandbox's, but for its template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(BF16, local_files_only=True)
    tokenizer.chat_template = STRICT.read_text(encoding="utf-8")
    return tokenizer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_written_by_the_template_are_read_back_and_right(case: Case) -> None:
    """The conversation's own, and the right answer put back into it; with the types of their values."""
    right = case.expected.get("calls") or [{key: case.expected[key] for key in ("name", "arguments")}]
    answer = {"role": "assistant", "content": "", "tool_calls": right}
    text = _tokenizer().apply_chat_template([*case.messages, answer], tools=list(case.tools), tokenize=False)
    turns = re.findall(r"<\|im_start\|>assistant\n(.*?)<\|im_end\|>\n", text, re.DOTALL)
    made = [message["tool_calls"] for message in (*case.messages, answer) if message.get("tool_calls")]
    schemas = schemas_by_name(case.tools)
    for turn, calls in zip(turns, made, strict=True):
        reply = parse_reply(turn.removeprefix(DONE))
        assert (reply.problems, reply.after.strip()) == ((), "")
        functions = [call.get("function", call) for call in calls]
        wanted = [(function["name"], function["arguments"]) for function in functions]
        assert [(call.name, typed_arguments(call, schemas[call.name])) for call in reply.calls] == wanted
    assert run_checks(turns[-1].removeprefix(DONE), case.checks, case.expected, case.tools) == []


USER = {"role": "user", "content": "Ahoj."}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "system", "content": "late"}, USER],
        [{"role": "developer", "content": "x"}, USER],
        [{"role": "system", "content": "alone"}],
        [{"role": "assistant", "content": "Ano."}, {"role": "tool", "content": "1"}],
    ],
    ids=["late-system", "developer", "no-user", "no-user-but-a-result"],
)
def test_what_the_published_template_refuses_is_refused_in_a_specification_too(messages: list[dict[str, Any]]) -> None:
    from jinja2 import TemplateError

    from q36eval.canaries.specification import check_messages

    with pytest.raises(TemplateError):
        _tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    with pytest.raises(ValueError, match="message"):
        check_messages(messages)
