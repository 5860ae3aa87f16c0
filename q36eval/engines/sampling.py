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
    """The sampling of one request, with its own stream of random numbers, by token.

    The stream depends on the request's seed and key, so the same request draws the same numbers in every batch and on
    every device. `top_k` 0 keeps every token. `presence_penalty` is subtracted from the logit of each token answered
    before.
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
        """Record the token answered at this step."""
        self.step += 1
        if self.presence_penalty:
            self.answered.add(token)


def sample(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """One token id per row of `logits` [R, V], each by its own sampler: int64 [R].

    Nucleus sampling (Holtzman et al. 2020, arXiv 1904.09751, section 3.1): of the temperature-scaled distribution the
    fewest most likely tokens that together hold `top_p` are kept, at most `top_k`, and the row's coupling takes one of
    them. Ties are ranked by id. Penalties come before the temperature, `top_k` before `top_p`, as in serving engines.

    Raises:
        ValueError: the logits do not define a distribution (NaN or +inf).
    """
    vocabulary = logits.shape[-1]
    sizes = [min(sampler.top_k or vocabulary, vocabulary) for sampler in samplers]
    uniform = [sampler.uniform() if sampler.coupling == "inverse_cdf" else 0.0 for sampler in samplers]
    temperature, top_p, drawn = _columns(
        logits.device,
        torch.float64,
        [sampler.temperature for sampler in samplers],
        [sampler.top_p for sampler in samplers],
        uniform,
    )
    penalized, by_logit = _penalized(logits, samplers)
    likely = (penalized / temperature).softmax(-1)
    whole_vocabulary = any(s.top_p >= 1 and size == vocabulary for s, size in zip(samplers, sizes, strict=True))
    width = vocabulary if whole_vocabulary else max(sizes) if max(sizes) < vocabulary else RANKED_AT_FIRST
    while True:
        width = min(width, vocabulary)
        probabilities, ids, complete = _ranked(likely, logits if by_logit else likely, sizes, top_p, width)
        tokens = _drawn(probabilities, ids, top_p, drawn, samplers)
        # waits for the GPU here, and for the width of a nucleus with more than `RANKED_AT_FIRST` tokens
        told = torch.stack([probabilities[:, 0].isfinite(), complete.squeeze(-1)]).tolist()
        if not all(told[0]):
            raise ValueError("the logits are not finite")
        if all(told[1]):
            return tokens
        width *= 16


RANKED_AT_FIRST = 256
"""This many most likely tokens contain nearly every nucleus; sorting all 248,320 takes several times as long."""


def _ranked(
    likely: Tensor, order: Tensor, sizes: Sequence[int], top_p: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The `width` most likely tokens of every row and their shares of its `sizes` most likely, in order: float64 and
    int64 [R, W]; and whether they are all of its nucleus, bool [R, 1].

    Ties are ranked by id, also at the end of W. `likely` [R, V] grows with `order` [R, V].
    """
    vocabulary = likely.shape[-1]
    if width == vocabulary:
        ranked, ids = likely.sort(dim=-1, descending=True, stable=True)
    else:
        ids = order.topk(width + 1, dim=-1).indices.sort(dim=-1).values
        ranked, places = likely.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, places)
    if min(sizes) == max(sizes) < vocabulary:
        counted = ranked.clone()
        counted[:, sizes[0] :] = 0
        shares = counted / counted.sum(-1, keepdim=True)
        complete = torch.ones_like(top_p, dtype=torch.bool)
    else:
        (within,) = _columns(likely.device, torch.int64, sizes)
        counted = ranked * (torch.arange(ranked.shape[-1], device=likely.device) < within)
        whole = torch.where(within < vocabulary, counted.sum(-1, keepdim=True), likely.sum(-1, keepdim=True))
        shares = counted / whole
        complete = (within <= width) | (shares[:, :width].sum(-1, keepdim=True) >= top_p)
    if width == vocabulary:
        return shares, ids, torch.ones_like(complete)
    # a token as likely as the one after the last might have a lower id
    complete = complete & (ranked[:, width - 1 : width] > ranked[:, width:])
    return shares[:, :width], ids[:, :width], complete


def _drawn(probabilities: Tensor, ids: Tensor, top_p: Tensor, uniform: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """One of each row's ranked tokens [R, W], by its coupling: int64 [R]."""
    before = torch.nn.functional.pad(probabilities.cumsum(-1)[:, :-1], (1, 0))
    kept = (before < top_p) & (probabilities > 0)
    noisy = [row for row, sampler in enumerate(samplers) if sampler.coupling == "gumbel"]
    if len(noisy) == len(samplers):
        return ids.gather(-1, _ranks_by_gumbel(probabilities, ids, kept, samplers)).squeeze(-1)
    rank = _ranks_by_inverse_cdf(probabilities, kept, uniform)
    if noisy:
        (places,) = _columns(ids.device, torch.int64, noisy)
        rows = places.squeeze(-1)
        rank[rows] = _ranks_by_gumbel(probabilities[rows], ids[rows], kept[rows], [samplers[row] for row in noisy])
    return ids.gather(-1, rank).squeeze(-1)


def gumbel_noise(ids: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """Standard Gumbel noise of the tokens `ids` [R, K] at each row's own place in its stream: float64 [R, K].

    Only integer hashing is used, so the numbers are the same on every device.
    """

    stream, step = _columns(
        ids.device, torch.int64, [sampler.stream for sampler in samplers], [sampler.step + 1 for sampler in samplers]
    )
    counted = stream * _STREAM + step * _STEP
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


def _columns(device: torch.device, dtype: torch.dtype, *values: Sequence[float]) -> tuple[Tensor, ...]:
    """Numbers of every row [R, 1] on the device, in one asynchronous copy."""
    there = torch.tensor(values, dtype=dtype)
    if device.type == "cuda":
        there = there.pin_memory().to(device, non_blocking=True)
    return tuple(there.unsqueeze(-1))


def _penalized(logits: Tensor, samplers: Sequence[Sampler]) -> tuple[Tensor, bool]:
    """Logits in float64 after penalties, and whether their order is unchanged."""
    penalized = logits.double()
    penalties = [(row, sampler) for row, sampler in enumerate(samplers) if sampler.answered]
    for row, sampler in penalties:
        penalized[row, torch.tensor(sorted(sampler.answered), device=logits.device)] -= sampler.presence_penalty
    return penalized, not penalties


def _ranks_by_inverse_cdf(probabilities: Tensor, kept: Tensor, uniform: Tensor) -> Tensor:
    """The position of each row's `uniform` number [R, 1] in the sorted nucleus: int64 [R, 1]."""
    cumulative = (probabilities * kept).cumsum(-1)
    rank = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    # rounding may raise the target to the whole mass, past which there is no token; NaN keeps none
    return rank.minimum(kept.sum(-1, keepdim=True) - 1).clamp(min=0)


def _ranks_by_gumbel(probabilities: Tensor, ids: Tensor, kept: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """The position of each row's largest noise in the sorted nucleus: int64 [R, 1]."""
    width = kept.shape[-1]
    if width > RANKED_AT_FIRST:  # nothing beyond the widest nucleus can win
        width = max(1, int(kept.sum(-1).max()))
    log_kept = probabilities[:, :width].log().masked_fill(~kept[:, :width], -torch.inf)
    return (log_kept + gumbel_noise(ids[:, :width], samplers)).argmax(-1, keepdim=True)
