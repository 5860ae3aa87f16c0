"""Decoding of a batch whose rows stop independently: each at its own budget; finished ones are dropped on the way."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from q36eval.checkpoints.architecture import base_of
from q36eval.engines.grown_steps import growing_cache, step_attention
from q36eval.engines.logits import OwnHead
from q36eval.engines.qwen3_5_moe.delta import delta_step
from q36eval.engines.qwen3_5_moe.steps import StepMemory, Steps
from q36eval.engines.sampling import Sampler, sample

SHED_SHARE = 0.125
"""Finished rows leave the batch once they are this share of it: the copy of the caches costs about a step."""


@torch.inference_mode()
def decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    stop_ids: Collection[int],
    padding_id: int,
    samplers: Sequence[Sampler | None] | None = None,
    cache: Any = None,
    memory: StepMemory | None = None,
    needed: Sequence[bool] | None = None,
    wrote: Callable[[int], None] = lambda tokens: None,
) -> list[list[int]]:
    """The continuation of every prompt, up to and including its first stop id or `budgets[i]` tokens.

    It ends once the `needed` rows end, by default all; the others' answers are then cut. `wrote` receives the tokens of
    every step.

    A row without a sampler takes the argmax. Prompts are left-padded to one width. Without samplers the result equals
    that of transformers' `generate` with `do_sample=False`, with less work.

    A `cache` holds the prefix of all prompts, which are then not padded (a Gated DeltaNet layer would treat the padding
    as text): as many tokens are read at once as the shortest prompt has, and the others continue token by token while
    that one is answered. With a `memory` the steps use it and enlarge it as needed; without one the batch's own cache
    grows.
    """
    samplers = samplers or [None] * len(prompts)
    device = next(model.parameters()).device
    past = 0 if cache is None else int(cache.get_seq_length())
    read = min(map(len, prompts)) if past else max(map(len, prompts))
    unread = [list(reversed(prompt[read:])) for prompt in prompts]
    ids, mask = _padded([prompt[:read] for prompt in prompts], padding_id, read, device)
    cache = growing_cache(model.config, device) if cache is None else cache
    with fast_steps(device):
        states = base_of(model)(
            input_ids=ids,
            attention_mask=None if past else mask,
            position_ids=past + (mask.cumsum(1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
    head = OwnHead.of(model)
    logits = head.rounded_logits(states)
    begins, width = read - mask.sum(1), past + read
    steps: Steps | _GrowingSteps
    if memory is None:
        steps = _GrowingSteps(model, cache, begins, width, masked=not past)
    else:
        longest = max(len(left) + budget for left, budget in zip(unread, budgets, strict=True))
        steps = Steps(memory, cache.layers, begins, width, width + longest)
        del cache
    answers: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # the prompt that each row of the batch continues
    while True:
        drawing = [None if unread[row] else samplers[row] for row in rows]
        tokens, written = _chosen(logits, drawing), 0
        for at, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if unread[row]:
                tokens[at] = unread[row].pop()
            elif not _finished(answers[row], budgets[row], stop_ids):
                answers[row].append(token)
                written += 1
                if (sampler := samplers[row]) is not None:
                    sampler.took(token)
        wrote(written)
        live = [at for at, row in enumerate(rows) if not _finished(answers[row], budgets[row], stop_ids)]
        if not any(needed is None or needed[rows[at]] for at in live):
            return answers
        if len(live) <= (1 - SHED_SHARE) * len(rows):
            kept = torch.tensor(live, device=device)
            steps.keep(kept)
            tokens = tokens[kept]
            rows = [rows[at] for at in live]
        logits = steps.next(tokens)


class _GrowingSteps:
    """Steps with a cache that grows by concatenation, as in transformers; arguments as those of `Steps`."""

    def __init__(self, model: Any, cache: Any, begins: Tensor, width: int, *, masked: bool) -> None:
        self._model, self._cache, self._masked = model, cache, masked
        self._head = OwnHead.of(model)
        self._begins, self._width = begins, width

    def keep(self, kept: Tensor) -> None:
        self._cache.reorder_cache(kept)
        self._begins = self._begins[kept]

    def next(self, tokens: Tensor) -> Tensor:
        self._width += 1
        columns = torch.arange(self._width, device=tokens.device)
        mask = (columns >= self._begins.unsqueeze(1)).long() if self._masked else None
        with fast_steps(tokens.device):
            states = base_of(self._model)(
                input_ids=tokens.unsqueeze(1),
                attention_mask=mask,
                position_ids=(self._width - 1 - self._begins).unsqueeze(1),
                past_key_values=self._cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
        return self._head.rounded_logits(states)


def _padded(prompts: Sequence[Sequence[int]], padding_id: int, width: int, device: Any) -> tuple[Tensor, Tensor]:
    """Token ids [R, width], padded on the left, and the mask [R, width], which is 0 there."""
    ids = [[padding_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _chosen(logits: Tensor, samplers: Sequence[Sampler | None]) -> Tensor:
    """The next token of every row [R] from its logits [R, V]."""
    sampling = [at for at, sampler in enumerate(samplers) if sampler is not None]
    drawing = [sampler for sampler in samplers if sampler is not None]
    if len(drawing) == len(logits):
        return sample(logits, drawing)
    tokens = logits.argmax(-1)
    if sampling:
        rows = torch.tensor(sampling, device=logits.device)
        tokens[rows] = sample(logits[rows], drawing)
    return tokens


def _finished(answer: Sequence[int], budget: int, stop_ids: Collection[int]) -> bool:
    return len(answer) >= budget or (len(answer) > 0 and answer[-1] in stop_ids)


@contextmanager
def fast_steps(device: torch.device) -> Iterator[None]:
    """On a CPU, layers that read one token compute it by `delta_step` and `step_attention` inside the block."""
    own, attention = modeling.torch_recurrent_gated_delta_rule, ALL_ATTENTION_FUNCTIONS["sdpa"]
    if device.type == "cpu":
        modeling.torch_recurrent_gated_delta_rule = delta_step
        ALL_ATTENTION_FUNCTIONS["sdpa"] = step_attention
    try:
        yield
    finally:
        modeling.torch_recurrent_gated_delta_rule, ALL_ATTENTION_FUNCTIONS["sdpa"] = own, attention
