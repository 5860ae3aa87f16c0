"""Readable forms of a KL run: its headline, its breakdowns and its attribution, from the measurements. Pure."""

import math
import re
from collections.abc import Sequence

from q36eval.history import SeriesRun
from q36eval.metrics import ALL, METRICS
from q36eval.records import Interval, Measurement, ProbeName
from q36eval.reports.plots import BLUE, COLOURS, Row
from q36eval.reports.text import number
from q36eval.token_files import WorstToken

GROUPINGS = {
    "slice": "slice",
    "kind": "kind of token",
    "position": "tokens to the left",
}
DIRECTIONS = {"alone": BLUE, "restored": COLOURS["INCONCLUSIVE"]}
"""How an attribution tried a part: quantized alone, or restored in the branch; with the colour of each."""

FEW_TOKENS = 500
"""A mean over fewer tokens has an interval that may be wider than all others together: it is not drawn."""

_GROUPED = re.compile(r"^(kind|position)=(.*)$", re.DOTALL)

HEADLINE = (
    "kl_divergence",
    "  kl_p99",
    "  kl_max",
    "reverse_kl_divergence",
    "top1_agreement",
    "perplexity",
)
"""The metrics over all tokens, in order; an indented one says more of that before it."""


class KLFigures:
    """The KL measurements of one run, by metric and slice."""

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._found = {(m.metric, m.slice): m for m in measurements if m.probe is ProbeName.KL}

    @property
    def measured(self) -> bool:
        """Whether any token was scored."""
        return ("kl_divergence", ALL) in self._found

    def get(self, metric: str, slice_name: str = ALL) -> Measurement | None:
        """One measurement, if it was made."""
        return self._found.get((metric, slice_name))

    def headline(self) -> list[dict[str, str]]:
        """The figures over all tokens as text; an interval holds at 95 %, each bound at 97.5 %, unless it says what is
        missing."""
        rows = []
        for line in HEADLINE:
            name = line.strip()
            m = self.get(name)
            if m is not None:
                rows.append(_row(line.removesuffix(name) + METRICS[ProbeName.KL, name].short, m))
        return rows

    def non_finite(self) -> str:
        """How many tokens had no finite figure, and how many the engine could not score, as a sentence."""
        census = self.get("non_finite_tokens")
        if census is None:
            return "Not finite: not measured."
        errored = f"; {census.counts.errored:,} could not be scored" if census.counts.errored else ""
        by_position = self._of("non_finite_tokens", self.groups("position"))
        first = next((f", {m.note}" for m in by_position if m.value), "")
        return f"Without a finite figure: {census.value:,.0f} of {census.counts.scored:,} tokens{first}{errored}."

    def groups(self, grouping: str) -> list[str]:
        """The slices of one grouping (a key of GROUPINGS), in the order they were measured; of one without any finite
        figure too."""
        told = ("kl_divergence", "non_finite_tokens")
        names = dict.fromkeys(name for metric, name in self._found if metric in told and name != ALL)
        return [name for name in names if grouping_of(name)[0] == grouping]

    def rows(self, grouping: str) -> list[dict[str, str]]:
        """The figures of each group as text; a dash where there is none."""
        return [self.row(name) for name in self.groups(grouping)]

    def row(self, name: str) -> dict[str, str]:
        """The figures of one group."""
        grouping, within = grouping_of(name)
        return {f"by {GROUPINGS[grouping]}": within, **self._group_row(name)}

    def worst_first(self, grouping: str) -> list[str]:
        """The groups, the most divergent first; of positions the leftmost."""
        figures = {name: self.get("kl_divergence", name) for name in self.groups(grouping)}
        if grouping == "position":
            return list(figures)
        return sorted(figures, key=lambda name: -math.inf if (m := figures[name]) is None else -m.value)

    def few(self, names: Sequence[str]) -> list[str]:
        """Those of these groups that have fewer than `FEW_TOKENS` tokens."""
        scored = {name: m.counts.scored for name in names if (m := self.get("kl_divergence", name)) is not None}
        return [name for name, tokens in scored.items() if tokens < FEW_TOKENS]

    def attributed(self) -> list[Row]:
        """Of an attribution the KL by class of tensors, the most first, then by run of layers, in their order: what
        each costs alone, and what restoring it gives back."""
        rows = []
        for (metric, name), m in self._found.items():
            direction, _, suspect = name.partition("/")
            if metric == "attributed_kl" and direction in DIRECTIONS and suspect:
                layer = re.match(r"^layers? (\d+)(?:-\d+)?$", suspect)
                words = f"{number(m.effect)} {interval_words(m.effect_interval)}"
                bounds = m.effect_interval
                row = Row(f"{suspect}, {direction}", words, m.effect, bounds.lower, bounds.upper, DIRECTIONS[direction])
                order = (direction, 0, -m.effect) if layer is None else (direction, 1, int(layer[1]))
                rows.append((order, row))
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])]

    def _of(self, metric: str, names: Sequence[str]) -> list[Measurement]:
        return [self._found[metric, name] for name in names if (metric, name) in self._found]

    def _group_row(self, name: str) -> dict[str, str]:
        kl, p99, top1 = (self.get(metric, name) for metric in ("kl_divergence", "kl_p99", "top1_agreement"))
        perplexity = self.get("perplexity", name)
        census = self.get("non_finite_tokens", name)
        broken = f" + {census.value:,.0f} not finite" if census is not None and census.value else ""
        return {
            "tokens": f"{0 if kl is None else kl.counts.scored:,}{broken}",
            "mean KL": number(None if kl is None else kl.value),
            "95 % interval": "–" if kl is None else interval_words(kl.effect_interval),
            "99 %": number(None if p99 is None else p99.value),
            "same top": "–" if top1 is None else f"{top1.value:.2%}",
            "ppl ratio": "–" if perplexity is None else f"{perplexity.effect:.4f}",
        }


def grouping_of(slice_name: str) -> tuple[str, str]:
    """Which grouping a slice name belongs to, and its name within it."""
    match = _GROUPED.match(slice_name)
    return ("slice", slice_name) if match is None else (match.group(1), match.group(2))


def interval_words(interval: Interval) -> str:
    """Both bounds; where neither is identified, why."""
    lower, upper = interval.lower, interval.upper
    if not math.isfinite(upper) and interval.method.startswith("none"):
        why = interval.method.split(": ", 1)[-1]
        return f"≥ {number(lower)}; no upper bound: {why}" if math.isfinite(lower) and lower > 0 else why
    return f"[{number(lower)}, {number(upper)}]"


def _row(label: str, m: Measurement) -> dict[str, str]:
    tokens = f"{m.counts.scored:,}" + (f" of {m.counts.total:,}" if m.counts.errored else "")
    bounds = m.effect_interval
    value, interval = f"{number(m.value)}{' nats' if m.unit == 'nats/token' else ''}", interval_words(bounds)
    if m.estimator == "perplexity":
        fixed = interval if bounds.method.startswith("none") else f"[{bounds.lower:.4f}, {bounds.upper:.4f}]"
        value, interval = f"{number(m.value)} (ref {number(m.reference_value)})", f"ratio {m.effect:.4f} {fixed}"
    elif METRICS[ProbeName.KL, m.metric].is_share:
        value, interval = f"{m.value:.2%}", f"[{bounds.lower:.2%}, {bounds.upper:.2%}]"
    return {"figure": label, "value": value, "95 % interval": interval, "tokens": tokens}


def attribution_of(runs: Sequence[SeriesRun]) -> SeriesRun | None:
    """The newest attribution among a branch's finished runs (`History.series_runs`: oldest first)."""
    return next((run for run in reversed(runs) if "attribute" in run.suites), None)


def select_worst(worst: Sequence[WorstToken], of: str = ALL, kind: str = ALL) -> list[WorstToken]:
    """The tokens of one slice and of one kind, or of `ALL`."""
    return [token for token in worst if of in (ALL, token.slice) and kind in (ALL, token.kind)]


def by_context(worst: Sequence[WorstToken]) -> list[list[WorstToken]]:
    """The tokens in their order, together where the same token follows the same text."""
    grouped: dict[tuple[str, str], list[WorstToken]] = {}
    for token in worst:
        grouped.setdefault((token.before, token.text), []).append(token)
    return list(grouped.values())


def likely_words(token: WorstToken) -> str:
    """What each model expected most, and how likely both held the token that stands there."""
    expected = "What they expected instead is not in this run's record"
    if token.reference_top is not None and token.branch_top is not None:
        reference = f"⟦{token.reference_top}⟧ ({_share(token.reference_top_logprob)})"
        branch = f"⟦{token.branch_top}⟧ ({_share(token.branch_top_logprob)})"
        expected = f"The reference expected {reference}, the branch {branch}"
    held = f"{_share(token.reference_logprob)} under the reference and {_share(token.branch_logprob)} under the branch"
    return f"{expected}. The token in the text has a probability of {held}."


def _share(log_prob: float | None) -> str:
    return "–" if log_prob is None else f"{100 * math.exp(min(log_prob, 0.0)):.3g} %"


def worst_rows(worst: Sequence[WorstToken]) -> list[dict[str, str]]:
    """Tokens with their context and all their figures."""
    return [{name: str(value) for name, value in token.model_dump().items()} for token in worst]
