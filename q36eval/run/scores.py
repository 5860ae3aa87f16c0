"""What is left out of a run whose branch gives no states of a text: the reason is written down, and nothing passes."""

from collections.abc import Sequence
from dataclasses import replace

from q36eval.engines.base import Engine
from q36eval.probes import Sink
from q36eval.records import ProbeFailure, ProbeName
from q36eval.run.items import Work

NOTHING = (
    "its server gives no log-probabilities of a prompt's tokens, and a divergence needs them; serve the branch by vLLM "
    "with --max-logprobs -1 and without drafts (MTP), or use --engine vllm or the engine in-process"
)
LIKELIEST = (
    "its server gives log-probabilities of the likeliest tokens alone, and a divergence needs those of the whole "
    "vocabulary; start vLLM with --max-logprobs -1, or use --engine vllm; `q36eval kl --top-k` measures a lower bound"
)


def leave_out_unscored(engine: Engine, works: Sequence[Work], sink: Sink) -> None:
    """Drop the divergence where its logits cannot be had, and scores that a probe can do without."""
    if engine.scores == "states":
        return
    for work in works:
        bounds = engine.scores == "likeliest" and work.probe.kind == "top-k"
        if work.probe.name is ProbeName.KL and not bounds:
            work.items, work.failed = [], NOTHING if engine.scores == "nothing" else LIKELIEST
            sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="unmeasurable"))
        elif work.probe.does_without_scores:
            work.items = [replace(item, scores=()) if item.generations else item for item in work.items]
