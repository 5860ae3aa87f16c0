"""The evidence for each criterion: complete, and without the waived canaries. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from q36eval.gate.blessed_run import measured
from q36eval.gate.headroom import is_anomalous
from q36eval.gate.judgement import judge, why_unfinished
from q36eval.gate.noise import floor_of, is_floor
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import CriterionResult
from q36eval.records import Measurement, ProbeFailure, ProbeName

TWIN = "-must-pass"
"""The suffix of a canary with fixed prompts; the name before it is the family of drawn prompts."""


@dataclass(frozen=True)
class Evidence:
    """Distinct measurements by key, the blessed run's too, and the failures of the probes.

    Identical repeats (from a resumed run) count as one measurement; `floors` are the measured noise floors.
    `blessed_refused` gives, for each probe whose figures in the blessed run cannot be compared, the reason.
    """

    measured: dict[str, list[Measurement]]
    blessed: dict[str, list[Measurement]]
    failures: tuple[ProbeFailure, ...]
    floors: tuple[Measurement, ...]
    blessed_refused: Mapping[ProbeName, str]

    @classmethod
    def of(
        cls,
        policy: Policy,
        measurements: Sequence[Measurement],
        failures: Sequence[ProbeFailure],
        blessed: Sequence[Measurement] = (),
        blessed_refused: Mapping[ProbeName, str] | None = None,
    ) -> "Evidence":
        """The evidence for the policy's criteria, selected from all measurements."""
        wanted = {criterion.key for criterion in policy.criteria}
        return cls(
            measured=_distinct(measurements, wanted),
            blessed=_distinct(blessed, wanted),
            failures=tuple(sorted(failures, key=lambda f: (f.probe, f.kind, f.reason))),
            floors=tuple(m for m in measurements if is_floor(m.probe, m.metric)),
            blessed_refused=blessed_refused or {},
        )

    def judged(self, criterion: Criterion) -> CriterionResult:
        """The criterion's figures and p-values, before Holm and waivers."""
        return self._judge(criterion, self.measured.get(criterion.key, []), self.blessed.get(criterion.key, []))

    def unfinished(self, criterion: Criterion) -> str | None:
        """Why the count of faults may be incomplete; None if it is complete or the criterion counts nothing."""
        return why_unfinished(criterion, self.measured.get(criterion.key, []), self._failures_of(criterion))

    def canaries(self, criterion: Criterion) -> frozenset[str]:
        """The canaries named in the criterion's evidence; none if it was written without names."""
        if criterion.probe is not ProbeName.CANARIES:
            return frozenset()
        measurements = self.measured.get(criterion.key, [])
        return frozenset(
            _canary_of(name) for m in measurements if m.clusters is not None for name in m.clusters.names or ()
        )

    def passes_without(self, criterion: Criterion, canaries: Collection[str]) -> bool:
        """Whether the evidence without these canaries and their fixed twins lies inside the margin or is empty.

        The policy's minimum of items applies to all items; a test's own minimum applies to the remaining items.
        """
        if all(is_of(canary, canaries) for canary in self.canaries(criterion)):
            return True
        rest, theirs = (
            [_without(measurement, canaries) for measurement in of.get(criterion.key, [])]
            for of in (self.measured, self.blessed)
        )
        # the p-value is 1 if the remaining items cannot be judged
        result = self._judge(criterion.model_copy(update={"min_scored": 1}), rest, theirs)
        return result.p_pass <= 1.0 - criterion.confidence and not is_anomalous(result)

    def _judge(
        self, criterion: Criterion, measurements: list[Measurement], blessed: list[Measurement]
    ) -> CriterionResult:
        refused = self.blessed_refused.get(criterion.probe)
        failures = self._failures_of(criterion)
        return judge(criterion, measurements, failures, floor_of(criterion, self.floors), refused or blessed)

    def _failures_of(self, criterion: Criterion) -> list[ProbeFailure]:
        named = [f for f in self.failures if criterion.key in f.figures and criterion.key not in self.measured]
        return named or [each for each in self.failures if each.probe == criterion.probe and not each.figures]


def is_of(canary: str, named: Collection[str]) -> bool:
    """Whether a canary is one of `named`, or the fixed twin (`NAME-must-pass`) of a drawn one."""
    return canary in named or (canary.endswith(TWIN) and canary.removesuffix(TWIN) in named)


def _distinct(measurements: Iterable[Measurement], wanted: Collection[str]) -> dict[str, list[Measurement]]:
    by_key: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.key in wanted:
            by_key.setdefault(measurement.key, []).append(measurement)
    # compared by their JSON, in which NaN equals NaN
    return {
        key: of_key if len(of_key) == 1 else list({m.model_dump_json(): m for m in of_key}.values())
        for key, of_key in by_key.items()
    }


def _canary_of(name: str) -> str:
    """The canary of a cluster named `CANARY/QUESTION`."""
    return name.partition("/")[0]


def _without(measurement: Measurement, canaries: Collection[str]) -> Measurement:
    """The measurement rebuilt from all other canaries' clusters; unchanged without names or sums by cluster."""
    clusters = measurement.clusters
    if clusters is None or clusters.names is None or clusters.tail is not None or measurement.estimator == "derived":
        return measurement
    whose = clusters.families or tuple(map(_canary_of, clusters.names))
    kept = {row: name for row, name in enumerate(whose) if not is_of(name, canaries)}
    rest = measured(measurement, clusters.of_rows(list(kept), {"", *kept.values()}), measurement.estimator)
    families = measurement.competence
    # waived canaries do not count towards the reference's competence either
    left = None if families is None else tuple(family for family in families if not is_of(family.name, canaries))
    return rest.model_copy(update={"competence": left})
