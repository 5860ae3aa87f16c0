"""llama.cpp's divergence statistics, by its own formulas, number formats and order of operations.

Source: `tools/perplexity/perplexity.cpp` as shipped with llama-cpp-python 0.3.36. What it stores of the reference is
read from its own files; what it prints is parsed. Nothing here is used by q36eval itself.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from q36eval.kl.divergence import TokenFigures

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

CLAMP = np.float32(16.0)


@dataclass(frozen=True)
class StoredLogits:
    """A `--kl-divergence-base` file: `tokens` [chunks, context] and `rows` [chunks, scored, 4 + V (+ 1 if V is odd)].

    A row is float32 scale, float32 smallest log-probability, then a 16-bit number for each token of the vocabulary.
    Of every chunk of n tokens the last n - 1 - n // 2 are scored.
    """

    context: int
    vocabulary: int
    tokens: NDArray[np.int32]
    rows: NDArray[np.uint16]

    @property
    def labels(self) -> NDArray[np.int32]:
        """The scored tokens, [chunks, scored]."""
        return self.tokens[:, self.context // 2 + 1 :]


def read_stored(path: Path) -> StoredLogits:
    """Read what `llama-perplexity --kl-divergence-base` wrote."""
    body = path.read_bytes()
    context, vocabulary, chunks = struct.unpack_from("<Iii", body, 8)
    scored, width = context - 1 - context // 2, 2 * ((vocabulary + 1) // 2) + 4
    tokens = np.frombuffer(body, np.int32, chunks * context, 20)
    rows = np.frombuffer(body, np.uint16, chunks * scored * width, 20 + tokens.nbytes)
    return StoredLogits(context, vocabulary, tokens.reshape(chunks, context), rows.reshape(chunks, scored, width))


def stored_rows(logits: Floats) -> NDArray[np.uint16]:
    """What llama.cpp keeps of the reference's logits [T, V]: clamped at their maximum - 16, then 16 bits each."""
    highest = logits.max(-1, keepdims=True)
    lowest = np.maximum(logits.min(-1, keepdims=True), highest - CLAMP)
    log_sum = np.log(np.exp(logits - highest).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    scale = (highest - lowest) / np.float32(65535)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint((np.float32(1) / scale) * (logits - lowest))
    kept = np.where((logits > lowest) & (scale > 0), steps, 0).astype(np.uint16)
    header = np.concatenate([scale, lowest - highest - log_sum], axis=1).astype(np.float32).view(np.uint16)
    return np.concatenate([header, kept, np.zeros((len(logits), logits.shape[1] % 2), np.uint16)], axis=1)


def restored(rows: NDArray[np.uint16], vocabulary: int) -> Floats:
    """The reference's log-probabilities [T, V] as llama.cpp computes with them."""
    header = np.ascontiguousarray(rows[:, :4]).view(np.float32)
    kept: Floats = header[:, :1] * rows[:, 4 : 4 + vocabulary].astype(np.float32) + header[:, 1:2]
    return kept


@dataclass(frozen=True)
class PeerFigures:
    """Per scored token [T]: KL in nats, negative log-likelihoods of the label, whether the likeliest tokens agree."""

    kld: Doubles
    nll: Floats
    nll_base: Floats
    same_top: NDArray[np.bool_]

    @property
    def p_diff(self) -> Floats:
        """Probability of the label under the branch minus that under the reference."""
        difference: Floats = np.exp(-self.nll) - np.exp(-self.nll_base)
        return difference

    def printed(self) -> dict[str, float]:
        """The figures under the names that llama-perplexity prints, in its units."""
        kld, difference = np.sort(self.kld.astype(np.float32)), self.p_diff.astype(np.float64)
        mean, error = _mean_and_uncertainty(self.kld)
        found = {"Mean KLD": mean, "Mean KLD ±": error, "Maximum KLD": float(kld[-1])}
        found |= {f"{share:.1f}% KLD": percentile(kld, share / 100) for share in (99.9, 99.0, 95.0, 90.0, 10.0)}
        found["Median KLD"] = float(np.median(kld))
        base, branch = (float(np.exp(each.astype(np.float64).mean())) for each in (self.nll_base, self.nll))
        found |= {"Mean PPL(Q)": branch, "Mean PPL(base)": base, "Mean PPL(Q)/PPL(base)": branch / base}
        found |= {"Mean Δp": 100 * float(difference.mean()), "RMS Δp": 100 * float(np.sqrt((difference**2).mean()))}
        return found | {"Same top p": 100 * float(self.same_top.mean())}


def peer_figures(rows: NDArray[np.uint16], branch: Floats, labels: NDArray[np.int32]) -> PeerFigures:
    """llama.cpp's figures of a branch's logits [T, V] against stored rows [T, 4 + V], for labels [T]."""
    log_p = restored(rows, branch.shape[1])
    highest = branch.max(-1, keepdims=True)
    log_sum = np.log(np.exp(branch - highest).sum(-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    normaliser = highest + log_sum
    terms = np.exp(log_p) * (log_p - branch + normaliser)
    at = np.arange(len(labels)), labels
    return PeerFigures(
        kld=np.where(log_p > -CLAMP, terms, np.float32(0)).sum(-1, dtype=np.float64),
        nll=normaliser[:, 0] - branch[at],
        nll_base=-log_p[at],
        same_top=branch.argmax(-1) == log_p.argmax(-1),
    )


def ours(figures: TokenFigures) -> dict[str, float]:
    """Our figures under llama.cpp's names and in its units."""
    kl = figures.forward_kl.numpy()
    difference = (figures.branch_logprob.exp() - figures.reference_logprob.exp()).numpy()
    base, branch = (float((-x.mean()).exp()) for x in (figures.reference_logprob, figures.branch_logprob))
    by_name = {"Mean KLD": float(kl.mean()), "Median KLD": float(np.median(kl))}
    by_name |= {f"{share:.1f}% KLD": percentile(np.sort(kl), share / 100) for share in (90.0, 95.0, 99.0, 99.9)}
    by_name |= {"Maximum KLD": float(kl.max()), "Same top p": 100 * float(figures.top1_agrees.double().mean())}
    by_name |= {"Mean Δp": 100 * float(difference.mean()), "RMS Δp": 100 * float(np.sqrt((difference**2).mean()))}
    return by_name | {"Mean PPL(base)": base, "Mean PPL(Q)": branch, "Mean PPL(Q)/PPL(base)": branch / base}


def percentile(ordered: Floats, fraction: float) -> float:
    """Linear between order statistics, the position computed in float32."""
    position = np.float32(fraction) * np.float32(len(ordered) - 1)
    below = int(position)
    share = position - np.float32(below)
    return float((1 - share) * ordered[below] + share * ordered[min(below + 1, len(ordered) - 1)])


def parse_printed(output: str) -> dict[str, float]:
    """Every `name: value [± uncertainty]` of llama-perplexity's summary, blanks in names made single."""
    found = {}
    for name, value, _, error in re.findall(r"^ *([^:\n]+?) *: +(-?[\d.]+)%?( ± +([\d.]+))?", output, re.MULTILINE):
        found[" ".join(name.split())] = float(value)
        if error:
            found[" ".join(name.split()) + " ±"] = float(error)
    return found


def _mean_and_uncertainty(values: Doubles) -> tuple[float, float]:
    """The mean and its standard error, every token taken as independent of every other."""
    mean = float(values.mean())
    return mean, float(np.sqrt(max(float((values**2).mean()) - mean**2, 0.0) / (len(values) - 1)))
