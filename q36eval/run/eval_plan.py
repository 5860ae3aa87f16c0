"""What an eval suite can show under a policy and how long it takes, before a branch is measured."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from q36eval.config import Paths
from q36eval.engines import Engine, open_engine
from q36eval.errors import EngineError
from q36eval.gate import Criterion, Policy
from q36eval.gate.judge import effective_clusters
from q36eval.probes import Digest, Sink, WorkItem
from q36eval.records import Direction, Measurement
from q36eval.references import Capture
from q36eval.run.declared_figures import ASSUMED_SCORE
from q36eval.run.items import Work, finished_items
from q36eval.run.preflight import lossless_outcomes, prepare, refuse
from q36eval.run.progress import Estimate
from q36eval.run.request import Request
from q36eval.run.rounds import plan_probes
from q36eval.stats import Power, as_expected, power, tightest_limit

SAMPLE_ITEMS = 32
"""Items of each task that are evaluated to learn what one costs."""

FLIPS = (0.02, 0.04, 0.06)
"""Shares of changed answers, half each way, of branches without loss: near-lossless ones change 2 to 6 % of MMLU's."""


@dataclass(frozen=True)
class CriterionPlan:
    """What one criterion can show.

    `items` lie in `clusters` of items that are right or wrong together, of which the largest has `largest_cluster`;
    they weigh as `effective_clusters` of equal size. `informative` are those that the reference gets right, None where
    that is not known yet. `reference_score` is the reference's mean score over the items, `assumed` where it is not
    known yet. `tightest` is the least loss that these items can show at all, in the unit of the margin's loss;
    `powers` by share of flips.
    """

    id: str
    key: str
    margin: str
    limit: float
    items: int
    clusters: int
    effective_clusters: int
    largest_cluster: int
    informative: int | None
    reference_score: float
    assumed: bool
    tightest: float | None
    powers: Mapping[float, Power]

    @property
    def can_show(self) -> bool:
        """Whether a branch that answers all as the reference does would pass."""
        return all(power.can_show for power in self.powers.values())


@dataclass(frozen=True)
class EvalPlan:
    """All criteria over the suite's accuracies, and the seconds that each task takes one deployment.

    `captured` says that the reference's answers are at hand; else it has to answer as much once. A task of which no
    item was answered has no seconds.
    """

    criteria: tuple[CriterionPlan, ...]
    items: Mapping[str, int]
    seconds: Mapping[str, float]
    captured: bool
    notes: tuple[str, ...] = field(default=())

    @property
    def whole_seconds(self) -> float | None:
        """Of all tasks; None where that of one is not known."""
        return sum(self.seconds.values()) if set(self.seconds) >= set(self.items) else None

    def as_json(self) -> dict[str, Any]:
        """Plain values, the powers as a list."""
        criteria = [
            {**asdict(each), "can_show": each.can_show, "powers": [asdict(power) for power in each.powers.values()]}
            for each in self.criteria
        ]
        return {
            "criteria": criteria,
            "tasks": [{"task": task, "items": n, "seconds": self.seconds.get(task)} for task, n in self.items.items()],
            "seconds": self.whole_seconds,
            "reference_captured": self.captured,
            "notes": list(self.notes),
        }


def plan_of(request: Request, policy: Policy, paths: Paths) -> EvalPlan:
    """The plan of a request's eval suite; a few items are timed on its branch.

    Raises:
        UsageError: the suite, its data, the branch or the reference cannot be used.
        EngineError: the branch does not fit, or answers nothing.
    """
    prepared = prepare(request, paths)
    refuse(prepared.problems)
    (probe,), reference = prepared.probes, prepared.reference
    assert reference is not None, "without one there is a problem"
    branch = open_engine(request.deployment)
    tokenizer = branch.tokenizer if reference.tokenizer is None else reference.tokenizer()
    (work,) = plan_probes([probe], tokenizer, Sink())
    if work.failed is not None:
        raise EngineError("plan-failed", f"The suite {request.suite} could not be planned: {work.failed}.")
    return plan_evals(policy, work, reference.open(probe), branch)


def plan_evals(policy: Policy, work: Work, capture: Capture, engine: Engine) -> EvalPlan:
    """The plan of one eval probe's `work` under a policy; a few items are timed on that engine."""
    digests = {item.key: capture[item.key] for item in work.items if item.key in capture}
    captured = len(digests) == len(work.items)
    if captured:
        work.items = list(work.probe.know_reference(work.items, digests))
    measured = {each.key: each for each in _identical(work, digests, policy)}
    sharing = Counter(each.tier for each in policy.criteria if each.margin.kind != "max_count")
    criteria, notes = [], []
    for criterion in policy.criteria:
        if criterion.probe != work.probe.name:
            continue
        figure = measured.get(criterion.key)
        if figure is None or figure.clusters is None:
            why = "no accuracy of this suite's groups and slices"
            notes.append(f"{criterion.id}: {criterion.key} is {why}, so its power is not computed")
            continue
        try:
            criteria.append(_planned(criterion, policy, figure, captured, sharing[criterion.tier]))
        except ValueError as error:
            demand = f"{criterion.margin.kind} {criterion.margin.value:g} on {criterion.key}"
            notes.append(f"{criterion.id}: the power of {demand} is not computed: {error}")
    items = Counter(item.task for item in work.items)
    return EvalPlan(tuple(criteria), items, _timed(engine, work), captured, tuple(notes))


def _identical(work: Work, digests: Mapping[str, Digest], policy: Policy) -> Sequence[Measurement]:
    """The accuracies of a branch that is the reference; an answer that was not captured is an errored item."""
    probe = work.probe
    keys = [criterion.key for criterion in policy.criteria if criterion.probe == probe.name]
    return probe.look(lossless_outcomes(work, digests), keys)


def _planned(
    criterion: Criterion, policy: Policy, measured: Measurement, captured: bool, sharing: int
) -> CriterionPlan:
    clusters, competence = measured.clusters, measured.competence
    if clusters is None:
        raise ValueError("it came without its clusters")
    sizes = [units + errored for units, errored in zip(clusters.units, clusters.errored, strict=True)]
    known = captured and not sum(clusters.errored)
    identical = clusters if known else as_expected(sizes, ASSUMED_SCORE, clusters.schedule)
    direction, confidence = Direction.HIGHER_IS_BETTER, criterion.confidence
    settings = {"confidence": confidence, "alpha": policy.alpha, "criteria": max(1, sharing), "direction": direction}
    powers = {flips: power(identical, criterion.margin, flips=flips, **settings) for flips in FLIPS}  # type: ignore[arg-type]
    return CriterionPlan(
        id=criterion.id,
        key=criterion.key,
        margin=f"{criterion.margin.kind} {criterion.margin.value:g}",
        limit=1.0 - criterion.margin.value if criterion.margin.kind == "min_recovery" else criterion.margin.value,
        items=sum(sizes),
        clusters=len(sizes),
        effective_clusters=effective_clusters(sizes),
        largest_cluster=max(sizes, default=0),
        informative=None if competence is None else sum(family.informative for family in competence),
        reference_score=sum(identical.reference or ()) / sum(identical.units),
        assumed=not known,
        tightest=tightest_limit(identical, criterion.margin.kind, confidence=confidence, direction=direction),
        powers=powers,
    )


def _timed(engine: Engine, work: Work) -> dict[str, float]:
    """Seconds that each task takes, from a few of its items: of all lengths, evenly spread.

    What errored took no time, and says nothing of what an answer takes.

    Raises:
        EngineError: no item was answered.
    """
    estimate = Estimate()
    by_task: dict[str, list[WorkItem]] = {}
    for item in work.items:
        estimate.expect(item.task, item.tokens)
        by_task.setdefault(item.task, []).append(item)
    sample = [item for items in by_task.values() for item in _spread(items)]
    errors = []
    for _, item, results in finished_items(engine, [Work(work.probe, sample)]):
        if results.error is None:
            estimate.worked(item.task, item.tokens, results.seconds)
        else:
            errors.append(results.error)
    known = {task: seconds for task in by_task if (seconds := estimate.whole_seconds(task)) is not None}
    if errors and not known:
        raise EngineError("answers-missing", f"None of {len(sample)} items could be answered: {errors[0]}.")
    return known


def _spread(items: Sequence[WorkItem]) -> list[WorkItem]:
    """A few items at evenly spaced ranks of length."""
    ordered = sorted(items, key=lambda item: (item.tokens, item.key))
    count = min(SAMPLE_ITEMS, len(ordered))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]
