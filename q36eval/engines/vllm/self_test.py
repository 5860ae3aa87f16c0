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
    try:
        theirs = worker.ask("token_log_probs", "it showed log-probabilities", prompts=prompts)["log_probs"]
    except AskError as error:
        raise EngineError(f"vLLM shows no log-probabilities to hold its hidden states to: {error}.") from error
    requests = [ScoreRequest(f"self-test/{at}", tuple(ids)) for at, ids in enumerate(prompts)]
    ours: dict[str, Sequence[float]] = {}
    for scored in engine.score(requests):
        if scored.hidden_states is None:
            raise EngineError(f"The hidden states of vLLM cannot be had: {scored.error}.")
        log_probs = engine.logits(scored.hidden_states).double().log_softmax(-1)
        labels = torch.tensor(scored.request.token_ids[1:], device=log_probs.device).unsqueeze(1)
        ours[scored.request.key] = log_probs.gather(1, labels).squeeze(1).tolist()
    gaps = torch.tensor(
        [
            abs(one - other)
            for request, row in zip(requests, theirs, strict=True)
            for one, other in zip(ours[request.key], row, strict=True)
        ]
    )
    if not gaps.isfinite().all():
        raise EngineError("The hidden states of vLLM give log-probabilities that are no numbers.")
    if float(gaps.median()) > MEDIAN_NATS:
        raise EngineError(
            f"The hidden states taken from vLLM are not those it answers from: its log-probabilities differ by "
            f"{float(gaps.median()):.2f} nats in half of {len(gaps)} tokens; report this with the versions of vLLM."
        )
