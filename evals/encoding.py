"""From lm-eval's requests to ours and back: token ids exactly as in lm-eval's `HFLM` (0.4.13), but never cut.

A `Reading` converts the engine's results to the response that lm-eval's own scoring expects.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from typing import Any

import torch

from q36eval.engines.base import Engine, Generated, GenerationRequest, ScoreRequest
from q36eval.errors import UsageError
from q36eval.probes import ItemResults


@dataclass(frozen=True)
class Continuation:
    """The rows of one score request, and the tokens whose log-probabilities are read from them."""

    request_key: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """The reading of one lm-eval request: `pieces` are summed (windows of a rolling request), or a text is read."""

    pieces: tuple[Continuation, ...] = ()
    generation_key: str | None = None
    until: tuple[str, ...] = ()
    rolling: bool = False


@dataclass(frozen=True)
class Encoded:
    """All requests of one document with the reading of each of its lm-eval instances, in their order.

    A document that exceeds the suite's context, or that the chat template does not render, has none: `problem` gives
    the reason.
    """

    scores: tuple[ScoreRequest, ...]
    generations: tuple[GenerationRequest, ...]
    readings: tuple[Reading, ...]
    problem: str | None = None


WORTH_TOGETHER = 2**20
"""Characters: fewer take less than a second sequentially."""


class TooLongError(ValueError):
    """A prompt that does not fit; lm-eval would silently cut its beginning and evaluate a different question."""


class Encoder:
    """Encodes lm-eval instances with one tokenizer and one maximum length."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._same: dict[int, int] = {}
        self._known: dict[str, list[int]] = {}
        self._eos = tokenizer.decode([tokenizer.eos_token_id], skip_special_tokens=False)
        has_bos = tokenizer.bos_token_id is not None
        self._prefix = int(tokenizer.bos_token_id if has_bos else tokenizer.eos_token_id)
        self._prefix_text = tokenizer.decode([self._prefix])

    def encode(self, key: str, instances: Sequence[Any], problem: str | None = None) -> Encoded:
        """Encode the instances of one document; request keys begin with `key`. With a `problem` there are none."""
        if problem is not None:
            return Encoded((), (), (), problem=problem)
        try:
            return self._encoded(key, instances)
        except TooLongError as error:
            return Encoded((), (), (), problem=str(error))

    def _encoded(self, key: str, instances: Sequence[Any]) -> Encoded:
        scores: dict[tuple[tuple[int, ...], int], ScoreRequest] = {}
        generations: list[GenerationRequest] = []
        readings: list[Reading] = []
        for index, instance in enumerate(instances):
            if instance.request_type == "generate_until":
                request, until = self._generation(f"{key}/g{index}", *instance.args)
                generations.append(request)
                readings.append(Reading(generation_key=request.key, until=until))
                continue
            rolling = instance.request_type == "loglikelihood_rolling"
            pairs = self._windows(*instance.args) if rolling else [self._pair(*instance.args)]
            pieces = [self._scored(scores, key, context, continuation) for context, continuation in pairs]
            readings.append(Reading(pieces=tuple(pieces), rolling=rolling))
        return Encoded(tuple(scores.values()), tuple(generations), tuple(readings))

    def _check_length(self, tokens: int, what: str) -> None:
        if tokens > self._max_length:
            raise TooLongError(f"{what}; the suite's max_length is {self._max_length:,}")

    def read_together(self, instances: Iterable[Any]) -> None:
        """Encode all texts of these lm-eval instances on all cores at once, for later calls of `encode`.

        Small amounts are left to those calls.
        """
        texts = {text: None for instance in instances for text in _texts_of(instance)}
        self._known = {}
        if sum(map(len, texts)) < WORTH_TOGETHER:
            return
        for special in (False, True):
            if own := [text for text in texts if self._is_special(text) == special]:
                ids = self._tokenizer(own, add_special_tokens=special, verbose=False)["input_ids"]
                self._known |= dict(zip(own, ids, strict=True))

    def _is_special(self, text: str) -> bool:
        """Whether the tokenizer adds its own special tokens: not if a text already starts with the prefix token."""
        return not text.startswith(self._prefix_text)

    def _encode(self, text: str) -> list[int]:
        settings = {} if self._is_special(text) else {"add_special_tokens": False}
        return list(self._tokenizer.encode(text, **settings))

    def _ids(self, text: str) -> list[int]:
        """`HFLM.tok_encode`: with the tokenizer's own special tokens, unless the text starts with the prefix token."""
        ids = self._known.get(text)
        # RULER at 128k has hundreds of millions of tokens: one object per vocabulary entry, not 28 bytes per token
        return [self._same.setdefault(token, token) for token in (self._encode(text) if ids is None else ids)]

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """`TemplateLM.loglikelihood` and `_encode_pair`: spaces at the context's end go to the continuation."""
        if context == "":
            ids = list(self._tokenizer.encode(continuation, add_special_tokens=False))
            return ([self._prefix], ids) if self._prefix != ids[0] else (ids[:1], ids[1:])
        context, continuation = _parted(context, continuation)
        whole, start = self._ids(context + continuation), self._ids(context)
        return start, whole[len(start) :]

    def _windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        windows = get_rolling_token_windows(
            token_list=self._ids(text), prefix_token=self._prefix, max_seq_len=self._max_length, context_len=1
        )
        return [make_disjoint_window(window) for window in windows]

    def _scored(
        self,
        scores: dict[tuple[tuple[int, ...], int], ScoreRequest],
        key: str,
        context: list[int],
        continuation: list[int],
    ) -> Continuation:
        """The request that scores `continuation`; one-token continuations of the same context share theirs."""
        ids, first = context + continuation, len(context)
        # the last token is only predicted, so it takes no position of the context
        self._check_length(len(ids) - 1, f"the prompt and its answer have {len(ids):,} tokens")
        # The computation depends on all but the last token, so only these distinguish requests.
        context_and_first = (tuple(ids[:-1]), first)
        if context_and_first not in scores:
            # in a shared request any token may be last; otherwise only its own tokens are read
            scores[context_and_first] = ScoreRequest(
                key=f"{key}/s{len(scores)}",
                token_ids=tuple(ids),
                first=first,
                likeliest=1,
                whole=(len(continuation) - 1,),
            )
        return Continuation(scores[context_and_first].key, tuple(continuation))

    def _generation(
        self, key: str, context: str, settings: Mapping[str, Any]
    ) -> tuple[GenerationRequest, tuple[str, ...]]:
        configured = settings.get("until") or []
        stops = [configured] if isinstance(configured, str) else list(configured)
        until = tuple(dict.fromkeys([*stops, self._eos]))
        budget = int(settings.get("max_gen_toks", 256))
        if budget >= self._max_length:
            raise UsageError(
                "answer-budget-too-large",
                f"Answers of up to {budget:,} tokens leave no room for a prompt in the suite's max_length of "
                f"{self._max_length:,}; lower max_new_tokens or raise max_length.",
            )
        ids = tuple(self._ids(context))
        self._check_length(
            len(ids) + budget, f"the prompt has {len(ids):,} tokens, and its answer may take {budget:,} more"
        )
        return GenerationRequest(key=key, token_ids=ids, max_new_tokens=budget, stop=until), until


def _parted(context: str, continuation: str) -> tuple[str, str]:
    """Spaces at the context's end go to the continuation."""
    spaces = len(context) - len(context.rstrip())
    return (context[:-spaces], context[-spaces:] + continuation) if spaces else (context, continuation)


def _texts_of(instance: Any) -> tuple[str, ...]:
    """The texts of an lm-eval instance to encode."""
    text = instance.args[0]
    if instance.request_type != "loglikelihood":
        return (text,)
    context, continuation = _parted(*instance.args)
    return (context + continuation, context) if text else ()


SHORTEST_PREFIX = 64
"""The minimum tokens of a shared prefix: no engine gains from less."""


def with_shared_prefixes(encoded: Sequence[Encoded]) -> list[Encoded]:
    """The documents of one task, with the number of shared leading tokens set in their score requests.

    These are the solved examples of a few-shot task (if all documents have the same), or the context shared by choices
    of several tokens. Continued tokens never count: a prefix ends before the token `first`.
    """
    requests = sorted((request for each in encoded for request in each.scores), key=lambda request: request.token_ids)
    shared: dict[str, int] = {}
    for run in _runs(requests):
        length = min([_common(one, other) for one, other in pairwise(run)], default=0)
        shared |= {request.key: length for request in run}
    return [
        replace(each, scores=tuple(replace(request, shared=shared[request.key]) for request in each.scores))
        for each in encoded
    ]


def _runs(requests: Sequence[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
    """Sorted requests, split wherever two neighbours share too little."""
    run: list[ScoreRequest] = []
    for request in requests:
        if run and _common(run[-1], request) < SHORTEST_PREFIX:
            yield run
            run = []
        run.append(request)
    if run:
        yield run


def _common(one: ScoreRequest, other: ScoreRequest) -> int:
    """Length of the common prefix of two contexts."""
    pairs = zip(one.token_ids[: one.first], other.token_ids[: other.first], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


Response = tuple[float, bool] | float | str


def responses(encoded: Encoded, engine: Engine, results: ItemResults) -> list[Response]:
    """The return values of lm-eval's `loglikelihood`, `loglikelihood_rolling` and `generate_until`.

    Log-likelihoods are in nats, normalised in float32 over the deployment's own logits.
    """
    pieces = {piece: not reading.rolling for reading in encoded.readings for piece in reading.pieces}
    log_likelihoods = _log_likelihoods(pieces, engine, results)
    answers: list[Response] = []
    for reading in encoded.readings:
        if reading.generation_key is not None:
            answers.append(_text(engine, results.generated[reading.generation_key], reading.until))
            continue
        total = sum(log_likelihoods[piece][0] for piece in reading.pieces)
        answers.append(
            total if reading.rolling else (total, all(log_likelihoods[piece][1] for piece in reading.pieces))
        )
    return answers


def is_cut_off(encoded: Encoded, results: ItemResults) -> bool:
    """Whether an answer ended at its token budget, without an end of turn or a stop string."""
    read = [reading for reading in encoded.readings if reading.generation_key is not None]
    answers = [(results.generated[reading.generation_key or ""], reading.until) for reading in read]
    return any(
        answer.finish_reason == "length" and not any(stop and stop in answer.text for stop in until)
        for answer, until in answers
    )


ROWS_AT_A_TIME = 512
"""Rows of logits computed at once: half a gigabyte at a vocabulary of 248,320."""


def _log_likelihoods(
    pieces: Mapping[Continuation, bool], engine: Engine, results: ItemResults
) -> dict[Continuation, tuple[float, bool]]:
    """The summed log-probability in nats of every piece and, if requested, whether its tokens are the most likely.

    Logits of a request are computed once for all pieces.
    """
    parts_of: dict[Continuation, list[tuple[float, bool]]] = {piece: [] for piece in pieces}
    for key, of_request in groupby(sorted(pieces, key=lambda p: p.request_key), key=lambda p: p.request_key):
        states = results.scored[key].hidden_states
        if states is None:
            raise ValueError(f"request {key} has no hidden states and no error")
        of_key = list(of_request)
        if engine.scores == "likeliest":
            named, log_probs = engine.likeliest(states)
            for piece in of_key:
                parts_of[piece].append(_read_likeliest(named, log_probs, piece.token_ids))
            continue
        for start in range(0, len(states), ROWS_AT_A_TIME):
            logits = engine.logits(states[start : start + ROWS_AT_A_TIME])
            normaliser = logits.logsumexp(dim=-1)
            for piece in of_key:
                # a piece is read from the last rows of its request, one for each of its tokens
                at = start - (len(states) - len(piece.token_ids))
                ids = piece.token_ids[max(0, at) : max(0, at + len(logits))]
                parts_of[piece].append(_read(logits, normaliser, ids, pieces[piece]))
    return {
        piece: (math.fsum(nats for nats, _ in parts), all(greedy for _, greedy in parts))
        for piece, parts in parts_of.items()
    }


def _read(
    logits: torch.Tensor, normaliser: torch.Tensor, token_ids: tuple[int, ...], wants_greedy: bool
) -> tuple[float, bool]:
    """For `token_ids`, predicted by the last rows of `logits` [T, V]: their nats, and whether all are most likely."""
    rows = logits[len(logits) - len(token_ids) :]
    labels = torch.tensor(token_ids, dtype=torch.long, device=logits.device)
    picked = rows.gather(1, labels[:, None]).squeeze(1) - normaliser[len(logits) - len(token_ids) :]
    return float(picked.sum()), not wants_greedy or bool((rows.argmax(dim=-1) == labels).all())


class NotAmongLikeliestError(ValueError):
    """A token whose log-probability the engine did not return."""


def _read_likeliest(ids: torch.Tensor, log_probs: torch.Tensor, token_ids: tuple[int, ...]) -> tuple[float, bool]:
    """As `_read`, from the most likely tokens [T, K] of every position.

    Raises:
        NotAmongLikeliestError: one of `token_ids` is not among them.
    """
    rows, values = ids[len(ids) - len(token_ids) :], log_probs[len(ids) - len(token_ids) :]
    same = rows == torch.tensor(token_ids, dtype=torch.long, device=ids.device).unsqueeze(1)
    if not bool(same.any(-1).all()):
        raise NotAmongLikeliestError("a token of the answer is not among the likeliest, of which alone it is known")
    picked = values.masked_fill(~same, -torch.inf).amax(-1)
    return float(picked.double().sum()), bool((picked >= values.nan_to_num(nan=-torch.inf).amax(-1)).all())


def _text(engine: Engine, generated: Generated, until: tuple[str, ...]) -> str:
    """The text as `HFLM.generate_until` cuts it; for a server without token ids, its text."""
    text = generated.text
    if generated.token_ids:
        text = str(engine.tokenizer.decode(generated.token_ids, skip_special_tokens=True))
    for stop in until:
        text = text.split(stop)[0] if stop else text
    return text
