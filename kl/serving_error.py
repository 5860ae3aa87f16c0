"""Two errors of a served branch, separated: the checkpoint's and the engine's, on the same texts.

The reference, the branch decoded in process and the served branch score the same tokens. KL(reference || decoded) is
the checkpoint's cost, KL(decoded || served) the engine's, KL(reference || served) the whole. A divergence has no
triangle inequality: the two do not add up to the whole, and only the whole affects users.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from q36eval.engines import Engine, ScoreRequest
from q36eval.errors import EngineError
from q36eval.gate.fault_layer import Arithmetic, Fault, fault_of
from q36eval.kl.attribution import Pass, Sample, each_scored, kl_clusters
from q36eval.kl.divergence import token_figures
from q36eval.kl.scoring import CPU_TILE_BYTES
from q36eval.records import Clusters, DeploymentIdentity, Interval
from q36eval.stats import summarize


@dataclass(frozen=True)
class Side:
    """One deployment's final hidden states of every request, and its own head: logits [T, V] of states [T, H]."""

    states: Pass
    logits: Callable[[Tensor], Tensor]


class LayerError(BaseModel):
    """One divergence in nats per token, with its 95 % interval clustered by document."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kl: float
    interval: Interval
    clusters: Clusters


class ServingError(BaseModel):
    """The divergences, and the engine's cost minus the checkpoint's (paired by document).

    `floor` is KL(reference in process || reference served), if the engine serves the reference, too. `paired` are the
    engine's and the checkpoint's sums, `arithmetic` is the engine's multiplication.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str
    documents: int
    tokens: int
    checkpoint: LayerError
    serving: LayerError
    whole: LayerError
    floor: LayerError | None
    excess: float
    excess_interval: Interval
    paired: Clusters
    arithmetic: Arithmetic

    @property
    def at_fault(self) -> Fault:
        """The larger cause of the whole, as far as these texts show it."""
        floor = None if self.floor is None else self.floor.interval
        return fault_of(self.whole.interval, floor, self.excess_interval)


@torch.inference_mode()
def divergence_sums(chosen: Sample, p: Side, q: Side) -> list[float]:
    """Sum of KL(p || q) in nats over every document's scored tokens, in the order of `chosen.documents`.

    Raises:
        EngineError: one of them computes non-finite values.
    """
    sums = _nothing_of(chosen)
    for request in chosen.requests:
        sums[_document_of(request)] += _sum_of(request, p, q.states[request.key], q.logits)
    return list(sums.values())


@torch.inference_mode()
def divergence_sums_from(
    chosen: Sample, sides: Mapping[str, Side], engine: Engine
) -> tuple[dict[str, list[float]], DeploymentIdentity]:
    """`divergence_sums` of each of `sides` against that engine's present states, and the engine's identity.

    Each text's answer is released before the next is processed (the engine may work ahead): a server returns a row as
    wide as the vocabulary for every token, 1 MB for 248,320 entries, while our own engine returns a state.

    Raises:
        EngineError: a text is not scored, or one side computes non-finite values.
    """
    by_request: dict[str, dict[str, float]] = {name: {} for name in sides}
    for request, states in each_scored(engine, chosen.requests):
        for name, side in sides.items():
            by_request[name][request.key] = _sum_of(request, side, states, engine.logits)
        del states
    sums = {name: _nothing_of(chosen) for name in sides}
    for request in chosen.requests:
        for name, own in by_request.items():
            if request.key not in own:
                raise EngineError(
                    "scoring-failed", f"The documents cannot be scored: {engine.identity.engine} left one unanswered."
                )
            sums[name][_document_of(request)] += own[request.key]
    return {name: list(own.values()) for name, own in sums.items()}, engine.identity


def _nothing_of(chosen: Sample) -> dict[str, float]:
    return dict.fromkeys((document.key for document in chosen.documents), 0.0)


def _document_of(request: ScoreRequest) -> str:
    return request.key.partition("/")[0]


def _sum_of(request: ScoreRequest, p: Side, states: Tensor, logits: Callable[[Tensor], Tensor]) -> float:
    """Sum of KL(p || q) over one request's tokens, from q's `states` and their head `logits`."""
    mine, total = p.states[request.key], 0.0
    labels = torch.tensor(request.token_ids[request.first :])
    rows = max(1, CPU_TILE_BYTES // (4 * p.logits(mine[:1]).shape[-1]))
    for begin in range(0, len(labels), rows):
        run = slice(begin, begin + rows)
        reference, other = p.logits(mine[run]), logits(states[run])
        figures = token_figures(reference, other.to(reference.device), labels[run].to(reference.device))
        if not bool(figures.finite.all()):
            raise EngineError(
                "values-not-finite", "A deployment computes values that are not finite; no layer can be named."
            )
        total += float(figures.forward_kl.sum())
    return total


def serving_error(
    engine: str,
    chosen: Sample,
    *,
    checkpoint: Sequence[float],
    serving: Sequence[float],
    whole: Sequence[float],
    floor: Sequence[float] | None,
    arithmetic: Arithmetic,
) -> ServingError:
    """The figures of KL sums per document, each in the order of `chosen.documents`."""
    paired = kl_clusters(chosen.units, serving, checkpoint)
    _, _, excess, excess_interval = summarize(paired, "paired_mean")
    return ServingError(
        engine=engine,
        documents=len(chosen.documents),
        tokens=sum(chosen.units),
        checkpoint=_layer(chosen, checkpoint),
        serving=_layer(chosen, serving),
        whole=_layer(chosen, whole),
        floor=None if floor is None else _layer(chosen, floor),
        excess=excess,
        excess_interval=excess_interval,
        paired=paired,
        arithmetic=arithmetic,
    )


def nearer(chosen: Sample, one: Sequence[float], other: Sequence[float]) -> float:
    """Negative if the sums of `one` are smaller than those of `other`, positive if larger; 0 if the 95 % interval of
    their paired difference contains 0."""
    _, _, _, interval = summarize(kl_clusters(chosen.units, one, other), "paired_mean")
    return -1.0 if interval.upper < 0 else 1.0 if interval.lower > 0 else 0.0


def _layer(chosen: Sample, sums: Sequence[float]) -> LayerError:
    clusters = kl_clusters(chosen.units, sums)
    _, _, kl, interval = summarize(clusters, "mean")
    return LayerError(kl=kl, interval=interval, clusters=clusters)
