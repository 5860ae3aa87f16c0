"""Validation of servers' answers against their requests: prompt, count, tokens, and valid distributions.

Any mismatch is a `MalformedError`, and the request is repeated; the message describes the mismatch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from q36eval.engines.openai.client import MalformedError

IMPOSSIBLE = -9999.0
"""vLLM's value for a log-probability of minus infinity, which JSON cannot represent."""
MASS_TOLERANCE = 1e-3
"""Tolerance for the sum of probabilities over a vocabulary: a server's float32 or bfloat16 logits deviate less."""
TIED_NATS = 1e-2
"""The chosen token of a greedy answer may be this much less likely than the most likely one: BF16 rounds near ties."""
ALIGNED_NATS = 0.25
"""The maximum difference of a server's two computations of one position at its likely tokens; positions shifted by one
differ by several nats."""
TOKEN_ID = "token_id:"
Name = Annotated[str, Field(max_length=1000)]
"""A text that messages repeat."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Answered(BaseModel):
    """Extra fields are allowed: servers add some with every version."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Details(Answered):
    """The part of a prompt found in the prefix cache."""

    cached_tokens: int | None = None


class Usage(Answered):
    """Token counts by the server."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    prompt_tokens_details: Details | None = None


class TokenLogprob(Answered):
    """A token and its log-probability by id, as in llama.cpp."""

    id: TokenId
    logprob: float
    top_logprobs: "list[TokenLogprob]" = Field(default_factory=list)


class TopLogprobs(Answered):
    """For generated tokens the most likely ones at each place: `top_logprobs` of vLLM, `content` of llama.cpp."""

    top_logprobs: list[dict[str, float]] | None = None
    content: list[TokenLogprob] | None = None

    @property
    def rows(self) -> list[dict[str, float]] | None:
        """Log-probabilities at each place, by the token's name in vLLM's form of ids."""
        if self.content is None:
            return self.top_logprobs
        return [{f"{TOKEN_ID}{each.id}": each.logprob for each in place.top_logprobs} for place in self.content]


class Choice(Answered):
    """One continuation."""

    index: int
    text: str
    finish_reason: Name | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None
    prompt_logprobs: Any = None
    logprobs: TopLogprobs | None = None

    @property
    def generated(self) -> list[int] | None:
        """Ids of the generated tokens: the server's own, or those of their log-probabilities."""
        if self.token_ids is not None or self.logprobs is None or self.logprobs.content is None:
            return self.token_ids
        return [place.id for place in self.logprobs.content]


class Completions(Answered):
    """The answer of `/v1/completions` to a list of prompts, one choice each."""

    id: str
    model: Name
    choices: list[Choice] = Field(min_length=1)
    usage: Usage | None = None
    system_fingerprint: Name | None = None


class Completion(Completions):
    """The answer to one prompt."""

    choices: list[Choice] = Field(min_length=1, max_length=1)

    @property
    def choice(self) -> Choice:
        """The only choice."""
        return self.choices[0]


class Model(Answered):
    """An entry of `/v1/models`. llama.cpp reports the context of one of its slots as `meta.n_ctx`."""

    id: Name
    root: Name | None = None
    owned_by: str | None = None
    max_model_len: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _context(cls, given: Any) -> Any:
        meta = given.get("meta") if isinstance(given, dict) else None
        if isinstance(meta, dict) and isinstance(meta.get("n_ctx"), int) and given.get("max_model_len") is None:
            return {**given, "max_model_len": meta["n_ctx"]}
        return given


class Models(Answered):
    """The answer of `/v1/models`."""

    data: list[Model]


class Tokenized(Answered):
    """The answer of `/tokenize`."""

    tokens: list[TokenId]


AnswerT = TypeVar("AnswerT", bound=Answered)


def read_as(kind: type[AnswerT], content: Any) -> AnswerT:
    """The JSON as that answer.

    Raises:
        MalformedError: it is not; names the first wrong field.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise MalformedError(f"the answer's {place} is wrong: {first['msg']}") from error


def completion_of(content: Any, prompt: Sequence[int], *, echoes_ids: bool, counts: bool) -> Completion:
    """An answer to `prompt`, validated: the prompt's ids if the server returns them, and its token count if any.

    Raises:
        MalformedError: it answers another prompt, or is invalid.
    """
    answer = read_as(Completion, content)
    if answer.choice.index != 0:
        raise MalformedError(f"the answer's only choice has number {answer.choice.index}")
    echoed = answer.choice.prompt_token_ids
    if echoes_ids and (echoed is None or echoed != list(prompt)):
        raise MalformedError("the answer does not return the prompt's token ids: it is one to another prompt")
    if counts:
        if answer.usage is None:
            raise MalformedError("the answer does not count its tokens")
        if answer.usage.prompt_tokens != len(prompt):
            raise MalformedError(
                f"the answer counts {answer.usage.prompt_tokens} tokens of a prompt that has {len(prompt)}"
            )
    return answer


def completions_of(content: Any, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    """The answers to `prompts` of one request, in their order, each validated against its own prompt's ids.

    Raises:
        MalformedError: one is missing, duplicated, or answers another prompt.
    """
    answer = read_as(Completions, content)
    choices = sorted(answer.choices, key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(len(prompts))):
        raise MalformedError(f"the answer to {len(prompts)} prompts has choices {[each.index for each in choices]}")
    total = sum(map(len, prompts))
    if answer.usage is None or answer.usage.prompt_tokens != total:
        counted = "no" if answer.usage is None else answer.usage.prompt_tokens
        raise MalformedError(f"the answer counts {counted} tokens of prompts that have {total}")
    if any(choice.prompt_token_ids != list(prompt) for choice, prompt in zip(choices, prompts, strict=True)):
        raise MalformedError("the answer does not return every prompt's token ids: it is one to other prompts")
    alone = answer.model_dump(include={"id", "model", "system_fingerprint"})
    return [Completion(**alone, choices=[choice]) for choice in choices]


def prompt_rows(
    answer: Completion, prompt: Sequence[int], first: int, vocabulary: int, top_k: int | None, label_first: bool
) -> torch.Tensor:
    """The rows that predict `prompt[first:]` from `prompt_logprobs`, as `packed_row` has them: float32 [T, W].

    Raises:
        MalformedError: positions are missing, tokens differ, or the values are not distributions.
    """
    entries = answer.choice.prompt_logprobs
    if not isinstance(entries, list) or len(entries) != len(prompt):
        count = len(entries) if isinstance(entries, list) else "no"
        raise MalformedError(f"the answer has {count} positions of log-probabilities of {len(prompt)} tokens")
    rows = []
    for place in range(first, len(prompt)):
        entry = entries[place]
        if not isinstance(entry, dict) or str(prompt[place]) not in entry:
            raise MalformedError(f"the log-probabilities at position {place} lack the prompt's own token")
        if label_first and next(iter(entry)) != str(prompt[place]):
            raise MalformedError(f"the log-probabilities at position {place} are those of another position")
        try:
            values = [float(one["logprob"]) for one in entry.values()]
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise MalformedError(f"the log-probabilities at position {place} cannot be read") from error
        rows.append(packed_row(_tokens_of(entry, "", vocabulary), values, vocabulary, top_k))
    return torch.stack(rows)


def next_row(answer: Completion, vocabulary: int, top_k: int | None) -> torch.Tensor:
    """The row that predicts the first generated token, from `logprobs`: float32 [W], as `packed_row` has it.

    In a greedy answer the generated token is the most likely of its row: else the row is another position's.

    Raises:
        MalformedError: it is missing, is not a distribution, or does not match the generated token.
    """
    given = answer.choice.logprobs.rows if answer.choice.logprobs is not None else None
    if not given:
        raise MalformedError("the answer has no log-probabilities of its first token")
    tokens, values = _tokens_of(given[0], TOKEN_ID, vocabulary), list(given[0].values())
    row = packed_row(tokens, values, vocabulary, top_k)
    generated = answer.choice.generated
    if generated:  # the token that ended the answer may be left out
        known = dict(zip(tokens, values, strict=True))
        if len(generated) != 1 or known.get(generated[0], -math.inf) < max(values) - TIED_NATS:
            raise MalformedError("the log-probabilities of the first token are not those of the token that came")
    return row


@lru_cache(maxsize=4)
def _names(prefix: str, vocabulary: int) -> dict[str, int]:
    """Every token by its name in an answer; this reads a row of a whole vocabulary in a third of the time."""
    return {f"{prefix}{token}": token for token in range(vocabulary)}


def _tokens_of(names: Iterable[str], prefix: str, vocabulary: int) -> list[int]:
    """The tokens of an answer's names, which must be distinct.

    Raises:
        MalformedError: one is not an id of the vocabulary.
    """
    by_name = _names(prefix, vocabulary)
    try:
        return [by_name[name] for name in names]
    except KeyError as error:
        raise MalformedError(f"a position has a log-probability of {str(error)[:40]}, no token by its id") from error


def packed_row(ids: Sequence[int], values: Sequence[float], vocabulary: int, top_k: int | None) -> torch.Tensor:
    """One position's log-probabilities as float32.

    Of the whole vocabulary [V] (`top_k` None); else [2 (K + 1)]: ids of the K most likely, and of one further token if
    it is not among them (else -1), then their log-probabilities (NaN for a missing one).

    Raises:
        MalformedError: too few, a duplicate, an invalid token, or probabilities with a wrong sum.
    """
    tokens, logprobs = np.asarray(ids, dtype=np.int64), np.asarray(values, dtype=np.float64)
    wanted = vocabulary if top_k is None else top_k
    if len(tokens) not in (wanted, wanted + (top_k is not None)):
        raise MalformedError(f"a position has log-probabilities of {len(tokens)} tokens, where {wanted} were requested")
    if tokens.min() < 0 or tokens.max() >= vocabulary or np.bincount(tokens).max() > 1:
        raise MalformedError("a position has log-probabilities of a token twice, or of one that there is not")
    logprobs[logprobs <= IMPOSSIBLE] = -math.inf
    mass = float(np.exp(logprobs).sum())
    if math.isnan(mass) or mass > 1.0 + MASS_TOLERANCE or (top_k is None and mass < 1.0 - MASS_TOLERANCE):
        raise MalformedError(f"the probabilities of a position add up to {mass:.6g}")
    if top_k is None:
        row = np.empty(vocabulary, dtype=np.float32)
        row[tokens] = logprobs
        return torch.from_numpy(row)
    width = top_k + 1
    row = np.concatenate([np.full(width, -1.0, dtype=np.float32), np.full(width, np.nan, dtype=np.float32)])
    row[: len(tokens)], row[width : width + len(tokens)] = tokens, logprobs
    return torch.from_numpy(row)


def spread_rows(packed: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Rows [T, V] from packed ones of K tokens [T, 2 (K + 1)]: the remaining probability is shared equally.

    So a row's listed tokens keep their log-probabilities, and no other token is more likely than the least likely of
    the K.
    """
    width = packed.shape[-1] // 2
    ids, values = packed[:, :width].long(), packed[:, width:].double()
    listed = ids >= 0
    values = values.masked_fill(~listed, -torch.inf)
    remaining = (1.0 - values.exp().sum(-1)).clamp(min=0.0)
    share = (remaining / (vocabulary - listed.sum(-1))).log()
    least = values.topk(width - 1).values[:, -1]
    rows = torch.minimum(share, least).float()[:, None].repeat(1, vocabulary)
    place, entry = listed.nonzero(as_tuple=True)
    rows[place, ids[place, entry]] = values[place, entry].float()
    return rows


FINISHES: Mapping[str, str] = {"stop": "stop", "eos": "stop", "tool_calls": "stop", "length": "length"}
"""Our finish reasons by the server's; any other reason is invalid."""


def finished(answer: Completion, budget: int) -> str:
    """Why an answer ended, `stop` or `length`.

    Raises:
        MalformedError: it was aborted, or its counts contradict the reason.
    """
    reason = FINISHES.get(answer.choice.finish_reason or "")
    if reason is None:
        raise MalformedError(f"the answer ended with {answer.choice.finish_reason!r}")
    ids, usage = answer.choice.token_ids, answer.usage
    counted = None if usage is None else usage.completion_tokens
    if ids is not None and counted is not None and len(ids) != counted:
        raise MalformedError(f"the answer has {len(ids)} tokens and counts {counted}")
    count = len(ids) if ids is not None else counted
    if count is not None and (count > budget or (reason == "length" and count != budget)):
        raise MalformedError(f"the answer ended by {reason} after {count} tokens of a budget of {budget}")
    return reason
