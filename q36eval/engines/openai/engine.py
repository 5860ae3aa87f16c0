"""The engine `openai`: a branch on a server. The checkpoint's folder provides tokenizer and template.

Prompts are token ids from the branch's own template and tokenizer, so a server's chat template and parsers do not
affect the measurement. If it returns log-probabilities of the whole vocabulary, a position's row replaces its hidden
state, and `logits` returns it: figures from logits are exact. If it returns only the most likely tokens, a row holds
those (`answers.packed_row`); if it returns none, it only generates.

Results are returned after a later check that the server is still the same one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from q36eval.checkpoints.open_checkpoints import hold
from q36eval.engines.answer_endings import configured_end, end_ids, engine_seed
from q36eval.engines.base import (
    Engine,
    EngineOptions,
    EngineSettings,
    Generated,
    GenerationRequest,
    Scored,
    ScoreRequest,
    Scores,
    failed,
)
from q36eval.engines.logits import OutputHead
from q36eval.engines.openai.answers import (
    Completion,
    completion_of,
    completions_of,
    finished,
    next_row,
    prompt_rows,
    spread_rows,
)
from q36eval.engines.openai.capabilities import body_of, scoring_next
from q36eval.engines.openai.client import Address, Limits, MalformedError, NoAnswerError, RefusedError
from q36eval.engines.openai.concurrency import AHEAD, in_flight
from q36eval.engines.openai.deployment import CONCURRENCY, Opened, confirm, identity_at, opened
from q36eval.engines.openai.flavour import SGLANG, UNKNOWN, VLLM
from q36eval.engines.openai.sglang import likeliest_rows, scoring_body
from q36eval.errors import CorruptCheckpointError, EngineError
from q36eval.records import DeploymentIdentity

HELD_RESULTS, HELD_BYTES = 64, 2**28
"""The maximum number, or bytes, of results waiting for a check of the server."""
ENTRIES_PER_TOKEN = 10
"""This many log-probabilities cost about as much as reading a prompt token again: vLLM read one in 21 µs at the full
shape and returned each log-probability in 0.2 µs, and reading and checking each takes 0.8 µs here. Half of the
resulting number, since the prompts of a list share beginnings, which many servers read once."""
PROMPTS_AT_ONCE, ENTRIES_AT_ONCE = 32, 2**18
"""Maximum of prompts in one request, and of the log-probabilities in its answer; at least one prompt."""

WIDE_BYTES = 2**31
"""Maximum memory of active and waiting answers with whole vocabularies; at least one."""
OPENAI_STOPS = 4
"""The OpenAI API's maximum of stop strings."""

RequestT = TypeVar("RequestT", ScoreRequest, GenerationRequest)
ResultT = TypeVar("ResultT", Scored, Generated)
ValueT = TypeVar("ValueT")


class OpenAIEngine(Engine):
    """A served model; opened through `open_engine`."""

    options = frozenset({"base_url", "served_model", "batch_rows", "device"})
    opens_checkpoints = False
    limits: Limits = Limits()
    """Waiting times and numbers of requests, for every engine opened from now on."""

    def __init__(self, there: Opened, settings: EngineSettings) -> None:
        self._client, self._server, self._can = there.client, there.server, there.can
        self.tokenizer, self._vocabulary = there.tokenizer, there.vocabulary
        self._concurrency = settings.batch_rows or CONCURRENCY
        self.device = settings.device
        self.scores: Scores = {"all": "states", "top": "likeliest"}.get(there.can.scores, "nothing")  # type: ignore[assignment]
        self.why_no_scores = there.can.why_nothing
        self.identity = identity_at(there, settings)
        self._stop_ids = end_ids(configured_end(hold(settings.folder)), self.tokenizer)

    @classmethod
    def check_options(cls, options: EngineOptions) -> None:
        Address.named(options.base_url)

    @classmethod
    def check(cls, settings: EngineSettings) -> None:
        with suppress(CorruptCheckpointError):  # reported by the run
            opened(settings, cls.limits).client.close()

    @classmethod
    def load(cls, settings: EngineSettings) -> "OpenAIEngine":
        """Identify the server, test its abilities, and prove its tokenizer equal.

        Raises:
            UsageError: no address, no such model, or a tokenizer that is not the branch's.
            EngineError: it does not answer.
        """
        return cls(opened(settings, cls.limits), settings)

    @classmethod
    def identity_of(cls, settings: EngineSettings) -> DeploymentIdentity:
        """Queries and tests the server like `load`; raises as that."""
        there = opened(settings, cls.limits)
        there.client.close()
        return identity_at(there, settings)

    # -- scores

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        if self.scores == "nothing":
            reason = "the server gives no log-probabilities of a prompt's tokens"
            yield from (failed(each, reason, permanent=True) for each in requests if each.key not in known)
            return
        yield from self._answered(requests, known, self._scored)

    def _scored(self, request: ScoreRequest) -> Scored:
        problem = self._unusable(len(request.token_ids), 1)
        if problem is not None:
            return Scored(request, None, problem, permanent=True)
        if self._can.native:
            rows = self._native_rows(request)
        elif self._reads_few(request):
            rows = self._few_rows(request)
        elif self._one_by_one(request):
            rows = self._rows_after(request, range(len(request.token_ids) - request.first))
        else:
            rows = self._prompt_rows(request, self._can.top_k)
        return Scored(request, rows.to(self.device))

    def _native_rows(self, request: ScoreRequest) -> torch.Tensor:
        """Its rows of the most likely tokens from SGLang's own page."""
        ids, first, vocabulary, top_k = request.token_ids, request.first, self._vocabulary, self._can.top_k or 0
        body = scoring_body(ids, first, top_k)
        read = partial(likeliest_rows, prompt=ids, first=first, vocabulary=vocabulary, top_k=top_k)
        return self._client.post(f"{self._client.address.root}/generate", body, read)

    def _reads_few(self, request: ScoreRequest) -> bool:
        """Whether whole rows are available, but most are not read whole."""
        return (
            self._can.gives_few
            and request.likeliest is not None
            and request.likeliest < self._vocabulary
            and len(set(request.whole)) < len(request.token_ids) - request.first
        )

    def _few_rows(self, request: ScoreRequest) -> torch.Tensor:
        """Rows of the tokens that are read, the remaining probability spread over all others, and the whole ones."""
        rows = spread_rows(self._prompt_rows(request, request.likeliest), self._vocabulary)
        if request.whole:
            rows[list(request.whole)] = self._rows_after(request, request.whole)
        return rows

    def _one_by_one(self, request: ScoreRequest) -> bool:
        """Whether its positions are cheaper one by one: a prompt returns all its rows or none, and a few of them are
        available as continuations of the prompt's beginnings."""
        length, row = len(request.token_ids), self._vocabulary / ENTRIES_PER_TOKEN
        wanted = length - request.first
        return self._can.top_k is None and 2 * wanted <= length and wanted * (length + row) < length * (1 + row)

    def _rows_after(self, request: ScoreRequest, rows: Iterable[int]) -> torch.Tensor:
        """Those of its rows, each as the continuation of its preceding tokens."""
        prompts = [request.token_ids[: request.first + row] for row in rows]
        most = max(1, min(PROMPTS_AT_ONCE, ENTRIES_AT_ONCE // self._vocabulary)) if self._can.takes_lists else 1
        return torch.cat([self._next_rows(prompts[start : start + most]) for start in range(0, len(prompts), most)])

    def _prompt_rows(self, request: ScoreRequest, top_k: int | None) -> torch.Tensor:
        """All its rows from one answer, of `top_k` tokens each (None: all)."""
        prompt, label_first = request.token_ids, self._can.label_first
        body = body_of(self._server, prompt, 1, prompt_logprobs=-1 if top_k is None else top_k)
        return self._completed(
            body,
            prompt,
            lambda answer: prompt_rows(answer, prompt, request.first, self._vocabulary, top_k, label_first),
        )

    def _next_rows(self, prompts: list[tuple[int, ...]]) -> torch.Tensor:
        """The rows [N, W] that predict each prompt's next token, in one request."""
        vocabulary, top_k = self._vocabulary, self._can.top_k
        if len(prompts) == 1:
            body = scoring_next(self._server, prompts[0], vocabulary, top_k)
            return self._completed(body, prompts[0], lambda answer: next_row(answer, vocabulary, top_k)[None])

        def checked(content: Any) -> torch.Tensor:
            answers = completions_of(content, prompts)
            self._same_model(answers[0])
            return torch.stack([next_row(answer, vocabulary, top_k) for answer in answers])

        body = scoring_next(self._server, prompts, vocabulary, top_k)
        return self._client.post(f"{self._client.address.base}/completions", body, checked)

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The server's log-probabilities: normalised logits.

        Raises:
            EngineError: it returned only those of the most likely tokens.
        """
        if self.scores != "states":
            raise EngineError(
                "server-log-probs-missing",
                "The server gives log-probabilities of few tokens, from which no logits follow.",
            )
        return hidden_states.float()

    def likeliest(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.scores != "likeliest":
            return super().likeliest(hidden_states)
        width = hidden_states.shape[-1] // 2
        return hidden_states[:, :width].long(), hidden_states[:, width:]

    def output_head(self) -> OutputHead:
        """The identity on log-probabilities, [V, V].

        Raises:
            EngineError: the server does not return those of the whole vocabulary.
        """
        if self.scores != "states":
            raise EngineError(
                "server-log-probs-missing",
                "The server does not give log-probabilities of the whole vocabulary, so it cannot be captured as a "
                "reference; capture the checkpoint with the engine in-process.",
            )
        return OutputHead(torch.eye(self._vocabulary))

    # -- answers

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        yield from self._answered(requests, known, self._generated)

    def _generated(self, request: GenerationRequest) -> Generated:
        problem = self._unusable(len(request.token_ids), request.max_new_tokens)
        if problem is not None:
            return Generated(request, (), "", "error", problem, permanent=True)
        prompt: str | tuple[int, ...] = request.token_ids
        if not self._can.takes_ids:
            prompt = self.tokenizer.decode(list(request.token_ids), skip_special_tokens=False)
        body = body_of(self._server, prompt, request.max_new_tokens, **self._settings_of(request))

        def read(answer: Completion) -> Generated:
            return self._continuation(request, answer, finished(answer, request.max_new_tokens))

        return self._completed(body, request.token_ids, read)

    def _settings_of(self, request: GenerationRequest) -> dict[str, Any]:
        """The request's settings for its answer."""
        settings: dict[str, Any] = {"temperature": request.temperature, "top_p": request.top_p}
        if request.temperature > 0:
            settings |= {"seed": engine_seed(request), "presence_penalty": request.presence_penalty}
            # a server that does not know it refuses: without it the distribution would differ
            settings |= {"top_k": request.top_k} if request.top_k else {}
        if self._server.flavour in (VLLM, SGLANG):
            settings["stop_token_ids"] = list(self._stop_ids)
        # if fewer are accepted the text is still cut here, with more tokens generated than needed
        if request.stop and (self._server.flavour != UNKNOWN or len(request.stop) <= OPENAI_STOPS):
            settings["stop"] = list(request.stop)
        return settings

    def _continuation(self, request: GenerationRequest, answer: Completion, reason: str) -> Generated:
        ids = answer.choice.token_ids
        kept: tuple[int, ...] = ()
        end, text = None, answer.choice.text
        if self._can.returns_ids:
            if ids is None:
                raise MalformedError("the answer does not return its token ids")
            if any(not 0 <= token < self._vocabulary for token in ids):
                raise MalformedError("the answer has ids of tokens that there are not")
            place = next((at for at, token in enumerate(ids) if token in self._stop_ids), None)
            kept, end = tuple(ids[:place]), None if place is None else ids[place]
            text = self.tokenizer.decode(list(kept), skip_special_tokens=False)
            reason = "stop" if end is not None else reason
        cuts = [at for stop in request.stop if stop and (at := text.find(stop)) >= 0]
        if cuts:
            text, reason = text[: min(cuts)], "stop"
        return Generated(request, kept, text, reason, end_id=end)

    # -- both

    def _completed(self, body: dict[str, Any], prompt: tuple[int, ...], read: Callable[[Completion], ValueT]) -> ValueT:
        """The result of `read` on the answer to `prompt`, validated against the prompt and the opened model."""

        def checked(content: Any) -> ValueT:
            answer = completion_of(content, prompt, echoes_ids=self._can.returns_ids, counts=self._can.counts)
            self._same_model(answer)
            return read(answer)

        return self._client.post(f"{self._client.address.base}/completions", body, checked)

    def _same_model(self, answer: Completion) -> None:
        for what, now, then in (
            ("model", answer.model, self._can.echoed_model),
            ("system fingerprint", answer.system_fingerprint, self._can.fingerprint),
        ):
            if now != then:
                raise EngineError(
                    "server-changed",
                    f"The server {self._client.address.base} changed meanwhile: the {what} of an answer is {now!r} "
                    f"and was {then!r} before. Start a new run.",
                )

    def _answered(
        self,
        requests: Sequence[RequestT],
        known: Collection[str],
        answer: Callable[[RequestT], ResultT],
    ) -> Iterator[ResultT]:
        """A result for every request that is not known; requests of two groups are never concurrent."""

        def one(request: RequestT) -> ResultT:
            try:
                return answer(request)
            except RefusedError as error:
                result: ResultT = failed(request, f"the server refuses the request: {error}", permanent=True)
            except NoAnswerError as error:
                result = failed(request, f"the server: {error}")
            return result

        groups: dict[str, list[RequestT]] = {}
        for request in requests:
            if request.key not in known:
                groups.setdefault(request.group, []).append(request)
        for own in groups.values():
            concurrency, ahead = self._bounded(own)
            yield from self._confirmed(in_flight(one, own, concurrency, ahead=ahead))

    def _bounded(self, requests: Sequence[ScoreRequest] | Sequence[GenerationRequest]) -> tuple[int, int]:
        """The number of concurrent requests, and of waiting answers per request."""
        most = min(self._concurrency, len(requests))
        if self.scores != "states":
            return most, AHEAD
        rows = [len(each.token_ids) - each.first for each in requests if isinstance(each, ScoreRequest)]
        room = WIDE_BYTES // (4 * self._vocabulary * max([1, *rows]))
        return max(1, min(most, room // (1 + AHEAD))), AHEAD if room > AHEAD else 0

    def _confirmed(self, results: Iterable[ResultT]) -> Iterator[ResultT]:
        """Results, once a check after them shows that the server is the one that was opened."""
        held: list[ResultT] = []
        held_bytes = 0
        for result in results:
            held.append(result)
            held_bytes += _bytes_of(result)
            if len(held) >= HELD_RESULTS or held_bytes >= HELD_BYTES:
                confirm(self._client, self._server)
                yield from held
                held, held_bytes = [], 0
        if held:
            confirm(self._client, self._server)
            yield from held

    def _unusable(self, length: int, budget: int) -> str | None:
        if self._server.fits(length + budget):
            return None
        context = self._server.model.max_model_len
        return f"{length} tokens and {budget} more do not fit the server's context of {context}"


def _bytes_of(result: Scored | Generated) -> int:
    if isinstance(result, Scored):
        return 0 if result.hidden_states is None else result.hidden_states.nbytes
    return len(result.text) + 8 * len(result.token_ids)
