"""From a transcript and its right answer to a canary: which checks judge it, what they expect, where it is decided."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from q36eval.canaries.checks import CHECKS, Failure, NotJudgedError, check_tools, run_checks
from q36eval.canaries.scaffold_checks import EXPECTATIONS, guess_checks
from q36eval.canaries.transcript import Transcript
from q36eval.errors import UsageError
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
        raise UsageError(f"The transcript's tools cannot be asked with: {error}.") from error
    checks = wanted.checks or tuple(guess_checks(right, transcript))
    unknown = [name for name in checks if name not in CHECKS]
    if unknown:
        raise UsageError(f"No check is called {unknown[0]!r}; there are {', '.join(CHECKS)}.")
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
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for place in (decisive_place(right, answer) for answer in wrong):
        if place is not None:
            known = found.setdefault((place["before"], place["right"]), place)
            known["wrong"] = list(dict.fromkeys(known["wrong"] + place["wrong"]))
    return list(found.values())


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
    found: dict[str, Any] = {}
    for name in checks:
        if name in EXPECTATIONS:
            found |= EXPECTATIONS[name](right, transcript)
    return found | given


def _check_answers(checks: Sequence[str], expected: dict[str, Any], right: str, transcript: Transcript) -> None:
    try:
        failures = run_checks(right, checks, expected, transcript.tools)
    except ValidationError as error:
        raise UsageError(f"The checks {', '.join(checks)} cannot be used: {_problem(error)}.") from error
    except NotJudgedError as error:
        raise UsageError(f"The right answer cannot be judged: {error}; correct what is expected.") from error
    if failures:
        raise UsageError(
            f"The right answer fails its check {_words(failures[0])}; correct it, or name another --check."
        )
    if transcript.answer is not None and not run_checks(transcript.answer, checks, expected, transcript.tools):
        raise UsageError(
            f"The transcript's own answer passes {', '.join(checks)}, so this canary would find nothing wrong with it; "
            f"name another --check, or leave that answer out."
        )


def _problem(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"they need {place!r}, which the right answer alone does not say; give it with --expected"
    return f"expected{f'.{place}' if place else ''}: {first['msg'].removeprefix('Value error, ').rstrip('.')}"


def _words(failure: Failure) -> str:
    return f"{failure.check} ({failure.place}: {failure.message})"


def _budget(right: str, transcript: Transcript, *, thinking: bool) -> int:
    """Tokens for an answer twice as long as the right one, a token a character at worst; less where less was asked."""
    budget = MIN_BUDGET
    while budget < min(2 * len(right), MAX_BUDGET):
        budget *= 2
    budget += THINKING_BUDGET if thinking else 0
    return min(budget, transcript.max_new_tokens or budget)
