"""The rate at which a model accepts the guesses of its own draft head: the gain of speculative decoding.

A guess drawn from q is accepted with probability Σ min(p, q), where p is the model's own distribution (Leviathan et al.
2023, arXiv 2211.17192, theorem 3.5); it is 1 if both are the same. A text is read, not generated: each guess sees the
text's own tokens, and for later guesses the attention sees only the head's own earlier states, while an engine has the
model's states for all but the last ones.
"""

import torch
from torch import Tensor

from q36eval.engines.base import Engine
from q36eval.kl.measurements import DRAFT_GUESSES
from q36eval.probes import ItemResults, WorkItem

GUESSES = len(DRAFT_GUESSES)
ROWS_AT_ONCE_BYTES = 2**26


def accepted(model_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """Σ min(p, q) of every row, float32 [T] from logits [T, V]; 0 if the draft's logits are not a distribution."""
    p, q = model_logits.float().softmax(-1), draft_logits.float().softmax(-1)
    return torch.minimum(p, q).sum(-1).nan_to_num_(nan=0.0).clamp_(0.0, 1.0)


def acceptance_sums(engine: Engine, item: WorkItem, results: ItemResults) -> dict[str, list[float]]:
    """By guess ("1", "2", …) the sum of Σ min(p, q) over the scored tokens of an item, and their number.

    Empty if the engine has no draft head. A window's first tokens have no guess.
    """
    if not engine.drafts:
        return {}
    sums = {str(guess): [0.0, 0.0] for guess in range(1, GUESSES + 1)}
    rows = 0
    for request in item.scores:
        states = results.scored[request.key].hidden_states
        labels = request.token_ids[request.first :]
        if states is None or len(labels) < 2:
            continue
        rows = rows or max(1, ROWS_AT_ONCE_BYTES // (4 * engine.logits(states[:1]).shape[-1]))
        drafted = engine.drafted(states, labels, request.first - 1, GUESSES)
        for guess, guessed in enumerate(drafted, 1):
            for own, drawn in zip(torch.split(states[guess:], rows), torch.split(guessed, rows), strict=True):
                share = accepted(engine.logits(own), engine.logits(drawn))
                sums[str(guess)][0] += float(share.double().sum())
                sums[str(guess)][1] += len(share)
    return sums
