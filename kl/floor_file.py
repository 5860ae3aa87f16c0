"""The noise floor of one reference on one suite: its figures, its file, and its measurements in a run."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from q36eval.errors import UsageError
from q36eval.files import canonical_json, json_sha256, write_atomically
from q36eval.gate.noise import FLOOR_BY_PERTURBATION, floor_metric, floored_metrics
from q36eval.metrics import metric_of
from q36eval.records import Counts, DeploymentIdentity, Interval, Measurement, ProbeName, Record
from q36eval.references import capture_key

VERSION = 2
"""The version of the measurement and of the file."""

SEAL = "floor_sha256"
"""The key in the file for the hash of everything else."""

ADVICE = "delete it to measure it again; if it belongs to a pack, copy the pack again or capture a new one"

UNKNOWN = Interval(lower=0.0, upper=math.inf, level=0.95, method="none: the largest of several")


class FloorFigures(Record):
    """The reference compared with itself on one slice; divergences in nats/token, KL(reference || perturbed).

    `nll_shift` is log(perplexity perturbed / perplexity of the reference), signed. Figures are NaN if a token's figure
    was not finite: such a reference has no floor.
    """

    documents: int
    tokens: int
    non_finite_tokens: int
    kl: float
    kl_interval: Interval
    reverse_kl: float
    nll_shift: float
    nll_shift_interval: Interval
    top1_agreement: float
    kl_p99: float
    kl_max: float

    def loss(self, metric: str) -> float:
        """The floor of a metric in its `floor_unit`: the size of its change in either direction."""
        return {
            "kl_divergence": self.kl,
            "reverse_kl_divergence": self.reverse_kl,
            "perplexity": abs(self.nll_shift),
            "kl_p99": self.kl_p99,
            "kl_max": self.kl_max,
            "top1_agreement": 1.0 - self.top1_agreement,
        }[metric]


class PerturbationFloor(Record):
    """One perturbation: figures by slice (`all` first), or the reason why they are missing."""

    name: str
    what: str
    skipped: str | None = None
    failed: bool = False
    """The perturbation is available but the engine failed: it is measured again whenever the reference is loaded."""
    seconds: float = 0.0
    slices: dict[str, FloorFigures] = Field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether it changed any figure."""
        return "all" in self.slices and self.slices["all"].kl_max != 0

    def loss(self, metric: str, slice_name: str) -> float | None:
        """The floor of a metric on a slice; None if not measured there."""
        figures = self.slices.get(slice_name)
        return None if figures is None else figures.loss(metric)


class ReferenceFloor(Record):
    """The floor of one reference on one suite, identified by `identity` and `suite_sha256`."""

    version: int
    identity: DeploymentIdentity
    suite_sha256: str
    perturbations: tuple[PerturbationFloor, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the perturbations on which the engine failed."""
        return tuple(row.name for row in self.perturbations if row.failed)

    @property
    def usable(self) -> bool:
        """Whether a margin can be compared with it: not if the engine failed on every available perturbation."""
        return not self.failed or any("all" in row.slices for row in self.perturbations)

    def largest(self, metric: str, slice_name: str) -> PerturbationFloor | None:
        """The perturbation under which that metric changed most; None if none was measured on that slice."""
        losses = [(p.loss(metric, slice_name), p) for p in self.perturbations]
        # a NaN counts as the largest
        known = [(math.inf if math.isnan(loss) else loss, p) for loss, p in losses if loss is not None]
        return max(known, key=lambda pair: pair[0], default=(0.0, None))[1]


def measurements(floor: ReferenceFloor) -> Iterator[Measurement]:
    """`kl_noise_floor` by perturbation, and each floored metric's maximum by slice, as measurements of the KL probe."""
    for row in floor.perturbations:
        if "all" in row.slices:
            figures = row.slices["all"]
            yield _measurement(FLOOR_BY_PERTURBATION, row.name, figures, figures.kl, figures.kl_interval, row.what)
    worst = floor.largest("kl_divergence", "all")
    if worst is not None:
        figures = worst.slices["all"]
        absent = ", ".join(f"{p.name} ({p.skipped})" for p in floor.perturbations if p.skipped)
        note = f"the largest, {worst.name}" + (f"; not measured here: {absent}" if absent else "")
        yield _measurement(FLOOR_BY_PERTURBATION, "all", figures, figures.kl, figures.kl_interval, note)
    for metric in floored_metrics():
        for name in dict.fromkeys(name for row in floor.perturbations for name in row.slices):
            largest = floor.largest(metric, name)
            value = None if largest is None else largest.loss(metric, name)
            if largest is not None and value is not None:
                figures = largest.slices[name]
                interval = figures.kl_interval if metric == "kl_divergence" else UNKNOWN
                yield _measurement(floor_metric(metric), name, figures, value, interval, largest.name)


def _measurement(
    metric: str, slice_name: str, figures: FloorFigures, value: float, interval: Interval, note: str
) -> Measurement:
    return metric_of(ProbeName.KL, metric).measured(
        slice_name,
        value=value,
        effect=value,
        effect_interval=interval,
        counts=Counts(total=figures.tokens, scored=figures.tokens, errored=0),
        note=note,
    )


def floor_path(folder: Path, identity: DeploymentIdentity, suite_sha256: str) -> Path:
    """The path in `folder` of that reference's floor on that suite of the KL probe."""
    return folder / f"floor-{capture_key(identity, ProbeName.KL, suite_sha256)[:16]}-v{VERSION}.json"


def write_floor(path: Path, floor: ReferenceFloor) -> None:
    """Write the floor atomically, with the hash of its contents."""
    body = json.loads(floor.model_dump_json())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, canonical_json(body | {SEAL: json_sha256(body)}, indent=1))


def load_floor(path: Path) -> ReferenceFloor | None:
    """The floor in that file, of any reference; None if the file does not exist.

    Raises:
        UsageError: the file cannot be read, or its contents were changed.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.pop(SEAL, None) != json_sha256(body):
            raise ValueError("its contents are not those that were written")
        return ReferenceFloor.model_validate_json(json.dumps(body))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise UsageError(
            "floor-damaged",
            f"The noise floor {path} is damaged: its contents are not those that were measured; {ADVICE}.",
        ) from error


def read_floor(path: Path, identity: DeploymentIdentity, suite_sha256: str) -> ReferenceFloor | None:
    """The floor in that file; None if the file does not exist.

    Raises:
        UsageError: the file is damaged, or belongs to another reference or suite; names the difference.
    """
    floor = load_floor(path)
    if floor is None:
        return None
    differing = floor.identity.differing_fields(identity)
    differing += [] if floor.suite_sha256 == suite_sha256 else ["suite_sha256"]
    differing += [] if floor.version == VERSION else ["version"]
    if differing:
        raise UsageError(
            "floor-identity",
            f"The noise floor {path} was measured for another reference or suite ({', '.join(differing)} differ); "
            f"{ADVICE}.",
        )
    return floor
