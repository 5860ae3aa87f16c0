"""Every metric that is measured: its unit, its direction, how it is estimated, and what it is in plain words.

A metric is described here and nowhere else. Probes build their measurements and declarations from it; policies,
reports, model cards, drift and pages read it. To add one: an entry in `METRICS`, and the code that computes it. Slices
(families, tasks, lanes, kinds of tokens) are data, not metrics.

`python -m q36eval.metrics` prints it as a table; `make pages` writes that to a file.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from q36eval.records import Clusters, Counts, Direction, Estimator, Interval, Measurement, ProbeName

LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER
WEIGHTS, KL, EVALS, CANARIES = ProbeName.WEIGHTS, ProbeName.KL, ProbeName.EVALS, ProbeName.CANARIES
SERVED = ProbeName.SERVED

ALL = "all"
"""The slice that holds everything."""

SHARE, POSITIVE = (0.0, 1.0), (0.0, math.inf)
PAIRED: tuple[Estimator, ...] = ("paired_mean", "paired_proportions")
NOISE_FLOOR = "_noise_floor"

FloorUnit = Literal["nats/token", "fraction"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    `label` continues a sentence ("KL divergence from the reference"), `meaning` is one of its own, `short` is for a
    narrow table. `bounds` are the least and the greatest value that one unit can have, None where it is unbounded or a
    count. `floor_unit` is the unit of its noise floor, None where no floor of it is measured. `assumed_mean` is what a
    reference is taken to score while nothing of it is captured.
    """

    probe: ProbeName
    name: str
    label: str
    meaning: str
    unit: str = "fraction"
    direction: Direction = LOWER
    estimator: Estimator = "mean"
    bounds: tuple[float, float] | None = None
    short: str = ""
    floor_unit: FloorUnit | None = None
    assumed_mean: float | None = None

    @property
    def title(self) -> str:
        """The label as a heading."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return self.direction is HIGHER

    @property
    def better(self) -> str:
        """Which way is better, in a word."""
        return "higher" if self.higher_is_better else "lower"

    @property
    def bounded(self) -> bool:
        """Whether a unit's value lies between finite bounds; of a census everything is counted."""
        if self.estimator in ("census", "derived"):
            return True
        return self.bounds is not None and all(map(math.isfinite, self.bounds))

    @property
    def is_share(self) -> bool:
        """Whether people read it in percent."""
        return self.unit == "fraction" and self.estimator != "census"

    @property
    def is_distance(self) -> bool:
        """Whether it says how far a branch is from the reference, which depends on the quantization scheme.

        What users notice (answers, scores, margins of answers) does not: there the same loss is the same harm.
        """
        return self.moved_by_noise or self.estimator == "perplexity"

    @property
    def moved_by_noise(self) -> bool:
        """Whether the reference differs from itself in it, so that a noise floor belongs to it, measured or not."""
        return (self.probe is KL and self.estimator != "census") or self.floor_unit is not None

    def titled(self, slice: str = ALL) -> str:
        """A heading for one slice: `KL divergence from the reference (czech)`."""
        return self.title if slice == ALL else f"{self.title} ({slice})"

    def declared(self, slice: str = ALL, *, items: int | None = None, clusters: int | None = None) -> "DeclaredFigure":
        """What will be measured of a slice, before anything is evaluated."""
        return DeclaredFigure(self, slice, items, clusters)

    def measured(self, slice: str = ALL, **fields: Any) -> Measurement:
        """What was measured of a slice; `fields` are those of `Measurement` that say how much, and on what."""
        described = {
            "probe": self.probe,
            "metric": self.name,
            "slice": slice,
            "unit": self.unit,
            "direction": self.direction,
            "estimator": self.estimator,
        }
        return Measurement.model_validate(described | fields)

    def summarized(self, clusters: Clusters, slice: str = ALL, **fields: Any) -> Measurement:
        """What the metric's estimator makes of a slice's evidence (`q36eval.stats.summarize`); `fields` as above."""
        from q36eval.stats import summarize  # scipy, which commands that only read metrics do without

        value, reference_value, effect, interval = summarize(clusters, self.estimator)
        return self.measured(
            slice,
            value=value,
            reference_value=reference_value,
            effect=effect,
            effect_interval=interval,
            counts=clusters.counts(),
            clusters=clusters,
            **fields,
        )

    def counted(
        self, count: float, counts: Counts, slice: str = ALL, *, level: float = 0.95, **fields: Any
    ) -> Measurement:
        """A census: everything was counted, so the interval is the count itself."""
        exact = Interval(lower=count, upper=count, level=level, method="census")
        return self.measured(
            slice, value=float(count), effect=float(count), effect_interval=exact, counts=counts, **fields
        )


@dataclass(frozen=True)
class DeclaredFigure:
    """One measurement that a probe yields once all of its items are evaluated.

    `items` are the units that it rests on and `clusters` the independent ones among them, each None where only the data
    tell; `effective_clusters` are those of equal size that the clusters weigh as at most, None where it is not known
    what each of them weighs.
    """

    metric: Metric
    slice: str = ALL
    items: int | None = None
    clusters: int | None = None
    effective_clusters: int | None = None

    @property
    def key(self) -> str:
        """As `Measurement.key` writes it."""
        return f"{self.metric.probe}.{self.metric.name}[{self.slice}]"


def _registry(metrics: Iterable[Metric]) -> dict[tuple[ProbeName, str], Metric]:
    by_key: dict[tuple[ProbeName, str], Metric] = {}
    for metric in metrics:
        if by_key.setdefault((metric.probe, metric.name), metric) is not metric:
            raise ValueError(f"the metric {metric.probe}.{metric.name} is described twice")
    return by_key


def _weights() -> Iterator[Metric]:
    for name, label, meaning in (
        (
            "integrity_faults",
            "stored tensors that are damaged, missing or surplus",
            "Tensors that are not used exactly once, and parameters that are not filled exactly once.",
        ),
        (
            "coverage_faults",
            "parts quantized otherwise than declared",
            "Modules whose stored form is not the one that the configuration declares.",
        ),
        (
            "error_outliers",
            "weights whose error stands out in their class",
            "Weights whose error against the reference is far from that of their like, such as an expert with a wrong "
            "scale.",
        ),
        (
            "errors_beyond_scheme",
            "weights further from the reference's than their scheme can take them",
            "Weights whose error against the reference is more than rounding to their stored grid can cost.",
        ),
        (
            "unquantized_differences",
            "unquantized tensors that differ from the reference's",
            "Tensors that are stored unquantized and are not equal to the reference's, bit for bit.",
        ),
        (
            "configuration_differences",
            "differences in configuration, tokenizer or chat template",
            "What of configuration, tokenizer, chat template and generation config is not as the reference's.",
        ),
        (
            "served_differences",
            "places where serving engines are known to read the files otherwise",
            "Places where serving engines are known to make another model of the files than the one that was measured.",
        ),
    ):
        yield Metric(WEIGHTS, name, label, meaning, "faults", estimator="census")
    yield Metric(
        WEIGHTS,
        "quantized_tensors",
        "quantized tensors",
        "How many tensors are stored quantized, in all and by scheme.",
        "tensors",
        estimator="census",
    )


def _kl() -> Iterator[Metric]:
    nats = Metric(KL, "", "", "", "nats/token")
    yield replace(
        nats,
        name="kl_divergence",
        label="KL divergence from the reference",
        meaning="Mean over tokens of KL(reference || branch), the divergence of the branch's next-token distribution.",
        short="KL(ref‖branch), mean",
        floor_unit="nats/token",
    )
    yield replace(
        nats,
        name="reverse_kl_divergence",
        label="KL divergence the other way",
        meaning="Mean over tokens of KL(branch || reference).",
        short="KL(branch‖ref), mean",
        floor_unit="nats/token",
    )
    yield replace(
        nats,
        name="kl_p99",
        label="99 % quantile of KL divergence",
        meaning="The KL divergence that 99 % of all tokens do not exceed.",
        estimator="quantile",
        bounds=POSITIVE,
        short="99 % of tokens below",
        floor_unit="nats/token",
    )
    yield replace(
        nats,
        name="kl_max",
        label="greatest KL divergence of a token",
        meaning="The greatest KL divergence of any token seen; it bounds that of other texts from below only.",
        estimator="maximum",
        bounds=POSITIVE,
        short="greatest",
        floor_unit="nats/token",
    )
    yield replace(
        nats,
        name="kl_document_max",
        label="mean KL divergence of each source's worst document",
        meaning="Of every source its worst document's mean KL divergence, by which catastrophes are counted.",
        estimator="maximum",
        bounds=POSITIVE,
    )
    yield Metric(
        KL,
        "top1_agreement",
        "share of tokens with the reference's likeliest token",
        "How often branch and reference hold the same token likeliest.",
        direction=HIGHER,
        bounds=SHARE,
        short="same likeliest token",
        floor_unit="fraction",
    )
    yield Metric(
        KL,
        "perplexity",
        "perplexity per token",
        "Perplexity of the branch on the same texts; judged as its ratio to the reference's.",
        "perplexity",
        estimator="perplexity",
        short="perplexity",
        floor_unit="nats/token",
    )
    yield Metric(
        KL,
        "draft_acceptance",
        "share of the draft head's guesses that the model accepts",
        "How often speculative decoding accepts what the checkpoint's draft head (MTP) guesses so many tokens ahead.",
        direction=HIGHER,
        estimator="paired_mean",
        bounds=SHARE,
        short="guesses accepted",
    )
    yield Metric(
        KL,
        "non_finite_tokens",
        "tokens without finite figures",
        "Scored tokens at which the branch's figures are NaN or infinite.",
        "tokens",
        estimator="census",
    )
    yield replace(
        nats,
        name="attributed_kl",
        label="KL divergence attributed to a part of the model",
        meaning="What quantizing one class of tensors or one run of layers alone costs, or restoring it gives back.",
    )
    yield replace(
        nats,
        name="kl_noise_floor",
        label="KL divergence of the reference from itself",
        meaning="The KL divergence of the reference from itself under one perturbation of how it is computed.",
    )


def _evals() -> Iterator[Metric]:
    yield Metric(
        EVALS,
        "accuracy",
        "accuracy",
        "Mean score over items: a task weighs by its size.",
        direction=HIGHER,
        estimator="paired_mean",
        bounds=SHARE,
        assumed_mean=0.8,
    )
    yield Metric(
        EVALS,
        "recovery",
        "recovery of accuracy",
        "Accuracy of the branch over that of the reference; 1 = nothing lost.",
        "of the reference",
        HIGHER,
        "derived",
    )
    count = Metric(EVALS, "", "", "", "items", estimator="census")
    yield replace(
        count,
        name="items_lost",
        label="items lost",
        meaning="Items with full marks under the reference and fewer under the branch.",
    )
    yield replace(
        count,
        name="items_gained",
        label="items gained",
        meaning="Items with full marks under the branch and fewer under the reference.",
        direction=HIGHER,
    )
    yield replace(
        count,
        name="items_planned",
        label="items planned",
        meaning="How many items the suite has; fewer were evaluated where an answer was certain earlier.",
        direction=HIGHER,
    )
    yield Metric(
        EVALS,
        "answers_changed",
        "share of answers that changed, right or wrong",
        "Share of items with another choice or another text than the reference's.",
        "share of items",
        bounds=SHARE,
    )
    for name, of in (("perplexity", "token"), ("word_perplexity", "word")):
        yield Metric(
            EVALS,
            name,
            f"perplexity per {of}",
            f"Perplexity of whole documents per {of}; judged as its ratio to the reference's.",
            "perplexity" if of == "token" else f"perplexity per {of}",
            estimator="perplexity",
        )
    yield Metric(
        EVALS,
        "effective_length",
        "effective length",
        "The longest length in tokens up to which the branch keeps enough of the reference's accuracy.",
        "tokens",
        HIGHER,
        "derived",
    )


def _canaries() -> Iterator[Metric]:
    rate = Metric(CANARIES, "", "", "", estimator="paired_proportions", bounds=SHARE)
    yield replace(
        rate,
        name="failure_rate",
        label="share of wrong answers",
        meaning="Share of the drawn prompts that are answered wrong.",
        assumed_mean=0.05,
    )
    yield replace(
        rate,
        name="cut_off_rate",
        label="share of answers without an end",
        meaning="Share of the drawn prompts whose answer does not end within its budget.",
    )
    yield replace(
        rate,
        name="right_numbers_wrong_conclusion",
        label="share of answers with right amounts and a wrong comparison",
        meaning="Share of discount prompts whose amounts are right and whose comparison of them is wrong.",
        assumed_mean=0.02,
    )
    yield replace(
        rate,
        name="schema_accuracy",
        label="share of tool calls that meet their schema",
        meaning="Share of tool calls whose arguments meet the tool's schema.",
        direction=HIGHER,
        assumed_mean=0.95,
    )
    yield replace(
        rate,
        name="fixed_prompt_failure_rate",
        label="share of wrong answers to other fixed prompts",
        meaning="Share of fixed prompts off the absolute list that are answered wrong.",
    )
    yield Metric(
        CANARIES,
        "decisive_margin_ratio",
        "preference for the right choice, share kept",
        "Mean over answers of the least lead of the right token over the best wrong one, over the reference's; it "
        "shrinks before answers flip.",
        "ratio",
        HIGHER,
        "ratio",
    )
    prompts = Metric(CANARIES, "", "", "", "prompts", estimator="census")
    yield replace(
        prompts,
        name="must_pass_flips",
        label="must-pass prompts that flipped",
        meaning="Prompts of the absolute list that the branch answers wrong in every batch, and the reference in none.",
    )
    yield replace(
        prompts,
        name="must_pass_unstable",
        label="prompts that flipped in some batches only",
        meaning="Fixed prompts that the branch answers wrong in some batches and right in others.",
    )
    thinking = Metric(CANARIES, "", "", "", estimator="paired_mean", bounds=SHARE)
    for name, label, meaning in (
        (
            "failure_rate",
            "share of wrong answers with reasoning, sampled",
            "Share of sampled answers with reasoning that are wrong.",
        ),
        (
            "unended_rate",
            "share of answers whose reasoning never ends",
            "Share of sampled answers whose reasoning does not end within its budget.",
        ),
        (
            "loop_rate",
            "share of answers whose reasoning goes in circles",
            "Share of sampled answers whose reasoning repeats itself.",
        ),
        (
            "budget_used",
            "share of the budget that an answer with reasoning takes",
            "Mean over sampled answers of the tokens taken over the tokens allowed.",
        ),
    ):
        yield replace(thinking, name=f"thinking_{name}", label=label, meaning=meaning)


def _engine() -> Iterator[Metric]:
    for probe in (EVALS, CANARIES):
        yield Metric(
            probe,
            "engine_drift",
            "answers that the engine did not repeat",
            "Items evaluated again at the end of a run that came out otherwise than at its beginning.",
            "items",
            estimator="census",
        )


def _served() -> Iterator[Metric]:
    yield Metric(
        SERVED,
        "answer_differences",
        "share of prompts that a served model answers otherwise when one thing is changed",
        "Share of prompts answered otherwise, beyond near ties, when one thing is changed; judged over the share "
        "answered otherwise when nothing is.",
        "share of prompts",
        estimator="paired_proportions",
        bounds=SHARE,
    )
    faults = Metric(SERVED, "", "", "", "answers", estimator="census")
    yield replace(
        faults,
        name="prompt_differences",
        label="chat prompts that the server writes otherwise",
        meaning="Chat prompts whose tokens are not those that the branch's own template and tokenizer write.",
        unit="prompts",
    )
    yield replace(
        faults,
        name="parser_faults",
        label="chat answers that a parser changes",
        meaning="Chat answers that do not say what the model wrote for them, by what is changed.",
    )
    yield replace(
        faults,
        name="stream_faults",
        label="streamed answers that arrive otherwise",
        meaning="Streamed answers whose pieces do not add up to the whole answer of the same tokens.",
    )
    yield replace(
        faults,
        name="greedy_faults",
        label="greedy answers that take a less likely token",
        meaning="Greedy answers with a token that the server's own log-probabilities put behind another.",
    )
    yield Metric(
        SERVED,
        "call_failure_rate",
        "share of wrong tool calls as served",
        "Share of requests for tools whose calls are wrong as the chat endpoint gives them; judged over the share that "
        "is wrong in raw completions.",
        estimator="paired_proportions",
        bounds=SHARE,
    )
    yield Metric(
        SERVED,
        "serving_kl",
        "KL divergence of what is served from the same weights decoded here",
        "Mean over tokens of KL(branch decoded in this process || branch as served): what the serving engine adds, "
        "whatever the checkpoint lost.",
        "nats/token",
        floor_unit="nats/token",
    )
    # no finite bounds: a bet between 0 and 1 allows for prompts of which all is rejected, and 64 would show little
    yield Metric(
        SERVED,
        "rejected_drafts",
        "share of draft tokens that the server rejects",
        "Of the tokens that the server drafts for greedy answers (MTP, speculative decoding), the share that it "
        "rejects.",
        bounds=POSITIVE,
    )


def _watch() -> Iterator[Metric]:
    yield Metric(
        SERVED,
        "watch_incidents",
        "confirmed incidents of a watched deployment",
        "Incidents that are confirmed and not closed, by what was lost; its counts are those of one round.",
        "incidents",
        estimator="census",
    )
    yield Metric(
        SERVED,
        "watch_lost",
        "items of a round that a watched deployment lost",
        "Items of one round that the deployment answers worse than in its own first rounds.",
        "items",
        estimator="census",
    )
    yield Metric(
        SERVED,
        "watch_evidence",
        "evidence that a watched deployment has changed",
        "Logarithm of the evidence of a change, over all rounds, as a share of the alarm's threshold: 1 is the alarm.",
        "of the threshold",
        estimator="derived",
    )
    yield Metric(
        SERVED,
        "watch_divergence",
        "KL divergence of a watched deployment from its own first rounds",
        "Mean over a round's documents of the KL divergence from the same endpoint's first rounds, by its likeliest "
        "tokens: a lower bound.",
        "nats/token",
        estimator="derived",
    )


METRICS = _registry((*_weights(), *_kl(), *_evals(), *_canaries(), *_engine(), *_served(), *_watch()))
"""Every metric by its probe and name."""


def metric_of(probe: ProbeName, name: str) -> Metric:
    """A metric's description; of one that is not registered (from another version) what its name tells."""
    metric = METRICS.get((probe, name))
    if metric is not None:
        return metric
    floored = METRICS.get((probe, name.removesuffix(NOISE_FLOOR)))
    if floored is not None:
        return replace(
            floored,
            name=name,
            label=f"noise floor of {floored.label}",
            meaning=f"What the reference differs from itself by in this: {floored.meaning}",
            unit=floored.floor_unit or floored.unit,
            direction=LOWER,
            estimator="mean",
            short="",
        )
    return Metric(probe, name, name.replace("_", " "), "", unit="")


def metric_of_key(key: str) -> tuple[Metric, str]:
    """The metric and the slice of a measurement's key, `probe.metric[slice]`.

    Raises:
        ValueError: it is no such key.
    """
    probe, _, rest = key.partition(".")
    name, _, slice = rest.partition("[")
    return metric_of(ProbeName(probe), name), slice.removesuffix("]")


def criterion_title(given: str, probe: ProbeName, metric: str, slice: str) -> str:
    """What people call a criterion: the title that its policy gives, else its metric's label with the slice."""
    return given or metric_of(probe, metric).titled(slice)


def markdown_table() -> str:
    """The registry as a page in Markdown."""
    lines = [
        "# Metrics",
        "",
        "Every metric that a probe measures, as a policy names it. `python -m q36eval.metrics` writes this page from",
        "the code. `q36eval history show RUN` lists what a run measured, slice by slice.",
    ]
    for probe in ProbeName:
        lines += ["", f"## {probe}", "", "| metric | what it is | unit | better | estimator |", "|---|---|---|---|---|"]
        lines += [
            f"| `{m.name}` | **{m.title}**. {m.meaning.replace('|', chr(92) + '|')} | {m.unit} | {m.better} | "
            f"{m.estimator.replace('_', ' ')} |"
            for (of, _), m in METRICS.items()
            if of is probe
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
