"""Figures over pairs of answers to the same questions: shares, margins, agreement. One question is one cluster.

First come the readings: numbers read from one judged answer, for comparing both deployments.
"""

import math
from collections.abc import Callable, Sequence

from q36eval.canaries.checks import WRONG_CONCLUSION
from q36eval.canaries.details import Details
from q36eval.canaries.outcomes import failure_causes, least_margin, question_name
from q36eval.metrics import DeclaredFigure
from q36eval.records import Answer, Clusters, FailureCauses, Interval, ItemOutcome, Measurement
from q36eval.stats import proportion_interval

Reading = Callable[[Answer], float | None]
"""A value of an answer; None if undefined for it."""


def failed(answer: Answer) -> float | None:
    """Whether it is wrong."""
    return None if answer.score is None else float(answer.score == 0.0)


def cut_off(answer: Answer) -> float | None:
    """Whether it did not end within its budget; None if the engine gave no answer."""
    return None if answer.error is not None else float(Details.of(answer).cut_off)


def right_numbers_wrong_conclusion(answer: Answer) -> float | None:
    """Whether the only fault of an answer is its final comparison."""
    return None if answer.score is None else float(Details.of(answer).codes == {WRONG_CONCLUSION})


def meets_schema(answer: Answer) -> float | None:
    """Whether its calls meet their tools' schemas; None without calls."""
    met = Details.of(answer).schema_ok
    return None if met is None else float(met)


def unended(answer: Answer) -> float | None:
    """Whether its reasoning, or the answer after it, never ends; None if the engine gave no answer."""
    details = Details.of(answer)
    return None if answer.error is not None else float(details.cut_off or "no_answer" in details.codes)


def loops(answer: Answer) -> float | None:
    """Whether it is in a loop, in its reasoning or after; None if the engine gave no answer."""
    return None if answer.error is not None else float(Details.of(answer).loops)


def budget_used(answer: Answer) -> float | None:
    """The used share of its budget, reasoning included; None if the engine gave no answer."""
    details = Details.of(answer)
    return None if details.budget is None else min(1.0, details.tokens / details.budget)


Pair = Callable[[ItemOutcome], tuple[float, float] | None]
"""The compared values of a question: the branch's and the reference's; None if one is undefined."""


def _both(read: Reading) -> Pair:
    """The same reading of both answers."""

    def pair(outcome: ItemOutcome) -> tuple[float, float] | None:
        branch, reference = read(outcome.branch), read(outcome.reference)
        return None if branch is None or reference is None else (branch, reference)

    return pair


def _clusters(
    groups: Sequence[Sequence[ItemOutcome]], pair: Pair, bounds: tuple[float, float] | None
) -> tuple[Clusters, list[tuple[float, float]]]:
    """The sums of each group's pairs, and the pairs themselves. Questions without a pair errored or are unreadable."""
    rows = [[pair(outcome) for outcome in group] for group in groups]
    scored = [[values for values in row if values is not None] for row in rows]
    # both sides answered, and one is unreadable
    unreadable = tuple(
        sum(
            values is None and outcome.branch.error is None and outcome.reference.error is None
            for values, outcome in zip(row, group, strict=True)
        )
        for row, group in zip(rows, groups, strict=True)
    )
    clusters = Clusters(
        units=tuple(map(len, scored)),
        branch=tuple(sum((branch for branch, _ in row), 0.0) for row in scored),
        reference=tuple(sum((reference for _, reference in row), 0.0) for row in scored),
        errored=tuple(len(row) - len(read) for row, read in zip(rows, scored, strict=True)),
        unreadable=unreadable if any(unreadable) else None,
        bounds=bounds,
        names=tuple(question_name(group[0]) for group in groups),
        families=tuple(group[0].group for group in groups),
    )
    return clusters, [values for row in scored for values in row]


def _applying(outcomes: Sequence[ItemOutcome], pair: Pair) -> list[ItemOutcome]:
    """Without questions that both sides answered but for which the value is undefined."""
    return [
        outcome
        for outcome in outcomes
        if outcome.branch.score is None or outcome.reference.score is None or pair(outcome) is not None
    ]


def rate(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome], read: Reading) -> Measurement | None:
    """The share of answers for which `read` returns 1, branch against reference."""
    asked = _applying(outcomes, _both(read))
    clusters, scored = _clusters([[outcome] for outcome in asked], _both(read), (0.0, 1.0))
    silent = len(outcomes) - len(asked)
    if not asked or (silent and not scored):
        return None
    only_branch = sum(branch > reference for branch, reference in scored)
    only_reference = sum(branch < reference for branch, reference in scored)
    note = f"only on the branch: {only_branch}, only on the reference: {only_reference}"
    note += f"; {silent} questions do not apply" if silent else ""
    share, total, errored = round(sum(clusters.branch)), sum(clusters.units), sum(clusters.errored)
    own = proportion_interval(share, total, errored=errored) if total else None
    return _measurement(declared, clusters, note, own, failure_causes(asked))


def over_seeds(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome], read: Reading) -> Measurement | None:
    """The mean of `read` over sampled answers, branch against reference; a prompt's seeds are one cluster."""
    by_prompt: dict[str, list[ItemOutcome]] = {}
    for outcome in outcomes:
        by_prompt.setdefault(outcome.cluster, []).append(outcome)
    bounds = declared.metric.bounds
    clusters, scored = _clusters(list(by_prompt.values()), _both(read), bounds)
    if not scored:
        return None
    same = sum(outcome.branch.text == outcome.reference.text for outcome in outcomes)
    note = f"{len(outcomes)} sampled answers to {len(by_prompt)} prompts, {same} identical on both sides"
    return _measurement(declared, clusters, note, causes=failure_causes(outcomes))


def margin(declared: DeclaredFigure, outcomes: Sequence[ItemOutcome]) -> Measurement | None:
    """The mean smallest margin of the questions that the reference answers right, and its ratio to the reference's."""
    pair = _both(least_margin)
    clusters, scored = _clusters([[outcome] for outcome in _applying(outcomes, pair)], pair, None)
    if not scored or not all(map(math.isfinite, clusters.branch)):
        return None
    # NaN is the worst margin
    shrunk = sum(not branch >= reference for branch, reference in scored)
    return _measurement(declared, clusters, f"smaller on the branch in {shrunk} of {len(scored)} questions")


def _measurement(
    declared: DeclaredFigure,
    clusters: Clusters,
    note: str,
    value_interval: Interval | None = None,
    causes: FailureCauses | None = None,
) -> Measurement:
    return declared.metric.summarized(clusters, declared.slice, value_interval=value_interval, causes=causes, note=note)
