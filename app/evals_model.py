"""What people read of an eval run: rows per group, per length and per task, and the flips. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.reports._text import number
from q36eval.reports.answers import NOT_RIGHT, not_right_cell, not_right_text, unable_words
from q36eval.reports.evals_figures import (
    SUITE,
    EvalsFigures,
    GroupFigures,
    change_words,
    percent,
    percent_interval,
    ratio_words,
    recovery_words,
    used_words,
)

GROUP_COLUMNS = (
    "group",
    "score",
    "reference",
    "recovery [95 %]",
    "lost",
    "gained",
    "McNemar p",
    "answers changed",
    "margin change, nats",
    "items",
    "errored",
    "seconds",
)
PART_COLUMNS = ("score", "reference", "recovery [95 %]", "items", "errored", NOT_RIGHT)
PERPLEXITY_COLUMNS = ("perplexity of", "per token", "per word", "per byte", "tokens", "errored")

MOST_PROMPT = 4_000
"""A longer prompt loses its middle where it is shown; history keeps it whole."""


def group_rows(figures: EvalsFigures, seconds: dict[str, float] | None = None) -> list[tuple[str, ...]]:
    """A row for each group and the suite, under GROUP_COLUMNS; `seconds` by the name of a group's slice."""
    return [_group_row(group, (seconds or {}).get(group.name)) for group in figures.groups()]


def _group_row(group: GroupFigures, seconds: float | None) -> tuple[str, ...]:
    changed, p_value = group.answers_changed, group.mcnemar
    return (
        group.name,
        percent(group.accuracy.value),
        percent(group.accuracy.reference_value),
        recovery_words(group.recovery),
        "–" if group.lost is None else str(group.lost),
        "–" if group.gained is None else str(group.gained),
        "–" if p_value is None else f"{p_value:.2g}",
        "–" if changed is None else percent(changed.value),
        change_words(group.choice_margin),
        used_words(group),
        str(group.accuracy.counts.errored),
        "–" if seconds is None else f"{seconds:.1f}",
    )


def answer_words(figures: EvalsFigures) -> list[str]:
    """Of each group why answers of either side are not right, then the families that the reference cannot do."""
    groups = [group.accuracy for group in figures.groups()]
    told = [f"{found.slice}: {not_right_text(found.causes)}" for found in groups if found.causes is not None]
    return [*told, *unable_words(groups)]


def length_rows(figures: EvalsFigures, group: str) -> list[tuple[str, ...]]:
    """A row for each length, its tokens and then PART_COLUMNS."""
    return [
        (
            f"{found.length:,}",
            percent(found.accuracy.value),
            percent(found.accuracy.reference_value),
            recovery_words(found.recovery),
            str(found.accuracy.counts.scored),
            str(found.accuracy.counts.errored),
            not_right_cell(found.accuracy.causes),
        )
        for found in figures.lengths(group)
    ]


def tasks_of(figures: EvalsFigures, group: str) -> list[GroupFigures]:
    """The tasks of a group; its lengths are no tasks."""
    by_length = group in figures.groups_with_lengths()
    lengths = {f"{group}/{found.length}" for found in figures.lengths(group)} if by_length else set()
    return [part for part in figures.slices(group) if part.name not in lengths]


def task_rows(figures: EvalsFigures, group: str) -> list[tuple[str, ...]]:
    """A row for each task of a group, its name and then PART_COLUMNS."""
    return [
        (
            part.name.removeprefix(f"{group}/"),
            percent(part.accuracy.value),
            percent(part.accuracy.reference_value),
            recovery_words(part.recovery),
            str(part.accuracy.counts.scored),
            str(part.accuracy.counts.errored),
            not_right_cell(part.accuracy.causes),
        )
        for part in tasks_of(figures, group)
    ]


def perplexity_rows(figures: EvalsFigures) -> list[tuple[str, ...]]:
    """A row for all documents and for each slice of them, under PERPLEXITY_COLUMNS."""
    return [
        (
            found.name,
            ratio_words(found.token),
            ratio_words(found.word),
            ratio_words(found.byte),
            f"{found.token.counts.scored:,}",
            f"{found.token.counts.errored:,}",
        )
        for found in figures.perplexities()
    ]


def macro_words(figures: EvalsFigures) -> list[str]:
    """One sentence for each group whose tasks' mean differs from the mean over its items."""
    lines = []
    for group in figures.groups():
        plain, macro = group.recovery, group.macro_recovery
        if plain is None or macro is None or percent(plain.value) == percent(macro.value):
            continue
        lines.append(
            f"{group.name}: with every {'group' if group.name == SUITE else 'task'} counted alike, recovery is "
            f"{percent(macro.value)} {percent_interval(macro.effect_interval)}."
        )
    return lines


def seconds_by_group(items: Iterable[ItemOutcome], figures: EvalsFigures) -> dict[str, float]:
    """The branch's compute time by group, and of the suite; groups whose engine did not tell are left out."""
    totals: dict[str, float] = {}
    for item in items:
        seconds = item.branch.detail.get("seconds")
        if item.probe is ProbeName.EVALS and seconds is not None:
            totals[item.group] = totals.get(item.group, 0.0) + float(seconds)
    judged = [total for name, total in totals.items() if name in {group.name for group in figures.groups()}]
    return totals | ({SUITE: sum(judged)} if judged else {})


@dataclass(frozen=True)
class Flip:
    """One item that only one deployment answered with full marks. Margins are in nats, None without choices."""

    direction: Literal["regression", "improvement"]
    group: str
    stratum: str
    item_key: str
    prompt: str
    expected: str | None
    reference: Answer
    branch: Answer

    @property
    def reference_margin(self) -> float | None:
        """By how much the right choice led the best wrong one under the reference."""
        return _margin(self.reference)

    @property
    def branch_margin(self) -> float | None:
        """The same under the branch."""
        return _margin(self.branch)

    @property
    def size(self) -> tuple[float, float]:
        """How far the score moved, then by how much the margin did."""
        score = abs((self.reference.score or 0.0) - (self.branch.score or 0.0))
        pair = (self.reference_margin, self.branch_margin)
        return score, abs(pair[0] - pair[1]) if pair[0] is not None and pair[1] is not None else 0.0


def flips_of(items: Iterable[ItemOutcome]) -> list[Flip]:
    """All eval flips: regressions, then improvements, in each the largest first."""
    found = [
        Flip(
            direction=item.flip,
            group=item.group,
            stratum=item.stratum,
            item_key=item.item_key,
            prompt=item.prompt or "",
            expected=item.expected,
            reference=item.reference,
            branch=item.branch,
        )
        for item in items
        if item.probe is ProbeName.EVALS and item.flip is not None and _has_right_answers(item)
    ]
    return sorted(found, key=lambda flip: (flip.direction != "regression", *(-x for x in flip.size), flip.item_key))


def _has_right_answers(item: ItemOutcome) -> bool:
    """Perplexity has a score too, in nats per token, that is never right or wrong."""
    return "nll_nats" not in item.branch.detail


def largest(flips: Sequence[Flip], each: int) -> list[Flip]:
    """So many regressions, then so many improvements: the largest of every group in turn.

    A choice has a margin and a text has none, so that across groups flips cannot be ordered.
    """
    shown: list[Flip] = []
    for direction in ("regression", "improvement"):
        rank: Counter[str] = Counter()
        ranked = []
        for flip in flips:
            if flip.direction == direction:
                ranked.append((rank[flip.group], flip))
                rank[flip.group] += 1
        shown += [flip for _, flip in sorted(ranked, key=lambda entry: entry[0])[:each]]
    return shown


def flip_words(flip: Flip) -> str:
    """Where it is, and how sure each deployment was."""
    where = f"{flip.group}, {flip.stratum}, {flip.item_key[:12]}"
    if flip.reference_margin is not None and flip.branch_margin is not None:
        return f"{where}: margin {number(flip.reference_margin)} → {number(flip.branch_margin)} nats"
    return f"{where}: score {number(flip.reference.score)} → {number(flip.branch.score)}"


def flip_json(flip: Flip) -> dict[str, Any]:
    """A flip as JSON values; of a long prompt the middle is left out."""
    import json

    sides = {
        name: json.loads(answer.model_dump_json())
        for name, answer in (("reference", flip.reference), ("branch", flip.branch))
    }
    return {
        "direction": flip.direction,
        "group": flip.group,
        "stratum": flip.stratum,
        "item_key": flip.item_key,
        "prompt": shortened(flip.prompt),
        "expected": flip.expected,
        **sides,
    }


def shortened(text: str, most: int = MOST_PROMPT) -> str:
    """The text without its middle where it is longer than `most` characters, the end being what was asked last."""
    if len(text) <= most:
        return text
    head = most // 4
    tail = most - head
    return f"{text[:head]}\n[… {len(text) - most:,} characters …]\n{text[-tail:]}"


def _margin(answer: Answer) -> float | None:
    found = answer.detail.get("margin_nats")
    return None if found is None else float(found)
