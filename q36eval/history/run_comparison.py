"""Two runs compared: every criterion, the paired difference on common items, flips between them.

B is compared with A: a difference is B's figure minus A's (or B's over A's, for a perplexity and a ratio).
"""

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any, Literal

from q36eval.gate.blessed_run import paired_with
from q36eval.gate.report import CriterionResult
from q36eval.history.records import RunRecord
from q36eval.history.store import History
from q36eval.records import Answer, Direction, Interval, ItemOutcome, Measurement, ProbeName, Reason, Record

TIED_TO_THE_REFERENCE = (ProbeName.WEIGHTS, ProbeName.KL, ProbeName.CANARIES)
"""Probes whose figures depend on the reference; an accuracy is the branch's own."""

ANSWERED = (ProbeName.EVALS, ProbeName.CANARIES)
"""Probes whose items are right or wrong, so that they can flip."""

REFERENCE = "reference."
"""Begins the name of a field that is of the reference."""

Movement = Literal["better", "worse", "unclear"]
CriterionMovement = Literal["better", "worse", "unclear", "same"]
WORST_FIRST = ("worse", None, "unclear", "same", "better")


class Difference(Record):
    """A field of the measurement or its settings that differs between two runs; None if one does not have it."""

    field: str
    a: str | None
    b: str | None


class PairedDifference(Record):
    """B compared with A over the clusters that both evaluated, paired by name.

    `effect` is B's mean less A's, or `ratio` says that it is B's over A's (1 = no change). Both bounds of the interval
    hold one-sided at (1 + level) / 2. `movement` is unclear where the interval holds "no change", or is no interval.
    """

    a: float
    b: float
    effect: float
    effect_interval: Interval
    ratio: bool
    clusters: int
    movement: Movement


class ComparedCriterion(Record):
    """One criterion in both runs; None in the one that does not have it.

    `key` is the measurement's, `unit` its. `difference` is None if the two cannot be paired, and `why` is the reason.
    """

    id: str
    key: str
    unit: str | None
    a: CriterionResult | None
    b: CriterionResult | None
    difference: PairedDifference | None = None
    why: str = ""

    @property
    def movement(self) -> CriterionMovement | None:
        """The change from A to B; None if the two are not comparable.

        Counted faults are not random: one more is worse, and an equal number is the `same`. Counts of other prompts, or
        by another policy's rule of the same name, are not comparable.
        """
        if self.why:
            return None
        counts = [one.value for one in (self.a, self.b) if one is not None and one.margin.kind == "max_count"]
        if len(counts) == 2 and counts[0] is not None and counts[1] is not None:
            return "same" if counts[0] == counts[1] else "worse" if counts[1] > counts[0] else "better"
        return None if self.difference is None else self.difference.movement

    @property
    def turned(self) -> bool:
        """Whether it has another verdict in B."""
        return (None if self.a is None else self.a.verdict) != (None if self.b is None else self.b.verdict)

    @property
    def urgency(self) -> tuple[int, bool]:
        """Changes for the worse come first, then other changes of verdict."""
        return WORST_FIRST.index(self.movement), not self.turned


class ComparedMeasurement(Record):
    """One figure that both runs measured, criterion or not."""

    key: str
    unit: str
    direction: Direction
    a: float
    a_interval: Interval
    b: float
    b_interval: Interval
    difference: PairedDifference | None = None
    why: str = ""


class BetweenRuns(Record):
    """An item that one of the two branches answered rightly and the other not: `lost` is right in A, `gained` in B."""

    probe: ProbeName
    group: str
    item_key: str
    cluster: str
    way: Literal["lost", "gained"]
    prompt: str | None
    expected: str | None
    a: Answer
    b: Answer


class FlipCounts(Record):
    """Items of one probe that both runs scored, and how many of them flipped which way from A to B.

    `only_a` and `only_b` are items that the other run did not score.
    """

    probe: ProbeName
    both: int
    lost: int
    gained: int
    only_a: int
    only_b: int


class Comparison(Record):
    """Two runs compared. `apart` gives, by probe, the reason why its figures are not comparable."""

    a: str
    b: str
    differing: tuple[Difference, ...]
    apart: dict[ProbeName, str]
    criteria: tuple[ComparedCriterion, ...]
    measurements: tuple[ComparedMeasurement, ...]
    flips: tuple[FlipCounts, ...]
    flipped: tuple[BetweenRuns, ...]


def compare(history: History, a: RunRecord, b: RunRecord) -> Comparison:
    """Compare run `b` with run `a`, of any branches.

    If neither run was judged, every figure that both measured.
    """
    apart = _apart(a, b)
    ours, theirs = ({m.key: m for m in history.measurements(run.id)} for run in (b, a))
    criteria = tuple(_criteria(a, b, theirs, ours, apart))
    both = () if criteria else (key for key in ours if key in theirs)
    flips, flipped = flips_between(history, a, b, apart)
    return Comparison(
        a=a.id,
        b=b.id,
        differing=tuple(differing(a, b)),
        apart=apart,
        criteria=criteria,
        measurements=tuple(_measured(theirs[key], ours[key], apart) for key in both),
        flips=flips,
        flipped=flipped,
    )


def differing(a: RunRecord, b: RunRecord) -> Iterator[Difference]:
    """Every field of identity, reference, suites, policy and circumstances in which the two runs differ."""
    one, other = _facts(a), _facts(b)
    for field in dict.fromkeys((*one, *other)):
        if one.get(field) != other.get(field):
            yield Difference(field=field, a=_word(one.get(field)), b=_word(other.get(field)))


def _facts(run: RunRecord) -> dict[str, Any]:
    """What a run was, flat: `checkpoint_sha256`, `settings.device`, `reference.engine`, `suite.kl`, …"""
    facts: dict[str, Any] = {"family": run.family, "branch": run.branch}
    for prefix, identity in (("", run.identity), (REFERENCE, run.reference_identity)):
        body = {} if identity is None else identity.model_dump(mode="json")
        settings = body.pop("settings", {})
        facts |= {f"{prefix}{name}": value for name, value in body.items()}
        facts |= {f"{prefix}settings.{name}": value for name, value in settings.items()}
    facts |= {f"suite.{probe}": sha256 for probe, sha256 in run.suites.items()}
    facts["policy"] = None if run.policy is None else run.policy.get("name")
    for criterion in [] if run.policy is None else run.policy["criteria"]:
        margin = criterion["margin"]
        facts[f"policy.{criterion['id']}"] = f"{margin['kind']} {margin['value']:g}"
    if run.circumstances is not None:
        facts["waivers known"] = len(run.circumstances.waivers)
        facts["blessed run"] = run.circumstances.blessed_run
    extent = {name: run.provenance.get(name) for name in ("exhaustive", "max_items", "git_commit", "python")}
    packages = run.provenance.get("packages") or {}
    return facts | extent | {f"package.{name}": version for name, version in packages.items()}


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _apart(a: RunRecord, b: RunRecord) -> dict[ProbeName, str]:
    """Why the figures of a probe are not comparable, for each such probe."""
    reasons = {}
    for probe in ProbeName:
        mine, theirs = b.suites.get(probe.value), a.suites.get(probe.value)
        if mine is not None and theirs is not None and mine != theirs:
            reasons[probe] = f"the two runs evaluated different suites of {probe} (their hashes differ)"
        elif probe in TIED_TO_THE_REFERENCE and a.reference_identity != b.reference_identity:
            none = [run.id for run in (a, b) if run.reference_identity is None]
            changed = [difference.field for difference in differing(a, b) if difference.field.startswith(REFERENCE)]
            fields = ", ".join(field.removeprefix(REFERENCE) for field in changed)
            reasons[probe] = f"the two runs were measured against different references ({fields})"
            if none:
                reasons[probe] = f"{' and '.join(none)} recorded no reference"
    return reasons


Measured = Mapping[str, Measurement]


def _criteria(
    a: RunRecord, b: RunRecord, theirs: Measured, ours: Measured, apart: Mapping[ProbeName, str]
) -> Iterator[ComparedCriterion]:
    """Every criterion of either run, B's first, by id."""
    one, other = ({r.id: r for r in (() if run.report is None else run.report.criteria)} for run in (a, b))
    for name in dict.fromkeys((*other, *one)):
        was, now = one.get(name), other.get(name)
        key = next(result.key for result in (now, was) if result is not None)
        measurement = ours.get(key) or theirs.get(key)
        against = _against(theirs.get(key), ours.get(key), apart)
        if was is not None and now is not None and was.key != now.key:
            against = {"why": f"the two policies judge different figures by this name, {was.key} and {key}"}
        unit = None if measurement is None else measurement.unit
        yield ComparedCriterion(id=name, key=key, unit=unit, a=was, b=now, **against)


def _measured(a: Measurement, b: Measurement, apart: Mapping[ProbeName, str]) -> ComparedMeasurement:
    return ComparedMeasurement(
        key=b.key,
        unit=b.unit,
        direction=b.direction,
        a=a.effect,
        a_interval=a.effect_interval,
        b=b.effect,
        b_interval=b.effect_interval,
        **_against(a, b, apart),
    )


def _against(a: Measurement | None, b: Measurement | None, apart: Mapping[ProbeName, str]) -> dict[str, Any]:
    """The paired `difference`, or `why` there is none."""
    if a is None or b is None:
        return {"why": "neither run measured it" if a is b else f"only run {'A' if b is None else 'B'} measured it"}
    if b.probe in apart:
        return {"why": apart[b.probe]}
    if b.estimator == "census":
        return {"why": "" if a.estimator == "census" else "the two runs measured it in different ways"}
    paired = paired_with(b, a, "run A")
    if isinstance(paired, Reason):  # B is compared with A
        return {"why": paired.text.replace("this run", "run B").replace("this one", "run B")}
    ratio, interval = paired.estimator in ("perplexity", "ratio"), paired.effect_interval
    no_change = 1.0 if ratio else 0.0
    above, below = interval.lower > no_change, interval.upper < no_change
    lower_is_better = paired.direction is Direction.LOWER_IS_BETTER
    difference = PairedDifference(
        a=math.nan if paired.reference_value is None else paired.reference_value,
        b=paired.value,
        effect=paired.effect,
        effect_interval=paired.effect_interval,
        ratio=ratio,
        clusters=0 if paired.clusters is None else sum(units > 0 for units in paired.clusters.units),
        movement="unclear" if not (above or below) else "worse" if above == lower_is_better else "better",
    )
    return {"difference": difference}


def flips_between(
    history: History, a: RunRecord, b: RunRecord, apart: Container[ProbeName] = ()
) -> tuple[tuple[FlipCounts, ...], tuple[BetweenRuns, ...]]:
    """The flips from run `a` to run `b`, counted by probe, and one by one in B's order; of probes not `apart`.

    Items pair by probe, group and the hash of what was asked. A flip is as in a run: full marks on one side, fewer on
    the other. Items not scored in both runs are ignored.
    """
    counts, flipped = [], []
    for probe in ANSWERED:
        if probe in apart:
            continue
        one, other = ({(o.group, o.item_key): o for o in history.items(run.id, probe)} for run in (a, b))
        scored = [{name for name, o in of.items() if o.branch.score is not None} for of in (one, other)]
        if not (scored[0] or scored[1]):
            continue
        both = scored[0] & scored[1]
        flips = [flip for name, o in other.items() if name in both for flip in _flip(one[name], o)]
        ways = [flip.way for flip in flips]
        counts.append(
            FlipCounts(
                probe=probe,
                both=len(both),
                lost=ways.count("lost"),
                gained=ways.count("gained"),
                only_a=len(scored[0]) - len(both),
                only_b=len(scored[1]) - len(both),
            )
        )
        flipped += flips
    return tuple(counts), tuple(flipped)


def _flip(a: ItemOutcome, b: ItemOutcome) -> Iterator[BetweenRuns]:
    was, now = a.branch.score, b.branch.score
    if was is None or now is None or (was == 1.0) == (now == 1.0):
        return
    if not (0.0 <= was <= 1.0 and 0.0 <= now <= 1.0):
        return
    yield BetweenRuns(
        probe=b.probe,
        group=b.group,
        item_key=b.item_key,
        cluster=b.cluster,
        way="lost" if was == 1.0 else "gained",
        prompt=b.prompt,
        expected=b.expected,
        a=a.branch,
        b=b.branch,
    )
