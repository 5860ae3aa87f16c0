"""A person's request: a branch to judge against a reference, and the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.config import Family
from q36eval.engines import EngineOptions, EngineSettings
from q36eval.errors import UsageError
from q36eval.records import ProbeName
from q36eval.served.declared_server import SERVING_KL
from q36eval.served.declared_server import Plan as ServedPlan

if TYPE_CHECKING:  # the command line imports this module before it knows that it will judge anything
    from q36eval.gate import Criterion, Policy
    from q36eval.history.decisions import WaiverSource
    from q36eval.hub_checkpoints import Snapshot

ALL_PROBES = (ProbeName.WEIGHTS, ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)
"""The probes of every gate."""


def run_finished(run_id: str) -> UsageError:
    """The refusal to resume a run that has ended."""
    return UsageError(
        "run-finished",
        f"Run {run_id} has finished meanwhile; run the same command again to write its reports.",
    )


def another_request(run_id: str, branch: str) -> UsageError:
    """The refusal to resume a run with different options."""
    return UsageError(
        "run-of-another-request",
        f"Run {run_id} of {branch} had other options (branch, family, suite or policy differ); remove "
        f"these options, repeat the original ones, or start a new run.",
    )


def probes_for(policy: "Policy") -> tuple[ProbeName, ...]:
    """The probes of a gate for a policy: an endpoint's own faults are measured only if a criterion judges them."""
    served = any(criterion.probe is ProbeName.SERVED for criterion in policy.criteria)
    return (*ALL_PROBES, ProbeName.SERVED) if served else ALL_PROBES


def judges_serving_kl(request: "Request") -> bool:
    """Whether a criterion judges the serving error, which needs the branch decoded here, too."""
    criteria = () if request.policy is None or ProbeName.SERVED not in request.probes else request.policy.criteria
    return any(_of_serving_kl(criterion) for criterion in criteria)


def asks_endpoint(request: "Request") -> bool:
    """Whether an endpoint is compared with itself: not if only the serving error is judged."""
    if ProbeName.SERVED not in request.probes:
        return False
    judged = () if request.policy is None else request.policy.criteria
    of_served = [criterion for criterion in judged if criterion.probe is ProbeName.SERVED]
    return not of_served or any(not _of_serving_kl(criterion) for criterion in of_served)


def _of_serving_kl(criterion: "Criterion") -> bool:
    return criterion.probe is ProbeName.SERVED and criterion.metric == SERVING_KL


@dataclass(frozen=True)
class Target:
    """A checkpoint to judge: its name in history, its folder, and its origin if it came from the Hub."""

    name: str
    folder: Path
    snapshot: "Snapshot | None" = None

    @property
    def missing_bytes(self) -> int:
        """The number of weight bytes that are only on the Hub."""
        return 0 if self.snapshot is None else self.snapshot.missing_bytes

    @property
    def place(self) -> str:
        """The judged bytes: the folder, and for a download the repository and commit."""
        if self.snapshot is None:
            return str(self.folder)
        return f"{self.snapshot.repository} at commit {self.snapshot.commit} ({self.folder})"


@dataclass(frozen=True)
class CanaryChoice:
    """The evaluated canaries: the shipped ones and those in the folder `own`, or `only` these of them.

    `draws` replaces the suite's number of draws per family.
    """

    own: Path | None = None
    only: tuple[str, ...] = ()
    draws: int | None = None


SHIPPED_CANARIES = CanaryChoice()


@dataclass(frozen=True)
class Request:
    """One branch to judge against one reference."""

    family: Family
    branch: Target
    reference: Target | None
    """None if the run `stands_alone`, or the weights are not on this machine: `reference_pack` then replaces it."""
    suite: str
    policy: "Policy | None"
    declared: "Policy | None" = None
    """The policy in the family's file; None if it cannot be read."""
    probes: tuple[ProbeName, ...] = ALL_PROBES
    engine: EngineOptions = field(default_factory=EngineOptions)
    """The branch's engine; the reference is opened `as_reference` of it, so that its answers stay the same."""
    scheme: str | None = None
    """The quantization scheme, or mixture, that a person declares for the branch."""
    resume: str | None = None
    corpus: Path | None = None
    """A corpus file for the divergence, replacing the suite's own corpus."""
    reference_pack: Path | None = None
    """An existing pack, possibly from elsewhere; without one the reference is captured here if necessary."""
    exhaustive: bool = False
    """Evaluate everything, including tasks whose judged figures are all resolved."""
    max_items: int | None = None
    """At most this many items per eval task, in whole blocks."""
    floor_documents: int | None = None
    """Measure the noise floor on this many documents only, if nothing is judged by it."""
    canaries: CanaryChoice = SHIPPED_CANARIES
    served: ServedPlan = field(default_factory=ServedPlan)
    """The amount of queries for an endpoint's own faults; the concurrency follows the engine's batches."""
    second_endpoint: str | None = None
    """Address of another endpoint of the same weights, to compare with the first."""
    waivers_from: "WaiverSource | None" = None
    """The only waivers that count; None uses those in history."""
    require_sign_off: bool = False
    """Nothing passes before a reviewer has signed the run."""
    template: str | None = None
    """The chat template's hash in the project file, for branches that no family's file describes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The command's options as JSON values, stored with the run: resuming it needs no others."""

    @property
    def stands_alone(self) -> bool:
        """Whether only an endpoint is queried, without a reference: it is compared with itself."""
        return self.probes == (ProbeName.SERVED,) and self.reference is None and self.reference_pack is None

    @property
    def lacking(self) -> tuple[Target, ...]:
        """Those of branch and reference whose weights are not on this machine."""
        return tuple(each for each in (self.branch, self.reference) if each is not None and each.missing_bytes)

    @property
    def deployment(self) -> EngineSettings:
        """The settings to open the branch with."""
        return self.engine.of(self.branch.folder)
