"""The faults: what goes wrong, how it is made in a real vLLM, by which probe it is looked for, what must fail by it."""

from dataclasses import dataclass
from typing import Literal

Probe = Literal["kl", "endpoint", "apart", "endpoint-apart", "canaries", "served"]
"""What it is looked for by: KL from hidden states or from an endpoint's own log-probabilities, what serving adds to the
same weights decoded here (apart, from the same two), canaries, or what an endpoint shows by itself."""

POLICY: dict[Probe, str] = {
    "kl": "sandbox",
    "endpoint": "sandbox",
    "apart": "served",
    "endpoint-apart": "served",
    "canaries": "sandbox",
    "served": "served",
}
"""The shipped policy that judges each probe's figures."""


@dataclass(frozen=True)
class Fault:
    """One fault. `criteria` are those of the probe's policy of which at least one must FAIL by it; where the engine
    must be refused before anything is judged, `refusal` is what the sentence says. `missed` says why nothing here shows
    it: a finding, and no failure of the run.

    `at_start` is one that is made while weights are loaded, so that an engine has it from its start to its end.
    """

    name: str
    what: str
    how: str
    probe: Probe
    criteria: tuple[str, ...] = ()
    part: str = ""
    """Of the probe `served`: the comparison that is made."""
    refusal: str = ""
    missed: str = ""
    at_start: bool = False


KL = ("kl",)
APART = ("served-as-decoded",)
FIXED = ("required-structured", "required-freeform", "fixed-prompts-structured", "fixed-prompts-freeform")
ANSWERS = (*FIXED, "failures-structured", "failures-freeform")

FAULTS = (
    Fault(
        "rope-base",
        "rotary embeddings by another model's base",
        "the table of angles is computed anew by 10,000,000 where the checkpoint says 10,000",
        "kl",
        KL,
    ),
    Fault(
        "norm-offset",
        "norms of queries and keys without their + 1",
        "1 is taken from their weights",
        "kl",
        KL,
    ),
    Fault(
        "output-gate",
        "the output gate of attention is dropped",
        "attention's output goes on without it",
        "kl",
        KL,
    ),
    Fault(
        "kv-scales",
        "the scales of an FP8 KV cache are ignored",
        "keys are rounded to FP8 as they are, values as 2^-13 of themselves, which a scale would have made up for",
        "kl",
        KL,
    ),
    Fault(
        "token-shift",
        "an embedding whose rows are off by one",
        "every token is read, and its logit written, as the next one's",
        "kl",
        KL,
    ),
    Fault(
        "fused-scale",
        "the global scale of gate is taken for up too",
        "every expert's up projection is loaded half as large, as where its own scale is twice as large",
        "kl",
        KL,
        at_start=True,
    ),
    Fault(
        "stale-layers",
        "layers of other weights under the same name",
        "every matrix of the layers is loaded with noise of 10 % of its deviation, as an earlier state of training",
        "apart",
        APART,
        at_start=True,
    ),
    Fault(
        "stale-model",
        "a whole model of other weights, head and all",
        "the same of every matrix",
        "kl",
        refusal="not those it answers from",
        at_start=True,
    ),
    Fault(
        "logit-bias",
        "a bias of an earlier request stays on the logits",
        "16 tokens get 2 nats more",
        "endpoint-apart",
        APART,
    ),
    Fault(
        "state-lost",
        "recurrent state is lost between steps",
        "it is zeroed before each step of decoding; prompts are read rightly",
        "canaries",
        ANSWERS,
    ),
    Fault(
        "sampler-temperature",
        "the recommended temperature where 0 is requested",
        "0.7 replaces 0, as by `temperature or default`",
        "served",
        ("served-greedy",),
        part="greedy",
    ),
    Fault(
        "sampler-penalty",
        "the recommended repetition penalty where none is requested",
        "1.3 replaces 1",
        "served",
        ("served-greedy",),
        part="greedy",
    ),
    Fault(
        "end-ignored",
        "the end of a turn is ignored",
        "no token ends an answer",
        "served",
        ("parser-calls", "parser-tags"),
        part="chat",
    ),
    Fault(
        "rows-mixed",
        "concurrent requests get each other's tokens",
        "where four or more answer together, two draw from each other's logits",
        "served",
        ("served-concurrency",),
        part="concurrency",
    ),
    Fault(
        "prefix-state",
        "recurrent state is not restored on a prefix hit",
        "a request that begins on cached blocks begins with no state",
        "served",
        ("served-cache-hit",),
        part="cache-hit",
    ),
    Fault(
        "cache-key",
        "the prefix cache answers with another prompt's state",
        "a block's key holds its place alone, neither its tokens nor the salt",
        "served",
        ("served-cache-hit",),
        part="cache-hit",
    ),
    Fault(
        "chunk-doubled",
        "a piece of a stream is sent twice",
        "the third one",
        "served",
        ("served-stream-text",),
        part="streaming",
    ),
    Fault(
        "chunk-dropped",
        "a piece of a stream is lost",
        "the third one",
        "served",
        ("served-stream-text",),
        part="streaming",
    ),
    Fault(
        "arguments-cut",
        "the parser cuts a tool call's arguments",
        "of the last text among them half is kept; they stay JSON",
        "served",
        ("parser-arguments",),
        part="chat",
    ),
    Fault(
        "think-swallowed",
        "the parser misses the end of a thought",
        "the answer goes into the reasoning, the content is null",
        "served",
        ("parser-thought", "parser-content"),
        part="chat",
    ),
    Fault(
        "template-switch",
        "the server's template ignores the switch of thinking",
        "what a request says of it is not handed to the template",
        "served",
        ("served-prompts",),
        part="chat",
    ),
)
"""In the order of the table."""
