"""What people read of an eval run: rows and points per group, per length and per task, and the flips. Pure."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from q36eval.app.figures.answers import Choice, Held, shortened
from q36eval.gate.report import GateReport
from q36eval.metrics import ALL
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeName
from q36eval.reports.evals_figures import (
    SUITE,
    EvalsFigures,
    GroupFigures,
    group_cells,
    percent,
    percent_interval,
    ratio_words,
    recovery_words,
)
from q36eval.reports.plots import Row, recovery_row
from q36eval.reports.story import NOT_RIGHT, not_right_cell, not_right_text, unable_words
from q36eval.reports.text import number


def group_rows(figures: EvalsFigures, seconds: dict[str, float] | None = None) -> list[dict[str, str]]:
    """A row for each group and the suite; with the branch's `seconds` by the name of a group's slice, where given."""
    rows = []
    for group in figures.groups():
        cells = {name: cell for name, cell in group_cells(group).items() if name != NOT_RIGHT}
        if seconds is not None:
            cells["seconds"] = f"{seconds[group.name]:.1f}" if group.name in seconds else "–"
        rows.append(cells)
    return rows


def answer_words(figures: EvalsFigures) -> list[str]:
    """Of each group why answers of either side are not right, then the families that the reference cannot do."""
    groups = [group.accuracy for group in figures.groups()]
    sentences = [
        f"{accuracy.slice}: {not_right_text(accuracy.causes)}" for accuracy in groups if accuracy.causes is not None
    ]
    return [*sentences, *unable_words(groups)]


def length_rows(figures: EvalsFigures, group: str) -> list[dict[str, str]]:
    """A row for each length in tokens."""
    return [
        {f"{group} by tokens": f"{each.length:,}"} | _part_cells(each.accuracy, each.recovery)
        for each in figures.lengths(group)
    ]


def _part_cells(accuracy: Measurement, recovery: Measurement | None) -> dict[str, str]:
    return {
        "score": percent(accuracy.value),
        "reference": percent(accuracy.reference_value),
        "recovery [95 %]": recovery_words(recovery),
        "difference [95 %]": f"{percent(accuracy.effect)} {percent_interval(accuracy.effect_interval)}",
        "items": str(accuracy.counts.scored),
        "errored": str(accuracy.counts.errored),
        NOT_RIGHT: not_right_cell(accuracy.causes),
    }


def tasks_of(figures: EvalsFigures, group: str) -> list[GroupFigures]:
    """The tasks of a group; its lengths are no tasks."""
    by_length = group in figures.groups_with_lengths()
    lengths = {f"{group}/{length.length}" for length in figures.lengths(group)} if by_length else set()
    return [part for part in figures.slices(group) if part.name not in lengths]


def moved_first(figures: EvalsFigures) -> list[GroupFigures]:
    """The tasks of all groups: those that lost first, the most first, then those that gained, then all others."""
    tasks = [task for group in figures.groups() for task in tasks_of(figures, group.name)]
    return sorted(tasks, key=lambda task: (not moved(task), task.accuracy.effect))


def moved(task: GroupFigures) -> bool:
    """Whether its score changed."""
    return math.isfinite(task.accuracy.effect) and task.accuracy.effect != 0


def task_rows(tasks: Sequence[GroupFigures]) -> list[dict[str, str]]:
    """A row for each task."""
    return [{"task": task.name} | _part_cells(task.accuracy, task.recovery) for task in tasks]


def recovery_points(parts: Sequence[GroupFigures], report: GateReport | None) -> list[Row | None]:
    """The recovery of each part as it is drawn; None where it is no number."""
    criteria = () if report is None else report.criteria
    judged = {r.slice: r for r in criteria if r.probe is ProbeName.EVALS and r.margin.kind == "min_recovery"}
    return [
        None
        if part.recovery is None or not math.isfinite(part.recovery.value)
        else recovery_row(part.name, part.recovery, judged.get(part.name))
        for part in parts
    ]


def perplexity_rows(figures: EvalsFigures) -> list[dict[str, str]]:
    """A row for all documents and for each slice of them."""
    return [
        {
            "perplexity of": perplexity.name,
            "per token": ratio_words(perplexity.token),
            "per word": ratio_words(perplexity.word),
            "tokens": f"{perplexity.token.counts.scored:,}",
            "errored": f"{perplexity.token.counts.errored:,}",
        }
        for perplexity in figures.perplexities()
    ]


def seconds_by_group(items: Iterable[ItemOutcome], figures: EvalsFigures) -> dict[str, float]:
    """The branch's compute time by group, and of the suite; groups whose engine did not tell are left out."""
    totals: dict[str, float] = {}
    for item in items:
        seconds = item.branch.detail.get("seconds")
        if item.probe is ProbeName.EVALS and seconds is not None:
            totals[item.group] = totals.get(item.group, 0.0) + float(seconds)
    judged = [total for name, total in totals.items() if name in {group.name for group in figures.groups()}]
    return totals | ({SUITE: sum(judged)} if judged else {})


def flips_of(items: Iterable[ItemOutcome]) -> list[ItemOutcome]:
    """All eval flips: regressions, then improvements, in each the largest first."""
    # perplexity has a score too, in nats per token, that is never right or wrong
    scored = (item for item in items if item.probe is ProbeName.EVALS and "nll_nats" not in item.branch.detail)
    flipped = [item for item in scored if item.flip]
    return sorted(flipped, key=lambda item: (item.flip != "regression", *(-x for x in flip_size(item)), item.item_key))


def flip_size(flip: ItemOutcome) -> tuple[float, float]:
    """How far the score moved, then by how many nats the margin did."""
    score = abs((flip.reference.score or 0.0) - (flip.branch.score or 0.0))
    reference, branch = choice_margin(flip.reference), choice_margin(flip.branch)
    return score, abs(reference - branch) if reference is not None and branch is not None else 0.0


def largest(flips: Sequence[ItemOutcome], each: int) -> list[ItemOutcome]:
    """So many regressions, then so many improvements: the largest of every group in turn.

    A choice has a margin and a text has none, so that across groups flips cannot be ordered.
    """
    shown: list[ItemOutcome] = []
    for direction in ("regression", "improvement"):
        rank: Counter[str] = Counter()
        ranked = []
        for flip in flips:
            if flip.flip == direction:
                ranked.append((rank[flip.group], flip))
                rank[flip.group] += 1
        shown += [flip for _, flip in sorted(ranked, key=lambda entry: entry[0])[:each]]
    return shown


def flip_words(flip: ItemOutcome) -> str:
    """Where it is, and how sure each deployment was."""
    where = f"{flip.group}, {flip.stratum}, {flip.item_key[:12]}"
    margins = [choice_margin(answer) for answer in (flip.reference, flip.branch)]
    if None not in margins:
        return f"{where}: margin {number(margins[0])} → {number(margins[1])} nats"
    return f"{where}: score {number(flip.reference.score)} → {number(flip.branch.score)}"


def flip_json(flip: ItemOutcome) -> dict[str, Any]:
    """A flip as JSON values; of a long prompt the middle is left out."""
    sides = {
        name: json.loads(answer.model_dump_json())
        for name, answer in (("reference", flip.reference), ("branch", flip.branch))
    }
    return {
        "direction": flip.flip,
        "group": flip.group,
        "stratum": flip.stratum,
        "item_key": flip.item_key,
        "prompt": shortened(flip.prompt or ""),
        "expected": flip.expected,
        **sides,
    }


def choice_margin(answer: Answer) -> float | None:
    """By how many nats the right choice leads the best wrong one; None without choices."""
    margin = answer.detail.get("margin_nats")
    return None if margin is None else float(margin)


DIRECTIONS = {"lost": "regression", "gained": "improvement"}


def flip_rows(flips: Iterable[ItemOutcome]) -> list[dict[str, str]]:
    """One row of plain text per flip."""
    return [
        {
            "direction": "lost" if flip.flip == "regression" else "gained",
            "group": flip.group,
            "task": flip.stratum,
            "key": flip.item_key,
            "reference": number(flip.reference.score),
            "branch": number(flip.branch.score),
            "reference margin, nats": number(choice_margin(flip.reference)),
            "branch margin, nats": number(choice_margin(flip.branch)),
        }
        for flip in flips
    ]


def answer_choices(flip: ItemOutcome) -> list[Choice]:
    """How likely each deployment held each answer that it could choose, among them; empty where it could say anything.

    The shares are those of the likelihoods among the choices alone, so that long answers do not look impossible.
    """
    sides = [_shares(answer.detail.get("log_likelihoods"), answer.text) for answer in (flip.reference, flip.branch)]
    names = dict.fromkeys(name for side in sides for name in side)
    return [Choice(name, sides[0].get(name), sides[1].get(name)) for name in names]


def _shares(likelihoods: object, said: str | None) -> dict[str, Held]:
    if not isinstance(likelihoods, dict):
        return {}
    values = {str(name): float(value) for name, value in likelihoods.items() if isinstance(value, int | float | str)}
    best = max((value for value in values.values() if math.isfinite(value)), default=None)
    if best is None:
        return {}
    weights = {name: math.exp(value - best) if math.isfinite(value) else 0.0 for name, value in values.items()}
    total = sum(weights.values())
    return {
        name: Held(weight / total, f"{100 * weight / total:.3g} % ({number(values[name])} nats)", name == said)
        for name, weight in weights.items()
    }


def select(flips: Sequence[ItemOutcome], group: str = ALL, direction: str = ALL) -> list[ItemOutcome]:
    """The flips of one group and direction (a key of DIRECTIONS), or of `ALL`."""
    wanted = (ALL, DIRECTIONS.get(direction))[direction != ALL]
    return [flip for flip in flips if group in (ALL, flip.group) and wanted in (ALL, flip.flip)]
