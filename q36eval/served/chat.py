"""Requests for tools by chat, whole and streamed, paired with raw completions of the same locally rendered prompt."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from q36eval.canaries.checks import NotJudgedError
from q36eval.canaries.checks.base import first_difference
from q36eval.canaries.outcomes import by_class
from q36eval.engines.openai.chat_answers import Message
from q36eval.engines.openai.endpoint import Continuation, Endpoint, fresh_salt
from q36eval.metrics import metric_of
from q36eval.records import Clusters, Counts, FailureCauses, FamilyCompetence, Measurement, ProbeName
from q36eval.served.comparison import counted_faults, examples, sentences
from q36eval.served.declared_server import KINDS, FaultKind
from q36eval.served.differentials import Answers, asked
from q36eval.served.messages import (
    CallClass,
    call_class,
    characters,
    parser_faults,
    raw_calls,
    served_calls,
    without_special,
    written,
)
from q36eval.served.prompts import Prompt


@dataclass(frozen=True)
class Asked:
    """One request, sent raw, by chat and by streamed chat; a text in place of an answer is the reason why it is
    missing."""

    prompt: Prompt
    raw: "Continuation | str"
    whole: "Message | str"
    stream: "Message | str"
    wrote: str | None
    """The model's raw text behind `whole`; None if unknown, so that the parser is not judged."""
    wrote_streamed: str | None
    prompt_ids: tuple[int, ...] | None = None
    """The server's tokens for the conversation; None if not reported."""
    special: tuple[str, ...] = ()
    """The tokenizer's special tokens."""

    @property
    def error(self) -> str | None:
        """Why one of its answers is missing."""
        return next((each for each in (self.raw, self.whole, self.stream) if isinstance(each, str)), None)

    @cached_property
    def faults(self) -> dict[FaultKind, str]:
        """The parser's faults in the whole answer."""
        if isinstance(self.whole, str) or self.wrote is None:
            return {}
        return self.faults_of(self.wrote, self.whole)

    def faults_of(self, wrote: str, message: Message) -> dict[FaultKind, str]:
        """The parser's faults for a raw text of the model after this prompt."""
        prompt = self.prompt
        return parser_faults(wrote, message, prompt.tools, thinking=prompt.thinking, special=self.special)


def ask_chat(endpoint: Endpoint, prompts: Sequence[Prompt]) -> list[Asked]:
    """Send each prompt in all three ways, one request at a time."""
    result = []
    for prompt in prompts:
        raw = asked(lambda p=prompt: endpoint.complete(p.token_ids, p.budget, salt=fresh_salt()))  # type: ignore[misc]
        whole, stream = (
            asked(
                lambda p=prompt, streamed=streamed: endpoint.chat(  # type: ignore[misc]
                    p.messages,
                    p.tools,
                    p.budget,
                    enable_thinking=p.thinking,
                    salt=fresh_salt(),
                    stream=streamed,
                )
            )
            for streamed in (False, True)
        )
        prompt_ids = _prompt_ids(endpoint, prompt, whole)
        wrote, streamed = (_wrote(endpoint, prompt, raw, message, prompt_ids) for message in (whole, stream))
        result.append(Asked(prompt, raw, whole, stream, wrote, streamed, prompt_ids, endpoint.special_tokens))
    return result


def _prompt_ids(endpoint: Endpoint, prompt: Prompt, whole: "Message | str") -> tuple[int, ...] | None:
    """The chat prompt's tokens, from the answer or else from the server's page for them, if the counts match."""
    if isinstance(whole, str) or whole.prompt_ids is not None:
        return None if isinstance(whole, str) else whole.prompt_ids
    told = endpoint.chat_prompt(prompt.messages, prompt.tools, enable_thinking=prompt.thinking)
    return told if told is not None and whole.prompt_tokens in (None, len(told)) else None


def _wrote(
    endpoint: Endpoint,
    prompt: Prompt,
    raw: "Continuation | str",
    message: "Message | str",
    prompt_ids: tuple[int, ...] | None,
) -> str | None:
    """The model's raw text behind a message: from the answer's tokens, else from two raw completions of the same
    prompt, if they match the message.

    If they do not, a near tie may have changed this one answer: parser and model cannot be separated then.
    """
    if isinstance(message, str) or isinstance(raw, str):
        return None
    text = endpoint.raw_text(message)
    if text is not None:
        return text
    faults = parser_faults(raw.text, message, prompt.tools, thinking=prompt.thinking, special=endpoint.special_tokens)
    if prompt_ids != prompt.token_ids or faults:
        return None
    again = asked(lambda: endpoint.complete(prompt.token_ids, prompt.budget, salt=fresh_salt()))
    return raw.text if not isinstance(again, str) and again.text == raw.text else None


def prompts_measured(asked_for: Sequence[Asked]) -> Measurement:
    """Chat prompts whose tokens differ from those of the branch's own template and tokenizer.

    If only their number is reported, a different number shows a different prompt, and an equal one nothing.
    """
    faults, scored, alike = [], 0, 0
    for each in asked_for:
        prompt, message, theirs = each.prompt, each.whole, each.prompt_ids
        if isinstance(message, str):
            continue
        counted = message.prompt_tokens not in (None, len(prompt.token_ids))
        scored += theirs is not None or counted
        alike += theirs is None and message.prompt_tokens is not None and not counted
        if theirs is not None and theirs != prompt.token_ids:
            at = first_difference(prompt.token_ids, theirs)
            faults.append(f"{prompt.name}: other tokens from place {at} on, {len(theirs)} for {len(prompt.token_ids)}")
        elif counted:
            faults.append(f"{prompt.name}: {message.prompt_tokens} tokens for {len(prompt.token_ids)}")
    note = "server or template"
    if alike:
        note += f"; of {alike} prompts only as many tokens are told, which may be other ones"
    return counted_faults("prompt_differences", "all", faults, _counts(len(asked_for), scored), note)


def parser_measured(asked_for: Sequence[Asked]) -> Iterator[Measurement]:
    """The parser's faults on correct raw texts, kind by kind."""
    unknown = sum(each.error is None and each.wrote is None for each in asked_for)
    apart = f"; {unknown} answers have no token ids, so model and parser cannot be separated" if unknown else ""
    for kind, words in KINDS.items():
        judged = [each for each in asked_for if _judges(each, kind)]
        faults = [f"{each.prompt.name}: {each.faults[kind]}" for each in judged if kind in each.faults]
        errored = sum(each.error is not None or each.wrote is None for each in asked_for)
        counts = _counts(len(judged) + errored, len(judged))
        yield counted_faults("parser_faults", kind, faults, counts, f"parser: {words}{apart}")


def _judges(each: Asked, kind: FaultKind) -> bool:
    """Whether the model's raw text has an element that such a fault could affect."""
    if each.wrote is None or isinstance(each.whole, str):
        return False
    own = written(each.wrote, thinking=each.prompt.thinking)
    if not own.is_whole or (each.prompt.thinking and own.thought is None):
        return False
    if kind == "thought":
        return own.thought is not None
    if kind in ("arguments", "finish"):
        return bool(own.reply.calls)
    return bool(without_special(own.content, each.special).strip()) if kind == "content" else True


def streams_measured(asked_for: Sequence[Asked]) -> Measurement:
    """Streamed chat answers that a client assembles to something else than the whole answer of the same tokens."""
    faults, scored = [], 0
    for each in asked_for:
        if isinstance(each.stream, str) or isinstance(each.whole, str):
            continue
        scored += 1
        stream, whole = each.stream, each.whole
        if stream.token_ids is not None and stream.completion_tokens not in (None, len(stream.token_ids)):
            words = f"{len(stream.token_ids)} tokens came where the server counts {stream.completion_tokens}"
        elif each.wrote_streamed is not None and each.wrote_streamed == each.wrote:
            words = _other(whole, stream)
        elif each.wrote_streamed is not None:  # another answer, due to near ties: compared with its own raw text
            own = each.faults_of(each.wrote_streamed, stream)
            words = "; ".join(text for kind, text in own.items() if kind not in each.faults)
        else:
            scored, words = scored - 1, ""
        if words:
            faults.append(f"{each.prompt.name}: {words}")
    return counted_faults("stream_faults", "chat", faults, _counts(len(asked_for), scored), "server or its parser")


def _other(whole: Message, stream: Message) -> str:
    """The difference of the two for a client, ignoring white space around texts and a partial character at the end."""
    pairs = {
        "content": (characters(whole.content or "").strip(), characters(stream.content or "").strip()),
        "reasoning": (characters(whole.reasoning or "").strip(), characters(stream.reasoning or "").strip()),
        "names of calls": ([name for name, _ in whole.calls], [name for name, _ in stream.calls]),
        "arguments": (served_calls(whole), served_calls(stream)),
        "finish reason": (whole.finish, stream.finish),
    }
    return "; ".join(
        f"{what} {one!r:.60} whole, {other!r:.60} streamed" for what, (one, other) in pairs.items() if one != other
    )


def completions_streamed(prompts: Sequence[Prompt], whole: Answers, streams: Answers) -> Measurement:
    """Streamed raw completions that differ from the server's own count, or from the whole text of the same tokens.

    If a server does not report all tokens, an equal text proves a correct stream, and a different one proves nothing: a
    near tie may have changed it.
    """
    faults, scored = [], 0
    for prompt in prompts:
        one, other = whole[prompt.name], streams[prompt.name]
        if isinstance(one, str) or isinstance(other, str):
            continue
        tells = other.token_ids is not None and one.token_ids is not None
        if other.token_ids is not None and other.completion_tokens not in (None, len(other.token_ids)):
            faults.append(
                f"{prompt.name}: {len(other.token_ids)} tokens came where the server counts {other.completion_tokens}"
            )
        elif tells and one.token_ids == other.token_ids and _ended(one) != _ended(other):
            faults.append(f"{prompt.name}: {other.text!r:.60} streamed, {one.text!r:.60} whole, of the same tokens")
        scored += tells or (one.text, one.finish, one.completion_tokens) == (
            other.text, other.finish, other.completion_tokens
        )  # fmt: skip
    return counted_faults("stream_faults", "completions", faults, _counts(len(prompts), scored), "server")


def _ended(answer: Continuation) -> tuple[str, str]:
    return characters(answer.text), answer.finish


def calls_measured(asked_for: Sequence[Asked]) -> Measurement:
    """Wrong tool calls as served, relative to those in raw completions."""
    judged = [each for each in asked_for if each.prompt.case is not None]
    rows: list[tuple[str, CallClass | None, CallClass | None]] = []
    for each in judged:
        case, prompt = each.prompt.case, each.prompt
        assert case is not None, "it was asked above"
        if isinstance(each.whole, str) or isinstance(each.raw, str):
            continue
        with suppress(NotJudgedError):
            by_raw = raw_calls(each.raw.text, prompt.tools, thinking=prompt.thinking)
            rows.append((prompt.name, call_class(case, served_calls(each.whole)), call_class(case, by_raw)))
    served, raw = [one for _, one, _ in rows], [other for _, _, other in rows]
    answered, errored = len(rows), len(judged) - len(rows)
    clusters = Clusters(
        units=(1,) * answered + (0,) * errored,
        branch=tuple(float(each is not None) for each in served) + (0.0,) * errored,
        reference=tuple(float(each is not None) for each in raw) + (0.0,) * errored,
        errored=(0,) * answered + (1,) * errored,
        bounds=(0.0, 1.0),
        families=("tools",) * len(judged),
    )
    metric = metric_of(ProbeName.SERVED, "call_failure_rate")
    right = sum(each is None for each in raw)
    causes = {**by_class(raw), **({"errored": errored} if errored else {})}
    differing = [f"{name}: {one} served, {other or 'right'} raw" for name, one, other in rows if one and one != other]
    able = FamilyCompetence(name="tools", items=len(judged), informative=right, causes=causes)
    wrong = sum(each is not None for each in served)
    words = f"{wrong} wrong as served, {answered - right} in raw completions, of {answered}"
    return metric.summarized(
        clusters,
        competence=(able,),
        causes=FailureCauses(branch=by_class(served), reference=by_class(raw)),
        note=sentences(words, examples(differing)),
    )


def _counts(total: int, scored: int) -> Counts:
    return Counts(total=total, scored=scored, errored=total - scored)
