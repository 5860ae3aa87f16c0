"""What an engine scores, by request, where nothing may error, and the passes that it makes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from q36eval.engines import Engine, ScoreRequest


def states_of(engine: Engine, requests: Sequence[ScoreRequest]) -> dict[str, torch.Tensor]:
    """Hidden states [rows, width] by the key of their request."""
    found = {}
    for scored in engine.score(requests):
        assert scored.hidden_states is not None, scored.error
        found[scored.request.key] = scored.hidden_states
    assert found.keys() == {request.key for request in requests}
    return found


def log_probs_of(engine: Engine, requests: Sequence[ScoreRequest]) -> dict[str, torch.Tensor]:
    """Log-probabilities in nats, float32 [rows, V], by the key of their request."""
    return {key: engine.logits(states).log_softmax(-1) for key, states in states_of(engine, requests).items()}


@contextmanager
def passes(model: Any) -> Iterator[list[tuple[int, int]]]:
    """The shapes of what goes through the model meanwhile, in this process."""
    seen: list[tuple[int, int]] = []
    handle = model.model.embed_tokens.register_forward_pre_hook(lambda _, given: seen.append(tuple(given[0].shape)))
    try:
        yield seen
    finally:
        handle.remove()
