"""The faults: what goes wrong (how the plug-in makes it), by which probe it is looked for, what must fail by it."""

from dataclasses import dataclass
from typing import Literal

Probe = Literal["kl", "endpoint", "apart", "endpoint-apart", "canaries", "served"]
"""What it is looked for by: KL from hidden states or from an endpoint's own log-probabilities, what serving adds to the
same weights decoded here (apart, from the same two), canaries, or what an endpoint shows by itself."""

Part = Literal["hybrid layers", "tools", "reasoning"]
"""What of a model or its template a fault may need: norms with + 1, an output gate and a recurrent state among the
first."""


@dataclass(frozen=True)
class Fault:
    """One fault. `criteria` are those of the probe's policy of which at least one must FAIL by it, or the engine
    is refused before anything is judged, with the code `refusal`. In a model without what it `needs` it does not exist.

    `at_start` is one that is made while weights are loaded, so that an engine has it from its start to its end.
    """

    name: str
    what: str
    probe: Probe
    criteria: tuple[str, ...] = ()
    part: str = ""
    """Of the probe `served`: the comparison that is made."""
    refusal: str = ""
    at_start: bool = False
    needs: Part | None = None


KL = ("kl",)
GREEDY, CACHE_HIT, STREAM = ("served-greedy",), ("served-cache-hit",), ("served-stream-text",)
APART = ("served-as-decoded",)
FIXED = ("required-structured", "required-freeform", "fixed-prompts-structured", "fixed-prompts-freeform")
ANSWERS = (*FIXED, "failures-structured", "failures-freeform")

FAULTS = (
    Fault("rope-base", "rotary embeddings by the base 10,000,000", "kl", KL),
    Fault("norm-offset", "norms of queries and keys without their + 1", "kl", KL, needs="hybrid layers"),
    Fault("output-gate", "the output gate of attention is dropped", "kl", KL, needs="hybrid layers"),
    Fault("kv-scales", "the scales of an FP8 KV cache are ignored: values as 2^-13 of themselves", "kl", KL),
    Fault("token-shift", "an embedding, and a head, whose rows are off by one", "kl", KL),
    Fault(
        "fused-scale",
        "the global scale of gate is taken for up too, twice as large: up projections (of experts, if any) are halved",
        "kl",
        KL,
        at_start=True,
    ),
    Fault(
        "stale-layers",
        "layers of other weights: noise of 10 % of each deviation",
        "apart",
        APART,
        at_start=True,
    ),
    Fault(
        "stale-model",
        "a whole model of other weights, head and all: the same of every matrix",
        "kl",
        KL,
        refusal="hidden-states-wrong",
        at_start=True,
    ),
    Fault("logit-bias", "an earlier request's bias: 16 tokens get 2 nats more", "endpoint-apart", APART),
    Fault(
        "state-lost",
        "recurrent state is zeroed before each step of decoding; prompts are read rightly",
        "canaries",
        ANSWERS,
        needs="hybrid layers",
    ),
    Fault("sampler-temperature", "0.7 where 0 is requested: `temperature or default`", "served", GREEDY, "greedy"),
    Fault("sampler-penalty", "a repetition penalty of 1.3 where none is requested", "served", GREEDY, "greedy"),
    Fault("end-ignored", "no token ends an answer", "served", ("parser-calls", "parser-tags"), "chat"),
    Fault(
        "rows-mixed",
        "where four or more answer together, two draw from each other's logits",
        "served",
        ("served-concurrency",),
        "concurrency",
    ),
    Fault(
        "prefix-state",
        "recurrent state is not restored on a prefix hit",
        "served",
        CACHE_HIT,
        "cache-hit",
        needs="hybrid layers",
    ),
    Fault("cache-key", "a cached block's key holds its place, no tokens or salt", "served", CACHE_HIT, "cache-hit"),
    Fault("chunk-doubled", "the third piece of a stream is sent twice", "served", STREAM, "streaming"),
    Fault("chunk-dropped", "the third piece of a stream is lost", "served", STREAM, "streaming"),
    Fault(
        "arguments-cut",
        "half of the last text in a tool call's arguments is kept; they stay JSON",
        "served",
        ("parser-arguments",),
        "chat",
        needs="tools",
    ),
    Fault(
        "think-swallowed",
        "the parser misses the end of a thought: the answer goes into the reasoning",
        "served",
        ("parser-thought", "parser-content"),
        "chat",
        needs="reasoning",
    ),
    Fault(
        "template-switch",
        "a request's switch of reasoning is not handed to the template",
        "served",
        ("served-prompts",),
        "chat",
        needs="reasoning",
    ),
)
"""In the order of the table."""
