"""Kernels: products of BF16 matrices on a CPU against exact sums, and that nothing else is touched.

Those of flash-linear-attention that are given one shape: its own where it is installed, else stand-ins. Attention of a
pass to what stands before it: aligned at the ends, and a mask only where a kernel must have one.
"""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from q36eval.checkpoints import load_model
from q36eval.engines import cpu_products
from q36eval.engines.qwen3_5_moe import attention, kernel_choices
from q36eval.engines.qwen3_5_moe.attention import seen_from_end
from q36eval.engines.shared_prefix import read, remember


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


# -- attention

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
reads_on_a_cpu = pytest.mark.skipif(
    find_spec("fla") is not None, reason="transformers prefers flash-linear-attention, which does not run on a CPU"
)


def by_definition(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """Softmax over the keys that each query sees, one head after the other, in float64."""
    queries, keys, share = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
    hidden = torch.arange(keys) > torch.arange(queries).unsqueeze(1) + keys - queries
    out = torch.empty_like(query)
    for head in range(query.shape[1]):
        weights = query[:, head].double() @ key[:, head // share].double().transpose(1, 2)
        weights = (weights * (scale or query.shape[-1] ** -0.5)).masked_fill(hidden.to(weights.device), -torch.inf)
        out[:, head] = (weights.softmax(-1) @ value[:, head // share].double()).to(out.dtype)
    return out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Puts it in place on a CPU, with the definition for the kernel; queries and keys of every time it was asked."""
    shapes: list[tuple[int, int]] = []

    def counted(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        shapes.append((query.shape[2], key.shape[2]))
        return by_definition(query, key, value, scale)

    functions = modeling.ALL_ATTENTION_FUNCTIONS
    monkeypatch.setattr(modeling, "create_causal_mask", modeling.create_causal_mask)
    monkeypatch.setitem(functions, "sdpa", functions["sdpa"])
    monkeypatch.setattr(attention, "seen_from_end", counted)
    monkeypatch.setattr(attention, "is_usable", lambda device, width: True)
    attention.install(lambda states: True)
    return shapes


@reads_on_a_cpu
def test_a_row_read_in_passes_is_the_row_read_at_once(asked: list[tuple[int, int]]) -> None:
    model = load_model(SANDBOX, dtype=torch.float32).model
    ids = torch.randint(0, 400, (2, 300), generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        whole = read(model, ids, 300)
        assert asked == []
        parts = read(model, ids, 128)
    attentions = sum(kind == "full_attention" for kind in model.config.layer_types)
    assert sorted(asked) == sorted([(128, 256), (44, 300)] * attentions)
    assert (parts - whole).abs().max() < 1e-3 * whole.abs().max()


@reads_on_a_cpu
def test_what_is_padded_keeps_its_mask_and_longer_memory_is_not_read(asked: list[tuple[int, int]]) -> None:
    model = load_model(SANDBOX).model
    with torch.inference_mode():
        cache = remember(model, torch.full((1, 64), 7), 64)
    states = torch.zeros(1, 4, model.config.hidden_size)
    given = {"config": model.config, "inputs_embeds": states, "past_key_values": cache, "position_ids": None}
    padded = modeling.create_causal_mask(**given, attention_mask=torch.tensor([[0] + [1] * 67]))
    assert isinstance(padded, Tensor)
    seen = modeling.create_causal_mask(**given, attention_mask=None)
    assert (seen.queries, seen.keys) == (4, 68)
    alone = given | {"past_key_values": None, "attention_mask": None}
    assert modeling.create_causal_mask(**alone) is None
    model.config._attn_implementation = "eager"
    assert isinstance(modeling.create_causal_mask(**alone), Tensor), "which sees everything without one"
    model.config._attn_implementation = "sdpa"
    heads = [torch.randn(1, 2, length, 16, generator=torch.Generator().manual_seed(length)) for length in (4, 68, 80)]
    query, key, longer = heads
    layer = torch.nn.Module()
    plain = modeling.ALL_ATTENTION_FUNCTIONS["sdpa"]
    out, _ = plain(layer, query, key, key, seen, scaling=0.25)
    mask = torch.arange(68) <= torch.arange(4).unsqueeze(1) + 64
    masked, _ = plain(layer, query, key, key, mask, scaling=0.25)
    assert torch.allclose(out, masked, atol=1e-5)
    assert asked == [(4, 68)]
    with pytest.raises(RuntimeError, match="4 queries to 80 keys"):
        plain(layer, query, longer, longer, seen, scaling=0.25)
    assert asked == [(4, 68)], "no kernel is asked to align other ends than those that were meant"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("queries", "keys"), [(2, 3), (64, 64 + 130), (128, 1000), (333, 4096)])
def test_a_gpu_aligns_queries_and_keys_at_their_ends(queries: int, keys: int) -> None:
    random = torch.Generator(device="cuda").manual_seed(queries)
    shapes = [(2, 16, queries, 256), (2, 2, keys, 256), (2, 2, keys, 256)]
    heads = [torch.randn(*shape, generator=random, device="cuda").bfloat16() for shape in shapes]
    assert attention.is_usable(torch.device("cuda"), 256)
    error = (seen_from_end(*heads, 0.0625).double() - by_definition(*heads, 0.0625).double()).abs()
    assert error.max() < 2e-2
