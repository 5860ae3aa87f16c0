"""Calls as the published Qwen3.5 template writes them, and conversations that it refuses.

The template (`template/strict.jinja`) is our own, with that one's habits; a real tokenizer object applies it.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.checks import run_checks
from q36eval.canaries.checks.tool_parser import parse_reply, schemas_by_name, typed_arguments
from q36eval.canaries.specification import load_specs
from tests.canaries.runs import BF16

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
