"""Products of BF16 matrices in float32: against exact sums, and that nothing else is touched.

And kernels of flash-linear-attention that are given one shape: its own where it is installed, else stand-ins.
"""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from q36eval.engines import cpu_products
from q36eval.engines.qwen3_5_moe import kernel_choices


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


def configuration(warps: int, **arguments: int) -> SimpleNamespace:
    return SimpleNamespace(kwargs=arguments, num_warps=warps)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As much of it as is looked at: an autotuner, and one behind heuristics."""
    norm = SimpleNamespace(configs=[configuration(w, BT=b) for w in (1, 4, 16) for b in (8, 32, 128)])
    cumsum = SimpleNamespace(configs=[configuration(w) for w in (1, 2, 4, 8)])
    modules = {name: ModuleType(name) for name in ("fla", "fla.modules.norm.l2norm", "fla.ops.utils.cumsum")}
    modules["fla"].__spec__ = SimpleNamespace()  # type: ignore[assignment] # what find_spec gives
    modules["fla.modules.norm.l2norm"].l2norm_fwd_kernel = norm  # type: ignore[attr-defined]
    behind = SimpleNamespace(fn=cumsum)
    modules["fla.ops.utils.cumsum"].chunk_local_cumsum_scalar_kernel = behind  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(norm=norm, cumsum=cumsum)


def test_each_kernel_keeps_one_of_its_own_configurations(library: SimpleNamespace) -> None:
    assert kernel_choices.settle() == list(kernel_choices.CHOSEN)
    assert [(each.kwargs, each.num_warps) for each in library.norm.configs] == [({"BT": 32}, 4)]
    assert [(each.kwargs, each.num_warps) for each in library.cumsum.configs] == [({}, 4)]
    library.norm.configs = [configuration(4, BLOCK=32)]  # another version of it
    del library.cumsum.configs
    assert kernel_choices.settle() == []
    assert library.norm.configs[0].kwargs == {"BLOCK": 32}


def test_the_real_library_has_them() -> None:
    """Only where it and Triton are installed, as on a machine with a GPU."""
    pytest.importorskip("triton")
    pytest.importorskip("fla")
    assert kernel_choices.settle() == list(kernel_choices.CHOSEN)
