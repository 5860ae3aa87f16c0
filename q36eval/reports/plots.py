"""Rows of the figures of reports and pages, and the SVG of the HTML report, without script or style."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from q36eval.gate.noise import floor_metric
from q36eval.gate.report import UNMEASURED, CriterionResult, GateReport
from q36eval.inert_text import html
from q36eval.records import Clusters, Direction, Measurement, ProbeName
from q36eval.reports.evals_figures import SUITE, EvalsFigures, GroupFigures, percent, recovery_words
from q36eval.reports.story import worst_first
from q36eval.reports.templates import render
from q36eval.reports.text import figure_text, margin_text, number, verdict_text

MOST_ROWS = 20
"""Slices, and groups of items, that are drawn: the worst."""

MOST_SLICES = 5
"""Slices of a group of tasks that are drawn: the worst."""

MARK = {"PASS": "✓", "FAIL": "✗", "INCONCLUSIVE": "?", "NOT_MEASURED": "∅", "NOT_JUDGED": "–"}
KL, KL_UNIT = "kl_divergence", "nats/token"

COLOURS = {
    "PASS": "#2e9e5b",
    "FAIL": "#e0483e",
    "INCONCLUSIVE": "#c98500",
    "NOT_MEASURED": "#9468d6",
    "NOT_JUDGED": "#868c96",
}
BLUE, GREY = "#3b7dd8", "#8a8f98"
"""All are clear on white and on dark grey; the page's style sheet colours words."""

WIDTH, LEFT, RIGHT, ROW = 1080, 300, 710, 28
"""Pixels: of the figure, where its plot begins and ends, and the height of a row."""


@dataclass(frozen=True)
class Row:
    """A line of a figure: a value in its interval, its name on the left and words on the right.

    `limit` and `floor` are marks of this row alone, None where it has none.
    """

    name: str
    words: str
    value: float
    lower: float
    upper: float
    colour: str = BLUE
    limit: float | None = None
    floor: float | None = None
    below: str = ""
    """A second line of the name."""


@dataclass(frozen=True)
class Axis:
    """What lies beyond `low` or `high` is drawn as an arrow at that end."""

    low: float
    high: float
    ticks: Mapping[float, str]
    title: str
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1; at an end where it lies beyond."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)


def criteria_rows(report: GateReport) -> list[Row]:
    """Every criterion with an interval, the worst first, as shares of its margin: 0 as the reference, 1 the margin.

    Beyond the margin shares are logarithmic: 2 is ten margins, 3 a hundred.
    """
    rows = []
    for result in worst_first(report.criteria):
        interval, limit = result.loss_interval, result.limit or 0.0
        if interval is None or limit <= 0 or result.margin.kind == "max_count":
            continue
        rule = margin_text(result.margin, result.unit)
        rows.append(
            Row(
                name=f"{result.heading}{'*' if result.tier == 'advisory' else ''}",
                below=result.id,
                words=f"{MARK[result.verdict]} {verdict_text(result)}: {figure_text(result)}, {rule}",
                value=math.nan if result.loss is None else _place(result.loss / limit),
                lower=_place(interval.lower / limit),
                upper=_place(interval.upper / limit),
                colour=COLOURS[result.verdict],
                floor=None if result.noise_floor is None else _place(result.noise_floor.loss / limit),
            )
        )
    return rows


def _place(share: float) -> float:
    return 1.0 + math.log10(share) if share > 1 else share


def criteria_plot(report: GateReport) -> Markup:
    """How much of its margin each criterion uses up."""
    rows = criteria_rows(report)
    beyond = [row.name for row in rows if row.colour == COLOURS["FAIL"]]
    summary = f"{len(rows)} criteria; beyond their margins: {', '.join(beyond) or 'none'}"
    return _figure("Criteria as intervals against their margins", summary, rows, CRITERIA, margin=1.0)


CRITERIA = Axis(
    -1.0,
    3.0,
    {-1.0: "-100 %", 0.0: "as the reference", 1.0: "margin", 2.0: "10 ×", 3.0: "100 ×"},
    "share of the margin",
)
RECOVERY = Axis(
    *(0.4, 1.2, {0.4: "40 %", 0.6: "60 %", 0.8: "80 %", 1.0: "as the reference", 1.2: "120 %"}),
    "recovery, in % of the reference's score",
)


def kl_rows(report: GateReport | None, measurements: Sequence[Measurement]) -> dict[str, Row]:
    """The divergence of every slice by its name, with its noise floor and the margin where the policy judges it.

    All of it comes first, then what the policy judges, then the others; of each the worst.
    """
    of_kl = [m for m in measurements if m.probe is ProbeName.KL]
    criteria = () if report is None else report.criteria
    judged = {r.slice: r for r in criteria if r.probe is ProbeName.KL and r.metric == KL}
    floors = {m.slice: m.value for m in of_kl if m.metric == floor_metric(KL)}
    measured = [m for m in of_kl if m.metric == KL]
    return {
        m.slice: Row(
            name=m.slice,
            words=f"{number(m.value)} [{number(m.effect_interval.lower)}, {number(m.effect_interval.upper)}]",
            value=m.value,
            lower=m.effect_interval.lower,
            upper=m.effect_interval.upper,
            colour=_colour(judged.get(m.slice)),
            limit=judged[m.slice].margin.value if m.slice in judged else None,
            floor=floors.get(m.slice),
        )
        for m in sorted(measured, key=lambda m: (m.slice != "all", m.slice not in judged, -m.value))
    }


def kl_plot(report: GateReport, measurements: Sequence[Measurement]) -> Markup:
    """The divergence of the worst slices."""
    rows = list(kl_rows(report, measurements).values())[:MOST_ROWS]
    if not rows:
        return Markup()
    summary = f"{len(rows)} slices; all: {number(rows[0].value)} {KL_UNIT}"
    return _figure("KL divergence by slice", summary, rows, decades(rows, f"{KL_UNIT}, logarithmic"))


def decades(rows: Sequence[Row], title: str) -> Axis:
    """A logarithmic axis of whole decades around everything that is drawn."""
    drawn = [x for row in rows for x in (row.value, row.lower, row.upper, row.limit, row.floor) if x is not None]
    powers = [math.log10(x) for x in drawn if x > 0 and math.isfinite(x)] or [0.0]
    low = math.floor(min(powers))
    high = max(low + 1, math.ceil(max(powers)))
    return Axis(10.0**low, 10.0**high, {10.0**n: f"{10.0**n:g}" for n in range(low, high + 1)}, title, log=True)


def recovery_rows(report: GateReport | None, figures: EvalsFigures) -> list[Row]:
    """How much of the reference's score each group of tasks keeps, with its worst slices, against the margin."""
    criteria = () if report is None else report.criteria
    judged = {r.slice: r for r in criteria if r.probe is ProbeName.EVALS and r.margin.kind == "min_recovery"}
    rows = []
    for group, recovery in _recovered(figures.groups()):
        name = "the whole suite" if group.name == SUITE else group.name
        rows.append(recovery_row(name, recovery, judged.get(group.name)))
        for part, of_part in _recovered(figures.slices(group.name))[:MOST_SLICES]:
            rows.append(recovery_row(f"· {part.name.partition('/')[2]}", of_part, judged.get(part.name)))
    return rows


def recovery_plot(report: GateReport, measurements: Sequence[Measurement]) -> Markup:
    """The recovery of each group."""
    rows = recovery_rows(report, EvalsFigures(measurements))
    groups = [f"{row.name} {percent(row.value)}" for row in rows if not row.name.startswith("·")]
    return _figure("Recovery by task", ", ".join(groups), rows, RECOVERY)


def _recovered(figures: Sequence[GroupFigures]) -> list[tuple[GroupFigures, Measurement]]:
    """Those whose recovery is a number, the least first."""
    pairs = [(one, one.recovery) for one in figures if one.recovery is not None and math.isfinite(one.recovery.value)]
    return sorted(pairs, key=lambda pair: pair[1].value)


def recovery_row(name: str, recovery: Measurement, judged: CriterionResult | None) -> Row:
    """A recovery with its interval, and its margin where the policy judges it."""
    interval, limit = recovery.effect_interval, None if judged is None else judged.margin.value
    words = recovery_words(recovery)
    return Row(name, words, recovery.value, interval.lower, interval.upper, _colour(judged), limit)


@dataclass(frozen=True)
class Flips:
    """`lost` items only the reference got right, `gained` only the branch, `of` those scored under both."""

    name: str
    lost: int
    gained: int
    of: int


def flips(measurements: Sequence[Measurement]) -> list[Flips]:
    """Of every group of eval tasks, then of every family of canaries and their lanes; where items can be told apart."""
    figures = EvalsFigures(measurements)
    counted = [_flips_of(f"evals: {group.name}", group.accuracy) for group in figures.groups()]
    rates = [m for m in measurements if m.probe is ProbeName.CANARIES and m.metric == "failure_rate"]
    counted += [_flips_of(f"canaries: {m.slice}", m) for m in rates]
    return [one for one in counted if one is not None]


def _flips_of(name: str, measurement: Measurement) -> Flips | None:
    """Counted as `ItemOutcome.flip` counts; None where a cluster holds several items."""
    clusters = measurement.clusters
    if clusters is None or clusters.reference is None or max(clusters.units, default=0) > 1:
        return None
    branch, reference = _rights(clusters, measurement.direction)
    pairs = list(zip(branch, reference, strict=True))
    return Flips(
        name,
        lost=sum(theirs == 1.0 and mine < 1.0 for mine, theirs in pairs),
        gained=sum(mine == 1.0 and theirs < 1.0 for mine, theirs in pairs),
        of=len(pairs),
    )


def _rights(clusters: Clusters, direction: Direction) -> tuple[list[float], list[float]]:
    """Scores of the scored items under branch and reference, 1 = right, whichever way the metric counts."""
    assert clusters.reference is not None, "the caller has looked"
    scored = [i for i, units in enumerate(clusters.units) if units]
    sides = [[column[i] for i in scored] for column in (clusters.branch, clusters.reference)]
    if direction is Direction.LOWER_IS_BETTER:
        sides = [[1.0 - value for value in side] for side in sides]
    return sides[0], sides[1]


def flips_plot(measurements: Sequence[Measurement]) -> Markup:
    """Items lost and gained, group by group: equal accuracy can hide many of either."""
    everything = flips(measurements)
    turned = sorted((one for one in everything if one.lost or one.gained), key=lambda one: (-one.lost, one.name))
    shown = turned[:MOST_ROWS]
    rows = [Row(one.name, f"-{one.lost}  +{one.gained}  of {one.of}", math.nan, -one.lost, one.gained) for one in shown]
    most = max([1, *(max(one.lost, one.gained) for one in shown)])
    summary = f"{sum(one.lost for one in shown)} lost, {sum(one.gained for one in shown)} gained in {len(shown)} groups"
    axis = Axis(-most, most, {-most: f"{most} lost", 0: "0", most: f"{most} gained"}, "items")
    return _figure("Items lost and gained", summary, rows, axis)


def _colour(judged: CriterionResult | None) -> str:
    return BLUE if judged is None or judged.verdict in UNMEASURED else COLOURS[judged.verdict]


def _figure(title: str, summary: str, rows: Sequence[Row], axis: Axis, margin: float | None = None) -> Markup:
    """Rows against one axis; a screen reader reads title and `summary`. Nothing without rows."""
    return draw(rows, axis, margin, f"{title}. {summary}") if rows else Markup()


def draw(rows: Sequence[Row], axis: Axis, margin: float | None = None, label: str = "") -> Markup:
    """Rows against one axis as an SVG element: a dot at the value, a bar over the interval, an arrow where that runs
    over an end of the axis. `margin` is one limit for all, the side left of it is tinted."""

    def x(value: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * axis.share(value), 2)

    frame = {"width": WIDTH, "height": ROW * len(rows) + 44, "left": LEFT, "right": RIGHT, "row_height": ROW}
    given = {"rows": rows, "axis": axis, "margin": margin, "label": label, "x": x, "finite": math.isfinite}
    return Markup(render("rows.svg.j2", html, **frame, **given, grey=GREY))
