"""Divergences against a naive float64 computation, theory and degenerate input."""

import math

import pytest
import torch

from kl.corpus import windows
from kl.divergence import kl_divergence, token_figures


def naive_kl(logits_p: list[float], logits_q: list[float]) -> float:
    """KL(p || q) by the definition, in Python floats, with 0 log 0 = 0."""

    def probabilities(logits: list[float]) -> list[float]:
        largest = max(logits)
        weights = [math.exp(value - largest) for value in logits]
        return [weight / sum(weights) for weight in weights]

    p, q = probabilities(logits_p), probabilities(logits_q)
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 8.0])
def test_agrees_with_the_naive_float64_sum(scale: float) -> None:
    torch.manual_seed(0)
    reference, branch = torch.randn(20, 50) * scale, torch.randn(20, 50) * scale
    figures = token_figures(reference, branch, torch.zeros(20, dtype=torch.long))
    for row in range(20):
        expected = naive_kl(reference[row].double().tolist(), branch[row].double().tolist())
        assert float(figures.forward_kl[row]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_equal_logits_diverge_by_exactly_zero() -> None:
    logits = torch.randn(5, 1024) * 10
    figures = token_figures(logits, logits.clone(), torch.zeros(5, dtype=torch.long))
    assert figures.forward_kl.tolist() == [0.0] * 5
    assert figures.reverse_kl.tolist() == [0.0] * 5
    assert figures.top1_agrees.all()


def test_zero_probabilities() -> None:
    log_p = torch.tensor([[0.0, -torch.inf], [0.0, -torch.inf], [math.log(0.5), math.log(0.5)]])
    log_q = torch.tensor([[0.0, -torch.inf], [math.log(0.25), math.log(0.75)], [0.0, -torch.inf]])
    found = kl_divergence(log_p, log_q).tolist()
    assert found[0] == 0.0
    assert found[1] == pytest.approx(math.log(4))
    assert found[2] == math.inf


def test_a_branch_that_emits_nan_is_marked() -> None:
    branch = torch.randn(3, 8)
    branch[1, 2] = torch.nan
    figures = token_figures(torch.randn(3, 8), branch, torch.zeros(3, dtype=torch.long))
    assert figures.finite.tolist() == [True, False, True]


@pytest.mark.parametrize(("length", "context", "overlap"), [(1, 8, 2), (2, 8, 2), (8, 8, 2), (9, 8, 2), (100, 8, 3)])
def test_windows_score_every_token_but_the_first_exactly_once(length: int, context: int, overlap: int) -> None:
    scored = []
    for begin, end, first in windows(length, context, overlap):
        assert end - begin <= context
        assert begin == 0 or first - begin >= overlap
        scored += range(first, end)
    assert scored == list(range(1, length))
