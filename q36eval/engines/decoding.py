"""Decoding of a batch whose rows stop on their own: each at its own budget, finished ones shed on the way.

On a CPU a Gated DeltaNet layer takes its steps in fewer passes over the recurrent state. Where no kernel package is
installed, transformers decodes with a reference implementation that is written to be read: every product with the state
is an elementwise one that is stored and then summed. A step of a small model spends most of its time on that.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from q36eval.engines.sampling import Sampler, sample

SHED_SHARE = 0.125
"""Finished rows leave the batch once they are this share of it: the copy of the caches costs about a step."""

EPSILON = 1e-6
"""Under the root of a norm, as in transformers and flash-linear-attention."""


@torch.inference_mode()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    stop_ids: Collection[int],
    padding_id: int,
    samplers: Sequence[Sampler | None] | None = None,
    cache: Any = None,
) -> list[list[int]]:
    """The continuation of every prompt, up to and including its first stop id or `budgets[i]` tokens.

    A row without a sampler takes the argmax. Prompts are left-padded to one width. Without samplers this is what
    transformers' `generate` with `do_sample=False` answers, for less work.

    A `cache` remembers what stands before each prompt, which is then not padded (a Gated DeltaNet layer would take the
    padding for text): as many tokens are read at once as the shortest prompt has, and the others go on reading theirs
    token by token while that one is answered.
    """
    samplers = samplers or [None] * len(prompts)
    device = next(model.parameters()).device
    past = 0 if cache is None else int(cache.get_seq_length())
    read = min(map(len, prompts)) if past else max(map(len, prompts))
    unread = [list(reversed(prompt[read:])) for prompt in prompts]
    ids, mask = _padded([prompt[:read] for prompt in prompts], padding_id, read, device)
    positions = past + (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config) if cache is None else cache
    answers: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # the prompt that each row of the batch continues
    while True:
        with fast_steps(device):
            states = model.model(
                input_ids=ids,
                attention_mask=None if past else mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
        drawing = [None if unread[row] else samplers[row] for row in rows]
        tokens = _chosen(model.lm_head(states).float(), drawing)
        for at, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if unread[row]:
                tokens[at] = unread[row].pop()
            elif not _finished(answers[row], budgets[row], stop_ids):
                answers[row].append(token)
                if (sampler := samplers[row]) is not None:
                    sampler.took(token)
        live = [at for at, row in enumerate(rows) if not _finished(answers[row], budgets[row], stop_ids)]
        if not live:
            return answers
        if len(live) <= (1 - SHED_SHARE) * len(rows):
            kept = torch.tensor(live, device=device)
            cache.reorder_cache(kept)
            mask, positions, tokens = mask[kept], positions[kept], tokens[kept]
            rows = [rows[at] for at in live]
        ids, positions = tokens.unsqueeze(1), positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)


def _padded(prompts: Sequence[Sequence[int]], padding_id: int, width: int, device: Any) -> tuple[Tensor, Tensor]:
    """Token ids [R, width], padded on the left, and the mask [R, width] that is 0 there."""
    ids = [[padding_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _chosen(logits: Tensor, samplers: Sequence[Sampler | None]) -> Tensor:
    """The next token of every row [R] from its logits [R, V]."""
    tokens = logits.argmax(-1)
    sampling = [(at, sampler) for at, sampler in enumerate(samplers) if sampler is not None]
    if sampling:
        rows = torch.tensor([at for at, _ in sampling], device=logits.device)
        tokens[rows] = sample(logits[rows], [sampler for _, sampler in sampling])
    return tokens


def _finished(answer: Sequence[int], budget: int, stop_ids: Collection[int]) -> bool:
    return len(answer) >= budget or (len(answer) > 0 and answer[-1] in stop_ids)


@contextmanager
def fast_steps(device: torch.device) -> Iterator[None]:
    """On a CPU, Gated DeltaNet layers that read one token compute it by `delta_step` inside the block."""
    own = modeling.torch_recurrent_gated_delta_rule
    if device.type == "cpu":
        modeling.torch_recurrent_gated_delta_rule = delta_step
    try:
        yield
    finally:
        modeling.torch_recurrent_gated_delta_rule = own


def delta_step(
    query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, initial_state: Tensor, **others: Any
) -> tuple[Tensor, Tensor]:
    """One token: its output [B, 1, H, Dv] and the state [B, H, Dk, Dv] after it, in float32.

    S' = exp(g) S + k (beta (v - k exp(g) S)), o = q S' / sqrt(Dk), with q and k of length one (Yang et al. 2024,
    arXiv 2412.06464, equation 10, transposed). `query` and `key` are [B, 1, H, Dk], `value` [B, 1, H, Dv], `g` and
    `beta` [B, 1, H]. `initial_state` itself becomes the new state, which the cache that owns it holds.
    """
    batch, heads, width = value.shape[0], value.shape[2], value.shape[3]
    rows = batch * heads
    q, k = (_of_length_one(x.float()).reshape(rows, 1, -1) for x in (query, key))
    state = initial_state.view(rows, -1, width)
    state.mul_(g.float().exp().reshape(rows, 1, 1))
    correction = (value.float().reshape(rows, 1, width) - torch.bmm(k, state)) * beta.float().reshape(rows, 1, 1)
    state.baddbmm_(k.transpose(1, 2), correction)
    output = torch.bmm(q * q.shape[-1] ** -0.5, state)
    return output.view(batch, 1, heads, width).to(query.dtype), initial_state


def _of_length_one(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON)
