"""Figures over pairs of answers to the same questions: shares, margins, agreement. One question is one cluster.

First come the readings: numbers read of one judged answer, by which both deployments' answers are compared.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from q36eval.canaries.checks import WRONG_CONCLUSION
from q36eval.canaries.outcomes import AT_RISK_NATS, failure_causes, least_margin, question_name
from q36eval.metrics import metric_of
from q36eval.records import Answer, Clusters, DeclaredFigure, FailureCauses, Interval, ItemOutcome, Measurement
from q36eval.stats import proportion_interval, summarize

Reading = Callable[[Answer], float | None]
"""What is read of an answer; None where it says nothing of it."""


def failed(answer: Answer) -> float | None:
    """Whether it is wrong."""
    return None if answer.score is None else float(answer.score == 0.0)


def cut_off(answer: Answer) -> float | None:
    """Whether it had no end within its budget; None where the engine gave no answer."""
    return None if answer.error is not None else float(answer.detail.get("finish_reason") == "length")


def at_risk(answer: Answer) -> float | None:
    """Whether its least margin is below what a right answer is safe by."""
    margin = least_margin(answer)
    return None if margin is None else float(not margin >= AT_RISK_NATS)


def right_numbers_wrong_conclusion(answer: Answer) -> float | None:
    """Whether the only fault of an answer is its final comparison."""
    codes = {failure["code"] for failure in answer.detail.get("failures", ())}
    return None if answer.score is None else float(codes == {WRONG_CONCLUSION})


def meets_schema(answer: Answer) -> float | None:
    """Whether the calls that it makes meet their tools' schemas; None where it makes none."""
    met = answer.detail.get("schema_ok")
    return None if met is None else float(met)


def called(answer: Answer) -> bool | None:
    """Whether it calls a tool at all."""
    made: bool | None = answer.detail.get("called")
    return made


def unended(answer: Answer) -> float | None:
    """Whether its reasoning, or the answer after it, never ends; None where the engine gave no answer."""
    codes = {failure["code"] for failure in answer.detail.get("failures", ())}
    ended = "no_answer" not in codes and answer.detail.get("finish_reason") != "length"
    return None if answer.error is not None else float(not ended)


def loops(answer: Answer) -> float | None:
    """Whether it goes round, in its reasoning or after; None where the engine gave no answer."""
    return None if answer.error is not None else float(bool(answer.detail.get("loops")))


def tokens(answer: Answer) -> float | None:
    """How many it took, reasoning included; None where the engine gave no answer."""
    return None if answer.error is not None else float(answer.detail["tokens"])


def budget_used(answer: Answer) -> float | None:
    """The share of its budget that it took, reasoning included; None where the engine gave no answer."""
    return None if answer.error is not None else min(1.0, answer.detail["tokens"] / answer.detail["budget"])


@dataclass(frozen=True)
class _Pairs:
    """Both readings of every question that has them, None of those that errored or cannot be read, with the questions.

    `silent` counts those of which nothing can be read.
    """

    values: Sequence[tuple[float, float] | None]
    outcomes: Sequence[ItemOutcome]
    silent: int = 0

    @property
    def scored(self) -> list[tuple[float, float]]:
        return [pair for pair in self.values if pair is not None]

    def clusters(self, bounds: tuple[float, float] | None) -> Clusters:
        columns = [(0, 0.0, 0.0, 1) if pair is None else (1, *pair, 0) for pair in self.values]
        return Clusters(
            units=tuple(column[0] for column in columns),
            branch=tuple(column[1] for column in columns),
            reference=tuple(column[2] for column in columns),
            errored=tuple(column[3] for column in columns),
            bounds=bounds,
            unreadable=self._unreadable(),
            names=tuple(question_name(outcome) for outcome in self.outcomes),
            families=tuple(outcome.group for outcome in self.outcomes),
        )

    def _unreadable(self) -> tuple[int, ...] | None:
        """Both sides answered, and what one says cannot be told; None where there is no such question."""
        unreadable = tuple(
            int(pair is None and outcome.branch.error is None and outcome.reference.error is None)
            for pair, outcome in zip(self.values, self.outcomes, strict=True)
        )
        return unreadable if any(unreadable) else None


def _pairs(outcomes: Sequence[ItemOutcome], read: Reading) -> _Pairs:
    values: list[tuple[float, float] | None] = []
    paired: list[ItemOutcome] = []
    for outcome in outcomes:
        branch, reference = read(outcome.branch), read(outcome.reference)
        if branch is not None and reference is not None:
            values.append((branch, reference))
        elif outcome.branch.score is None or outcome.reference.score is None:
            values.append(None)
        else:
            continue
        paired.append(outcome)
    return _Pairs(values, paired, len(outcomes) - len(values))


def rate(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome], read: Reading) -> Measurement | None:
    """The share of answers of which `read` says 1, branch against reference."""
    pairs = _pairs(outcomes, read)
    if not pairs.values or (pairs.silent and not pairs.scored):
        return None
    clusters = pairs.clusters((0.0, 1.0))
    only_branch = sum(branch > reference for branch, reference in pairs.scored)
    only_reference = sum(branch < reference for branch, reference in pairs.scored)
    note = f"only on the branch: {only_branch}, only on the reference: {only_reference}"
    note += f"; {pairs.silent} questions do not apply" if pairs.silent else ""
    return _measurement(declared, clusters, note, _own_interval(clusters), failure_causes(pairs.outcomes))


def over_seeds(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome], read: Reading) -> Measurement | None:
    """The mean of what `read` says of sampled answers, branch against reference; a prompt's seeds are one cluster."""
    by_prompt: dict[str, list[ItemOutcome]] = {}
    for outcome in outcomes:
        by_prompt.setdefault(outcome.cluster, []).append(outcome)
    rows = [_sums(answers, read) for answers in by_prompt.values()]
    if not any(row.units for row in rows):
        return None
    unreadable = tuple(row.unreadable for row in rows)
    clusters = Clusters(
        units=tuple(row.units for row in rows),
        branch=tuple(row.branch for row in rows),
        reference=tuple(row.reference for row in rows),
        errored=tuple(row.without for row in rows),
        unreadable=unreadable if any(unreadable) else None,
        bounds=metric_of(declared.probe, declared.metric).bounds,
        names=tuple(question_name(answers[0]) for answers in by_prompt.values()),
        families=tuple(answers[0].group for answers in by_prompt.values()),
    )
    same = sum(outcome.branch.text == outcome.reference.text for outcome in outcomes)
    note = f"{len(outcomes)} sampled answers to {len(rows)} prompts, {same} identical on both sides"
    return _measurement(declared, clusters, note, causes=failure_causes(outcomes))


class _Sums(NamedTuple):
    """Of the answers to one prompt: how many were read on both sides, their sums, how many were not."""

    units: int
    branch: float
    reference: float
    without: int
    unreadable: int


def _sums(outcomes: Sequence[ItemOutcome], read: Reading) -> _Sums:
    both = [(read(outcome.branch), read(outcome.reference), outcome) for outcome in outcomes]
    scored = [(branch, reference) for branch, reference, _ in both if branch is not None and reference is not None]
    lost = [outcome for branch, reference, outcome in both if branch is None or reference is None]
    unreadable = sum(outcome.branch.error is None and outcome.reference.error is None for outcome in lost)
    return _Sums(len(scored), sum(b for b, _ in scored), sum(r for _, r in scored), len(lost), unreadable)


def margin(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome]) -> Measurement | None:
    """The mean least margin of the questions that the reference answers right: its change in nats, or its ratio."""
    pairs = _pairs(outcomes, least_margin)
    if not pairs.scored:
        return None
    clusters = pairs.clusters(None)
    if declared.estimator == "ratio" and not all(math.isfinite(value) for value in clusters.branch):
        return None
    # one that is no number is the worst that a margin can be
    shrunk = sum(not branch >= reference for branch, reference in pairs.scored)
    return _measurement(declared, clusters, f"smaller on the branch in {shrunk} of {len(pairs.scored)} questions")


def trigger_agreement(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome]) -> Measurement | None:
    """Whether a call is made at all, as the reference does."""
    if not outcomes:
        return None
    agreements = [_agreement(outcome) for outcome in outcomes]
    values = [None if agreed is None else (agreed, 1.0) for agreed in agreements]
    clusters = _Pairs(values, outcomes).clusters((0.0, 1.0)).model_copy(update={"reference": None})
    note = "the share of questions on which both call a tool, or neither does"
    return _measurement(declared, clusters, note, _own_interval(clusters))


def _agreement(outcome: ItemOutcome) -> float | None:
    branch, reference = called(outcome.branch), called(outcome.reference)
    return None if branch is None or reference is None else float(branch == reference)


def _own_interval(clusters: Clusters) -> Interval | None:
    """Of the branch's own share; what errored may have been either. None where nothing was scored."""
    scored, errored = sum(clusters.units), sum(clusters.errored)
    return proportion_interval(round(sum(clusters.branch)), scored, errored=errored) if scored else None


def _measurement(
    declared: DeclaredFigure,
    clusters: Clusters,
    note: str,
    value_interval: Interval | None = None,
    causes: FailureCauses | None = None,
) -> Measurement:
    value, reference_value, effect, interval = summarize(clusters, declared.estimator)
    return metric_of(declared.probe, declared.metric).measured(
        declared.slice,
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        value_interval=value_interval,
        counts=clusters.counts(),
        clusters=clusters,
        causes=causes,
        note=note,
    )
