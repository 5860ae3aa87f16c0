"""From a transcript and its right answer to a canary's file: the checks, what they expect, what decides, its YAML."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from q36eval.canaries.checks import CHECKS, NotJudgedError, check_tools, parse_reply, run_checks
from q36eval.canaries.checks.json_values import StrictJSONError, strict_json
from q36eval.canaries.checks.tool_parser import schemas_by_name, typed_arguments
from q36eval.canaries.specification import CanarySpec
from q36eval.canaries.transcript import Transcript
from q36eval.errors import UsageError
from q36eval.files import YamlProblem, parse_yaml
from q36eval.records import Lane

SKILL = "incident"
MIN_BUDGET, MAX_BUDGET = 64, 4_096
THINKING_BUDGET = 2_048
"""Tokens that an answer may take where nobody said how many: at least, at most, and for reasoning besides."""

_FREEFORM = frozenset({"style", "stable", "discount"})
_PIECE = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Wanted:
    """What a person said of the canary; None and empty are guessed from the right answer."""

    id: str
    why: str
    lanes: tuple[Lane, ...] = ()
    checks: tuple[str, ...] = ()
    expected: dict[str, Any] | None = None
    skill: str = SKILL
    thinking: bool | None = None
    max_new_tokens: int | None = None


def scaffold(transcript: Transcript, right: str, wanted: Wanted, others: Sequence[str] = ()) -> dict[str, Any]:
    """A canary with one must-pass prompt, as its file will hold it.

    Args:
        transcript: what was asked. Its answer, where it has one, is the wrong one and must fail.
        right: the right answer, raw text in the model's own wire format.
        wanted: what was said of it.
        others: other models' answers. Where a wrong one, or the transcript's own, first parts from `right` is decisive.

    Raises:
        UsageError: the checks cannot be guessed or need more than the answer says, the right answer fails them, or the
            wrong one passes.
    """
    try:
        check_tools(transcript.tools)
    except ValueError as error:
        raise UsageError("transcript-invalid", f"The transcript's tools cannot be used: {error}.") from error
    checks = wanted.checks or tuple(guess_checks(right, transcript))
    unknown = [name for name in checks if name not in CHECKS]
    if unknown:
        raise UsageError("check-unknown", f"No check is called {unknown[0]!r}; there are {', '.join(CHECKS)}.")
    expected = _expected(checks, right, transcript, wanted.expected or {})
    _check_answers(checks, expected, right, transcript)
    thinking = transcript.thinking or False if wanted.thinking is None else wanted.thinking
    wrong = [answer for answer in others if run_checks(answer, checks, expected, transcript.tools)]
    wrong += [] if transcript.answer is None else [transcript.answer]
    prompt: dict[str, Any] = {
        "name": "incident",
        "key": f"incident:{wanted.id}",
        "messages": list(transcript.messages),
        "tools": list(transcript.tools),
        "expected": expected,
        "answer": right,
        "decisive": _places(right, wrong),
    }
    default = Lane.FREEFORM if _FREEFORM & set(checks) else Lane.STRUCTURED
    return {
        "id": wanted.id,
        "skill": wanted.skill,
        "absolute": True,
        "lanes": [lane.value for lane in wanted.lanes or (default,)],
        "why": wanted.why,
        "generation": {
            "decoding": "greedy",
            "enable_thinking": thinking,
            "max_new_tokens": wanted.max_new_tokens or _budget(right, transcript, thinking=thinking),
        },
        "checks": list(checks),
        "must_pass": [{key: value for key, value in prompt.items() if value or key == "expected"}],
    }


def passes(answer: str, body: dict[str, Any]) -> bool:
    """Whether an answer, its reasoning aside, passes the checks of a scaffolded canary."""
    (prompt,) = body["must_pass"]
    try:
        return not run_checks(answer, body["checks"], prompt["expected"], prompt.get("tools", ()))
    except NotJudgedError:
        return False


def _places(right: str, wrong: Sequence[str]) -> list[dict[str, Any]]:
    """Where the wrong answers part from the right one, each place once."""
    places: dict[tuple[str, str], dict[str, Any]] = {}
    for place in (decisive_place(right, answer) for answer in wrong):
        if place is not None:
            known = places.setdefault((place["before"], place["right"]), place)
            known["wrong"] = list(dict.fromkeys(known["wrong"] + place["wrong"]))
    return list(places.values())


def decisive_place(right: str, other: str) -> dict[str, Any] | None:
    """Where `right` first parts from another answer: `{before, right, wrong}`; None where no text could decide.

    Pieces are words, so that a number or a name is compared whole; `before` goes back to the beginning of the line, and
    further where the answer says the same thing twice.
    """
    ours, theirs = _PIECE.findall(right), _PIECE.findall(other)
    at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        return None  # one is the beginning of the other: that it ends is decisive by itself
    start = sum(map(len, ours[:at]))
    return {"before": _before(right, start, ours[at]), "right": ours[at], "wrong": [theirs[at]]}


def _before(text: str, start: int, right: str) -> str:
    """Whole lines up to `start`, as few as there must be for `right` to stand after them for the first time."""
    begin = text.rfind("\n", 0, start) + 1
    while begin > 0 and (begin == start or text.find(text[begin:start] + right) != begin):
        begin = text.rfind("\n", 0, begin - 1) + 1
    return text[begin:start]


def _expected(checks: Sequence[str], right: str, transcript: Transcript, given: dict[str, Any]) -> dict[str, Any]:
    expected: dict[str, Any] = {}
    for name in checks:
        if name in EXPECTATIONS:
            expected |= EXPECTATIONS[name](right, transcript)
    return expected | given


def _check_answers(checks: Sequence[str], expected: dict[str, Any], right: str, transcript: Transcript) -> None:
    try:
        failures = run_checks(right, checks, expected, transcript.tools)
    except ValidationError as error:
        raise UsageError(
            "canary-checks-unusable", f"The checks {', '.join(checks)} cannot be used: {_problem(error)}."
        ) from error
    except NotJudgedError as error:
        raise UsageError(
            "canary-answer-not-judged", f"The right answer cannot be judged: {error}; correct what is expected."
        ) from error
    if failures:
        first = failures[0]
        where = f"{first.check} ({first.place}: {first.message})"
        raise UsageError(
            "canary-answer-fails", f"The right answer fails its check {where}; correct it, or name another --check."
        )
    if transcript.answer is not None and not run_checks(transcript.answer, checks, expected, transcript.tools):
        raise UsageError(
            "canary-shows-nothing",
            f"The transcript's own answer passes {', '.join(checks)}, so this canary would find nothing wrong with it; "
            f"name another --check, or leave that answer out.",
        )


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"they need {place!r}, which the right answer does not contain; give it with --expected"
    return f"expected{f'.{place}' if place else ''}: {first['msg'].removeprefix('Value error, ').rstrip('.')}"


def _budget(right: str, transcript: Transcript, *, thinking: bool) -> int:
    """Tokens for an answer twice as long as the right one, a token a character at worst; less where less was asked."""
    budget = MIN_BUDGET
    while budget < min(2 * len(right), MAX_BUDGET):
        budget *= 2
    budget += THINKING_BUDGET if thinking else 0
    return min(budget, transcript.max_new_tokens or budget)


# ---- which checks, and what they expect

MAX_LIST_ITEM = 40
"""Characters. Longer pieces between commas are prose, which is no list."""

_FENCE = re.compile(r"\A```[\w+-]*\n(.*?)\n?```\Z", re.DOTALL)

Expectation = Callable[[str, Transcript], dict[str, Any]]


def guess_checks(right: str, transcript: Transcript) -> list[str]:
    """What judges an answer of this form: calls, JSON, code, lines, a list, else the exact text."""
    said = right.strip()
    calls = parse_reply(right).calls
    if calls:
        return ["tool_call" if len(calls) == 1 else "tool_calls"]
    if transcript.tools:
        return ["no_tool_call"]
    if isinstance(_json_or_none(said), dict | list):
        return ["json"]
    fenced = _FENCE.match(said)
    if fenced is not None and not isinstance(_json_or_none(fenced.group(1)), dict | list):
        return ["exact_code"]
    if _embedded_json(said) is not None:
        return ["json_in_prose"]
    if len(_lines(said)) > 1:
        return ["exact_lines"]
    items = _items(said)
    is_list = len(items) > 1 and all(0 < len(item) <= MAX_LIST_ITEM for item in items) and said[-1] not in ".!?"
    return ["ordered_list" if is_list else "exact_text"]


def inferred_schema(value: Any) -> dict[str, Any]:
    """A strict JSON Schema that values of this shape fulfil: all keys required and no others, types exact."""
    if isinstance(value, dict):
        properties = {key: inferred_schema(inner) for key, inner in value.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(value),
            "additionalProperties": False,
        }
    if isinstance(value, list):
        kinds: list[dict[str, Any]] = []
        for inner in map(inferred_schema, value):
            kinds += [inner] if inner not in kinds else []
        if not kinds:
            return {"type": "array"}
        return {"type": "array", "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names.get(type(value), "null")}


def _calls(right: str, transcript: Transcript) -> list[dict[str, Any]]:
    offered = schemas_by_name(transcript.tools)
    reply = parse_reply(right)
    if not reply.calls:
        raise UsageError(
            "canary-answer-unreadable", "The right answer contains no readable tool call, which its check requires."
        )
    for call in reply.calls:
        if call.name not in offered:
            raise UsageError(
                "tool-unknown",
                f"The right answer calls {call.name!r}, which the transcript does not offer; it offers "
                f"{', '.join(offered) or 'no tools'}.",
            )
    return [{"name": call.name, "arguments": typed_arguments(call, offered[call.name])} for call in reply.calls]


def _one_call(right: str, transcript: Transcript) -> dict[str, Any]:
    calls = _calls(right, transcript)
    if len(calls) > 1:
        raise UsageError(
            "canary-check-mismatch", f"The right answer makes {len(calls)} calls; judge it with --check tool_calls."
        )
    return calls[0] | _format(right)


def _all_calls(right: str, transcript: Transcript) -> dict[str, Any]:
    return {"calls": _calls(right, transcript), "any_order": False} | _format(right)


def _format(right: str) -> dict[str, Any]:
    """That the calls are JSON, if the right answer's are; otherwise nothing."""
    written = {call.form for call in parse_reply(right).calls}
    return {"tool_format": "hermes"} if written == {"json"} else {}


def _object(right: str, transcript: Transcript) -> dict[str, Any]:
    value = _json_or_none(right.strip())
    value = _embedded_json(right) if value is None else value
    if not isinstance(value, dict | list):
        raise UsageError(
            "canary-answer-unreadable", "The right answer contains no readable JSON object, which its check requires."
        )
    return {"object": value, "schema": transcript.schema or inferred_schema(value)}


def _code(right: str, transcript: Transcript) -> dict[str, Any]:
    fenced = _FENCE.match(right.strip())
    return {"code": right.strip("\n") if fenced is None else fenced.group(1), "fence": fenced is not None}


EXPECTATIONS: dict[str, Expectation] = {
    "tool_call": _one_call,
    "tool_calls": _all_calls,
    "json": _object,
    "json_in_prose": _object,
    "exact_code": _code,
    "exact_text": lambda right, _: {"text": right.strip()},
    "exact_lines": lambda right, _: {"lines": _lines(right)},
    "enum_member": lambda right, _: {"value": right.strip()},
    "ordered_list": lambda right, _: {"items": _items(right.strip())},
}
"""What the right answer alone tells a check. Other checks need what a person says."""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]


def _items(text: str) -> list[str]:
    return [item.strip() for item in re.split(r"[,\n]", text)]


def _json_or_none(text: str) -> Any:
    try:
        return strict_json(text)
    except StrictJSONError:
        return None


def _embedded_json(text: str) -> Any:
    """The one JSON object or array that stands in prose or in a fence; None where there is none, or another follows."""
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        return None
    try:
        value, length = json.JSONDecoder().raw_decode(text[min(starts) :])
    except (ValueError, RecursionError):
        return None
    rest = text[min(starts) + length :]
    return value if isinstance(value, dict | list) and not {"{", "["} & set(rest) else None


# ---- the file

COMMENT_WIDTH = 116


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """A canary is read as it is asked: nothing is written once and meant twice."""
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # elsewhere a line break is written as an empty line, which nobody reads as one, and other controls as they are
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _string)


def yaml_text(body: dict[str, Any], remarks: Sequence[str]) -> str:
    """The file for a scaffolded canary; `remarks` are what its reviewer has to check by hand.

    Raises:
        UsageError: it would be no valid canary; the key is named.
    """
    lines = [_comment(remark) for remark in remarks]
    for key in ("id", "skill", "absolute", "lanes", "why", "generation", "checks"):
        lines += _entry(key, body[key], "")
    lines.append("must_pass:")
    for prompt in body["must_pass"]:
        lines += _prompt(prompt)
    text = "\n".join(lines) + "\n"
    read = parse_yaml(text)
    if read != json.loads(json.dumps(body)):
        raise ValueError("the file that was written does not read as what was scaffolded")
    try:
        CanarySpec.model_validate(read)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"]) or "the canary"
        message = problem["msg"].removeprefix("Value error, ").rstrip(".")
        raise UsageError("canary-invalid", f"This cannot become a canary: {place}: {message}.") from error
    return text


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        UsageError: it is there already, or cannot be written.
    """
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise UsageError(
            "file-exists", f"{file} already exists and was not changed; name another file with --out."
        ) from error
    except OSError as error:
        raise UsageError(
            "file-unwritable", f"{file} cannot be written ({error.strerror or error}); name another with --out."
        ) from error


def _prompt(prompt: dict[str, Any]) -> Iterator[str]:
    yield f"  - name: {_flow(prompt['name'])}"
    yield from _entry("key", prompt["key"], "    ")
    yield "    messages:"
    for message in prompt["messages"]:
        yield f"      - role: {message['role']}"
        for key, value in message.items():
            if key != "role":
                yield from _entry(key, value, "        ")
    for key in ("tools", "decisive"):
        prompt_lines = [f"      - {_flow(value)}" for value in prompt.get(key, ())]
        if key == "decisive":
            yield f"    expected: {_flow(prompt['expected'])}"
            yield from _entry("answer", prompt["answer"], "    ")
        if prompt_lines:
            yield f"    {key}:"
            yield from prompt_lines


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    """One key: a text of several words as a literal block where YAML can hold it so, all else in one line."""
    if isinstance(value, str) and (" " in value or "\n" in value):
        block = [f"{key}: |-", *(f"  {line}" if line else "" for line in value.split("\n"))]
        if _holds("\n".join(block), {key: value}):
            yield from (f"{indent}{line}" if line else "" for line in block)
            return
    yield f"{indent}{key}: {_flow(value)}"


def _holds(text: str, wanted: dict[str, Any]) -> bool:
    try:
        read = parse_yaml(text)
    except YamlProblem:
        return False
    return bool(read == wanted)


def _flow(value: Any) -> str:
    written: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, sort_keys=False, width=float("inf")
    )
    return written.removesuffix("\n").removesuffix("\n...")


def _comment(remark: str) -> str:
    """What a model or a transcript says may stand in a remark: it stays one comment line."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(remark.split()))
    return f"# {line if len(line) <= COMMENT_WIDTH else line[: COMMENT_WIDTH - 1] + '…'}"
