"""Products of BF16 matrices in float32: against exact sums, and that nothing else is touched."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from q36eval.engines import cpu_products


@pytest.fixture
def widened(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The products are installed, whatever this CPU has, and are gone afterwards."""
    monkeypatch.setattr(cpu_products._State, "installed", False)
    for name in ("linear", "conv1d", "grouped_mm"):
        monkeypatch.setattr(nn.functional, name, getattr(nn.functional, name))
    cpu_products.install()
    with torch.inference_mode():
        yield


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def is_rounded_once(product: torch.Tensor, exact: torch.Tensor, terms: int) -> None:
    """Half a unit in the last of 8 places (2^-8 of the value), and what float32 sums of so many terms may lose."""
    assert product.dtype == torch.bfloat16
    allowed = exact.abs() * 2.0**-8 + terms * 2.0**-24 * 8 * terms**0.5
    assert ((product.double() - exact).abs() <= allowed).all()


@pytest.mark.usefixtures("widened")
@pytest.mark.parametrize("rows", [(1,), (7,), (2, 33)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_is_the_exact_sum_rounded_once(rows: tuple[int, ...], biased: bool) -> None:
    layer = nn.Linear(256, 96, bias=biased, dtype=torch.bfloat16)
    states = drawn(*rows, 256)
    exact = states.double() @ layer.weight.double().T
    if layer.bias is not None:
        exact += layer.bias.double()
    is_rounded_once(layer(states), exact, 256)


@pytest.mark.usefixtures("widened")
def test_a_convolution_is_the_exact_sum_rounded_once() -> None:
    states, weight = drawn(3, 32, 20), drawn(32, 1, 4)
    convolved = nn.functional.conv1d(states, weight, padding=3, groups=32)
    exact = nn.functional.conv1d(states.double(), weight.double(), padding=3, groups=32)
    is_rounded_once(convolved, exact, 4)


@pytest.mark.usefixtures("widened")
def test_each_group_has_its_own_weights_and_rows_of_none_are_zero() -> None:
    rows, weights = drawn(40, 64), drawn(5, 64, 24)
    ends = [0, 9, 9, 31, 38]  # two groups are empty, two rows belong to none
    product = nn.functional.grouped_mm(rows, weights, offs=torch.tensor(ends, dtype=torch.int32))
    owner = [1] * 9 + [3] * 22 + [4] * 7
    exact = torch.stack([rows[at].double() @ weights[group].double() for at, group in enumerate(owner)])
    is_rounded_once(product[:38], exact, 64)
    assert not product[38:].any()


@pytest.mark.usefixtures("widened")
def test_other_types_and_what_is_trained_are_left_to_torch() -> None:
    assert nn.functional.linear(drawn(3, 8).float(), drawn(4, 8).float()).dtype == torch.float32
    with torch.inference_mode(False), torch.enable_grad():
        weight = drawn(4, 8).clone().requires_grad_()
        nn.functional.linear(drawn(3, 8).clone(), weight).sum().backward()
    assert weight.grad is not None


def test_only_a_cpu_without_such_instructions_needs_them() -> None:
    assert cpu_products.needed("cpu") is not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert not cpu_products.needed("cuda:0")
