"""The checkpoint's error and the engine's, assembled: three deployments of the same texts, one after the other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from q36eval.checkpoints.gpu import give_back
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.config import Paths
from q36eval.engines import Engine, EngineOptions, EngineSettings, as_reference, open_engine, opens_checkpoints
from q36eval.engines.head import Head
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.gate.fault_layer import EXCESS, SERVING, Arithmetic
from q36eval.history import History
from q36eval.kl.attribution import Pass, Sample, hidden_states, sample
from q36eval.kl.serving_error import (
    LayerError,
    ServingError,
    Side,
    divergence_sums,
    divergence_sums_from,
    nearer,
    serving_error,
)
from q36eval.metrics import METRICS
from q36eval.probes import Progress
from q36eval.records import Counts, DeploymentIdentity, Measurement, ProbeName
from q36eval.run.attribution import Plan, keep_figures

WHOLE = "whole"
LAYERS = ("checkpoint", "serving", WHOLE, "floor")


@dataclass(frozen=True)
class Told:
    """The errors, and the two deployments they compare: the branch as served, and the reference here."""

    error: ServingError
    served: DeploymentIdentity
    reference: DeploymentIdentity


def tell_apart(plan: Plan, progress: Progress) -> Told:
    """Score the texts by the decoded branch, the reference, the branch as served and, if possible, the floor.

    A branch that quantizes inputs is decoded both with and without that: the served branch is compared with the nearer
    one. One model at a time is loaded and its states are kept; its head is read when a divergence needs it.

    Raises:
        UsageError: a checkpoint cannot be used, or the budget is too small.
        CorruptCheckpointError, EngineError: the branch cannot be loaded, or a text cannot be scored.
        ChangedError: a checkpoint changed meanwhile.
    """
    with opened_once() as folders:
        folders.measure_against(plan.reference)
        told = _told_apart(plan, progress)
        folders.verify()
    return told


def _told_apart(plan: Plan, progress: Progress) -> Told:
    has_floor = opens_checkpoints(plan.engine)
    here = as_reference(plan.engine)
    weight_only = replace(here, emulate_activations=False, kv_cache_dtype=plan.engine.kv_cache_dtype)
    first = open_engine(weight_only.of(plan.branch))
    quantizes_inputs = first.ignores_activation_quantization
    emulated = quantizes_inputs and not plan.weights_only
    passes = 3 + has_floor + emulated
    progress.stage("scoring the same texts by every deployment", passes)
    chosen = sample(plan.documents, first.tokenizer, passes, plan.budget)
    decoded = {"weight-only": _Measured.of(first, weight_only.of(plan.branch), chosen).side}
    del first
    give_back(torch.device(here.device))  # the next engine plans with the free memory
    progress.advance()
    if emulated:
        as_stored = replace(weight_only, emulate_activations=True)
        decoded["emulated"] = _opened(plan.branch, as_stored, chosen).side
        progress.advance()
    try:
        reference = _opened(plan.reference, here, chosen)
    except CorruptCheckpointError as error:
        raise UsageError(error.code, f"The reference cannot be used: {error}") from error
    progress.advance()
    sides = {**decoded, WHOLE: reference.side}
    if has_floor:
        sums, served, floor = _sums_of_opened(plan, chosen, sides, progress)
    else:  # a server's answers are not stored
        (sums, served), floor = divergence_sums_from(chosen, sides, open_engine(plan.engine.of(plan.branch))), None
        progress.advance()
    whole, serving = sums.pop(WHOLE), {name: sums[name] for name in decoded}
    arithmetic = arithmetic_of(chosen, serving, quantizes_inputs=quantizes_inputs)
    judged = judged_side(arithmetic, decoded)
    told = serving_error(
        plan.engine.kind,
        chosen,
        checkpoint=divergence_sums(chosen, reference.side, decoded[judged]),
        serving=serving[judged],
        whole=whole,
        floor=floor,
        arithmetic=arithmetic,
    )
    return Told(told, served, reference.identity)


def judged_side(arithmetic: Arithmetic, decoded: Iterable[str]) -> str:
    """The `decoded` branch for the comparison with the served one: the emulated one, which follows the checkpoint,
    unless it is shown to be weight-only, or no other exists."""
    return "weight-only" if arithmetic == "weight-only" or "emulated" not in decoded else "emulated"


def arithmetic_of(chosen: Sample, serving: Mapping[str, Sequence[float]], *, quantizes_inputs: bool) -> Arithmetic:
    """The decoded branch nearer to the served one, from the KL sums of both by document."""
    if not quantizes_inputs:
        return "plain"
    if "emulated" not in serving:
        return "weight-only"  # as --weights-only requests
    side = nearer(chosen, serving["weight-only"], serving["emulated"])
    return "unclear" if side == 0 else "weight-only" if side < 0 else "emulated"


@dataclass(frozen=True)
class _Measured:
    """One deployment's states and head, and its identity."""

    side: Side
    identity: DeploymentIdentity

    @classmethod
    def of(cls, engine: Engine, settings: EngineSettings, chosen: Sample) -> "_Measured":
        """Score the texts; the states leave the device, because the next model may need all of it."""
        on_host: Pass = {key: rows.cpu() for key, rows in hidden_states(engine, chosen.requests).items()}
        return cls(Side(on_host, _head_once_asked(settings)), engine.identity)


def _head_once_asked(settings: EngineSettings) -> Callable[[torch.Tensor], torch.Tensor]:
    """A deployment's logits [T, V] of final states [T, H]; its head is read, and takes memory, from the first call on.

    It raises as `Head.of`, and ChangedError if its files were written meanwhile.
    """

    @cache
    def head() -> Head:
        with hold(settings.folder).being_read():
            return Head.of(settings)

    return lambda states: head().logits(states)


def _sums_of_opened(
    plan: Plan, chosen: Sample, sides: Mapping[str, Side], progress: Progress
) -> tuple[dict[str, list[float]], DeploymentIdentity, list[float]]:
    """KL sums by document of each side and the branch as served, its serving engine, and the sums of the floor.

    Both times only the engine and its own head are on the device: only then the other heads fit.
    """
    served = _opened(plan.branch, plan.engine, chosen)
    progress.advance()
    reference = _opened(plan.reference, plan.engine, chosen)
    sums = {name: divergence_sums(chosen, side, served.side) for name, side in sides.items()}
    floor = divergence_sums(chosen, sides[WHOLE], reference.side)
    progress.advance()
    return sums, served.identity, floor


def _opened(folder: Path, options: EngineOptions, chosen: Sample) -> _Measured:
    settings = options.of(folder)
    engine = open_engine(settings)
    measured = _Measured.of(engine, settings, chosen)
    del engine
    give_back(torch.device(options.device))  # another process may serve next and cannot use this one's memory
    return measured


def record(told: Told, family: str, branch: str, suite_sha256: str, history: History, paths: Paths) -> str:
    """Write every figure to history as a separate run; returns the run's id."""
    error = told.error
    layers: dict[str, LayerError | None] = {name: getattr(error, name) for name in LAYERS}
    figures = [_measurement(f"{error.engine}/{name}", layer) for name, layer in layers.items() if layer is not None]
    excess = METRICS[ProbeName.KL, "attributed_kl"].measured(
        f"{error.engine}/{EXCESS}",
        estimator="paired_mean",
        value=error.serving.kl,
        reference_value=error.checkpoint.kl,
        effect=error.excess,
        effect_interval=error.excess_interval,
        counts=Counts(total=error.tokens, scored=error.tokens, errored=0),
        clusters=error.paired,
        note=error.arithmetic,  # the engine's arithmetic
    )
    figures.append(excess)
    return keep_figures(
        figures, family, branch, {SERVING: suite_sha256}, history, paths, identities=(told.served, told.reference)
    )


def _measurement(slice_name: str, layer: LayerError) -> Measurement:
    """`attributed_kl[vllm/serving]` and similar."""
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
