"""From outcomes to measurements. Every figure compares branch and reference on the same questions."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from canaries.answers import TOOL_CHECKS
from canaries.checks import WRONG_CONCLUSION
from canaries.checks.discount import discount
from canaries.must_pass import must_pass_figures
from canaries.naming import question_name
from canaries.risk import AT_RISK_NATS
from canaries.specification import CanarySpec
from q36eval.records import (
    Answer,
    Clusters,
    Counts,
    Direction,
    Estimator,
    Interval,
    ItemOutcome,
    Lane,
    Measurement,
    ProbeName,
)
from q36eval.stats import proportion_interval, summarize

Reading = Callable[[Answer], float | None]
"""What is read of an answer; None where it says nothing of it."""


def summarize_outcomes(specs: Sequence[CanarySpec], outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """All measurements of the probe; a figure without a single question is left out, hence not measured."""
    families = [spec for spec in specs if spec.family is not None]
    for name, chosen in _slices(families):
        asked = _of(chosen, outcomes)
        yield from _rate("failure_rate", name, asked, _failed, Direction.LOWER_IS_BETTER)
        yield from _margins(name, asked)
        yield from _rate("at_risk", name, asked, _at_risk, Direction.LOWER_IS_BETTER)
    with_conclusion = _of([spec for spec in families if discount.name in spec.checks], outcomes)
    metric = "right_numbers_wrong_conclusion"
    yield from _rate(metric, "all", with_conclusion, right_numbers_wrong_conclusion, Direction.LOWER_IS_BETTER)
    with_tools = [spec for spec in families if TOOL_CHECKS & set(spec.checks)]
    for name, chosen in _slices(with_tools, lanes=()):
        yield from _tool_figures(name, _of(chosen, outcomes))
    fixed = [spec for spec in specs if spec.must_pass is not None]
    for name, chosen in _slices(fixed)[len(fixed) :]:
        yield from must_pass_figures(name, _of(chosen, outcomes))


def _slices(specs: Sequence[CanarySpec], lanes: Sequence[Lane] = tuple(Lane)) -> list[tuple[str, list[CanarySpec]]]:
    """Every canary alone, then each lane's, then all."""
    by_lane = [(lane.value, [spec for spec in specs if lane in spec.lanes]) for lane in lanes]
    return [*((spec.id, [spec]) for spec in specs), *by_lane, ("all", list(specs))]


def right_numbers_wrong_conclusion(answer: Answer) -> float | None:
    """Whether the only fault of an answer is its final comparison."""
    codes = {failure["code"] for failure in answer.detail.get("failures", ())}
    return None if answer.score is None else float(codes == {WRONG_CONCLUSION})


def least_margin(answer: Answer) -> float | None:
    """The least decisive margin in nats; None where nothing decides or nothing was scored."""
    margin: dict[str, Any] | None = answer.detail.get("margin")
    return None if margin is None else float(margin["nats"])


def _failed(answer: Answer) -> float | None:
    return None if answer.score is None else float(answer.score == 0.0)


def _at_risk(answer: Answer) -> float | None:
    margin = least_margin(answer)
    return None if margin is None else float(not margin >= AT_RISK_NATS)


def _of(specs: Sequence[CanarySpec], outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    ids = {spec.id for spec in specs}
    return [outcome for outcome in outcomes if outcome.group in ids]


def _errored(outcome: ItemOutcome) -> bool:
    return outcome.branch.score is None or outcome.reference.score is None


@dataclass(frozen=True)
class _Pairs:
    """Both readings of every question that has them, None of those that errored, and the questions' names.

    `silent` counts those of which nothing can be read.
    """

    values: Sequence[tuple[float, float] | None]
    names: Sequence[str]
    silent: int = 0

    @property
    def scored(self) -> list[tuple[float, float]]:
        return [pair for pair in self.values if pair is not None]

    def clusters(self, bounds: tuple[float, float] | None) -> Clusters:
        """One question a cluster."""
        columns = [(0, 0.0, 0.0, 1) if pair is None else (1, *pair, 0) for pair in self.values]
        return Clusters(
            units=tuple(column[0] for column in columns),
            branch=tuple(column[1] for column in columns),
            reference=tuple(column[2] for column in columns),
            errored=tuple(column[3] for column in columns),
            bounds=bounds,
            names=tuple(self.names),
        )


def _pairs(outcomes: Sequence[ItemOutcome], read: Reading) -> _Pairs:
    values: list[tuple[float, float] | None] = []
    names: list[str] = []
    for outcome in outcomes:
        branch, reference = read(outcome.branch), read(outcome.reference)
        if _errored(outcome):
            values.append(None)
        elif branch is not None and reference is not None:
            values.append((branch, reference))
        else:
            continue
        names.append(question_name(outcome))
    return _Pairs(values, names, len(outcomes) - len(values))


def _measurement(
    metric: str,
    slice_name: str,
    clusters: Clusters,
    estimator: Estimator,
    direction: Direction,
    unit: str,
    note: str,
    value_interval: Interval | None = None,
) -> Measurement:
    value, reference_value, effect, interval = summarize(clusters, estimator)
    return Measurement(
        probe=ProbeName.CANARIES,
        metric=metric,
        slice=slice_name,
        unit=unit,
        direction=direction,
        estimator=estimator,
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        value_interval=value_interval,
        counts=Counts(
            total=len(clusters.units), scored=sum(clusters.units), errored=len(clusters.units) - sum(clusters.units)
        ),
        clusters=clusters,
        note=note,
    )


def _own_interval(clusters: Clusters) -> Interval | None:
    """Of the branch's own share; what errored may have been either. None where nothing was scored."""
    scored, errored = sum(clusters.units), sum(clusters.errored)
    return proportion_interval(round(sum(clusters.branch)), scored, errored=errored) if scored else None


def _rate(
    metric: str, slice_name: str, outcomes: Sequence[ItemOutcome], read: Reading, direction: Direction
) -> Iterator[Measurement]:
    """The share of answers of which `read` says 1, branch against reference."""
    pairs = _pairs(outcomes, read)
    if not pairs.values or (pairs.silent and not pairs.scored):
        return
    clusters = pairs.clusters((0.0, 1.0))
    only_branch = sum(branch > reference for branch, reference in pairs.scored)
    only_reference = sum(branch < reference for branch, reference in pairs.scored)
    note = f"{only_branch} only on the branch, {only_reference} only on the reference"
    note += f"; {pairs.silent} questions say nothing of it" if pairs.silent else ""
    own = _own_interval(clusters)
    yield _measurement(metric, slice_name, clusters, "paired_proportions", direction, "fraction", note, own)


def _margins(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """The mean least margin of the questions that the reference answers right: its change in nats, and its ratio."""
    pairs = _pairs(outcomes, least_margin)
    if not pairs.scored:
        return
    clusters = pairs.clusters(None)
    # one that is no number is the worst that a margin can be
    shrunk = sum(not branch >= reference for branch, reference in pairs.scored)
    note = f"smaller on the branch in {shrunk} of {len(pairs.scored)}"
    direction = Direction.HIGHER_IS_BETTER
    yield _measurement("decisive_margin", slice_name, clusters, "paired_mean", direction, "nats", note)
    if all(math.isfinite(value) for value in clusters.branch):
        yield _measurement("decisive_margin_ratio", slice_name, clusters, "ratio", direction, "ratio", note)


def _tool_figures(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Whether a call was made at all, as the reference did, and whether the calls that were made meet their schema."""
    agreements = [_agreement(outcome) for outcome in outcomes]
    if agreements:
        values = [None if agreed is None else (agreed, 1.0) for agreed in agreements]
        clusters = _Pairs(values, [question_name(outcome) for outcome in outcomes]).clusters((0.0, 1.0))
        single = clusters.model_copy(update={"reference": None})
        direction = Direction.HIGHER_IS_BETTER
        note = "whether a tool is called at all, as the reference does"
        own = _own_interval(clusters)
        yield _measurement("call_trigger_agreement", slice_name, single, "mean", direction, "fraction", note, own)
    yield from _rate("schema_accuracy", slice_name, outcomes, _meets_schema, Direction.HIGHER_IS_BETTER)


def _agreement(outcome: ItemOutcome) -> float | None:
    branch, reference = outcome.branch.detail.get("called"), outcome.reference.detail.get("called")
    return None if branch is None or reference is None else float(branch == reference)


def _meets_schema(answer: Answer) -> float | None:
    met = answer.detail.get("schema_ok")
    return None if met is None else float(met)
