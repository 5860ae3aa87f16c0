"""Plots as inline SVG: no script, and no colour that its style sheet does not turn with the theme."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from q36eval.gate.noise import floor_metric
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport
from q36eval.records import Interval, Measurement, ProbeName
from q36eval.reports.flips import Flips, flips
from q36eval.reports.story import distance_text
from q36eval.reports.text import figure_text, html, interval_text, margin_text, name_text, number, verdict_text


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


WIDTH, LEFT, RIGHT, ROW, TOP = 1060, 250, 720, 26, 30
MARK = {"PASS": "✓", "FAIL": "✗", "INCONCLUSIVE": "?", "NOT_MEASURED": "∅"}
KL = "kl_divergence"


def criteria_plot(report: GateReport) -> str:
    """Every criterion with an interval: how much of its margin is used up, 0 as the reference, 1 the margin itself."""
    shown = [result for result in report.criteria if result.loss_interval is not None and _limit(result) > 0]
    if not shown:
        return ""
    axis = Axis(-1.0, 2.5, LEFT, RIGHT)
    height = TOP + ROW * len(shown) + 8
    parts = [f'<rect class="band" x="{axis.at(-1)}" y="{TOP - 6}" width="{axis.at(1) - LEFT:.1f}" height="{height}"/>']
    ticks = ((-1.0, "-100 %"), (0.0, "as the reference"), (1.0, "margin"), (2.0, "200 %"))
    parts += [part for value, words in ticks for part in _tick(axis.at(value), words, height, limit=value == 1.0)]
    for place, result in enumerate(shown):
        parts += _criterion_row(result, axis, TOP + ROW * place + ROW / 2)
    caption = (
        "How much of its margin each criterion uses up: the dot is the figure, the bar its interval (each bound holds "
        "one-sided at the criterion's confidence). It passes when the whole bar lies left of the margin, and fails "
        "when it lies right of it beyond chance. Arrows: further than drawn, with how many margins the figure is."
    )
    return _figure("Criteria as intervals against their margins", caption, parts, height)


def _limit(result: CriterionResult) -> float:
    return 0.0 if result.limit is None or result.margin.kind == "max_count" else result.limit


def _criterion_row(result: CriterionResult, axis: Axis, y: float) -> Iterator[str]:
    interval, limit = result.loss_interval, _limit(result)
    assert interval is not None, "only criteria with one are drawn"
    words = f"{figure_text(result)} {interval_text(result.margin, result.figure_interval)}"
    hover = "; ".join(filter(None, (f"{result.name}: {words}", distance_text(result))))
    yield f'<g class="{result.verdict}"><title>{html(hover)}</title>'
    yield _label(name_text(result), y)
    value = math.nan if result.loss is None else result.loss / limit
    if axis.beyond(interval.lower / limit) > 0:
        yield f'<text class="tick" x="{RIGHT - 10}" y="{y + 4}" text-anchor="end">{value:.1f} ×</text>'
    yield from _interval(axis, interval.lower / limit, value, interval.upper / limit, y)
    rule = margin_text(result.margin, result.unit)
    yield f'<text class="says" x="{RIGHT + 16}" y="{y + 4}">{MARK[result.verdict]} {html(verdict_text(result))}</text>'
    yield f'<text x="{RIGHT + 130}" y="{y + 4}">{html(_cut(f"{figure_text(result)}, {rule}", 32))}</text></g>'


def kl_plot(report: GateReport, measurements: Sequence[Measurement]) -> str:
    """The divergence of every slice, with its noise floor and the margin where the policy judges it."""
    shown = [m for m in measurements if m.probe is ProbeName.KL and m.metric == KL]
    if not shown:
        return ""
    judged = {r.slice: r for r in report.criteria if r.probe is ProbeName.KL and r.metric == KL}
    floors = {m.slice: m.value for m in measurements if m.probe is ProbeName.KL and m.metric == floor_metric(KL)}
    margins = [r.margin.value for r in judged.values()]
    bounds = [bound for m in shown for bound in (m.value, m.effect_interval.lower, m.effect_interval.upper)]
    axis = Axis.decades([*bounds, *margins, *floors.values()], LEFT, RIGHT)
    height = TOP + ROW * len(shown) + 8
    parts = [part for power in axis.powers() for part in _tick(axis.at(power), f"{power:g}", height)]
    for place, m in enumerate(shown):
        parts += _kl_row(m, judged.get(m.slice), floors.get(m.slice), axis, TOP + ROW * place + ROW / 2)
    caption = (
        f"Mean KL divergence from the reference by slice, in {html(shown[0].unit)}, on a logarithmic axis. Dashed: the "
        "margin, where the policy judges the slice. Short grey line: what the reference loses against itself."
    )
    return _figure("KL divergence by slice", caption, parts, height)


def _kl_row(m: Measurement, judged: CriterionResult | None, floor: float | None, axis: Axis, y: float) -> Iterator[str]:
    verdict = "blue" if judged is None or judged.verdict is CriterionVerdict.NOT_MEASURED else str(judged.verdict)
    words = f"{number(m.value)} {_bounds(m.effect_interval)}"
    yield f'<g class="{verdict}"><title>{html(f"{m.slice}: {words}, {m.counts.scored} tokens")}</title>'
    yield _label(m.slice, y)
    if judged is not None:
        yield _line("limit", axis.at(judged.margin.value), y - 11, y + 11)
    if floor is not None and floor > 0:
        yield _line("floor", axis.at(floor), y - 5, y + 5)
    yield from _interval(axis, m.effect_interval.lower, m.value, m.effect_interval.upper, y)
    yield f'<text x="{RIGHT + 16}" y="{y + 4}">{html(_cut(words, 46))}</text></g>'


def flips_plot(measurements: Sequence[Measurement]) -> str:
    """Items lost and gained, group by group: equal accuracy can hide many of either."""
    shown = flips(measurements)
    if not shown:
        return ""
    most = max(max(group.lost, group.gained) for group in shown) or 1
    axis = Axis(-most, most, LEFT, RIGHT)
    height = TOP + ROW * len(shown) + 8
    ticks = ((-most, f"{most} lost"), (0, "0"), (most, f"{most} gained"))
    parts = [part for value, words in ticks for part in _tick(axis.at(value), words, height)]
    for place, group in enumerate(shown):
        parts += _flips_row(group, axis, TOP + ROW * place + ROW / 2)
    caption = (
        "The same items for both: left those that only the reference answers right, right those that only the "
        "branch does."
    )
    return _figure("Items lost and gained", caption, parts, height)


def _flips_row(group: Flips, axis: Axis, y: float) -> Iterator[str]:
    words = f"-{group.lost}  +{group.gained}  of {group.of}"
    yield f"<g><title>{html(f'{group.name}: {words}')}</title>"
    yield _label(group.name, y)
    zero = axis.at(0)
    for cls, end in (("FAIL", axis.at(-group.lost)), ("blue", axis.at(group.gained))):
        left, width = min(zero, end), abs(end - zero)
        yield f'<g class="{cls}"><rect class="dot" x="{left:.1f}" y="{y - 7}" width="{width:.1f}" height="14"/></g>'
    yield f'<text x="{RIGHT + 16}" y="{y + 4}">{html(words)}</text></g>'


def _figure(title: str, caption: str, parts: Sequence[str], height: float) -> str:
    drawn = "\n".join(parts)
    return (
        f'<figure>\n<figcaption>{caption}</figcaption>\n<div class="wide">'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html(title)}">\n{drawn}\n</svg></div>\n</figure>'
    )


def _tick(x: float, words: str, height: float, *, limit: bool = False) -> tuple[str, str]:
    cls = "limit" if limit else "grid"
    return (
        _line(cls, x, TOP - 6, height - 4),
        f'<text class="tick" x="{x:.1f}" y="{TOP - 14}" text-anchor="middle">{html(words)}</text>',
    )


def _line(cls: str, x: float, above: float, below: float) -> str:
    return f'<line class="{cls}" x1="{x:.1f}" x2="{x:.1f}" y1="{above:.1f}" y2="{below:.1f}"/>'


def _label(name: str, y: float) -> str:
    return f'<text class="head" x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{html(_cut(name, 32))}</text>'


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
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
