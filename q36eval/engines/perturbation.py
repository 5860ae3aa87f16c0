"""The same deployment, perturbed: other ways to compute the same, none of which should change an answer.

Their effect is the noise below which a difference between deployments says nothing. An engine declares its
perturbations by name; unavailable ones are declared, too, with the reason, so that none is missed silently.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache

from q36eval.checkpoints.architecture import base_of
from q36eval.engines.base import Engine, Perturbation, Scored, ScoreRequest
from q36eval.engines.batches import SCORE_BATCH_TOKENS, batches_by_length, in_order
from q36eval.engines.decoding import fast_steps
from q36eval.engines.forks import in_forks
from q36eval.engines.numerics import rounded
from q36eval.engines.qwen3_5_moe.fused_layers import plain_layers
from q36eval.engines.resident import FORKED_WEIGHT_BYTES, ResidentEngine, right_padded
from q36eval.engines.shared_prefix import scored_after

SHIFT = 33
"""Tokens of padding before the longest row: half a chunk of the DeltaNet kernels (64) and odd, so chunks shift too."""

DECODED_TOKENS = 192
"""The number of tokens per request decoded one by one: three chunks of a prefill's DeltaNet kernel."""

DECODED_ROWS = 16
FORKED_DEVICE = "cuda:0"


def perturbations(engine: ResidentEngine) -> tuple[Perturbation, ...]:
    """The perturbations of a resident model.

    The number of threads is not one of them: on a CPU, 20 documents of the sandbox were bit for bit identical with one
    thread and with two.
    """

    def variant(kind: type[ResidentEngine]) -> Callable[[], Engine]:
        return lambda: kind(engine.model, engine.tokenizer, engine.identity)

    return (
        Perturbation("left-padding", "rows padded on the left, under a mask", variant(LeftPadded)),
        Perturbation("batch-of-one", "every document alone", variant(OneByOne)),
        Perturbation("another-batch", "batches of other size and company", variant(InOtherCompany)),
        Perturbation(
            "decode",
            f"the first {DECODED_TOKENS} tokens one by one through the cache, against prefill",
            variant(Decoded),
            prefix=DECODED_TOKENS,
        ),
        Perturbation("other-kernels", "plain attention and experts instead of fused ones", variant(OtherKernels)),
        _device(engine),
        Perturbation("another-engine", "the same weights in another engine", skipped="no other engine is at hand"),
        Perturbation("bf16-logits", "logits rounded to BF16", variant(RoundedLogits), rescores=False),
    )


def of_batches(
    engine: ResidentEngine, made: Callable[[type[ResidentEngine]], Callable[[], Engine]], others: str
) -> tuple[Perturbation, ...]:
    """Those that only form other batches or round logits, built by `made`; `others` is the reason for omitting the
    rest."""
    kinds: dict[str, type[ResidentEngine]] = {
        "batch-of-one": OneByOne,
        "another-batch": InOtherCompany,
        "bf16-logits": RoundedLogits,
    }
    return tuple(
        replace(each, variant=made(kinds[each.name]))
        if each.name in kinds
        else replace(each, variant=None, skipped=others)
        for each in perturbations(engine)
    )


class LeftPadded(ResidentEngine):
    """Rows end together; their padding is masked, and positions count from their first token.

    DeltaNet layers multiply masked inputs by zero, as in transformers' own generation; their states stay empty.
    """

    @torch.inference_mode()
    def _score_batch(self, batch: Sequence[ScoreRequest]) -> list[Scored]:
        width = max(len(request.token_ids) for request in batch) + SHIFT
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros(len(batch), width, dtype=torch.long)
        for row, request in enumerate(batch):
            ids[row, width - len(request.token_ids) :] = torch.tensor(request.token_ids)
            mask[row, width - len(request.token_ids) :] = 1
        hidden = base_of(self._model)(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            position_ids=(mask.cumsum(1) - 1).clamp(min=0).to(self.device),
            use_cache=False,
        ).last_hidden_state
        return [
            Scored(request, hidden[row, width - len(request.token_ids) + request.first - 1 : -1].clone())
            for row, request in enumerate(batch)
        ]


class OneByOne(ResidentEngine):
    """Every request is a separate batch."""

    def _score_batches(self, requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
        for batch in super()._score_batches(requests):
            yield from ([request] for request in batch)


class InOtherCompany(ResidentEngine):
    """Batches of half the size, of requests with mixed lengths (ordered by content, not by length)."""

    def _score_batches(self, requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
        def is_full(batch: list[ScoreRequest], request: ScoreRequest) -> bool:
            width = max(len(other.token_ids) for other in [*batch, request])
            return (len(batch) + 1) * width > SCORE_BATCH_TOKENS // 2

        return in_order(sorted(requests, key=lambda request: (request.group, request.key)), is_full)


class Decoded(ResidentEngine):
    """Teacher-forced one token at a time through the cache, as in generation: decode instead of prefill kernels."""

    def _score_batches(self, requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
        return batches_by_length(requests, DECODED_ROWS * SCORE_BATCH_TOKENS, DECODED_ROWS)

    @torch.inference_mode()
    def _score_batch(self, batch: Sequence[ScoreRequest]) -> list[Scored]:
        ids = right_padded(batch).to(self.device)
        cache = DynamicCache(config=self._model.config)
        with fast_steps(self.device):
            steps = [
                base_of(self._model)(
                    input_ids=ids[:, at : at + 1], past_key_values=cache, use_cache=True
                ).last_hidden_state
                for at in range(ids.shape[1] - 1)
            ]
        return scored_after((), batch, torch.cat(steps, dim=1))


class RoundedLogits(ResidentEngine):
    """Logits in BF16, as in most engines."""

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rounded(super().logits(hidden_states))


class OtherKernels(ResidentEngine):
    """Attention and experts by transformers' plain implementations, with a different order of operations."""

    def _score_batch(self, batch: Sequence[ScoreRequest]) -> list[Scored]:
        with _plain_kernels(self._model), plain_layers():
            return super()._score_batch(batch)


@contextmanager
def _plain_kernels(model: Any) -> Iterator[None]:
    attention, experts = model.config._attn_implementation, model.config._experts_implementation
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(attention)
        model.set_experts_implementation(experts)


def _device(engine: ResidentEngine) -> Perturbation:
    name, what = "device", "GPU against CPU"
    if torch.cuda.device_count() == 0:
        return Perturbation(name, what, skipped="there is no GPU")
    if engine.weight_bytes > FORKED_WEIGHT_BYTES:
        return Perturbation(name, what, skipped="the model is too large to be run on the CPU and the GPU in turn")
    if engine.device.type == "cpu":
        return Perturbation(name, what, lambda: OnGPU(engine.model, engine.tokenizer, engine.identity))
    return Perturbation(name, what, lambda: _on(engine, "cpu"))


def _on(engine: ResidentEngine, device: str) -> ResidentEngine:
    """A copy of the deployment on another device."""
    return ResidentEngine(copy.deepcopy(engine.model).to(device), engine.tokenizer, engine.identity)


class OnGPU(ResidentEngine):
    """A model of the CPU, scored by a copy on the GPU in a forked process.

    This process stays without CUDA, which would prevent forked workers.
    """

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        wanted = [request for request in requests if request.key not in known]
        for batch, results in in_forks(self._on_gpu, [wanted], 1):
            yield from results if isinstance(results, list) else [Scored(r, None, f"engine: {results}") for r in batch]

    def _on_gpu(self, batch: list[ScoreRequest]) -> list[Scored]:
        scores = _on(self, FORKED_DEVICE).score(batch)
        return [Scored(s.request, None if s.hidden_states is None else s.hidden_states.cpu(), s.error) for s in scores]
