"""SGLang's own scoring, `/generate`: log-probabilities of a prompt's tokens and of the likeliest ones.

Its chat and completions pages give none of a prompt. The shapes are those of its API reference
(https://docs.sglang.io/basic_usage/sampling_params.html): of each
position `[log-probability, id, text]`, the first position's being empty. No SGLang was run: what is believed of one is
tried first (`capabilities.tried`).
"""

from collections.abc import Sequence
from typing import Any

import torch

from q36eval.engines.openai.answers import ALIGNED_NATS, Answered, packed_row, read_as
from q36eval.engines.openai.client import MalformedError


class _Meta(Answered):
    prompt_tokens: int
    input_token_logprobs: list[Any] | None = None
    input_top_logprobs: list[Any] | None = None
    output_top_logprobs: list[Any] | None = None


class _Scored(Answered):
    meta_info: _Meta


def scoring_body(prompt: Sequence[int], first: int, top_k: int) -> dict[str, Any]:
    """A request for the `top_k` likeliest tokens of what predicts `prompt[first:]`."""
    return {
        "input_ids": list(prompt),
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": first - 1,
        "top_logprobs_num": top_k,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def likeliest_rows(content: Any, prompt: Sequence[int], first: int, vocabulary: int, top_k: int) -> torch.Tensor:
    """The rows that predict `prompt[first:]`, of the `top_k` likeliest tokens and the prompt's own, as
    `answers.packed_row` has them.

    Raises:
        MalformedError: it is an answer to another prompt, of other positions, or gives no distributions.
    """
    own = _own(content, prompt, first)
    rows = []
    for (token, value), entry in zip(own, _positions(content, "input_top_logprobs", len(own)), strict=True):
        if len(entry) != top_k:
            raise MalformedError(f"a position has {len(entry)} likeliest tokens, where {top_k} were requested")
        listed = _with_own(entry, token, value)
        rows.append(packed_row([*listed], [*listed.values()], vocabulary, top_k))
    return torch.stack(rows)


def _with_own(entry: dict[int, float], token: int, value: float) -> dict[int, float]:
    """A position's tokens and the prompt's own, of which both lists say the same where both have it.

    Raises:
        MalformedError: they do not: one of them is of another position.
    """
    if abs(entry.get(token, value) - value) > ALIGNED_NATS:
        raise MalformedError("the likeliest tokens of a position give the prompt's own another probability than it has")
    return entry | {token: value}


def generated_row(content: Any, prompt: Sequence[int], vocabulary: int, top_k: int) -> torch.Tensor:
    """The row that predicts the first token after `prompt`.

    Raises:
        MalformedError: as `likeliest_rows`.
    """
    meta = _meta(content, prompt)
    if not meta.output_top_logprobs:
        raise MalformedError("the answer has no log-probabilities of its first token")
    entry = _by_id(meta.output_top_logprobs[0])
    return packed_row([*entry], [*entry.values()], vocabulary, top_k)


def _meta(content: Any, prompt: Sequence[int]) -> _Meta:
    meta = read_as(_Scored, content).meta_info
    if meta.prompt_tokens != len(prompt):
        raise MalformedError(f"the answer counts {meta.prompt_tokens} tokens of a prompt that has {len(prompt)}")
    return meta


def _own(content: Any, prompt: Sequence[int], first: int) -> list[tuple[int, float]]:
    """Each token of `prompt[first:]` and its log-probability: that they are the prompt's shows that none is shifted."""
    given = _meta(content, prompt).input_token_logprobs
    if given is None or len(given) != len(prompt) - first + 1:
        count = "no" if given is None else len(given)
        raise MalformedError(f"the answer has {count} positions, where {len(prompt) - first + 1} were requested")
    own = [_entry(each) for each in given[1:]]
    if [token for token, _ in own] != list(prompt[first:]):
        raise MalformedError("the log-probabilities are those of other tokens than the prompt's")
    return own


def _positions(content: Any, name: str, count: int) -> list[dict[int, float]]:
    """The last `count` positions of a list of `meta_info`, by id."""
    given = getattr(read_as(_Scored, content).meta_info, name)
    if given is None or len(given) != count + 1:
        raise MalformedError(
            f"{name} has {'no' if given is None else len(given)} positions, and should have {count + 1}"
        )
    return [_by_id(each) for each in given[1:]]


def _by_id(position: Any) -> dict[int, float]:
    if not isinstance(position, list):
        raise MalformedError("a position has no log-probabilities")
    entries = [_entry(each) for each in position]
    by_id = dict(entries)
    if len(by_id) != len(entries):
        raise MalformedError("a position has the log-probability of a token twice")
    return by_id


def _entry(entry: Any) -> tuple[int, float]:
    try:
        value, token = entry[0], entry[1]
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError
        return token, float(value)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise MalformedError("a log-probability cannot be read") from error
