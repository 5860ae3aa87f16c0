"""Seeded sampling from a temperature-scaled nucleus: what a request draws depends on the request alone."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor


class Sampler:
    """How one request samples, and its own stream of random numbers, one per token.

    The stream is made from the request's seed and key, so the same request draws the same numbers in every batch.
    """

    def __init__(self, temperature: float, top_p: float, seed: int, key: str) -> None:
        self.temperature, self.top_p = temperature, top_p
        self._random = random.Random(f"{seed}/{key}")

    def uniform(self) -> float:
        """The next number, in [0, 1)."""
        return self._random.random()


def sample(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """One token id per row of `logits` [R, V], each by its own sampler: int64 [R].

    Nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751, section 3.1): of the temperature-scaled distribution the
    fewest likeliest tokens that together hold `top_p` are kept, then the inverse of their cumulative distribution is
    taken at the row's random number. Equally likely tokens are ranked by id.
    """

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device).unsqueeze(1)

    scaled = logits.double() / column([sampler.temperature for sampler in samplers])
    probabilities, ids = scaled.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = torch.nn.functional.pad(probabilities.cumsum(-1)[:, :-1], (1, 0))
    kept = before < column([sampler.top_p for sampler in samplers])
    cumulative = (probabilities * kept).cumsum(-1)
    target = column([sampler.uniform() for sampler in samplers]) * cumulative[:, -1:]
    rank = torch.searchsorted(cumulative, target, right=True)
    # rounding may take the target up to the whole mass, past which there is no token
    rank = rank.minimum(kept.sum(-1, keepdim=True) - 1)
    return ids.gather(-1, rank).squeeze(-1)
