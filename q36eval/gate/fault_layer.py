"""The layer at fault in a served branch, from its layers' divergences. Does not import torch: pages read it too."""

from typing import Literal

from pydantic import Field

from q36eval.records import Interval, Record

Fault = Literal["checkpoint", "engine", "alike", "none"]
"""The larger contribution to the KL: `none` if the whole is within the floor, `alike` without a difference."""

Arithmetic = Literal["plain", "emulated", "weight-only", "unclear"]
"""A served branch's arithmetic: `plain` if the checkpoint quantizes no inputs, `emulated` if inputs are quantized as
declared, `weight-only` if inputs stay unquantized; `unclear` if the texts do not show which."""

SERVING, EXCESS = "serving-error", "excess"
"""In history: the name of such a run's texts, and the figure by which the two layers are compared."""

CONCLUSIONS: dict[Fault, str] = {
    "checkpoint": "The checkpoint causes more of it than the engine: look at the recipe (attribute without --engine).",
    "engine": "The engine causes more of it than the checkpoint: look at how it is served.",
    "alike": "These texts do not show which of the two causes more of it.",
    "none": "The total is no larger than the difference of two engines on the reference itself.",
}

ARITHMETICS: dict[Arithmetic, str] = {
    "plain": "The checkpoint quantizes no inputs, so that there is one arithmetic.",
    "emulated": "The engine quantizes inputs as the checkpoint says.",
    "weight-only": "The engine leaves inputs as they are (weight-only), though the checkpoint quantizes them.",
    "unclear": "These texts do not show whether the engine quantizes inputs; it is held to the branch that does.",
}


class LayerFigure(Record):
    """The KL of one layer, in nats a token."""

    value: float
    interval: Interval


class LayerAtFault(Record):
    """The layer at fault for a gate's findings; `at_fault` is None if the evidence does not separate the layers.

    `engine` served the branch; `run` is the run of `attribute --engine` whose `kl` (by layer: checkpoint, serving,
    whole, floor) decides, None if the failed criteria alone decide. `lines` explain the result, the layer first.
    """

    at_fault: Fault | None
    engine: str
    run: str | None = None
    kl: dict[str, LayerFigure] = Field(default_factory=dict)
    arithmetic: Arithmetic | None = None
    lines: tuple[str, ...]


def fault_of(whole: Interval, floor: Interval | None, excess: Interval) -> Fault:
    """The layer at fault, from intervals of the whole, the floor, and the engine's KL minus the checkpoint's."""
    if floor is not None and whole.upper <= floor.upper:
        return "none"
    if excess.lower > 0:
        return "engine"
    return "checkpoint" if excess.upper < 0 else "alike"
