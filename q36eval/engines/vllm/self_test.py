"""Whether the captured states are those behind vLLM's answers: compared with its own log-probabilities.

Any version of vLLM is trusted after this test and refused if it fails.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from q36eval.engines.base import Engine, ScoreRequest
from q36eval.engines.vllm.process import AskError, WorkerProcess
from q36eval.engines.vllm.window import ScoringWindow
from q36eval.errors import EngineError

SHORT_TEXTS = (
    "The shop on the left sells the kettle for 1,250 Kč, the one on the right for 1,199 Kč with 10 % off.",
    '{"name": "Novák", "items": [{"sku": "A-17", "count": 3}], "paid": true}',
    "Dnes je středa. Zítra bude čtvrtek, a pozítří pátek.",
)
TEXTS = (*SHORT_TEXTS, " ".join(SHORT_TEXTS * 3))
"""The last is longer than a block of a prefix cache (128 tokens on a CPU)."""
MEDIAN_NATS = 0.1
"""The maximum of the median difference of a text's log-probabilities: BF16 logits are off by up to 2^-8 of their size,
0.12 at 32, in most tokens far less. A missing norm, another head or another order of rows is nats off."""
ANSWER_NATS = 0.5
"""The maximum difference of one token, the answered one."""


def check_states(engine: Engine, worker: WorkerProcess, context: int) -> None:
    """Score a few texts, and compare the log-probability of each token with vLLM's.

    vLLM reports them for the same passes as the states: if inputs are quantized, other passes round differently, and
    half of the log-probabilities change by over 0.1 nats. Repeated texts use a prefix cache that is on.

    Raises:
        EngineError: states are missing, not finite or zero, or give other log-probabilities than vLLM's; names the
            version and the step.
    """
    prompts = [engine.tokenizer.encode(text, add_special_tokens=False)[: context - 1] for text in TEXTS]
    texts = [ScoreRequest(f"self-test/{at}", (*ids, ids[-1])) for at, ids in enumerate(prompts)]
    with _step(engine, "a text alone"):
        for text in texts:
            _compare(engine, worker, [text])
    with _step(engine, "texts together"):
        _compare(engine, worker, texts)


@contextmanager
def _step(engine: Engine, name: str) -> Iterator[None]:
    try:
        yield
    except (AskError, EngineError, LookupError, ValueError) as error:
        code = error.code if isinstance(error, EngineError) else "engine-log-probs-missing"
        version, why = engine.identity.engine_version, str(error).rstrip(".")
        raise EngineError(code, f"{version} fails the start-up test of hidden states ({name}): {why}.") from error


def _compare(engine: Engine, worker: WorkerProcess, texts: Sequence[ScoreRequest]) -> None:
    window = ScoringWindow(worker, texts, log_probs=True)
    for scored, told in zip(window.results(engine.device), window.told(), strict=True):
        if scored.hidden_states is None:
            raise EngineError("hidden-states-missing", str(scored.error))
        log_probs = engine.logits(scored.hidden_states).double().log_softmax(-1)
        tokens, theirs = torch.tensor(told, dtype=torch.float64, device=log_probs.device).unbind(-1)
        gaps = (log_probs.gather(1, tokens.long().unsqueeze(1)).squeeze(1) - theirs).abs().cpu()
        if not gaps.isfinite().all():
            raise EngineError("values-not-finite", "they give log-probabilities that are no numbers")
        half, answer = float(gaps[:-1].median()), float(gaps[-1])
        if half > MEDIAN_NATS or answer > ANSWER_NATS:
            raise EngineError(
                "hidden-states-wrong",
                f"their log-probabilities differ from its own by {half:.2f} nats in half of {len(gaps) - 1} tokens, "
                f"and by {answer:.2f} in the token that it answers",
            )
