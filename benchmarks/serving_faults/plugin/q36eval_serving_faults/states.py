"""Faults of what is kept between steps and requests: DeltaNet's recurrent state, and the prefix cache."""

from typing import Any

from .switch import active, wrapped

_runner: "list[Any]" = []
_found: "set[str]" = set()
"""Requests whose first step begins on a cached prefix."""


def _step(original: Any, self: Any, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
    _runner[:] = [self]
    _found.clear()
    _found.update(new.req_id for new in scheduler_output.scheduled_new_reqs if new.num_computed_tokens)
    return original(self, scheduler_output, *arguments, **named)


def _metadata(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    """Metadata of a step; with `prefix-state` a request that hits the cache begins with no recurrent state."""
    built = original(self, *arguments, **named)
    if active() == "prefix-state" and built.has_initial_state is not None:
        for row, request in enumerate(_runner[0].input_batch.req_ids):
            if request in _found:
                built.has_initial_state[row] = False  # the kernels' own view of it is a slice
    return built


def _decoded(original: Any, **named: Any) -> Any:
    """One step of the recurrence; with `state-lost` it begins from nothing each time."""
    if active() == "state-lost":
        named["initial_state_source"][named["initial_state_indices"].long()] = 0
    return original(**named)


def _hashed(original: Any, function: Any, parent: Any, tokens: Any, extra_keys: Any = None) -> Any:
    """The key of a cached block; with `cache-key` blocks of one place are one, whatever they hold."""
    if active() == "cache-key":
        return original(function, parent, (0,) * len(tokens), None)
    return original(function, parent, tokens, extra_keys)


def install() -> None:
    """Wrap the recurrence's step on the CPU, its metadata, and the keys of cached blocks."""
    import vllm._custom_ops as operators
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrapped(GPUModelRunner, "execute_model", _step)
    wrapped(GDNAttentionMetadataBuilder, "build", _metadata)
    wrapped(operators, "fused_sigmoid_gating_delta_rule_update_cpu", _decoded)
    wrapped(kv_cache_utils, "hash_block_tokens", _hashed)
