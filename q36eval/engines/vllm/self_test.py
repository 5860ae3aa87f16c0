"""Whether the states that were taken are those that vLLM answers from: held to its own log-probabilities."""

from collections.abc import Sequence

import torch

from q36eval.engines.base import Engine, ScoreRequest
from q36eval.engines.vllm.process import AskError, WorkerProcess
from q36eval.errors import EngineError

TEXTS = (
    "The shop on the left sells the kettle for 1,250 Kč, the one on the right for 1,199 Kč with 10 % off.",
    '{"name": "Novák", "items": [{"sku": "A-17", "count": 3}], "paid": true}',
    "Dnes je středa. Zítra bude čtvrtek, a pozítří pátek.",
)
MEDIAN_NATS = 0.05
"""Half of all tokens' log-probabilities may differ by no more: logits in BF16 are off by up to 2^-8 of their size,
0.06 at 16, in most tokens far less. A norm that is left out, another head or rows in another order are nats off."""


def check_states(engine: Engine, worker: WorkerProcess) -> None:
    """Score a few texts, and compare the log-probability of each token with what vLLM says of it.

    Raises:
        EngineError: states are missing, not finite or zero, or give other log-probabilities than vLLM's.
    """
    prompts = [engine.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    theirs, ours = _theirs(worker, prompts), _ours(engine, prompts)
    gap = _half_differ_by(theirs, ours)
    if gap > MEDIAN_NATS:
        raise EngineError(
            "hidden-states-wrong",
            f"The hidden states taken from vLLM are not those it answers from: its log-probabilities differ by "
            f"{gap:.2f} nats in half of {len(theirs)} tokens; report this with the versions of vLLM.",
        )


def _theirs(worker: WorkerProcess, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The log-probability [T] of every token that follows one, as vLLM says."""
    try:
        told = worker.ask("token_log_probs", "it showed log-probabilities", prompts=prompts)["log_probs"]
    except AskError as error:
        raise EngineError(
            "engine-log-probs-missing", f"vLLM shows no log-probabilities to hold its hidden states to: {error}."
        ) from error
    return torch.tensor([each for row in told for each in row], dtype=torch.float64)


def _ours(engine: Engine, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The same [T] of the states that were taken."""
    requests = [ScoreRequest(f"self-test/{at}", tuple(ids)) for at, ids in enumerate(prompts)]
    rows: dict[str, torch.Tensor] = {}
    for scored in engine.score(requests):
        if scored.hidden_states is None:
            raise EngineError("hidden-states-missing", f"The hidden states of vLLM cannot be had: {scored.error}.")
        log_probs = engine.logits(scored.hidden_states).double().log_softmax(-1)
        labels = torch.tensor(scored.request.token_ids[1:], device=log_probs.device).unsqueeze(1)
        rows[scored.request.key] = log_probs.gather(1, labels).squeeze(1).cpu()
    return torch.cat([rows[request.key] for request in requests])


def _half_differ_by(one: torch.Tensor, other: torch.Tensor) -> float:
    """By so many nats at least half of all tokens differ.

    Raises:
        EngineError: one has other tokens, or not only numbers.
    """
    if len(one) != len(other):
        raise EngineError(
            "engine-answer-malformed",
            f"vLLM shows log-probabilities of {len(one)} tokens for {len(other)} that were asked.",
        )
    gaps = (one - other).abs()
    if not gaps.isfinite().all():
        raise EngineError("values-not-finite", "The hidden states of vLLM give log-probabilities that are no numbers.")
    return float(gaps.median())
