"""Silent faults of a model, detected with a few tokens when it is loaded.

The head is compared with the model's own forward pass, and so are the results of left padding, a cache and a shared
prefix. An emulated KV cache must receive the keys and values of each attention layer once. Such errors are as large as
the states; rounding is far below `TOLERANCE`, except for inputs and KV caches of a few bits, which are switched off
here: a different order of sums then changes SmolLM2's states by 24 % in NVFP4, and more if the scales are damaged,
which the measurements find instead.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from q36eval.checkpoints.architecture import base_of
from q36eval.checkpoints.emulation import inputs_as_they_are
from q36eval.checkpoints.kv_cache import caches_as_they_are, updates
from q36eval.engines.base import ScoreRequest
from q36eval.engines.logits import LogitsForm, check_form
from q36eval.engines.memory_plan import CHUNK_TOKENS
from q36eval.engines.shared_prefix import LastPrefix, can_be_lent, score_after
from q36eval.errors import UsageError

TOLERANCE = 0.2
"""As a share of the states' norm."""


@dataclass(frozen=True)
class Abilities:
    """The usable abilities of a model; a failed one is switched off."""

    pads: bool = True
    """Prompts of several lengths are generated together."""
    shares: bool = True
    """A prefix shared by rows is computed once."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the abilities that are switched off."""
        have = {"left padding": self.pads, "shared prefixes": self.shares}
        return tuple(name for name, works in have.items() if not works)


@torch.inference_mode()
def tried(model: Any) -> Abilities:
    """The abilities of a model that is resident on one device.

    A model with non-finite states is damaged, which the measurements find, not this check.

    Raises:
        UsageError: the form of its logits is unknown, one token after a cache differs from a full pass, or an emulated
            KV cache does not receive what attention reads.
    """
    _check_updates(model)
    with inputs_as_they_are(model), caches_as_they_are(model):
        return _tried(model)


def _check_updates(model: Any) -> None:
    """Raises UsageError if an emulated KV cache does not receive the keys and values of a pass exactly once."""
    before = updates(model)
    if not before:
        return
    _states(model, torch.tensor([[11, 12]], device=next(model.parameters()).device))
    if any(after != count + 1 for count, after in zip(before, updates(model), strict=True)):
        raise UsageError(
            "kv-cache-unsupported",
            f"The KV cache of {type(model).__name__} is not emulated: an attention layer does not store its keys "
            f"and values exactly once in a pass.",
        )


def _tried(model: Any) -> Abilities:
    shares = can_be_lent(model)
    vocabulary, device = int(model.config.vocab_size), next(model.parameters()).device
    length = CHUNK_TOKENS + 8 if shares else 12
    ids = torch.arange(length).mul(7919).add(11).remainder(vocabulary).to(device)
    own = _states(model, ids.unsqueeze(0))[0]
    if not bool(own.isfinite().all()):
        return Abilities(shares=shares)
    check_form(model, LogitsForm.of(model.config))
    cache = DynamicCache(config=model.config)
    before = base_of(model)(input_ids=ids[None, :7], past_key_values=cache, use_cache=True).last_hidden_state[0]
    after = base_of(model)(input_ids=ids[None, 7:8], past_key_values=cache, use_cache=True).last_hidden_state[0]
    if not _same(torch.cat([before, after]), own[:8]):
        raise UsageError(
            "architecture-unsupported",
            f"{type(model).__name__} gives other hidden states after a cache than in one pass, so its answers would be "
            f"wrong.",
        )
    mask = torch.ones(2, 8, dtype=torch.long, device=device)
    mask[1, :5] = 0
    rows = torch.stack([ids[:8], torch.cat([ids[:1].expand(5), ids[:3]])])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = base_of(model)(input_ids=rows, attention_mask=mask, position_ids=positions, use_cache=False)
    pads = _same(padded.last_hidden_state[1, 5:], own[:3])
    return Abilities(pads, shares and _shares(model, tuple(ids.tolist()), own))


def _shares(model: Any, ids: tuple[int, ...], own: Tensor) -> bool:
    requests = [ScoreRequest(str(row), ids, first=CHUNK_TOKENS + 1, shared=CHUNK_TOKENS) for row in range(2)]
    scored = score_after(model, ids[:CHUNK_TOKENS], requests, LastPrefix(model))
    return all(
        one.hidden_states is not None and _same(one.hidden_states, own[CHUNK_TOKENS : len(ids) - 1]) for one in scored
    )


def _states(model: Any, ids: Tensor) -> Tensor:
    states: Tensor = base_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    return states


def _same(found: Tensor, own: Tensor) -> bool:
    """Whether states [T, H] are equal up to rounding, for nearly every token: a router may switch at a tie."""
    errors = (found.float() - own.float()).norm(dim=-1) / own.float().norm(dim=-1)
    return bool(errors.median() < TOLERANCE)
