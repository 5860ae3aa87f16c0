"""SGLang's own scoring, `/generate`: log-probabilities of a prompt's tokens and of the most likely ones.

Its chat and completions pages return none for a prompt. The shapes follow its API reference
(https://docs.sglang.io/basic_usage/sampling_params.html): for each position `[log-probability, id, text]`; the first
position is empty. We never ran SGLang: every ability is tested first (`capabilities.tried`).
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BeforeValidator, StrictInt

from q36eval.engines.openai.answers import ALIGNED_NATS, Answered, packed_row, read_as
from q36eval.engines.openai.client import MalformedError

Entry = Annotated[
    tuple[float | None, StrictInt], BeforeValidator(lambda entry: entry[:2] if isinstance(entry, list) else entry)
]
"""A log-probability and its token's id; the text after them is ignored."""
PlaceT = TypeVar("PlaceT")


class _Meta(Answered):
    prompt_tokens: int
    input_token_logprobs: list[Entry] | None = None
    input_top_logprobs: list[list[Entry] | None] | None = None
    output_top_logprobs: list[list[Entry]] | None = None


class _Scored(Answered):
    meta_info: _Meta


def scoring_body(prompt: Sequence[int], first: int, top_k: int) -> dict[str, Any]:
    """A request for the `top_k` most likely tokens of the predictions of `prompt[first:]`."""
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
    """The rows that predict `prompt[first:]`, with the `top_k` most likely tokens and the prompt's own, as
    `answers.packed_row` has them.

    Raises:
        MalformedError: it answers another prompt or other positions, or the values are not distributions.
    """
    meta, count = _meta(content, prompt), len(prompt) - first
    own, tops = _last(meta.input_token_logprobs, count), _last(meta.input_top_logprobs, count)
    if [token for _, token in own] != list(prompt[first:]):
        raise MalformedError("the log-probabilities are those of other tokens than the prompt's")
    rows = []
    for one, top in zip(own, tops, strict=True):
        entry = _by_id(top or [])
        ((token, value),) = _by_id([one]).items()
        if len(entry) != top_k:
            raise MalformedError(f"a position has {len(entry)} likeliest tokens, where {top_k} were requested")
        if abs(entry.get(token, value) - value) > ALIGNED_NATS:  # one of the two lists belongs to another position
            raise MalformedError("a position's likeliest tokens give the prompt's own another probability than it has")
        listed = entry | {token: value}
        rows.append(packed_row([*listed], [*listed.values()], vocabulary, top_k))
    return torch.stack(rows)


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


def _last(given: list[PlaceT] | None, count: int) -> list[PlaceT]:
    """The last `count` positions of a list with one more, whose first is empty."""
    if given is None or len(given) != count + 1:
        told = "no" if given is None else len(given)
        raise MalformedError(f"the answer has {told} positions, where {count + 1} were requested")
    return given[1:]


def _by_id(entries: Sequence[Entry]) -> dict[int, float]:
    by_id = {token: value for value, token in entries if value is not None}
    if len(by_id) != len(entries):
        raise MalformedError("a position has the log-probability of a token twice, or none of one")
    return by_id
