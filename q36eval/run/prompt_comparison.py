"""Two models on one prompt: what each answers, and what both would have said at the first token where they part."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from q36eval.canaries.answers import THINK_END
from q36eval.canaries.margins import taught
from q36eval.chat import TemplateLimitError, TemplateRaisedError, rendered_chat
from q36eval.engines import (
    Engine,
    EngineOptions,
    Generated,
    GenerationRequest,
    ScoreRequest,
    identity_of,
    open_engine,
)
from q36eval.errors import EngineError, UsageError
from q36eval.run.branch import incomparable
from q36eval.run.request import Target


@dataclass(frozen=True)
class Question:
    """What is asked of both, and how many tokens an answer may take."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    thinking: bool
    max_new_tokens: int


@dataclass(frozen=True)
class Parting:
    """The first token at which the answers part; what each said there, and each one's likeliest tokens (log-probs).

    Both read the same prompt and the same `position` tokens before. A model that ends its turn there says nothing.
    """

    position: int
    before: str
    reference_said: str
    branch_said: str
    reference_top: tuple[tuple[str, float], ...]
    branch_top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Comparison:
    """Both answers without their reasoning, each whole or cut off at the budget; None for where equal ones part."""

    reference: str
    branch: str
    reference_ended: bool
    branch_ended: bool
    parting: Parting | None


def compare(question: Question, branch: Target, reference: Target, options: EngineOptions) -> Comparison:
    """Ask both in process, one model in memory at a time; the branch is teacher-forced on the reference's answer.

    Raises:
        UsageError: the two read text in other tokens, or the prompt cannot be written by their chat template.
        CorruptCheckpointError: one of them is damaged.
        EngineError: one of them gave no answer.
    """
    faults = incomparable(identity_of(options.of(branch.folder)), identity_of(options.of(reference.folder)))
    if faults:
        raise UsageError("deployments-incomparable", f"The two cannot be compared: {faults[0]}.")
    engine = open_engine(options.of(reference.folder))
    prompt = _prompt_ids(engine.tokenizer, question)
    right = _answered(engine, prompt, question, reference)
    reference_tops = _tops(engine, prompt, right)
    tokenizer = engine.tokenizer
    del engine  # the branch needs its memory
    engine = open_engine(options.of(branch.folder))
    other = _answered(engine, prompt, question, branch)
    tops = (reference_tops, _tops(engine, prompt, right))
    return Comparison(
        reference=_without_reasoning(right.text, thinking=question.thinking),
        branch=_without_reasoning(other.text, thinking=question.thinking),
        reference_ended=right.finish_reason == "stop",
        branch_ended=other.finish_reason == "stop",
        parting=_parting(tokenizer, right, other, tops),
    )


def _prompt_ids(tokenizer: Any, question: Question) -> tuple[int, ...]:
    try:
        text = rendered_chat(tokenizer, question.messages, question.tools, enable_thinking=question.thinking)
    except (TemplateRaisedError, TemplateLimitError) as error:
        raise UsageError(error.code, f"{error}.") from error
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def _answered(engine: Engine, prompt: tuple[int, ...], question: Question, target: Target) -> Generated:
    request = GenerationRequest(key="incident", token_ids=prompt, max_new_tokens=question.max_new_tokens)
    answer = next(iter(engine.generate([request])))
    if answer.error is not None:
        raise EngineError("generation-failed", f"{target.name} gave no answer: {answer.error}.")
    return answer


Tops = list[list[tuple[int, float]]]


def _tops(engine: Engine, prompt: tuple[int, ...], answer: Generated) -> Tops:
    """The likeliest tokens at every token of the answer and at its end, teacher-forced on it."""
    said = _said(answer)
    if not said:
        return []
    request = ScoreRequest(key="incident", token_ids=prompt + said, first=len(prompt))
    scored = next(iter(engine.score([request])))
    if scored.hidden_states is None:
        raise EngineError("scoring-failed", f"The reference's answer could not be scored: {scored.error}.")
    return taught(engine.logits, scored.hidden_states, said, []).choices


def _said(answer: Generated) -> tuple[int, ...]:
    """The answer's tokens with the one that ended its turn."""
    return answer.token_ids if answer.end_id is None else (*answer.token_ids, answer.end_id)


def _parting(tokenizer: Any, right: Generated, other: Generated, tops: tuple[Tops, Tops]) -> Parting | None:
    ours, theirs = _said(right), _said(other)
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), None)
    if at is None:  # equal, or one was cut off where the other goes on
        return None

    def text(token: int) -> str:
        return str(tokenizer.decode([token]))

    shown = [tuple((text(token), value) for token, value in rows[at]) if at < len(rows) else () for rows in tops]
    return Parting(
        position=at,
        before=str(tokenizer.decode(list(ours[:at]))),
        reference_said=text(ours[at]),
        branch_said=text(theirs[at]),
        reference_top=shown[0],
        branch_top=shown[1],
    )


def _without_reasoning(text: str, *, thinking: bool) -> str:
    """The answer after the reasoning; empty where that never ends."""
    return (text.partition(THINK_END)[2] if thinking else text).strip()
