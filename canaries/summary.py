"""From outcomes to measurements. Every figure compares branch and reference on the same questions."""

from collections.abc import Callable, Iterator, Sequence

from canaries.checks import WRONG_CONCLUSION
from canaries.checks.discount import discount
from canaries.specification import CanarySpec
from q36eval.records import (
    Answer,
    Clusters,
    Counts,
    Direction,
    Interval,
    ItemOutcome,
    Lane,
    Measurement,
    ProbeName,
)
from q36eval.stats import DEFAULT_LEVEL, summarize


def summarize_outcomes(specs: Sequence[CanarySpec], outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """All measurements of the probe; a figure without a single question is left out, hence not measured."""
    families = [spec for spec in specs if spec.family is not None]
    for spec in families:
        yield from _rate("failure_rate", spec.id, _of([spec], outcomes), _failed)
    for lane in Lane:
        chosen = [spec for spec in families if lane in spec.lanes]
        yield from _rate("failure_rate", lane.value, _of(chosen, outcomes), _failed)
    with_conclusion = [spec for spec in families if discount.name in spec.checks]
    metric = "right_numbers_wrong_conclusion"
    yield from _rate(metric, "all", _of(with_conclusion, outcomes), right_numbers_wrong_conclusion)
    fixed = [spec for spec in specs if spec.must_pass is not None]
    yield from _must_pass_flips("all", _of(fixed, outcomes))
    for lane in Lane:
        yield from _must_pass_flips(lane.value, _of([spec for spec in fixed if lane in spec.lanes], outcomes))


def right_numbers_wrong_conclusion(answer: Answer) -> bool:
    """Whether the only fault of an answer is its final comparison."""
    codes = {failure["code"] for failure in answer.detail.get("failures", ())}
    return codes == {WRONG_CONCLUSION}


def _failed(answer: Answer) -> bool:
    return answer.score == 0.0


def _of(specs: Sequence[CanarySpec], outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    ids = {spec.id for spec in specs}
    return [outcome for outcome in outcomes if outcome.group in ids]


def _both_scored(outcome: ItemOutcome) -> bool:
    return outcome.branch.score is not None and outcome.reference.score is not None


def _rate(
    metric: str, slice_name: str, outcomes: Sequence[ItemOutcome], holds: Callable[[Answer], bool]
) -> Iterator[Measurement]:
    """The share of answers of which `holds` is true, branch against reference."""
    if not outcomes:
        return
    scored = [_both_scored(outcome) for outcome in outcomes]
    pairs = list(zip(outcomes, scored, strict=True))
    clusters = Clusters(
        units=tuple(int(both) for both in scored),
        branch=tuple(float(both and holds(outcome.branch)) for outcome, both in pairs),
        reference=tuple(float(both and holds(outcome.reference)) for outcome, both in pairs),
        errored=tuple(int(not both) for both in scored),
        bounds=(0.0, 1.0),
    )
    value, reference_value, effect, interval = summarize(clusters, "paired_mean")
    worse = sum(both and holds(o.branch) and not holds(o.reference) for o, both in pairs)
    better = sum(both and holds(o.reference) and not holds(o.branch) for o, both in pairs)
    yield Measurement(
        probe=ProbeName.CANARIES,
        metric=metric,
        slice=slice_name,
        unit="fraction",
        direction=Direction.LOWER_IS_BETTER,
        estimator="paired_mean",
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        counts=Counts(total=len(outcomes), scored=sum(scored), errored=len(outcomes) - sum(scored)),
        clusters=clusters,
        note=f"{worse} only on the branch, {better} only on the reference",
    )


def _must_pass_flips(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Fixed prompts that the reference passes and the branch fails.

    Prompts that the reference itself fails cannot flip: they are left out of the counts and named in the note.
    """
    if not outcomes:
        return
    reference_fails = [outcome.cluster for outcome in outcomes if outcome.reference.score == 0.0]
    asked = [outcome for outcome in outcomes if outcome.reference.score != 0.0]
    errored = [outcome for outcome in asked if not _both_scored(outcome)]
    flipped = [outcome.cluster for outcome in asked if outcome.flip == "regression"]
    count = float(len(flipped))
    passed = sum(outcome.reference.score == 1.0 for outcome in outcomes)
    notes = [f"the reference passes {passed} of {len(outcomes)} must-pass prompts"]
    notes += [f"flipped: {', '.join(flipped)}"] if flipped else []
    notes += [f"the reference itself fails: {', '.join(reference_fails)}"] if reference_fails else []
    notes += [f"errored: {', '.join(outcome.cluster for outcome in errored)}"] if errored else []
    yield Measurement(
        probe=ProbeName.CANARIES,
        metric="must_pass_flips",
        slice=slice_name,
        unit="prompts",
        direction=Direction.LOWER_IS_BETTER,
        estimator="census",
        value=count,
        effect=count,
        effect_interval=Interval(lower=count, upper=count, level=DEFAULT_LEVEL, method="census"),
        counts=Counts(total=len(asked), scored=len(asked) - len(errored), errored=len(errored)),
        note="; ".join(notes),
    )
