"""From a transcript and its right answer to a canary's file: the checks, what they expect, its YAML."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from q36eval.canaries.checks import parse_reply, run_checks
from q36eval.canaries.checks.json_values import StrictJSONError, strict_json
from q36eval.canaries.checks.tool_parser import schemas_by_name, typed_arguments
from q36eval.canaries.specification import CanarySpec
from q36eval.canaries.transcript import Transcript
from q36eval.errors import UsageError
from q36eval.files import first_problem
from q36eval.records import Lane

MIN_BUDGET, MAX_BUDGET = 64, 4_096
THINKING_BUDGET = 2_048
"""Tokens that an answer may take: at least, at most, and for reasoning in addition."""

_FREEFORM = frozenset({"style", "stable", "discount"})


def scaffold(
    transcript: Transcript,
    right: str,
    id: str,
    why: str,
    *,
    wrong: Sequence[str] = (),
    checks: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A canary with one must-pass prompt, as its file will hold it.

    Args:
        transcript: what was asked. Its answer, where it has one, is a wrong one.
        right: the right answer, raw text in the model's own wire format.
        id: the canary's id.
        why: what went wrong.
        wrong: answers that must fail.
        checks: the checks by name, each with the expected values that the right answer does not show; guessed from the
            right answer's form if None.

    Raises:
        UsageError: the checks need more than the answer shows, the right answer fails them, or a wrong one passes.
    """
    checks = checks or {guess_check(right, transcript): {}}
    wrong = [*wrong, *([] if transcript.answer is None else [transcript.answer])]
    thinking = transcript.chat_template_kwargs.enable_thinking
    expected: dict[str, Any] = {}
    for name, given in checks.items():
        expected |= EXPECTATIONS[name](right, transcript) if name in EXPECTATIONS else {}
        expected |= given
    prompt = {
        "name": "incident",
        "key": f"incident:{id}",
        "messages": transcript.conversation,
        "tools": transcript.tools,
        "expected": expected,
        "answer": right,
    }
    body = {
        "id": id,
        "skill": "incident",
        "absolute": True,
        "lanes": [(Lane.FREEFORM if _FREEFORM & set(checks) else Lane.STRUCTURED).value],
        "why": why,
        "generation": {"enable_thinking": thinking, "max_new_tokens": _budget(right, thinking=thinking)},
        "checks": list(checks),
        "must_pass": [{key: value for key, value in prompt.items() if value or key == "expected"}],
    }
    try:
        CanarySpec.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error, CanarySpec)
        raise UsageError("canary-invalid", f"This cannot become a canary: {problem}.") from error
    tools = transcript.tools
    passing = next((answer for answer in wrong if not run_checks(answer, list(checks), expected, tools)), None)
    if passing is not None:
        raise UsageError(
            "canary-shows-nothing",
            f"The wrong answer {passing[:60]!r} passes {', '.join(checks)}, so this canary would find nothing wrong "
            "with it; name another --check.",
        )
    return body


def _budget(right: str, *, thinking: bool) -> int:
    """Tokens for an answer twice as long as the right one, with one token per character at worst."""
    return min(max(2 * len(right), MIN_BUDGET), MAX_BUDGET) + (THINKING_BUDGET if thinking else 0)


Expectation = Callable[[str, Transcript], dict[str, Any]]


def guess_check(right: str, transcript: Transcript) -> str:
    """What judges an answer of this form: calls, JSON, else the exact text."""
    calls = parse_reply(right).calls
    if calls:
        return "tool_call" if len(calls) == 1 else "tool_calls"
    if transcript.tools:
        return "no_tool_call"
    return "json" if isinstance(_json_or_none(right), dict | list) else "exact_text"


def _calls(right: str, transcript: Transcript) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The calls of the right answer, typed by the offered tools, and the format where they are JSON."""
    offered = schemas_by_name(transcript.tools)
    calls = parse_reply(right).calls
    unknown = next((call.name for call in calls if call.name not in offered), None)
    if unknown is not None:
        raise UsageError("tool-unknown", f"The right answer calls {unknown!r}, which the transcript does not offer.")
    typed = [{"name": call.name, "arguments": typed_arguments(call, offered[call.name])} for call in calls]
    return typed, {"tool_format": "hermes"} if {call.form for call in calls} == {"json"} else {}


def _one_call(right: str, transcript: Transcript) -> dict[str, Any]:
    calls, form = _calls(right, transcript)
    return (calls[0] if calls else {}) | form


def _all_calls(right: str, transcript: Transcript) -> dict[str, Any]:
    calls, form = _calls(right, transcript)
    return {"calls": calls, "any_order": False} | form


def _object(right: str, transcript: Transcript) -> dict[str, Any]:
    value, schema = _json_or_none(right), transcript.schema_wanted
    return {} if value is None else {"object": value} | ({"schema": schema} if schema else {})


EXPECTATIONS: dict[str, Expectation] = {
    "tool_call": _one_call,
    "tool_calls": _all_calls,
    "json": _object,
    "exact_text": lambda right, _: {"text": right.strip()},
    "enum_member": lambda right, _: {"value": right.strip()},
}
"""The expected values that the right answer itself shows, by check. All others are given with the check."""


def _json_or_none(text: str) -> Any:
    try:
        return strict_json(text)
    except StrictJSONError:
        return None


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """A canary is read as it is asked: every value stands where it is used."""
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """A literal block where the emitter can keep every character in one, else plain or in double quotes."""
    printable = all(line.isprintable() for line in text.split("\n"))
    block = printable and ("\n" in text.strip("\n") or len(text) > 80)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if block else None if printable else '"')


_Dumper.add_representer(str, _string)


def yaml_text(body: dict[str, Any], remarks: Sequence[str] = ()) -> str:
    """The file of a scaffolded canary; `remarks` are what its reviewer has to check by hand."""
    comments = "".join(f"# {' '.join(remark.split())}\n" for remark in remarks)
    return comments + yaml.dump(body, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=float("inf"))
