"""The abilities of a served model, found by tests: a server may ignore an unknown field and still answer 200.

Only observed abilities count: returned ids, the requested number of log-probabilities, and a prompt's last position
equal to the same server's distribution for generation.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from q36eval.engines.openai.answers import (
    ALIGNED_NATS,
    TIED_NATS,
    TOKEN_ID,
    Completion,
    Tokenized,
    completion_of,
    completions_of,
    next_row,
    prompt_rows,
    read_as,
    spread_rows,
)
from q36eval.engines.openai.client import Client, NoAnswerError, RefusedError
from q36eval.engines.openai.counters import DraftCounts, draft_counts_of
from q36eval.engines.openai.flavour import LLAMA_CPP, SGLANG, VLLM, Server
from q36eval.engines.openai.sglang import generated_row, likeliest_rows, scoring_body
from q36eval.errors import EngineError, UsageError

ValueT = TypeVar("ValueT")

TOP_KS = (1024, 256, 128, 64, 50, 40, 20, 10, 5)
"""Numbers of log-probabilities to request if the whole vocabulary is refused, until one is granted."""
NATIVE_TOP_KS = (128, 64, 20, 5)
"""The same for SGLang's own page, which refuses no number as too large."""
TOP = 20
"""Log-probabilities requested per generated token, to tell a near tie from a difference; vLLM's default limit."""
FEW = 5
"""Tokens per position for testing whether a server returns few like all."""
TRIES = 3
"""Attempts at an uncertain ability."""
LIKELY = -4.0
SEVERAL = 16
"""Number of tokens generated to see their log-probabilities: the first is never a draft."""
LOOKS, LOOK_SECONDS = 10, 0.2
"""Checks of counters that should rise."""

PROOF_TEXTS = (
    "Obchod Ječmen: cena 1 290 Kč, sleva 15 %. Kolik zaplatím?",
    '{"name": "Łukasz", "ids": [1, 2, 34567], "ok": null}\n\n\tif x >= 10:  # done',
    "<tool_call>\n<function=get_price>\n<parameter=item>\ntea\n</parameter>\n</function>\n</tool_call>",
    "<|im_start|>user\nDobrý den! 😀 naïve café — 東京<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
"""Texts that distinguish two tokenizers: numbers, spaces, JSON, tags, special tokens, several scripts."""


@dataclass(frozen=True)
class Capabilities:
    """The observed abilities of one served model; `scores` is its output for a prompt's tokens: `all`, `top` or
    `nothing`."""

    takes_ids: bool
    """Whether prompts may be token ids; else they are sent as text, and the server's token count must equal ours."""
    returns_ids: bool
    counts: bool
    scores: str
    top_k: int | None
    label_first: bool
    """Whether the prompt's own token comes first in each position, so that a shifted answer is detected."""
    gives_few: bool
    """Whether it returns whole rows, and requests for fewer tokens return parts of the same distribution."""
    takes_lists: bool
    """Whether it answers several prompts in one request, distinguished by the ids returned with each."""
    tokenizer: str
    """The proof that its tokenizer is equal: `by ids` or `by counts`."""
    fingerprint: str | None
    echoed_model: str
    """The model's name in answers."""
    names_likeliest: bool = False
    """Whether log-probabilities of generated tokens are returned by id although none of a prompt's own are available
    (llama.cpp) or trustworthy (a vLLM that drafts)."""
    native: bool = False
    """Whether SGLang's own page provides a prompt's log-probabilities."""
    why_nothing: str = ""
    """The result of the last attempt at a prompt's log-probabilities, if none was accepted."""


def tried(client: Client, server: Server, tokenizer: Any, vocabulary: int, *, briefly: bool = False) -> Capabilities:
    """The abilities of the served model; `briefly` in about ten requests, for low-volume callers: it then tests only
    whether `FEW` log-probabilities of a prompt are returned.

    Raises:
        UsageError: its tokenizer turns texts into other tokens, or cannot be compared.
        EngineError: it does not answer.
    """
    prompt = tuple(tokenizer.encode(PROOF_TEXTS[0], add_special_tokens=False))
    try:
        can = _answering(client, server, tokenizer, prompt)
        if server.flavour == LLAMA_CPP:
            return replace(can, names_likeliest=not briefly and _names_likeliest(client, server, prompt, can))
        if server.flavour == SGLANG and can.takes_ids and not briefly:
            return _scoring_natively(client, prompt, vocabulary, can)
        if server.flavour != VLLM or not can.takes_ids:
            return can
        if _drafts(client) is not None:  # a prompt's log-probabilities may then be another prompt's: vLLM's issue 53488
            return replace(can, names_likeliest=not briefly and _names_its_own(client, server, prompt))
        if briefly:
            return replace(can, **_scoring(client, server, prompt, vocabulary, (FEW,)))
        can = _scoring_all(client, server, prompt, vocabulary, can)
        return can if can.scores != "nothing" else replace(can, names_likeliest=_names_its_own(client, server, prompt))
    except (RefusedError, NoAnswerError) as error:
        raise EngineError(
            "server-answer-malformed", f"The server {client.address.base} does not answer as one of its kind: {error}."
        ) from error


def _answering(client: Client, server: Server, tokenizer: Any, prompt: tuple[int, ...]) -> Capabilities:
    """Its abilities without log-probabilities; raises as `tried`."""
    takes_ids, answer = _plain(client, server, tokenizer, prompt)
    tokenized = _by_ids(client, server, tokenizer)
    if not tokenized:
        _by_counts(client, server, tokenizer)
    return Capabilities(
        takes_ids=takes_ids,
        returns_ids=takes_ids
        and answer.choice.prompt_token_ids == list(prompt)
        and answer.choice.token_ids is not None,
        counts=answer.usage is not None and answer.usage.prompt_tokens == len(prompt),
        scores="nothing",
        top_k=None,
        label_first=False,
        gives_few=False,
        takes_lists=False,
        tokenizer="by ids" if tokenized else "by counts",
        fingerprint=answer.system_fingerprint,
        echoed_model=answer.model,
    )


def _scoring_all(
    client: Client, server: Server, prompt: tuple[int, ...], vocabulary: int, can: Capabilities
) -> Capabilities:
    """The same with vLLM's output for a prompt's tokens."""
    sizes = (None, *(size for size in TOP_KS if size < vocabulary))
    can = replace(can, **_scoring(client, server, prompt, vocabulary, sizes))
    whole, listed = can.scores == "all", can.returns_ids and can.counts
    return replace(
        can,
        gives_few=whole and _gives_few(client, server, prompt, vocabulary),
        takes_lists=whole and listed and _takes_lists(client, server, prompt, vocabulary),
    )


def _scoring_natively(client: Client, prompt: tuple[int, ...], vocabulary: int, can: Capabilities) -> Capabilities:
    """The same with the output of SGLang's own page for a prompt's tokens.

    Two checks must hold: the prompt's own tokens are at their positions, and the last row equals the one for
    generation.
    """
    address, first = f"{client.address.root}/generate", 1
    for top_k in (size for size in NATIVE_TOP_KS if size < vocabulary):
        rows = partial(likeliest_rows, prompt=prompt, first=first, vocabulary=vocabulary, top_k=top_k)
        after = partial(generated_row, prompt=prompt[:-1], vocabulary=vocabulary, top_k=top_k)
        try:
            likeliest = client.post(address, scoring_body(prompt, first, top_k), rows, TRIES)
            generated = client.post(address, scoring_body(prompt[:-1], len(prompt) - 2, top_k), after, TRIES)
        except (RefusedError, NoAnswerError):
            continue
        if _alike(likeliest[-1], generated, top_k):
            return replace(can, scores="top", top_k=top_k, native=True)
    return can


def body_of(
    server: Server, prompt: "Sequence[int] | Sequence[Sequence[int]] | str", max_tokens: int, **more: Any
) -> dict[str, Any]:
    """A request for one greedy continuation, with explicit values for all server defaults.

    Fields outside the OpenAI API go only to programs that know them.
    """
    body: dict[str, Any] = {
        "model": server.model.id,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n": 1,
        "stream": False,
    }
    if server.flavour in (VLLM, SGLANG):
        body |= {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "skip_special_tokens": False}
        body |= {"spaces_between_special_tokens": False} if server.flavour == VLLM else {}
    if server.flavour == VLLM:
        body |= {"return_token_ids": True, "add_special_tokens": False}
    if server.flavour == LLAMA_CPP:
        body |= {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "cache_prompt": True}
    return body | more


def _plain(client: Client, server: Server, tokenizer: Any, prompt: tuple[int, ...]) -> tuple[bool, Completion]:
    """Whether prompts may be token ids, and an answer to one."""
    address = f"{client.address.base}/completions"

    def read(content: Any) -> Completion:
        return completion_of(content, prompt, echoes_ids=False, counts=False)

    try:
        answer = client.post(address, body_of(server, prompt, 1), read)
    except RefusedError:
        answer = None
    # a server that misinterprets ids counts other tokens
    if answer is not None and (answer.usage is None or answer.usage.prompt_tokens == len(prompt)):
        return True, answer
    return False, client.post(address, body_of(server, tokenizer.decode(list(prompt)), 1), read)


def _names_likeliest(client: Client, server: Server, prompt: tuple[int, ...], can: Capabilities) -> bool:
    """Whether generated tokens come with the most likely tokens' log-probabilities, the chosen one's included."""
    if not can.takes_ids:
        return False
    try:
        answer, rows = _asked(client, body_of(server, prompt, 1, logprobs=TOP), prompt, _generated_rows)
    except (RefusedError, NoAnswerError):
        return False
    generated = answer.choice.generated or []
    return any(f"{TOKEN_ID}{token}" in row for token, row in zip(generated, rows, strict=False))


def _names_its_own(client: Client, server: Server, prompt: tuple[int, ...]) -> bool:
    """Whether a vLLM's log-probabilities of generated tokens are trustworthy: `TOP` at every place, and the chosen
    token is among the most likely.

    A server that drafts must also draft meanwhile: some did not if log-probabilities were requested.
    """
    before = _drafts(client)
    body = body_of(server, prompt[: len(prompt) // 2], SEVERAL, logprobs=TOP, return_tokens_as_token_ids=True)
    try:
        answer, rows = _asked(client, body, prompt[: len(prompt) // 2], _generated_rows)
    except (RefusedError, NoAnswerError):
        return False
    generated = answer.choice.generated or []
    fit = [
        len(row) >= TOP and row.get(f"{TOKEN_ID}{token}", -np.inf) >= max(row.values()) - TIED_NATS
        for token, row in zip(generated, rows, strict=False)
    ]
    if not fit or len(generated) > len(fit) + 1 or not all(fit):  # the token that ended the answer may be left out
        return False
    return before is None or _drafted_since(client, before)


def _drafted_since(client: Client, before: DraftCounts) -> bool:
    """Whether the counters rise, which happens shortly after an answer."""
    for _ in range(LOOKS):
        now = _drafts(client)
        if now is not None and now.drafts > before.drafts:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _drafts(client: Client) -> DraftCounts | None:
    """The counters of a server that drafts; None if it does not draft or report it."""
    try:
        return draft_counts_of(client.lines(f"{client.address.root}/metrics"))
    except (NoAnswerError, EngineError):
        return None


def _generated_rows(answer: Completion) -> list[dict[str, float]]:
    return (answer.choice.logprobs.rows if answer.choice.logprobs is not None else None) or []


def _by_ids(client: Client, server: Server, tokenizer: Any) -> bool:
    """Whether its tokenizer gives our ids for all proof texts; False if it has no page for it.

    Raises:
        UsageError: the ids differ.
    """
    read = partial(read_as, Tokenized)
    for text in PROOF_TEXTS:
        is_llama = server.flavour == LLAMA_CPP
        body: dict[str, Any] = {"content": text, "add_special": False, "parse_special": True}
        if not is_llama:
            body = {"model": server.model.id, "prompt": text, "add_special_tokens": False}
        try:
            theirs = client.post(f"{client.address.root}/tokenize", body, read, TRIES).tokens
        except (RefusedError, NoAnswerError):
            return False
        ours = list(tokenizer.encode(text, add_special_tokens=False))
        if theirs != ours:
            place = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(ours))
            raise UsageError(
                "server-tokenizer-differs",
                f"The server's tokenizer is not the branch's: of {text[:40]!r} it makes {len(theirs)} tokens where the "
                f"branch's makes {len(ours)}, other ones from token {place} on. Serve the branch with its own "
                f"tokenizer, or name the branch that is served.",
            )
    return True


def _by_counts(client: Client, server: Server, tokenizer: Any) -> None:
    """Compare the server's counts for all proof texts with ours.

    Raises:
        UsageError: the counts differ, or it does not count.
    """
    for text in PROOF_TEXTS:
        ours = len(tokenizer.encode(text, add_special_tokens=False))
        body = body_of(server, text, 1)
        answer = client.post(f"{client.address.base}/completions", body, lambda content: read_as(Completion, content))
        theirs = None if answer.usage is None else answer.usage.prompt_tokens
        if theirs != ours:
            told = "no tokens" if theirs is None else f"{theirs} tokens"
            raise UsageError(
                "server-tokenizer-differs",
                f"The server's tokenizer is not the branch's: it counts {told} of {text[:40]!r}, where "
                f"the branch's makes {ours}. Serve the branch with its own tokenizer, or name the branch that is "
                f"served.",
            )


def _scoring(
    client: Client, server: Server, prompt: tuple[int, ...], vocabulary: int, sizes: Sequence[int | None]
) -> dict[str, Any]:
    """Fields of `Capabilities`: its output for a prompt's tokens, the number of them (the first of `sizes` that it
    grants, None for all), and whether the prompt's own token comes first; or why nothing is accepted."""
    why = ""
    for top_k in sizes:
        requested = -1 if top_k is None else top_k
        in_prompt = partial(prompt_rows, prompt=prompt, first=1, vocabulary=vocabulary, top_k=top_k, label_first=False)
        after_it = partial(next_row, vocabulary=vocabulary, top_k=top_k)
        try:
            answer, rows = _asked(client, body_of(server, prompt, 1, prompt_logprobs=requested), prompt, in_prompt)
            _, generated = _asked(client, scoring_next(server, prompt[:-1], vocabulary, top_k), prompt[:-1], after_it)
        except (RefusedError, NoAnswerError) as error:
            why = str(error)
            continue
        if not _alike(rows[-1], generated, top_k):
            why = "at the prompt's last token they are not those of what the server generates there"
            continue
        entries = answer.choice.prompt_logprobs
        label_first = all(next(iter(entries[at])) == str(prompt[at]) for at in range(1, len(prompt)))
        return {"scores": "all" if top_k is None else "top", "top_k": top_k, "label_first": label_first}
    return {"why_nothing": why}


def _gives_few(client: Client, server: Server, prompt: tuple[int, ...], vocabulary: int) -> bool:
    """Whether a prompt's rows of a few tokens are parts of the whole rows."""
    rows = []
    try:
        for requested, top_k in ((FEW, FEW), (-1, None)):
            read = partial(prompt_rows, prompt=prompt, first=1, vocabulary=vocabulary, top_k=top_k, label_first=False)
            rows.append(_asked(client, body_of(server, prompt, 1, prompt_logprobs=requested), prompt, read)[1])
    except (RefusedError, NoAnswerError):
        return False
    whole, few = rows[1], spread_rows(rows[0], vocabulary)
    return all(_alike(one, other, None) for one, other in zip(whole, few, strict=True))


def _takes_lists(client: Client, server: Server, prompt: tuple[int, ...], vocabulary: int) -> bool:
    """Whether a list of two prompts is answered like each of them alone."""
    prompts = [prompt[:-1], prompt[:-2]]
    row_of = partial(next_row, vocabulary=vocabulary, top_k=None)

    def rows(content: Any) -> list[torch.Tensor]:
        return [row_of(answer) for answer in completions_of(content, prompts)]

    body = scoring_next(server, prompts, vocabulary, None)
    try:
        together = client.post(f"{client.address.base}/completions", body, rows, TRIES)
        alone = [_asked(client, scoring_next(server, each, vocabulary, None), each, row_of)[1] for each in prompts]
    except (RefusedError, NoAnswerError):
        return False
    return all(_alike(one, other, None) for one, other in zip(together, alone, strict=True))


def scoring_next(
    server: Server, prompt: "Sequence[int] | Sequence[Sequence[int]]", vocabulary: int, top_k: int | None
) -> dict[str, Any]:
    """A request for the distribution after `prompt`, or after each of several."""
    return body_of(server, prompt, 1, logprobs=top_k or vocabulary, return_tokens_as_token_ids=True)


def _asked(
    client: Client, body: dict[str, Any], prompt: Sequence[int], rows: Callable[[Completion], ValueT]
) -> tuple[Completion, ValueT]:
    def read(content: Any) -> tuple[Completion, ValueT]:
        answer = completion_of(content, prompt, echoes_ids=False, counts=False)
        return answer, rows(answer)

    return client.post(f"{client.address.base}/completions", body, read, TRIES)


def _alike(row: torch.Tensor, other: torch.Tensor, top_k: int | None) -> bool:
    """Whether two packed rows are of the same position."""
    first, second = (_by_token(each, top_k) for each in (row, other))
    likely = [token for token, value in second.items() if value > LIKELY]
    return bool(likely) and all(abs(first.get(token, -torch.inf) - second[token]) < ALIGNED_NATS for token in likely)


def _by_token(row: torch.Tensor, top_k: int | None) -> dict[int, float]:
    if top_k is None:
        return dict(enumerate(row.tolist()))
    ids, values = row[: top_k + 1].tolist(), row[top_k + 1 :].tolist()
    return {int(token): value for token, value in zip(ids, values, strict=True) if token >= 0}
