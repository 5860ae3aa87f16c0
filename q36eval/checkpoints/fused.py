"""Modules that an engine holds as one while the files hold them one by one, and which global scale all of them get.

NVFP4 has one global scale for a whole weight. vLLM keeps the members of a fused module under one such scale: of routed
experts that of the first member, the gate (vllm/model_executor/layers/quantization/modelopt.py, `w13_weight_scale_2[:,
0]`), of other modules the largest number that is stored (`weight_global_scale.max()`, `weight_scale_2.max()`), each
with no more than a warning where they differ (https://github.com/vllm-project/vllm/issues/54974).
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

from q36eval.checkpoints.weights import LogicalWeight

GLOBAL_SCALES = {"weight_global_scale": -1, "weight_scale_2": 1}
"""The one scale of an NVFP4 weight, and the power in which its values take it: compressed-tensors divides by it."""
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Modules that vLLM holds as one (vllm/model_executor/models/qwen3_5.py, `stacked_params_mapping`), the first first."""
_FUSED_OF = {part: fused for fused, parts in FUSED.items() for part in parts}


T = TypeVar("T")


def fused_groups(weights: Mapping[str, T]) -> dict[str, list[T]]:
    """The weights that an engine holds as one, by the name that it has there, in its order; whole groups alone."""
    found: dict[str, dict[str, T]] = defaultdict(dict)
    for name, weight in weights.items():
        module, _, part = name.removesuffix(".weight").rpartition(".")
        if part in _FUSED_OF:
            found[f"{module}.{_FUSED_OF[part]}"][part] = weight
    return {
        name: [members[part] for part in FUSED[name.rpartition(".")[2]]]
        for name, members in found.items()
        if len(members) == len(FUSED[name.rpartition(".")[2]])
    }


def one_scale(members: Sequence[LogicalWeight]) -> tuple[str, list[float], float] | None:
    """The global scales of the members: in which part they are stored, each, and the one that all of them get.

    None where not all have one finite, positive global scale in the same part.
    """
    found = [_global_scale(weight) for weight in members]
    stored = [each for each in found if each is not None]
    if len(stored) != len(found) or len({part for part, _ in stored}) != 1:
        return None
    values = [value for _, value in stored]
    return stored[0][0], values, values[0] if members[0].tensor_class == "routed experts" else max(values)


def _global_scale(weight: LogicalWeight) -> tuple[str, float] | None:
    parts = dict(weight.parts)
    part = next((name for name in GLOBAL_SCALES if name in parts), None)
    if part is None or math.prod(parts[part].shape) != 1:
        return None
    value = float(weight.checkpoint.read_entry(parts[part]).float().reshape(()))
    return (part, value) if math.isfinite(value) and value > 0 else None
