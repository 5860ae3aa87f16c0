"""What a person requests: a branch to judge against a reference, and how."""

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
"""What every gate measures."""


def run_finished(run_id: str) -> UsageError:
    """The refusal to resume a run that has ended."""
    return UsageError(
        "run-finished",
        f"Run {run_id} has finished meanwhile; run the same command again to write its reports.",
    )


def another_request(run_id: str, branch: str) -> UsageError:
    """The refusal to resume a run with options that are not its own."""
    return UsageError(
        "run-of-another-request",
        f"Run {run_id} of {branch} had other options (branch, family, suite or policy differ); remove "
        f"these options, repeat the original ones, or start a new run.",
    )


def probes_for(policy: "Policy") -> tuple[ProbeName, ...]:
    """What a gate measures by a policy: an endpoint is asked for what only it shows where a criterion judges that."""
    served = any(criterion.probe is ProbeName.SERVED for criterion in policy.criteria)
    return (*ALL_PROBES, ProbeName.SERVED) if served else ALL_PROBES


def judges_serving_kl(request: "Request") -> bool:
    """Whether a criterion judges what the serving engine adds, which needs the branch decoded here too."""
    criteria = () if request.policy is None or ProbeName.SERVED not in request.probes else request.policy.criteria
    return any(_of_serving_kl(criterion) for criterion in criteria)


def asks_endpoint(request: "Request") -> bool:
    """Whether an endpoint is asked the same twice: not where all that is judged of it is what serving adds."""
    if ProbeName.SERVED not in request.probes:
        return False
    judged = () if request.policy is None else request.policy.criteria
    of_served = [criterion for criterion in judged if criterion.probe is ProbeName.SERVED]
    return not of_served or any(not _of_serving_kl(criterion) for criterion in of_served)


def _of_serving_kl(criterion: "Criterion") -> bool:
    return criterion.probe is ProbeName.SERVED and criterion.metric == SERVING_KL


@dataclass(frozen=True)
class Target:
    """A checkpoint to judge: the name it goes by in history, its folder, and where from if it came from the Hub."""

    name: str
    folder: Path
    snapshot: "Snapshot | None" = None

    @property
    def missing_bytes(self) -> int:
        """How much of its weights is still on the Hub alone."""
        return 0 if self.snapshot is None else self.snapshot.missing_bytes

    @property
    def place(self) -> str:
        """Which bytes are judged: the folder, and of a download the repository and commit."""
        if self.snapshot is None:
            return str(self.folder)
        return f"{self.snapshot.repository} at commit {self.snapshot.commit} ({self.folder})"


@dataclass(frozen=True)
class CanaryChoice:
    """Which canaries are evaluated: the shipped ones and those in the folder `own`, or of them `only` these.

    `draws` of every family instead of the suite's number.
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
    """None where a run `stands_alone`, or its weights are not on this machine: then `reference_pack` stands for it."""
    suite: str
    policy: "Policy | None"
    declared: "Policy | None" = None
    """The policy that the family's file names; None where it cannot be read."""
    probes: tuple[ProbeName, ...] = ALL_PROBES
    engine: EngineOptions = field(default_factory=EngineOptions)
    """Of the branch; the reference is opened `as_reference` of it, so that its answers stay what they are."""
    scheme: str | None = None
    """The quantization scheme, or mixture, that a person declares of the branch."""
    resume: str | None = None
    corpus: Path | None = None
    """A corpus file to measure the divergence on, instead of the suite's own corpus."""
    reference_pack: Path | None = None
    """A pack captured before, perhaps elsewhere; otherwise the reference is captured here when need be."""
    exhaustive: bool = False
    """Ask everything, also of a task of which all that the policy judges is settled."""
    max_items: int | None = None
    """Of each eval task at most so many items, in whole blocks."""
    floor_documents: int | None = None
    """Measure the noise floor on so many documents only, where nothing is judged by it."""
    canaries: CanaryChoice = SHIPPED_CANARIES
    served: ServedPlan = field(default_factory=ServedPlan)
    """How much an endpoint is asked for what only it shows; so many requests at once as the engine's batches say."""
    second_endpoint: str | None = None
    """Address of another endpoint of the same weights, that the first is held against."""
    waivers_from: "WaiverSource | None" = None
    """The only waivers that count; None are those in history."""
    require_sign_off: bool = False
    """Nothing passes before a reviewer has signed the run."""
    template: str | None = None
    """Hash of the chat template that the project file declares of branches that no family's file describes."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The command's options as JSON values, which the run keeps: resuming it needs no others."""

    @property
    def stands_alone(self) -> bool:
        """Whether only an endpoint is asked, for what needs no reference: it is held against itself."""
        return self.probes == (ProbeName.SERVED,) and self.reference is None and self.reference_pack is None

    @property
    def lacking(self) -> tuple[Target, ...]:
        """Those of branch and reference whose weights are not here."""
        return tuple(each for each in (self.branch, self.reference) if each is not None and each.missing_bytes)

    @property
    def deployment(self) -> EngineSettings:
        """The branch, as it is opened."""
        return self.engine.of(self.branch.folder)
