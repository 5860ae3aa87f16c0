"""Attention of a pass to what stands before it: aligned at the ends, and a mask only where a kernel must have one."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from q36eval.checkpoints import load_model
from q36eval.engines.qwen3_5_moe import attention
from q36eval.engines.qwen3_5_moe.attention import SeenFromEnd, seen_from_end
from q36eval.engines.shared_prefix import read, remember

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
    assert isinstance(seen, SeenFromEnd)
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
