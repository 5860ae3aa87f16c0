"""The checkpoint's error and the engine's, put together: three deployments of the same texts, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from q36eval.checkpoints.opened import opened_once
from q36eval.config import Paths
from q36eval.engines import EngineOptions, as_reference, open_engine, opens_checkpoints
from q36eval.engines.head import Head
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.history import History
from q36eval.kl.attribution import Pass, Sample, hidden_states, sample
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.serving_error import LayerError, ServingError, Side, divergence_sums, serving_error
from q36eval.metrics import METRICS
from q36eval.probes import Progress
from q36eval.records import Counts, Measurement, ProbeName
from q36eval.run.attribution import keep_figures

LAYERS = ("checkpoint", "serving", "whole", "floor")


@dataclass(frozen=True)
class ServingPlan:
    """What to hold apart. `engine` serves the branch; `weights_only` decodes it here without quantized inputs.

    `budget` limits the tokens forwarded over all passes together.
    """

    branch: Path
    reference: Path
    documents: Sequence[CorpusDocument]
    budget: int
    engine: EngineOptions
    weights_only: bool = False


def tell_apart(plan: ServingPlan, progress: Progress) -> ServingError:
    """Score the texts by the reference, the branch decoded, the branch as served and, where it can, the floor.

    One model at a time is loaded; its states and its head stay.

    Raises:
        UsageError: a checkpoint cannot be used, or the budget is too small.
        CorruptCheckpointError, EngineError: the branch cannot be loaded, or a text cannot be scored.
        ChangedError: a checkpoint changed meanwhile.
    """
    with opened_once() as folders:
        folders.measure_against(plan.reference)
        error = _told_apart(plan, progress)
        folders.verify()
    return error


def _told_apart(plan: ServingPlan, progress: Progress) -> ServingError:
    has_floor = opens_checkpoints(plan.engine)
    passes = 4 if has_floor else 3
    here = as_reference(plan.engine)
    decoded = replace(here, emulate_activations=not plan.weights_only, kv_cache_dtype=plan.engine.kv_cache_dtype)
    progress.stage("scoring the same texts by every deployment", passes)
    try:
        reference, chosen = _reference(plan, here, passes)
    except CorruptCheckpointError as error:
        raise UsageError(f"The reference cannot be used: {error}") from error
    progress.advance()
    branch = _side(plan.branch, decoded, chosen)
    progress.advance()
    served = _side(plan.branch, plan.engine, chosen)
    progress.advance()
    floor = None
    if has_floor:
        floor = divergence_sums(chosen, reference, _side(plan.reference, plan.engine, chosen))
        progress.advance()
    return serving_error(
        plan.engine.kind,
        chosen,
        checkpoint=divergence_sums(chosen, reference, branch),
        serving=divergence_sums(chosen, branch, served),
        whole=divergence_sums(chosen, reference, served),
        floor=floor,
    )


def _reference(plan: ServingPlan, options: EngineOptions, passes: int) -> tuple[Side, Sample]:
    settings = options.of(plan.reference)
    engine = open_engine(settings)
    chosen = sample(plan.documents, engine.tokenizer, passes, plan.budget)
    return Side(_on_host(hidden_states(engine, chosen.requests)), Head.of(settings).logits), chosen


def _side(folder: Path, options: EngineOptions, chosen: Sample) -> Side:
    settings = options.of(folder)
    engine = open_engine(settings)
    states = hidden_states(engine, chosen.requests)
    if not opens_checkpoints(options):
        return Side(states, engine.logits)  # a server keeps its head
    return Side(_on_host(states), Head.of(settings).logits)


def _on_host(states: Pass) -> Pass:
    """Out of the way of the next model, which may need all of the device."""
    return {key: rows.cpu() for key, rows in states.items()}


def record(error: ServingError, family: str, branch: str, suite_sha256: str, history: History, paths: Paths) -> str:
    """Write every figure to history as a run of its own; returns the run's id."""
    layers: dict[str, LayerError | None] = {name: getattr(error, name) for name in LAYERS}
    figures = [_measurement(f"{error.engine}/{name}", layer) for name, layer in layers.items() if layer is not None]
    return keep_figures(figures, family, branch, suite_sha256, history, paths)


def _measurement(slice_name: str, layer: LayerError) -> Measurement:
    """`attributed_kl[vllm/serving]` and its like."""
    tokens = sum(layer.clusters.units)
    return METRICS[ProbeName.KL, "attributed_kl"].measured(
        slice_name,
        estimator="mean",
        value=layer.kl,
        effect=layer.kl,
        effect_interval=layer.interval,
        counts=Counts(total=tokens, scored=tokens, errored=0),
        clusters=layer.clusters,
    )
