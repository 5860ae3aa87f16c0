"""What is left out of a run whose branch gives no states of a text: the reason is written down, and nothing passes."""

from collections.abc import Sequence
from dataclasses import replace

from q36eval.engines.base import Engine
from q36eval.probes import Sink
from q36eval.records import ProbeFailure, ProbeName
from q36eval.run.items import Work

NOTHING = "the branch's engine gives no log-probabilities of a prompt's tokens, so no divergence can be measured"
LIKELIEST = (
    "the branch's engine gives log-probabilities of the likeliest tokens alone, so the divergence over the vocabulary "
    "cannot be measured; `q36eval kl --top-k` measures a lower bound"
)


def leave_out_unscored(engine: Engine, works: Sequence[Work], sink: Sink) -> None:
    """Drop the divergence where its logits cannot be had, and scores that a probe can do without."""
    if engine.scores == "states":
        return
    for work in works:
        bounds = engine.scores == "likeliest" and work.probe.kind == "top-k"
        if work.probe.name is ProbeName.KL and not bounds:
            work.items, work.failed = [], NOTHING if engine.scores == "nothing" else LIKELIEST
            sink.add_failure(ProbeFailure(probe=work.probe.name, reason=work.failed, kind="crashed"))
        elif work.probe.does_without_scores:
            work.items = [replace(item, scores=()) if item.generations else item for item in work.items]
