"""The content of the compare page. Pure."""

from collections import Counter
from collections.abc import Sequence

from q36eval.app.dashboard.verdict_style import look_of
from q36eval.gate.report import CriterionResult
from q36eval.history import RunRecord, RunSummary
from q36eval.history.run_comparison import ComparedCriterion, Comparison, FlipCounts, PairedDifference
from q36eval.metrics import metric_of_key
from q36eval.reports.text import figure_text, number, verdict_text

MOVED_WORDS = {"better": "▲ better", "worse": "▼ worse", "unclear": "≈ unclear", "same": "= same"}
SHOWN_FIELD = 40


def default_pair(runs: Sequence[RunSummary], blessed: str | None) -> tuple[str, str] | None:
    """The default runs, from those of one branch (newest first): its newest judged gate as B and, as A, the blessed
    run, or the previous gate if the newest is the blessed one; None without two."""
    judged = [run.id for run in runs if run.is_gate and run.verdict is not None]
    others = [run for run in (*([] if blessed is None else [blessed]), *judged[1:]) if run not in judged[:1]]
    return (others[0], judged[0]) if judged and others else None


def unlike(a: RunRecord, b: RunRecord) -> str | None:
    """Why two runs are not comparable; None if they are."""
    if a.id == b.id:
        return "A and B are the same run: choose another for one of them."
    if a.family != b.family:
        return "A and B are of two families, which share no reference: choose two runs of one family."
    return None


def headline(comparison: Comparison) -> str:
    """The result of comparing B with A, in one line."""
    turned = sum(one.turned for one in comparison.criteria)
    moves = [one.movement for one in comparison.criteria]
    said = [f"Of {len(comparison.criteria)} criteria {turned} have another verdict in B"]
    said.append(f"{moves.count('worse')} moved for the worse and {moves.count('better')} for the better")
    if comparison.flips:
        lost, gained = (sum(getattr(one, way) for one in comparison.flips) for way in ("lost", "gained"))
        said.append(f"{lost:,} items that A answers rightly are lost in B, {gained:,} gained")
    return f"{'; '.join(said)}. Counts move by any change, figures beyond what pairing leaves to chance."


def changed(one: ComparedCriterion) -> bool:
    """Whether a criterion has another verdict in B, or changed beyond chance."""
    return one.turned or one.movement in ("better", "worse")


def criterion_rows(criteria: Sequence[ComparedCriterion]) -> list[dict[str, str]]:
    """One row of plain text per criterion: what moved for the worse first, then where the verdict differs."""
    return [
        {
            "criterion": f"{_heading(one)} ({one.id})",
            "A": _figure(one.a),
            "B": _figure(one.b),
            "change": MOVED_WORDS[one.movement] if one.movement == "same" else _change(one.difference, one.unit),
            "verdict change": " → ".join(dict.fromkeys((_judged(one.a), _judged(one.b)))),
        }
        for one in sorted(criteria, key=lambda one: one.urgency)
    ]


def measurement_rows(comparison: Comparison) -> list[dict[str, str]]:
    """Figures beside the criteria, as `criterion_rows`; there are such where neither run was judged."""
    return [
        {
            "figure": f"{titled(m.key)} ({m.key})",
            "A": number(m.a),
            "B": number(m.b),
            "change": _change(m.difference, m.unit),
        }
        for m in comparison.measurements
    ]


def unpaired(comparison: Comparison) -> list[str]:
    """Why figures were not paired, each reason once."""
    whys = Counter([one.why for one in comparison.criteria] + [one.why for one in comparison.measurements])
    return [f"{n} figures are not paired: {why}." for why, n in whys.items() if why]


def _change(difference: PairedDifference | None, unit: str | None) -> str:
    """The change of B against A: direction, amount, interval, and number of clusters."""
    if difference is None:
        return "not paired"
    return f"{MOVED_WORDS[difference.movement]}: {difference_text(difference, unit)}, {difference.clusters} clusters"


def titled(key: str) -> str:
    """What people call a figure."""
    metric, slice = metric_of_key(key)
    return metric.titled(slice)


def side_name(name: str, run: RunRecord) -> str:
    """The run of a side, shown next to each of its answers."""
    return f"{name}, {run.branch} of {run.started:%Y-%m-%d}"


def _heading(one: ComparedCriterion) -> str:
    result = one.b or one.a
    return one.id if result is None else result.heading


def _judged(result: CriterionResult | None) -> str:
    return "not judged" if result is None else f"{look_of(result.verdict).symbol} {verdict_text(result)}"


def _figure(result: CriterionResult | None) -> str:
    return "–" if result is None else figure_text(result)


def difference_text(difference: PairedDifference | None, unit: str | None) -> str:
    """B against A with its interval: a difference of shares in points, a ratio as a factor."""
    if difference is None:
        return "–"
    points = unit == "fraction" and not difference.ratio
    sign = "×" if difference.ratio else "+" if difference.effect > 0 else ""
    bounds = difference.effect_interval
    by, lower, upper = (number(100 * x if points else x) for x in (difference.effect, bounds.lower, bounds.upper))
    return f"{sign}{by} [{lower}, {upper}]{' points' * points}"


def differing_rows(comparison: Comparison) -> list[dict[str, str]]:
    """The fields of measurement and settings that differ between the two runs."""
    return [{"field": one.field, "A": _short(one.a), "B": _short(one.b)} for one in comparison.differing]


def _short(value: str | None) -> str:
    if value is None:
        return "unknown"
    return value if len(value) <= SHOWN_FIELD else f"{value[:SHOWN_FIELD]}…"


def flip_words(counts: FlipCounts) -> str:
    """The flips of one probe in a sentence."""
    alone = [f"{n} by {name} alone" for n, name in ((counts.only_a, "A"), (counts.only_b, "B")) if n]
    if not counts.both:
        return f"{counts.probe}: no item was answered in both runs ({', '.join(alone)})."
    more = f" ({', '.join(alone)})" if alone else ""
    return (
        f"{counts.probe}: of {counts.both:,} items answered in both runs {counts.lost} lost and {counts.gained} gained "
        f"from A to B{more}."
    )
