"""Every prompt under a template with the published Qwen3.5 template's habits, rendered as the probe renders it.

The template (`template/strict.jinja`) is our own; a real tokenizer object applies it.
"""

import re
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.checks import run_checks
from q36eval.canaries.checks.tool_parser import Reply, parse_reply, schemas_by_name, typed_arguments
from q36eval.canaries.probe import rendered
from q36eval.canaries.specification import load_specs

STRICT = Path(__file__).parent / "template" / "strict.jinja"
TOKENIZER = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
SPECS = load_specs(skills=None, n=6)
CASES = [case for spec in SPECS for case in cases_of(spec)]
OPEN, THINKING, DONE = "<|im_start|>assistant\n", "<think>\n", "<think>\n\n</think>\n\n"


@cache
def _tokenizer() -> Any:
    """The sandbox's, but for its template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER, local_files_only=True)
    tokenizer.chat_template = STRICT.read_text(encoding="utf-8")
    return tokenizer


def _prompt(case: Case, thinking: bool) -> str:
    settings = case.generation.model_copy(update={"enable_thinking": thinking})
    return rendered(replace(case, generation=settings), _tokenizer())


def _turns(text: str) -> list[tuple[str, str]]:
    """The role and the text of every turn that has ended."""
    return re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", text, re.DOTALL)


def _roles(case: Case) -> list[str]:
    """Of the turns: results in a row share a user's turn, and tools alone make a system turn too."""
    roles: list[str] = []
    for role, run in groupby(message["role"] for message in case.messages):
        roles += ["user"] if role == "tool" else list(run)
    return roles if not case.tools or roles[0] == "system" else ["system", *roles]


def _made(case: Case) -> list[dict[str, Any]]:
    """Every turn of the conversation that calls tools, as messages hold them."""
    return [message for message in case.messages if message.get("tool_calls")]


def _typed(reply: Reply, tools: tuple[dict[str, Any], ...]) -> list[tuple[str, dict[str, Any]]]:
    assert reply.problems == ()
    assert reply.after.strip() == ""
    schemas = schemas_by_name(tools)
    return [(call.name, typed_arguments(call, schemas[call.name])) for call in reply.calls]


def _wanted(calls: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    functions = [call.get("function", call) for call in calls]
    return [(function["name"], function["arguments"]) for function in functions]


@pytest.mark.long
@pytest.mark.parametrize("thinking", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.id)
def test_every_prompt_renders_whole(spec: Any, thinking: bool) -> None:
    for case in (case for case in CASES if case.canary == spec.id):
        prompt = _prompt(case, thinking)
        turns = _turns(prompt)
        assert prompt.endswith(f"<|im_end|>\n{OPEN}{THINKING if thinking else DONE}")
        assert [role for role, _ in turns] == _roles(case)
        at = 0
        for message in case.messages:
            at = prompt.find(message["content"].strip(), at)
            assert at >= 0, (case.name, message["content"])


@pytest.mark.parametrize("case", [case for case in CASES if _made(case)], ids=lambda case: case.name)
def test_earlier_calls_are_read_back_from_what_is_written_of_them(case: Case) -> None:
    """After an empty thought, with the types of their values; what `None` stands for is for the checks' own tests."""
    written = [text for role, text in _turns(_prompt(case, False)) if role == "assistant"]
    for message, text in zip(_made(case), written, strict=True):
        assert text.startswith(DONE)
        typed_calls = _typed(parse_reply(text.removeprefix(DONE)), case.tools)
        wanted = _wanted(message["tool_calls"])
        assert typed_calls == wanted


@pytest.mark.parametrize("case", [case for case in CASES if "<tool_call>" in case.answer], ids=lambda case: case.name)
def test_right_calls_written_by_the_template_are_right(case: Case) -> None:
    """An answer put back into the conversation, as the template writes it, passes the canary's own checks."""
    expected = case.expected.get("calls") or [{k: case.expected[k] for k in ("name", "arguments")}]
    answer = {"role": "assistant", "content": "", "tool_calls": expected}
    text = _tokenizer().apply_chat_template([*case.messages, answer], tools=list(case.tools), tokenize=False)
    written = _turns(text)[-1][1].removeprefix(DONE)
    assert _typed(parse_reply(written), case.tools) == _wanted(expected)
    assert run_checks(written, case.checks, case.expected, case.tools) == []


USER = {"role": "user", "content": "Ahoj."}


def _rendered(*messages: dict[str, Any], **settings: Any) -> str:
    return str(_tokenizer().apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **settings))


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
        _rendered(*messages)
    with pytest.raises(ValueError, match="message"):
        check_messages(messages)
