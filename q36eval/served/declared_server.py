"""The amount of queries to an endpoint, and its declared measurements, before any request. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

from q36eval.metrics import DeclaredFigure, metric_of
from q36eval.records import ProbeName

PARTS = {
    "greedy": "greedy answers and the server's own log-probabilities",
    "streaming": "raw completions streamed and whole",
    "endpoints": "two endpoints of the same weights",
    "concurrency": "alone and among others",
    "load": "before and after mixed load",
    "drafts": "tokens that the server drafts and accepts",
    "chat": "chat against raw completions, whole and streamed",
    "cache-hit": "prompts cold and found in the prefix cache",
    "conversation": "conversations turn by turn and each prompt cold",
    "eviction": "prompts that were pushed out of the cache",
}
"""Differentials in the order of their runs, with descriptions."""


FaultKind = Literal["arguments", "calls", "thought", "content", "tags", "finish"]
KINDS: dict[FaultKind, str] = {
    "arguments": "arguments of tool calls are not those that the model wrote",
    "calls": "tool calls are lost, made up or renamed",
    "thought": "reasoning and answer are split at another place than by the model",
    "content": "the answer's text is lost or changed",
    "tags": "marks of the template or of tool calls are in the answer's text",
    "finish": "the finish reason does not say that tools are called",
}
"""A parser's possible faults on a correct text."""


SERVING_KL, SERVING_TEXTS = "serving_kl", 160
"""The serving engine's addition to the checkpoint's error; the number of texts for it in a gate."""

WATCHED = ("required", "families", "kl", "differentials")
"""The parts of a round of `q36eval watch`, by slice (`q36eval.watch.incidents`)."""


PROMPTS_A_CONVERSATION = 4
"""One conversation, of ten turns, per this number of prompts."""


@dataclass(frozen=True)
class Plan:
    """The amount of queries. `concurrency` is the number of concurrent requests in the differential of that name."""

    items: int = 64
    conversations: int = 16
    turns: int = 10
    concurrency: int = 64
    load_requests: int = 256
    pressure_tokens: int = 2_000_000
    """The maximum of tokens sent to evict prefixes from the cache."""
    difference: str = ""
    """The difference of the second endpoint, in its operator's words."""


def declared_figures() -> tuple[DeclaredFigure, ...]:
    """The measurements of one endpoint; comparisons with a second one are not part of a policy.

    Only a gate measures `serving_kl`, because it decodes the branch. `rejected_drafts` exists if the server drafts and
    reports it. Only `q36eval watch` measures `watch_incidents`: in any other run it is NOT MEASURED.
    """
    names = (
        "answer_differences",
        "prompt_differences",
        "parser_faults",
        "stream_faults",
        "greedy_faults",
        "call_failure_rate",
        "rejected_drafts",
        SERVING_KL,
        "watch_incidents",
    )
    metric = {name: metric_of(ProbeName.SERVED, name) for name in names}
    plan = Plan()
    items = {part: plan.items for part in PARTS if part not in ("greedy", "drafts", "chat", "endpoints")}
    items["conversation"] = plan.conversations
    return (
        *(metric["answer_differences"].declared(part, items=n, clusters=n) for part, n in items.items()),
        metric["prompt_differences"].declared(items=plan.items),
        metric["greedy_faults"].declared(items=plan.items),
        *(metric["parser_faults"].declared(kind) for kind in KINDS),
        *(metric["stream_faults"].declared(part, items=plan.items) for part in ("completions", "chat")),
        metric[SERVING_KL].declared(clusters=SERVING_TEXTS),
        metric["rejected_drafts"].declared(clusters=plan.items),
        metric["call_failure_rate"].declared(items=plan.items, clusters=plan.items),
        *(metric["watch_incidents"].declared(part) for part in WATCHED),
    )
