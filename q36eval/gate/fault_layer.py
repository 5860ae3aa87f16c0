"""Which layer of a served branch is at fault, from the divergences of its layers. Free of torch: pages read it too."""

from typing import Literal

from pydantic import Field

from q36eval.records import Interval, Record

Fault = Literal["checkpoint", "engine", "alike", "none"]
"""What causes more of the whole: `none` where the whole is no larger than the floor, `alike` where nothing shows."""

Arithmetic = Literal["plain", "emulated", "weight-only", "unclear"]
"""How a served branch multiplies: `plain` where the checkpoint quantizes no inputs, `emulated` where they are quantized
as it says, `weight-only` where they are left as they are; `unclear` where the texts do not show which."""

SERVING, EXCESS = "serving-error", "excess"
"""In history: what the texts of such a run are called, and the figure by which the two layers are compared."""

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
    """What is known of the layer at fault for what a gate found; `at_fault` is None where nothing tells them apart.

    `engine` is what served the branch, `run` the run of `attribute --engine` whose `kl` (by layer: checkpoint, serving,
    whole, floor) tells, None where what failed tells by itself. `lines` say all of it in sentences, the layer first.
    """

    at_fault: Fault | None
    engine: str
    run: str | None = None
    kl: dict[str, LayerFigure] = Field(default_factory=dict)
    arithmetic: Arithmetic | None = None
    lines: tuple[str, ...]


def fault_of(whole: Interval, floor: Interval | None, excess: Interval) -> Fault:
    """The layer at fault by the whole's interval, the floor's, and that of the engine's KL less the checkpoint's."""
    if floor is not None and whole.upper <= floor.upper:
        return "none"
    if excess.lower > 0:
        return "engine"
    return "checkpoint" if excess.upper < 0 else "alike"
