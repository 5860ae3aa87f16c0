"""Attribution, assembled: two engines, the sample within its budget, every suspect in both directions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.checkpoints.inspection.configuration import NO_PART_OF_THE_COMPUTATION
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.config import Paths
from q36eval.engines import Engine, EngineOptions, as_reference, open_engine
from q36eval.engines.parts import borrowing, differs, parts_of
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.history import History
from q36eval.kl.attribution import (
    Attribution,
    Blame,
    Direction,
    Sample,
    Suspect,
    blame,
    divergences,
    hidden_states,
    kl_clusters,
    sample,
    suspects,
)
from q36eval.kl.corpus import CorpusDocument
from q36eval.metrics import METRICS
from q36eval.probes import Progress
from q36eval.provenance import provenance
from q36eval.records import Counts, DeploymentIdentity, Measurement, ProbeName
from q36eval.stats import summarize

if TYPE_CHECKING:
    import torch

    from q36eval.engines.logits import OutputHead

DIRECTIONS: tuple[Direction, ...] = ("restored", "alone")


@dataclass(frozen=True)
class Plan:
    """What to attribute, and its cost. `budget` limits the tokens forwarded over all passes together.

    `bands` are groups of neighbouring layers. `weights_only` decodes the branch here without quantized inputs.
    """

    branch: Path
    reference: Path
    documents: Sequence[CorpusDocument]
    budget: int
    engine: EngineOptions = field(default_factory=EngineOptions)
    bands: int = 10
    weights_only: bool = False


def attribute(plan: Plan, progress: Progress) -> Attribution:
    """Score the branch, and every suspect in both directions, against the reference's hidden states.

    On a CPU both models are resident; on another device one is, and the other lends its parts from host memory.

    Raises:
        UsageError: the tokenizers differ, nothing differs, or the budget is too small.
        CorruptCheckpointError, EngineError: a checkpoint cannot be loaded or scored.
        ChangedError: a checkpoint changed meanwhile.
    """
    if plan.weights_only:
        plan = replace(plan, engine=replace(plan.engine, emulate_activations=False))
    with opened_once() as folders:
        folders.measure_against(plan.reference)
        attribution = _attributed(plan, progress)
        folders.verify()
    return attribution


def _attributed(plan: Plan, progress: Progress) -> Attribution:
    progress.stage("reading both checkpoints", 2)
    reference, branch = _load_reference(plan, plan.engine.device), _load_branch(plan, "cpu")
    _check_comparable(reference, branch)
    parts = parts_of(reference)
    guilty = [part for part in parts if differs(reference, branch, part.module)]
    listed = suspects(guilty, plan.bands)
    passes = 2 + len(DIRECTIONS) * len(listed)
    chosen = sample(plan.documents, reference.tokenizer, passes, plan.budget)
    progress.stage("scoring the variants", passes)
    states, head = hidden_states(reference, chosen.requests), reference.output_head().to("cpu")
    progress.advance()
    alone = [_variant(reference, branch, suspect, chosen, states, head, progress) for suspect in listed]
    if plan.engine.device != "cpu":
        del reference, branch
        reference, branch = _load_reference(plan, "cpu"), _load_branch(plan, plan.engine.device)
    total = divergences(branch, chosen, states, head)
    progress.advance()
    restored = [_variant(branch, reference, suspect, chosen, states, head, progress) for suspect in listed]
    variants: dict[Direction, list[list[float]]] = {"restored": restored, "alone": alone}
    blames = [
        blame(suspect, direction, chosen.units, total, sums)
        for direction in DIRECTIONS
        for suspect, sums in zip(listed, variants[direction], strict=True)
    ]
    identical = {part.tensor_class for part in parts} - {part.tensor_class for part in guilty}
    _, _, kl, interval = summarize(kl_clusters(chosen.units, total), "mean")
    return Attribution(
        kl=kl,
        kl_interval=interval,
        documents=len(chosen.documents),
        tokens=sum(chosen.units),
        tokens_forwarded=passes * chosen.tokens,
        identical=tuple(sorted(identical)),
        blames=tuple(blames),
    )


def _variant(
    borrower: Engine,
    lender: Engine,
    suspect: Suspect,
    chosen: Sample,
    states: "Mapping[str, torch.Tensor]",
    head: "OutputHead",
    progress: Progress,
) -> list[float]:

    with borrowing(borrower, lender, suspect.modules):
        sums = divergences(borrower, chosen, states, head)
    progress.advance()
    return sums


def _load_reference(plan: Plan, device: str) -> Engine:
    """The reference as in the gate.

    Raises:
        UsageError: it is damaged.
    """
    try:
        return open_engine(replace(as_reference(plan.engine), device=device).of(plan.reference))
    except CorruptCheckpointError as error:
        raise UsageError(error.code, f"The reference cannot be used: {error}") from error


def _load_branch(plan: Plan, device: str) -> Engine:
    return open_engine(replace(plan.engine, device=device).of(plan.branch))


def _check_comparable(reference: Engine, branch: Engine) -> None:
    """Only modules are blamed, so everything else must be identical: the tokens and the configuration."""
    mine, theirs = (engine.model.config.to_dict() for engine in (reference, branch))
    differing = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    differing = [key for key in differing if key not in NO_PART_OF_THE_COMPUTATION]
    if differing:
        raise UsageError(
            "configuration-differs",
            f"The branch's configuration differs from the reference's in {', '.join(differing)}; "
            f"what that costs belongs to no part, so nothing is attributed.",
        )
    if reference.identity.tokenizer_sha256 != branch.identity.tokenizer_sha256:
        raise UsageError(
            "tokenizer-differs",
            "The branch's tokenizer differs from the reference's: the same text gives them other tokens.",
        )


def record(
    attribution: Attribution, family: str, branch: str, suite_sha256: str, history: History, paths: Paths
) -> str:
    """Write every figure to history as a separate run; returns the run's id."""
    figures = [_measurement(blamed) for blamed in attribution.blames]
    return keep_figures(figures, family, branch, {"attribute": suite_sha256}, history, paths)


def keep_figures(
    figures: Sequence[Measurement],
    family: str,
    branch: str,
    suites: Mapping[str, str],
    history: History,
    paths: Paths,
    identities: tuple[DeploymentIdentity | None, DeploymentIdentity | None] = (None, None),
) -> str:
    """A run of history that holds these figures and decides nothing; returns its id.

    `identities` are those of the branch and of the reference, if the figures compare two deployments.
    """
    run = history.start_run(
        family=family,
        branch=branch,
        identity=identities[0],
        reference_identity=identities[1],
        policy=None,
        suites=dict(suites),
        provenance=provenance(paths.repository),
    )
    for figure in figures:
        history.add_measurement(run.id, figure)
    history.finish_run(run.id, None)
    return run.id


def _measurement(blamed: Blame) -> Measurement:
    """`attributed_kl[direction/suspect]`."""
    tokens = sum(blamed.clusters.units)
    reference = blamed.clusters.reference
    return METRICS[ProbeName.KL, "attributed_kl"].measured(
        f"{blamed.direction}/{blamed.suspect}",
        estimator="mean" if reference is None else "paired_mean",
        value=sum(blamed.clusters.branch) / tokens,
        reference_value=None if reference is None else sum(reference) / tokens,
        effect=blamed.nats,
        effect_interval=blamed.nats_interval,
        counts=Counts(total=tokens, scored=tokens, errored=0),
        clusters=blamed.clusters,
        note=f"share {blamed.share:.1%} [{blamed.share_interval.lower:.1%}, {blamed.share_interval.upper:.1%}]",
    )
