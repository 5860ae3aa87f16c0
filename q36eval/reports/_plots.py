"""Plots as inline SVG: no script, and no colour that its style sheet does not turn with the theme."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from q36eval.gate.noise import floor_metric
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport
from q36eval.inert_text import html
from q36eval.records import Interval, Measurement, ProbeName
from q36eval.reports.evals_figures import SUITE, EvalsFigures, GroupFigures, percent, recovery_words
from q36eval.reports.flips import Flips, flips
from q36eval.reports.story import distance_text, worst_first
from q36eval.reports.text import figure_text, interval_text, margin_text, number, verdict_text


@dataclass(frozen=True)
class Axis:
    """Maps [low, high] to [left, right] pixels, by its logarithm where `log`. What lies outside stays at the end."""

    low: float
    high: float
    left: float
    right: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; of NaN the left end."""
        if math.isnan(value):
            return self.left
        inside = min(max(value, self.low), self.high)
        share = (self._scaled(inside) - self._scaled(self.low)) / (self._scaled(self.high) - self._scaled(self.low))
        return self.left + share * (self.right - self.left)

    def beyond(self, value: float) -> int:
        """-1 where a value lies left of the axis, 1 where right of it, else 0."""
        return -1 if value < self.low else 1 if value > self.high else 0

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    @classmethod
    def decades(cls, values: Sequence[float], left: float, right: float) -> "Axis":
        """A logarithmic axis of whole decades around the positive finite ones of `values`."""
        fit = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        low, high = math.floor(math.log10(min(fit))), math.ceil(math.log10(max(fit)))
        return cls(10.0**low, 10.0 ** max(high, low + 1), left, right, log=True)

    def powers(self) -> list[float]:
        """The powers of ten on a logarithmic axis."""
        return [10.0**power for power in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]


@dataclass(frozen=True)
class Layout:
    """Where names, plot and words stand, in pixels, side by side.

    `row` is the height of a row and `bar` where its bar lies, `tall_row` and `tall_bar` of one whose name has its id
    below it.
    """

    width: int
    left: int
    right: int
    top: int
    row: int
    bar: int
    tall_row: int
    tall_bar: int

    def label(self, name: str, y: float, *, soft: bool = False, id: str | None = None) -> str:
        """The name of the row whose bar lies at `y`."""
        place, above = f'x="{self.left - 14}" text-anchor="end"', 4 if id is None else -5
        label = f'<text class="{"part" if soft else "head"}" {place} y="{y + above}">{html(_cut(name, 42))}</text>'
        below = "" if id is None else f'<text class="tick" {place} y="{y + above + 15}">{html(_cut(id, 48))}</text>'
        return label + below

    def words(self, text: str, y: float, limit: int = 46, *, aside: int = 0, cls: str = "") -> str:
        """What is said of a row, `aside` pixels from where such words begin."""
        of = f' class="{cls}"' if cls else ""
        return f'<text{of} x="{self.right + 16 + aside}" y="{y + 4}">{html(_cut(text, limit))}</text>'

    def axis_title(self, words: str) -> str:
        """The unit, beside the ticks."""
        return f'<text class="tick" x="{self.right + 50}" y="{self.top - 14}">{html(words)}</text>'

    def tick(self, x: float, words: str, height: float, *, limit: bool = False) -> tuple[str, str]:
        """A line over the height of the plot, and its words."""
        return (
            _line("limit" if limit else "grid", x, self.top - 6, height - 4),
            f'<text class="tick" x="{x:.1f}" y="{self.top - 14}" text-anchor="middle">{html(words)}</text>',
        )


LAYOUT = Layout(1080, 300, 710, 30, row=26, bar=13, tall_row=34, tall_bar=17)
Drawing = Callable[[Layout], tuple[list[str], float]]
"""Draws a figure: its parts, and how tall they are."""

MOST_ROWS = 20
"""Slices, and groups of items, that are drawn: the worst."""

MOST_SLICES = 5
"""Slices of a group of tasks that are drawn: the worst."""

MARK = {"PASS": "✓", "FAIL": "✗", "INCONCLUSIVE": "?", "NOT_MEASURED": "∅"}
KL = "kl_divergence"


def criteria_plot(report: GateReport) -> str:
    """Every criterion with an interval: how much of its margin is used up, 0 as the reference, 1 the margin itself."""
    shown = [one for one in worst_first(report.criteria) if one.loss_interval is not None and _limit(one) > 0]
    if not shown:
        return ""

    def draw(to: Layout) -> tuple[list[str], float]:
        axis, height = Axis(-1.0, 2.5, to.left, to.right), to.top + to.tall_row * len(shown) + 8
        wide = axis.at(1) - to.left
        parts = [f'<rect class="band" x="{to.left}" y="{to.top - 6}" width="{wide:.1f}" height="{height - to.top}"/>']
        ticks = ((-1.0, "-100 %"), (0.0, "as the reference"), (1.0, "margin"), (2.0, "200 %"))
        parts += [part for value, words in ticks for part in to.tick(axis.at(value), words, height, limit=value == 1.0)]
        parts.append(to.axis_title("share of the margin used up, in %"))
        for place, result in enumerate(shown):
            parts += _criterion_row(result, axis, to.top + to.tall_row * place + to.tall_bar, to)
        return parts, height

    caption = (
        "How much of its margin each criterion uses up, the worst first: the dot is the figure, the bar its interval "
        "(each bound holds one-sided at the criterion's confidence). It passes when the whole bar lies left of the "
        "dashed margin, and fails when it lies right of it beyond chance. Arrows: further than drawn, with how many "
        "margins the figure is. Short grey line: the noise floor, where it was measured. Starred: advisory."
    )
    failed = [result.heading for result in shown if result.verdict is CriterionVerdict.FAIL]
    summary = f"{len(shown)} criteria; beyond their margins: {', '.join(failed) or 'none'}"
    return _figure("Criteria as intervals against their margins", summary, caption, draw)


def _limit(result: CriterionResult) -> float:
    return 0.0 if result.limit is None or result.margin.kind == "max_count" else result.limit


def _criterion_row(result: CriterionResult, axis: Axis, y: float, to: Layout) -> Iterator[str]:
    interval, limit = result.loss_interval, _limit(result)
    assert interval is not None, "only criteria with one are drawn"
    words = f"{figure_text(result)} {interval_text(result.margin, result.figure_interval)}"
    hover = "; ".join(filter(None, (f"{result.name}: {words}", distance_text(result))))
    yield f'<g class="{result.verdict}"><title>{html(hover)}</title>'
    star = "*" if result.tier == "advisory" else ""
    yield to.label(f"{result.heading}{star}", y, id=result.id)
    if result.noise_floor is not None and 0 < result.noise_floor.loss < axis.high * limit:
        yield _line("floor", axis.at(result.noise_floor.loss / limit), y - 7, y + 7)
    value = math.nan if result.loss is None else result.loss / limit
    if axis.beyond(interval.lower / limit) > 0:
        yield f'<text class="tick" x="{to.right - 10}" y="{y + 4}" text-anchor="end">{value:.1f} ×</text>'
    yield from _interval(axis, interval.lower / limit, value, interval.upper / limit, y)
    rule = margin_text(result.margin, result.unit)
    yield to.words(f"{MARK[result.verdict]} {verdict_text(result)}", y, cls="says")
    yield f"{to.words(f'{figure_text(result)}, {rule}', y, 34, aside=134)}</g>"


def kl_plot(report: GateReport, measurements: Sequence[Measurement]) -> str:
    """The divergence of every slice, with its noise floor and the margin where the policy judges it."""
    measured = [m for m in measurements if m.probe is ProbeName.KL and m.metric == KL]
    if not measured:
        return ""
    judged = {r.slice: r for r in report.criteria if r.probe is ProbeName.KL and r.metric == KL}
    # all of it, what the policy judges, then the others; of each the worst
    shown = sorted(measured, key=lambda m: (m.slice != "all", m.slice not in judged, -m.value))[:MOST_ROWS]
    drawn, floor = {m.slice for m in shown}, floor_metric(KL)
    floors = {
        m.slice: m.value for m in measurements if m.probe is ProbeName.KL and m.metric == floor and m.slice in drawn
    }
    margins = [r.margin.value for r in judged.values()]
    bounds = [bound for m in shown for bound in (m.value, m.effect_interval.lower, m.effect_interval.upper)]

    def draw(to: Layout) -> tuple[list[str], float]:
        axis = Axis.decades([*bounds, *margins, *floors.values()], to.left, to.right)
        height = to.top + to.row * len(shown) + 8
        parts = [part for power in axis.powers() for part in to.tick(axis.at(power), f"{power:g}", height)]
        parts.append(to.axis_title(f"{shown[0].unit}, logarithmic"))
        for place, m in enumerate(shown):
            y = to.top + to.row * place + to.bar
            parts += _kl_row(m, judged.get(m.slice), floors.get(m.slice), axis, y, to)
        return parts, height

    caption = (
        f"Mean KL divergence from the reference by slice, in {html(shown[0].unit)}, on a logarithmic axis"
        f"{_of(measured)}: what the policy judges first, then the worst. Dashed: the margin, where one holds. "
        "Short grey line: what the reference loses against itself."
    )
    summary = f"{len(shown)} slices; all: {number(shown[0].value)} {shown[0].unit}"
    return _figure("KL divergence by slice", summary, caption, draw)


def _of(everything: Sequence[object]) -> str:
    return f" ({MOST_ROWS} of {len(everything)})" if len(everything) > MOST_ROWS else ""


def _kl_row(
    m: Measurement, judged: CriterionResult | None, floor: float | None, axis: Axis, y: float, to: Layout
) -> Iterator[str]:
    verdict = "blue" if judged is None or judged.verdict is CriterionVerdict.NOT_MEASURED else str(judged.verdict)
    words = f"{number(m.value)} {_bounds(m.effect_interval)}"
    yield f'<g class="{verdict}"><title>{html(f"{m.slice}: {words}, {m.counts.scored} tokens")}</title>'
    yield to.label(m.slice, y)
    if judged is not None:
        yield _line("limit", axis.at(judged.margin.value), y - 11, y + 11)
    if floor is not None and floor > 0:
        yield _line("floor", axis.at(floor), y - 5, y + 5)
    yield from _interval(axis, m.effect_interval.lower, m.value, m.effect_interval.upper, y)
    yield f"{to.words(words, y)}</g>"


def recovery_plot(report: GateReport, measurements: Sequence[Measurement]) -> str:
    """How much of the reference's score each group of tasks keeps, with its worst slices, against the margin."""
    figures = EvalsFigures(measurements)
    judged = {r.slice: r for r in report.criteria if r.probe is ProbeName.EVALS and r.margin.kind == "min_recovery"}
    shown: list[tuple[GroupFigures, bool]] = []
    for group in sorted(_recovered(figures.groups()), key=_recovery):
        worst = sorted(_recovered(figures.slices(group.name)), key=_recovery)[:MOST_SLICES]
        shown += [(group, False), *((slice_, True) for slice_ in worst)]
    if not shown:
        return ""

    def draw(to: Layout) -> tuple[list[str], float]:
        axis, height = Axis(0.4, 1.2, to.left, to.right), to.top + to.row * len(shown) + 8
        ticks = ((0.4, "40 %"), (0.6, "60 %"), (0.8, "80 %"), (1.0, "as the reference"), (1.2, "120 %"))
        parts = [part for value, words in ticks for part in to.tick(axis.at(value), words, height)]
        parts.append(to.axis_title("recovery, in % of the reference's score"))
        for place, (figure, part_of) in enumerate(shown):
            y = to.top + to.row * place + to.bar
            parts += _recovery_row(figure, part_of, judged.get(figure.name), axis, y, to)
        return parts, height

    caption = (
        "The branch's score as a share of the reference's over the same items, by group of tasks, each with its "
        f"{MOST_SLICES} worst slices: the dot is the figure, the bar its interval. Dashed: the margin, where the "
        "policy judges the group. A slice has few items, so its bar is wide."
    )
    summary = ", ".join(f"{figure.name} {percent(_recovery(figure))}" for figure, part_of in shown if not part_of)
    return _figure("Recovery by task", summary, caption, draw)


def _group_name(name: str) -> str:
    return "the whole suite" if name == SUITE else name


def _recovered(figures: Sequence[GroupFigures]) -> list[GroupFigures]:
    return [one for one in figures if one.recovery is not None and math.isfinite(one.recovery.value)]


def _recovery(figures: GroupFigures) -> float:
    return math.nan if figures.recovery is None else figures.recovery.value


def _recovery_row(
    figure: GroupFigures, part_of: bool, judged: CriterionResult | None, axis: Axis, y: float, to: Layout
) -> Iterator[str]:
    m = figure.recovery
    assert m is not None, "only what has one is drawn"
    lower, upper = m.effect_interval.lower, m.effect_interval.upper
    verdict = "blue" if judged is None else str(judged.verdict)
    words = recovery_words(m)
    hover = f"{figure.name}: {words}, {figure.accuracy.counts.scored} items"
    yield f'<g class="{verdict}"><title>{html(hover)}</title>'
    yield to.label(figure.name.partition("/")[2] if part_of else _group_name(figure.name), y, soft=part_of)
    if judged is not None:
        yield _line("limit", axis.at(judged.margin.value), y - 11, y + 11)
    yield from _interval(axis, lower, m.value, upper, y)
    yield f"{to.words(words, y)}</g>"


def flips_plot(measurements: Sequence[Measurement]) -> str:
    """Items lost and gained, group by group: equal accuracy can hide many of either."""
    everything = flips(measurements)
    if not everything:
        return ""
    turned = sorted((one for one in everything if one.lost or one.gained), key=lambda one: (-one.lost, one.name))
    shown, calm = turned[:MOST_ROWS], len(everything) - len(turned)
    most = max([1, *(max(group.lost, group.gained) for group in shown)])

    def draw(to: Layout) -> tuple[list[str], float]:
        axis, height = Axis(-most, most, to.left, to.right), to.top + to.row * len(shown) + 8
        ticks = ((-most, f"{most} lost"), (0, "0"), (most, f"{most} gained"))
        parts = [part for value, words in ticks for part in to.tick(axis.at(value), words, height)]
        parts.append(to.axis_title("items"))
        for place, group in enumerate(shown):
            parts += _flips_row(group, axis, to.top + to.row * place + to.bar, to)
        return parts, height

    caption = (
        "The same items for both, by group of tasks and by family of canaries: left those that only the reference "
        f"answers right, right those that only the branch does. Most lost first{_of(turned)}. Nothing turned in {calm} "
        f"of {len(everything)} groups, which are not drawn."
    )
    summary = f"{sum(one.lost for one in shown)} lost, {sum(one.gained for one in shown)} gained in {len(shown)} groups"
    return _figure("Items lost and gained", summary, caption, draw)


def _flips_row(group: Flips, axis: Axis, y: float, to: Layout) -> Iterator[str]:
    words = f"-{group.lost}  +{group.gained}  of {group.of}"
    yield f"<g><title>{html(f'{group.name}: {words}')}</title>"
    yield to.label(group.name, y)
    zero = axis.at(0)
    for cls, end in (("FAIL", axis.at(-group.lost)), ("blue", axis.at(group.gained))):
        left, width = min(zero, end), abs(end - zero)
        yield f'<g class="{cls}"><rect class="dot" x="{left:.1f}" y="{y - 7}" width="{width:.1f}" height="14"/></g>'
    yield f"{to.words(words, y)}</g>"


def _figure(title: str, summary: str, caption: str, draw: Drawing) -> str:
    """`caption` is HTML already; who does not see the figure hears its title and `summary`."""
    parts, height = draw(LAYOUT)
    said, drawn = html(f"{title}. {summary}"), "\n".join(parts)
    svg = f'<svg viewBox="0 0 {LAYOUT.width} {height}" role="img" aria-label="{said}">\n{drawn}\n</svg>'
    return f'<figure>\n<figcaption>{caption}</figcaption>\n<div class="wide">{svg}</div>\n</figure>'


def _line(cls: str, x: float, above: float, below: float) -> str:
    return f'<line class="{cls}" x1="{x:.1f}" x2="{x:.1f}" y1="{above:.1f}" y2="{below:.1f}"/>'


def _interval(axis: Axis, lower: float, value: float, upper: float, y: float) -> Iterator[str]:
    """A bar from bound to bound and a dot at the figure; an arrow at the end that it runs over. No bar of no bounds."""
    bounded = math.isfinite(lower) or math.isfinite(upper)
    if bounded and not (math.isnan(lower) or math.isnan(upper)):
        left, right = axis.at(lower), axis.at(upper)
        yield f'<line class="bar" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>'
        for way in sorted({axis.beyond(lower), axis.beyond(upper)} - {0}):
            tip = axis.right if way > 0 else axis.left
            yield f'<path class="arrow" d="M{tip + 9 * way:.1f} {y}L{tip:.1f} {y - 6}L{tip:.1f} {y + 6}Z"/>'
    if not math.isnan(value) and not axis.beyond(value):
        yield f'<circle class="dot" cx="{axis.at(value):.1f}" cy="{y}" r="5"/>'


def _bounds(interval: Interval) -> str:
    return f"[{number(interval.lower)}, {number(interval.upper)}]"


def _cut(text: str, limit: int) -> str:
    """At the end of a word, where there is one in the second half."""
    if len(text) <= limit:
        return text
    kept = text[: limit - 1]
    at_word = kept.rpartition(" ")[0]
    return f"{at_word if len(at_word) > limit // 2 else kept}…"
