"""Per-token figures against their definitions in Python floats, on random, adversarial and degenerate logits.

The same cases run on a GPU's kernel where there is one.
"""

import math
from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from q36eval.kl.divergence import TokenFigures, token_figures
from q36eval.kl.scoring import FigureBuffer
from tests.kl import naive
from tests.profiles import sized

V = 50
INF = math.inf


def random(scale: float) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    reference = torch.randn(8, V) * scale
    return reference, reference + torch.randn(8, V) * scale / 8


def with_values(values: dict[tuple[int, int, int], float]) -> tuple[Tensor, Tensor]:
    """Random logits of (0) reference and (1) branch with some values replaced: (which, row, token) to value."""
    pair = random(1.0)
    for (which, row, token), value in values.items():
        pair[which][row, token] = value
    return pair


def one_hot() -> tuple[Tensor, Tensor]:
    reference = torch.full((2, V), -1e4)
    reference[:, 40] = 0
    branch = reference.clone()
    branch[1, 40], branch[1, 3] = -1e4, 0
    return reference, branch


CASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "small": lambda: random(1e-3),
    "ordinary": lambda: random(4.0),
    "scale 1e4": lambda: random(1e4),
    "ties throughout": lambda: (torch.zeros(2, V), torch.ones(2, V)),
    "one-hot": one_hot,
    "impossible for the reference": lambda: with_values({(0, 1, 7): -INF}),
    "impossible for the branch": lambda: with_values({(1, 2, 7): -INF}),
    "impossible for both": lambda: with_values({(0, 3, 7): -INF, (1, 3, 7): -INF}),
    "equal": lambda: (random(1.0)[0], random(1.0)[0]),
    "equal but for a constant": lambda: (random(1.0)[0], random(1.0)[0] + 5),
}
ON_GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


def computed(reference: Tensor, branch: Tensor, labels: Tensor, device: str) -> TokenFigures:
    if device == "cpu":
        return token_figures(reference, branch, labels)
    buffer = FigureBuffer(len(labels), torch.device(device))
    buffer.fill(0, reference.to(device), branch.to(device), labels.to(device))
    return buffer.figures()


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("case", CASES)
def test_every_figure_equals_its_definition(case: str, device: str) -> None:
    reference, branch = CASES[case]()
    labels = torch.arange(len(reference)) % V
    found = computed(reference, branch, labels, device)
    # the GPU's exponentials are float32's: 2^-24 relative each, of logits that are exact
    near = {"rel": 1e-9, "abs": 1e-12} if device == "cpu" else {"rel": 2e-6, "abs": 2e-6}
    for row in range(len(reference)):
        expected = naive.figures(reference[row].double().tolist(), branch[row].double().tolist(), int(labels[row]))
        for column, value in expected.items():
            assert float(getattr(found, column)[row]) == pytest.approx(value, **near), column
    assert bool((found.forward_kl >= 0).all())
    assert bool((found.reverse_kl >= 0).all())


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
def test_equal_logits_diverge_by_exactly_zero(device: str) -> None:
    logits = torch.randn(5, 5000) * 10
    found = computed(logits, logits.clone(), torch.zeros(5, dtype=torch.long), device)
    assert found.forward_kl.tolist() == found.reverse_kl.tolist() == [0.0] * 5
    assert found.top1_agrees.all()
    assert found.finite.all()


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("value", [math.nan, INF])
def test_logits_that_are_no_distribution_give_no_figure(value: float, which: int, device: str) -> None:
    pair = with_values({(which, 1, 2): value})
    pair[which][4] = -INF
    found = computed(*pair, torch.full((8,), 3), device)
    assert found.finite.tolist() == [True, False, True, True, False, True, True, True]
    for column in fields(found):
        values = getattr(found, column.name)[[1, 4]].tolist()
        assert values == {"top1_agrees": [False] * 2, "top1_rank": [-1] * 2}.get(column.name) or all(
            math.isnan(float(each)) for each in values
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("vocabulary", [943, 2048, 248_320])
def test_the_kernel_equals_the_portable_path_at_any_width(vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    reference = torch.randn(64, vocabulary, device="cuda") * 3
    branch = reference + torch.randn_like(reference) * 0.05
    labels = torch.randint(0, vocabulary, (64,), device="cuda")
    found, expected = computed(reference, branch, labels, "cuda"), token_figures(reference, branch, labels)
    for column in fields(found):
        ours, theirs = getattr(found, column.name).double(), getattr(expected, column.name).double()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-7)


@given(st.data())
@settings(max_examples=sized(20, 60), deadline=None)
def test_a_divergence_is_never_negative(data: st.DataObject) -> None:
    number = st.floats(-1e4, 1e4, width=32) | st.just(-INF)
    rows = [data.draw(st.lists(number, min_size=4, max_size=4).filter(lambda row: max(row) > -INF)) for _ in range(2)]
    found = token_figures(torch.tensor(rows[:1]), torch.tensor(rows[1:]), torch.tensor([0]))
    assert float(found.forward_kl[0]) >= 0
    assert float(found.reverse_kl[0]) >= 0
    assert float(found.reference_entropy[0]) >= 0
