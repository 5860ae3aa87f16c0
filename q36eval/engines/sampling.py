"""Seeded sampling from a temperature-scaled nucleus: what a request draws depends on the request alone."""

import hashlib
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from q36eval.engines.base import Coupling

_STREAM, _STEP, _TOKEN = 0x2545F4914F6CDD1D, 0x9E3779B97F4A7C15 - (1 << 64), 0x632BE59BD9B4E019
_MIX = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""Odd 64-bit constants; those of the mixer are splitmix64's (Steele et al. 2014, doi 10.1145/2660193.2660195)."""


class Sampler:
    """How one request samples, and its own stream of random numbers, by token.

    The stream is made from the request's seed and key, so the same request draws the same numbers in every batch and on
    every device. `top_k` 0 keeps every token. `presence_penalty` is taken from the logit of each token answered before.
    """

    def __init__(
        self,
        temperature: float,
        top_p: float,
        seed: int,
        key: str,
        *,
        top_k: int = 0,
        presence_penalty: float = 0.0,
        coupling: Coupling = "inverse_cdf",
    ) -> None:
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self.presence_penalty, self.coupling = presence_penalty, coupling
        self._random = random.Random(f"{seed}/{key}")
        digest = hashlib.sha256(f"{seed}/{key}".encode()).digest()
        self.stream = int.from_bytes(digest[:8], "little", signed=True)
        self.step = 0
        self.answered: set[int] = set()

    def uniform(self) -> float:
        """The next number, in [0, 1)."""
        return self._random.random()

    def took(self, token: int) -> None:
        """That token was answered at this step."""
        self.step += 1
        if self.presence_penalty:
            self.answered.add(token)


def sample(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """One token id per row of `logits` [R, V], each by its own sampler: int64 [R].

    Nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751, section 3.1): of the temperature-scaled distribution the
    fewest likeliest tokens that together hold `top_p` are kept, `top_k` at most, and one of them is taken as the row's
    coupling says. Equally likely tokens are ranked by id. Penalties come before the temperature, `top_k` before
    `top_p`, as serving engines have it.

    Raises:
        ValueError: logits from which no distribution follows (NaN, or infinity upwards).
    """
    scaled = _penalized(logits, samplers) / _column(logits, [sampler.temperature for sampler in samplers])
    likely = scaled.softmax(-1)
    if not bool(likely.amax(-1).isfinite().all()):
        raise ValueError("the logits are not finite")
    probabilities, ids = _ranked(likely, samplers)
    before = torch.nn.functional.pad(probabilities.cumsum(-1)[:, :-1], (1, 0))
    kept = (before < _column(logits, [sampler.top_p for sampler in samplers])) & (probabilities > 0)
    rank = _ranks_by_inverse_cdf(probabilities, kept, samplers)
    noisy = [row for row, sampler in enumerate(samplers) if sampler.coupling == "gumbel"]
    if noisy:
        rows = torch.tensor(noisy, device=logits.device)
        # nothing beyond the widest nucleus can win
        width = int(kept[rows].sum(-1).max())
        log_kept = probabilities[rows, :width].log().masked_fill(~kept[rows, :width], -torch.inf)
        noise = gumbel_noise(ids[rows, :width], [samplers[row] for row in noisy])
        rank[rows] = (log_kept + noise).argmax(-1, keepdim=True)
    return ids.gather(-1, rank).squeeze(-1)


RANKED_AT_FIRST = 256
"""So many of the likeliest tokens hold nearly every nucleus; to sort all 248,320 takes several times as long."""


def _ranked(likely: Tensor, samplers: Sequence[Sampler]) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of every row and their shares of its `top_k`, in order: float64 and int64 [R, W].

    W is as wide as the widest nucleus at least. Equally likely tokens are ranked by id, also where W ends.
    """
    vocabulary = likely.shape[-1]
    sizes = [min(sampler.top_k or vocabulary, vocabulary) for sampler in samplers]
    top_p = _column(likely, [sampler.top_p for sampler in samplers])
    within = torch.tensor(sizes, device=likely.device).unsqueeze(1)
    whole_vocabulary = any(s.top_p >= 1 and size == vocabulary for s, size in zip(samplers, sizes, strict=True))
    width = vocabulary if whole_vocabulary else max(sizes) if max(sizes) < vocabulary else RANKED_AT_FIRST
    while True:
        width = min(width, vocabulary)
        if width == vocabulary:
            ranked, ids = likely.sort(dim=-1, descending=True, stable=True)
        else:
            ids = likely.topk(width + 1, dim=-1).indices.sort(dim=-1).values
            ranked, order = likely.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
            ids = ids.gather(-1, order)
        counted = ranked * (torch.arange(ranked.shape[-1], device=likely.device) < within)
        whole = torch.where(within < vocabulary, counted.sum(-1, keepdim=True), likely.sum(-1, keepdim=True))
        shares = counted / whole
        if width == vocabulary:
            return shares, ids
        # a token that is as likely as the one after the last might have a lower id
        complete = (within <= width) | (shares[:, :width].sum(-1, keepdim=True) >= top_p)
        if bool((complete & (ranked[:, width - 1 : width] > ranked[:, width:])).all()):
            return shares[:, :width], ids[:, :width]
        width *= 16


def gumbel_noise(ids: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """Standard Gumbel noise of the tokens `ids` [R, K] at each row's own place in its stream: float64 [R, K].

    Integer hashing alone decides, so that the numbers are the same on every device.
    """

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=ids.device).unsqueeze(1)

    counted = column([sampler.stream for sampler in samplers]) * _STREAM
    counted = counted + column([sampler.step + 1 for sampler in samplers]) * _STEP
    mixed = _mixed(_mixed(counted) + (ids + 1) * _TOKEN)
    uniform = (_shifted(mixed, 11).double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def _mixed(values: Tensor) -> Tensor:
    """splitmix64's finalizer; products wrap around."""
    values = (values ^ _shifted(values, 30)) * _MIX[0]
    values = (values ^ _shifted(values, 27)) * _MIX[1]
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, by: int) -> Tensor:
    """To the right, filled with zeros."""
    return (values >> by) & ((1 << (64 - by)) - 1)


def _column(like: Tensor, values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)


def _penalized(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    penalized = logits.double()
    for row, sampler in enumerate(samplers):
        if sampler.answered:
            penalized[row, torch.tensor(sorted(sampler.answered), device=logits.device)] -= sampler.presence_penalty
    return penalized


def _ranks_by_inverse_cdf(probabilities: Tensor, kept: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """Where in the sorted nucleus each row's next uniform number falls: int64 [R, 1]."""
    cumulative = (probabilities * kept).cumsum(-1)
    uniform = [sampler.uniform() if sampler.coupling == "inverse_cdf" else 0.0 for sampler in samplers]
    target = _column(probabilities, uniform) * cumulative[:, -1:]
    rank = torch.searchsorted(cumulative, target, right=True)
    # rounding may take the target up to the whole mass, past which there is no token
    return rank.minimum(kept.sum(-1, keepdim=True) - 1)
