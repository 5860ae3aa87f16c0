"""A canary run for people: rates and margins by canary, results of fixed prompts, as rows and as JSON. Pure."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from q36eval.app.figures.answers import shortened
from q36eval.app.figures.canary_items import at_risk, details_of, faults, flips, reasons, scores_of
from q36eval.app.figures.canary_lanes import FLIPS, LANES
from q36eval.app.figures.deciding_answers import item_name
from q36eval.canaries.must_pass import Standing, standing
from q36eval.metrics import metric_of
from q36eval.records import Interval, ItemOutcome, Lane, Measurement, ProbeName
from q36eval.reports.evals_figures import change_words, percent, percent_interval, why_none
from q36eval.reports.story import NOT_RIGHT, not_right_cell
from q36eval.reports.text import number

FAILURE_RATE, MARGIN_RATIO = "failure_rate", "decisive_margin_ratio"
IN_TABLES = (FAILURE_RATE, MARGIN_RATIO)
TOTALS = frozenset({*(lane.value for lane in Lane), "all"})
STANDINGS = {
    Standing.PASSED: "passed",
    Standing.FLIPPED: "confirmed flips",
    Standing.UNSTABLE: "unstable",
    Standing.NO_CANARY: "the reference itself fails",
    Standing.UNCONFIRMED: "flipped once, not repeated",
    Standing.UNKNOWN: "not known",
}
ALWAYS_TOLD = (Standing.PASSED, Standing.FLIPPED)


@dataclass(frozen=True)
class CanaryRun:
    """One run's canaries, as history holds them."""

    measurements: tuple[Measurement, ...]
    items: tuple[ItemOutcome, ...]

    @classmethod
    def of(cls, measurements: Iterable[Measurement], items: Iterable[ItemOutcome]) -> "CanaryRun":
        """What belongs to canaries of a run's measurements and items."""
        return cls(
            tuple(m for m in measurements if m.probe is ProbeName.CANARIES),
            tuple(item for item in items if item.probe is ProbeName.CANARIES),
        )

    def found(self, metric: str) -> list[Measurement]:
        """The measurements of a metric: canaries by name, then lanes and totals."""
        chosen = [m for m in self.measurements if m.metric == metric]
        return sorted(chosen, key=lambda m: (m.slice in TOTALS, m.slice))

    def get(self, metric: str, slice_name: str) -> Measurement | None:
        """One measurement, if there is one."""
        return next((m for m in self.measurements if (m.metric, m.slice) == (metric, slice_name)), None)

    def must_pass(self) -> dict[Standing, list[ItemOutcome]]:
        """The fixed prompts by result."""
        by_standing: dict[Standing, list[ItemOutcome]] = {name: [] for name in STANDINGS}
        for item in self.items:
            if item.must_pass:
                by_standing[standing(item)].append(item)
        return {kind: sorted(items, key=lambda item: item.cluster) for kind, items in by_standing.items()}

    def in_slice(self, name: str) -> list[ItemOutcome]:
        """The family questions of one canary or of all. Which canaries a lane holds is not in the outcomes: none."""
        return [item for item in self.items if name in (item.group, "all") and not item.must_pass]


def rate_rows(run: CanaryRun) -> list[dict[str, str]]:
    """A row for each family and lane."""
    return [_rate_row(run, m) for m in run.found(FAILURE_RATE)]


def _rate_row(run: CanaryRun, m: Measurement) -> dict[str, str]:
    items = run.in_slice(m.slice)
    times = Counter(item.cluster for item in items)
    if m.slice == "all":  # sampled answers, several of one prompt, have figures of their own
        items = [item for item in items if times[item.cluster] == 1]
    flipped = Counter(item.flip for item in items)
    lost, gained = (str(flipped[way]) if items else "–" for way in ("regression", "improvement"))
    return {
        "canary": m.slice,
        "reference": "–" if m.reference_value is None else percent(1.0 - m.reference_value),
        "branch": percent(1.0 - m.value),
        "difference [95 %]": _points(m.effect, m.effect_interval, turned=True),
        "branch fails": fails_words(m),
        "lost": lost,
        "gained": gained,
        "errored": str(m.counts.errored),
        NOT_RIGHT: not_right_cell(m.causes),
    }


def _points(effect: float, interval: Interval, *, turned: bool = False) -> str:
    """A difference of shares with its interval; `turned`: that of the passed ones, where failed ones were measured."""
    if not math.isfinite(effect):
        return number(effect)
    value, lower, upper = effect, interval.lower, interval.upper
    if turned:
        value, lower, upper = -value, -upper, -lower
    return f"{_point(value)} " + (why_none(interval) or f"[{_point(lower)}, {_point(upper)}]")


def _point(share: float) -> str:
    # no "-0.0": nothing lost is not a loss
    return f"{100 * share + 0.0:+.1f} %" if share else "0.0 %"


def fails_words(m: Measurement) -> str:
    """`0 of 50, at most 5.8 %`: how many answers of the branch fail, and the upper bound where one is measured."""
    if not math.isfinite(m.value):
        return f"– of {m.counts.scored}"
    counted = f"{round(m.value * m.counts.scored)} of {m.counts.scored}"
    interval = m.value_interval
    if interval is None or not math.isfinite(interval.upper):
        return counted
    return f"{counted}, at most {percent(interval.upper)}"


def margin_rows(run: CanaryRun) -> list[dict[str, str]]:
    """A row for each canary and lane whose decisive margins were measured."""
    return [
        {
            "canary": m.slice,
            "reference, nats": number(m.reference_value),
            "branch": number(m.value),
            "branch / reference [95 %]": ratio_words(m),
            "items": str(m.counts.scored),
        }
        for m in run.found(MARGIN_RATIO)
    ]


def ratio_words(m: Measurement) -> str:
    """A ratio with its interval."""
    if not math.isfinite(m.effect):
        return number(m.effect)
    interval = m.effect_interval
    return f"{m.effect:.3f} " + (why_none(interval) or f"[{interval.lower:.3f}, {interval.upper:.3f}]")


def other_rows(run: CanaryRun) -> list[dict[str, str]]:
    """Everything else that was measured (schemas, wrong conclusions, counts).

    Flips of a single canary's prompts are told by prompt.
    """
    rows = []
    for m in run.measurements:
        if m.metric not in IN_TABLES and (m.metric != FLIPS or m.slice in TOTALS):
            metric = metric_of(m.probe, m.metric)
            is_share = metric.is_share
            shown = percent if is_share else number
            value = shown(m.value)
            if m.estimator == "mean":  # a comparison by itself: the interval is the figure's own
                bounds = m.effect_interval
                plain_bounds = why_none(bounds) or f"[{number(bounds.lower)}, {number(bounds.upper)}]"
                value += f" {percent_interval(bounds) if is_share else plain_bounds}"
            change = "–"
            if m.reference_value is not None:
                change = _points(m.effect, m.effect_interval) if is_share else change_words(m)
            rows.append(
                {
                    "figure": metric.label,
                    "of": m.slice,
                    "reference": shown(m.reference_value),
                    "branch": value,
                    "change [95 %]": change,
                    "items": str(m.counts.scored),
                    "errored": str(m.counts.errored),
                }
            )
    return rows


def must_pass_words(run: CanaryRun) -> str:
    """The number of prompts per result, in one line."""
    by_standing = run.must_pass()
    total = sum(map(len, by_standing.values()))
    if not total:
        return "No fixed prompt was evaluated."
    parts = [f"{len(items)} {STANDINGS[name]}" for name, items in by_standing.items() if items or name in ALWAYS_TOLD]
    words = f"Fixed prompts, {total}: {', '.join(parts)}."
    flips = run.get(FLIPS, "all")
    if flips is None:
        return words
    by_lane = [(lane, run.get(FLIPS, lane)) for lane in LANES]
    lanes = ", ".join(f"{lane} {number(of.value)}" for lane, of in by_lane if of is not None)
    counted = f"{words} {flips.counts.total} of them are required: {number(flips.value)} confirmed flips"
    return f"{counted} ({lanes})." if lanes else f"{counted}."


def batches_words(item: ItemOutcome) -> str | None:
    """Which side came out otherwise in another batch: `branch right in 1 of 3`; None where neither was asked again."""
    parts = []
    for name, answer in (("reference", item.reference), ("branch", item.branch)):
        scores = scores_of(answer)
        if len(scores) > 1:
            parts.append(f"{name} right in {sum(score == 1.0 for score in scores)} of {len(scores)}")
    return ", ".join(parts) or None


def failures_by_check(items: Iterable[ItemOutcome]) -> list[tuple[str, str, int, int]]:
    """(check, code, answers of the branch that fail it, of the reference), the branch's most frequent first."""
    counted = {name: Counter[tuple[str, str]]() for name in ("branch", "reference")}
    for item in items:
        for name, answer in (("branch", item.branch), ("reference", item.reference)):
            counted[name].update({(f.check, f.code) for f in details_of(answer).failures})
    kinds = set(counted["branch"]) | set(counted["reference"])
    rows = [(*kind, counted["branch"][kind], counted["reference"][kind]) for kind in kinds]
    return sorted(rows, key=lambda row: (-row[2], -row[3], row[:2]))


def canaries_json(run: CanaryRun) -> dict[str, Any]:
    """Outcomes of fixed prompts, flips and items at risk; the rates and margins are in the measurements."""
    must = run.must_pass()
    return {
        "must_pass": {
            kind.replace(" ", "_"): len(items) if kind is Standing.PASSED else [_item_json(item) for item in items]
            for kind, items in must.items()
        },
        "flips": [_item_json(item, whole=True) for item in flips(run.items)],
        "at_risk": [_item_json(item) for item in at_risk(run.items)],
        "failed_checks": [
            {"check": check, "code": code, "branch": branch, "reference": reference}
            for check, code, branch, reference in failures_by_check(run.items)
        ],
    }


def _item_json(item: ItemOutcome, *, whole: bool = False) -> dict[str, Any]:
    """One item with both margins and what failed; `whole`: with prompt, answers and where they part."""
    margins = {
        side: details_of(answer).margin for side, answer in (("reference", item.reference), ("branch", item.branch))
    }
    body: dict[str, Any] = {
        "canary": item.group,
        "name": item.cluster,
        "item_key": item.item_key,
        "must_pass": item.must_pass,
        "flip": item.flip,
        "failures": reasons(item.branch),
        "reference_failures": reasons(item.reference),
        "margin_nats": {
            side: None if m is None else m.nats if math.isfinite(m.nats) else str(m.nats) for side, m in margins.items()
        },
        "scores": {"reference": scores_of(item.reference), "branch": scores_of(item.branch)},
    }
    if not whole:
        return body
    parting = details_of(item.branch).divergence
    sides = {
        side: json.loads(answer.model_dump_json())
        for side, answer in (("reference", item.reference), ("branch", item.branch))
    }
    position = None if parting is None else parting.position
    return body | {
        "prompt": shortened(item.prompt or ""),
        "expected": item.expected,
        "first_divergent_token": position,
        **sides,
    }


def must_pass_rows(run: CanaryRun) -> list[dict[str, str]]:
    """The fixed prompts that did not simply pass: confirmed flips, unstable ones, what is no canary, not known."""
    rows = []
    for kind, items in run.must_pass().items():
        for item in items if kind is not Standing.PASSED else ():
            side = item.reference if kind is Standing.NO_CANARY else item.branch
            why = "; ".join(words for words, _ in faults(side))
            batches = batches_words(item) or "–"
            rows.append(
                {"prompt": item_name(item), "outcome": STANDINGS[kind], "in other batches": batches, "why": why}
            )
    return rows


def failure_rows(items: Sequence[ItemOutcome]) -> list[dict[str, str]]:
    """Which checks failed, and how many answers of each deployment did."""
    return [
        {"check": check, "failure": code, "branch": str(branch), "reference": str(reference)}
        for check, code, branch, reference in failures_by_check(items)
    ]
