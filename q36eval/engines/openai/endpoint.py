"""A served model with all request types of its users: raw or chat, whole or streamed, cached or cold.

The engine `openai` uses one type, so that its answers are comparable. This class offers several, for comparing them
(`q36eval.served`).
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from q36eval.checkpoints.open_checkpoints import hold
from q36eval.engines.answer_endings import configured_end, end_ids
from q36eval.engines.base import EngineSettings
from q36eval.engines.openai.answers import (
    FINISHES,
    Answered,
    Choice,
    Completion,
    Tokenized,
    Usage,
    completion_of,
    finished,
    read_as,
)
from q36eval.engines.openai.capabilities import TOP, Capabilities, body_of
from q36eval.engines.openai.chat_answers import Message, message_of, streamed_message
from q36eval.engines.openai.client import Client, Limits, MalformedError, NoAnswerError, RefusedError
from q36eval.engines.openai.counters import (
    CacheState,
    DraftCounts,
    cache_state_of,
    draft_counts_of,
    prompt_tokens_of,
)
from q36eval.engines.openai.deployment import Opened, confirm, opened
from q36eval.engines.openai.flavour import LLAMA_CPP, VLLM, Server

__all__ = ["CacheState", "Continuation", "DraftCounts", "Endpoint", "Message", "NoAnswerError", "RefusedError"]


@dataclass(frozen=True)
class Continuation:
    """The continuation of a prompt. `token_ids` are all generated tokens; None if the server does not return them.

    `text` is without the mark of the end. `completion_tokens` is the server's own count of them.

    `log_probs[t]` are the most likely tokens at place t with their log-probabilities, the chosen one included; None if
    the server returns none. If some places have none, `token_ids` is None, and `row_ids[t]` is the token chosen at the
    place of `log_probs[t]`. `cached_tokens` is the reported number of prompt tokens found in the prefix cache.
    """

    text: str
    token_ids: tuple[int, ...] | None
    finish: str
    log_probs: tuple[Mapping[int, float], ...] | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    row_ids: tuple[int, ...] | None = None


class _Written(Answered):
    """The answer of llama.cpp's `/apply-template`."""

    prompt: str


class Endpoint:
    """One served model; `tokenizer` is the branch's, proven equal to the server's."""

    limits: Limits = Limits()

    def __init__(self, server: Opened, settings: EngineSettings) -> None:
        self._client: Client = server.client
        self._can: Capabilities = server.can
        self.server: Server = server.server
        self.tokenizer = server.tokenizer
        added = server.tokenizer.added_tokens_decoder.values()
        self.special_tokens = tuple(str(token) for token in added if token.special)  # served texts omit them
        self._stop_ids = end_ids(configured_end(hold(settings.folder)), server.tokenizer)
        completes = (server.can.top_k is not None and not server.can.native) or server.can.scores == "all"
        self.gives_log_probs = completes or server.can.names_likeliest
        self._top = min(TOP, server.can.top_k or TOP)

    @classmethod
    def load(cls, settings: EngineSettings) -> "Endpoint":
        """The server of the settings.

        Raises:
            UsageError: no address, no such model, or a tokenizer that is not the branch's.
            EngineError: it does not answer.
        """
        return cls(opened(settings, cls.limits), settings)

    @property
    def salts(self) -> bool:
        """Whether a request may select whose cached prefixes it shares: the only way to send a prompt cold twice."""
        return self.server.flavour == VLLM

    @property
    def name(self) -> str:
        """The program and its model, for people."""
        return f"{self.server.model.id} by {self.server.flavour} {self.server.version}"

    def attempts(self) -> tuple[int, int]:
        """The number of attempts so far, and of those without a usable answer or a refusal."""
        return self._client.sent, self._client.unsound

    @property
    def last_unsound(self) -> str:
        """The newest of these; empty without one."""
        return self._client.unsound_last

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    def confirm(self) -> None:
        """Check that it is still the server that was opened.

        Raises:
            EngineError: it is another one, was restarted, or does not answer.
        """
        confirm(self._client, self.server)

    def fits(self, prompt: int, budget: int) -> bool:
        """Whether that many tokens and that many more fit its context."""
        return self.server.fits(prompt + budget)

    # -- raw completions

    def complete(
        self, prompt: Sequence[int], budget: int, *, salt: str | None = None, stream: bool = False, **more: Any
    ) -> Continuation:
        """The greedy continuation of a prompt; `more` is added to the request unchanged.

        Raises:
            RefusedError, NoAnswerError, EngineError: as `Client.post`.
        """
        ids = tuple(prompt)
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        body = body_of(self.server, ids if self._can.takes_ids else text, budget, **self._common(salt), **more)
        if self.server.flavour == VLLM:
            body |= {"stop_token_ids": list(self._stop_ids)}
            body |= {"logprobs": self._top, "return_tokens_as_token_ids": True} if self.gives_log_probs else {}
        if self._can.names_likeliest:
            body |= {"logprobs": self._top}
        address = f"{self._client.address.base}/completions"
        if stream:
            streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
            return self._client.post_events(address, streaming, self._streamed)

        def read(content: Any) -> Continuation:
            answer = completion_of(content, ids, echoes_ids=self._can.returns_ids, counts=self._can.counts)
            return self._continuation(answer, budget)

        return self._client.post(address, body, read)

    def _continuation(self, answer: Completion, budget: int) -> Continuation:
        reason = finished(answer, budget)
        choice = answer.choice
        log_probs = None
        if self.gives_log_probs and choice.logprobs is not None and choice.logprobs.rows is not None:
            log_probs = tuple(_by_id(entry) for entry in choice.logprobs.rows)
        ids = None if choice.generated is None else tuple(choice.generated)
        count = None if answer.usage is None else answer.usage.completion_tokens
        details = None if answer.usage is None else answer.usage.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        # llama.cpp does not report a token that leaves a character incomplete
        all_ids = ids if choice.token_ids is not None or ids is None or len(ids) == count else None
        return Continuation(self._without_end(choice.text), all_ids, reason, log_probs, cached, count, ids)

    def _streamed(self, events: Sequence[Any]) -> Continuation:
        """A client's assembled text: pieces in the order of arrival."""
        pieces: list[Choice] = []
        for event in events:
            if isinstance(event, dict) and event.get("choices"):
                pieces += [read_as(Choice, choice) for choice in event["choices"]]
        if not pieces:
            raise MalformedError("the stream has no piece of a text")
        # llama.cpp's pieces omit tokens without a complete character, so their ids are not complete
        ids = [token for piece in pieces for token in piece.token_ids or ()]
        tells_ids = any(piece.token_ids is not None for piece in pieces)
        reasons = [piece.finish_reason for piece in pieces if piece.finish_reason is not None]
        used = [read_as(Usage, event["usage"]) for event in events if isinstance(event, dict) and event.get("usage")]
        return Continuation(
            text=self._without_end("".join(piece.text for piece in pieces)),
            token_ids=tuple(ids) if tells_ids else None,
            finish=FINISHES.get(reasons[-1], reasons[-1]) if reasons else "none",
            completion_tokens=used[-1].completion_tokens if used else None,
        )

    def _without_end(self, text: str) -> str:
        """The text without the end-of-turn mark, which only some servers send."""
        for token in self._stop_ids:
            text = text.removesuffix(self.tokenizer.decode([token], skip_special_tokens=False))
        return text

    def raw_text(self, message: Message) -> str | None:
        """The model's raw text, before any parser, from the returned tokens; None without them."""
        if message.token_ids is None:
            return None
        ids = message.token_ids
        before_end = ids[: next((at for at, token in enumerate(ids) if token in self._stop_ids), len(ids))]
        return str(self.tokenizer.decode(list(before_end), skip_special_tokens=False))

    # -- chat

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        budget: int,
        *,
        enable_thinking: bool,
        salt: str | None = None,
        stream: bool = False,
    ) -> Message:
        """The server's own answer to a conversation: its template, its parsers.

        Raises:
            RefusedError, NoAnswerError, EngineError: as `Client.post`.
        """
        body = body_of(self.server, (), budget, **self._common(salt))
        for name in ("prompt", "add_special_tokens", "skip_special_tokens", "spaces_between_special_tokens"):
            body.pop(name, None)  # as its users do: their view is judged
        body |= {"messages": list(messages), "chat_template_kwargs": {"enable_thinking": enable_thinking}}
        body |= {"tools": list(tools), "tool_choice": "auto"} if tools else {}
        address = f"{self._client.address.base}/chat/completions"
        if stream:
            streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
            return self._client.post_events(address, streaming, streamed_message)
        return self._client.post(address, body, message_of)

    def chat_prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, enable_thinking: bool
    ) -> tuple[int, ...] | None:
        """The tokens that the server's own template makes of a conversation; None if no page reports them.

        vLLM's `/tokenize` accepts conversations; llama.cpp's `/apply-template` returns the text, and its tokenizer was
        proven equal.
        """
        body: dict[str, Any] = {"messages": list(messages), **({"tools": list(tools)} if tools else {})}
        body |= {"chat_template_kwargs": {"enable_thinking": enable_thinking}}
        root = self._client.address.root
        try:
            if self.server.flavour == VLLM:
                body |= {"model": self.server.model.id, "add_generation_prompt": True, "add_special_tokens": False}
                told = self._client.post(f"{root}/tokenize", body, lambda content: read_as(Tokenized, content))
                return tuple(told.tokens)
            if self.server.flavour == LLAMA_CPP and self._can.tokenizer == "by ids":
                text = self._client.post(f"{root}/apply-template", body, lambda content: read_as(_Written, content))
                return tuple(self.tokenizer.encode(text.prompt, add_special_tokens=False))
        except (RefusedError, NoAnswerError):
            pass
        return None

    def _common(self, salt: str | None) -> dict[str, Any]:
        return {} if salt is None or not self.salts else {"cache_salt": salt}

    # -- counters

    def cache_state(self) -> CacheState | None:
        """The server's prefix cache counters; None if not readable."""
        return cache_state_of(self._counters())

    def draft_counts(self) -> DraftCounts | None:
        """The server's speculative decoding counters; None without any."""
        return draft_counts_of(self._counters())

    def prompt_tokens(self) -> float | None:
        """The number of prompt tokens it received since its start; None if not reported."""
        return prompt_tokens_of(self._counters())

    def _counters(self) -> list[str]:
        """The lines of the server's counters; none if not available."""
        try:
            return self._client.lines(f"{self._client.address.root}/metrics")
        except NoAnswerError:
            return []


def fresh_salt() -> str:
    """A salt never used before, so that its prompt is found in no cache."""
    return secrets.token_urlsafe(32)


def _by_id(entry: Mapping[str, float]) -> dict[int, float]:
    """Log-probabilities by token id.

    Raises:
        MalformedError: they are not keyed by token id.
    """
    try:
        return {int(token.removeprefix("token_id:")): value for token, value in entry.items()}
    except ValueError as error:
        raise MalformedError("the log-probabilities are not by token id") from error
