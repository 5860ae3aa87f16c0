"""Kernels of flash-linear-attention that are given one shape: its own where it is installed, else stand-ins."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from q36eval.engines.qwen3_5_moe import kernel_choices


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
