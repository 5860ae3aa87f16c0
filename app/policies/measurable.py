"""What the probes measure: metric by metric what it is, what may be asked of it, and over which slices."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.suites import shipped_suites, suite_place
from app.weights import METRICS as WEIGHTS_METRICS
from canaries.answers import TOOL_CHECKS
from canaries.specification import CanarySpec, load_specs
from canaries.suites import draws_per_family
from canaries.summary import declared_figures
from evals.suite import TaskGroup, read_suite
from evals.summaries import SUITE
from kl.breakdown import MAXIMUM, QUANTILES, SLICE_QUANTILES
from kl.corpus_plan import plan_of
from kl.measurements import DOCUMENT_TAIL, GROUP_METRICS, METRICS
from kl.spans import KINDS
from q36eval.config import Family, Paths
from q36eval.gate import NON_FINITE, Criterion
from q36eval.records import Direction, Estimator, Lane, ProbeName
from q36eval.stats import ESTIMATORS_OF_KIND

LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER
ALL = "all"


@dataclass(frozen=True)
class Figure:
    """One metric: what it is in words, how it is estimated, its unit, and whether it lies between bounds."""

    words: str
    estimator: Estimator
    direction: Direction
    unit: str
    bounded: bool = True


def _kl_figures() -> dict[str, Figure]:
    words = {
        "kl_divergence": "divergence from the reference, KL(reference || branch)",
        "reverse_kl_divergence": "divergence the other way, KL(branch || reference)",
        "top1_agreement": "share of tokens with the reference's likeliest token",
        "perplexity": "perplexity of the KL corpus",
        "delta_p_rms": "root mean square change of the label's probability",
        "label_probability": "mean probability of the label",
    }
    found = {m.name: Figure(words[m.name], m.estimator, m.direction, m.unit, m.bounds is not None) for m in METRICS}
    found["kl_macro_average"] = Figure(
        "divergence, its slices equally weighted", "stratified_mean", LOWER, "nats/token", False
    )
    found[NON_FINITE] = Figure("tokens without finite figures", "census", LOWER, "tokens")
    for name, share in QUANTILES.items():
        words_of = f"divergence that {share:.4g} of all tokens do not exceed"
        found[name] = Figure(words_of, "quantile", LOWER, "nats/token", False)
    found[DOCUMENT_TAIL.name] = Figure(
        "mean divergence of each source's worst document", "maximum", LOWER, "nats/token"
    )
    found[MAXIMUM] = Figure("greatest divergence of a token", "maximum", LOWER, "nats/token", False)
    return found


FIGURES: Mapping[ProbeName, Mapping[str, Figure]] = {
    ProbeName.WEIGHTS: {
        metric: Figure(metric.replace("_", " "), "census", LOWER, "faults") for metric, _ in WEIGHTS_METRICS.values()
    },
    ProbeName.KL: _kl_figures(),
    ProbeName.EVALS: {
        "accuracy": Figure("accuracy, the mean over items", "paired_mean", HIGHER, "fraction"),
        "macro_accuracy": Figure("accuracy, the mean of the tasks' means", "paired_mean", HIGHER, "fraction"),
        "recovery": Figure("accuracy over the reference's", "derived", HIGHER, "of the reference"),
        "macro_recovery": Figure(
            "mean of the tasks' accuracies over the reference's", "derived", HIGHER, "of the reference"
        ),
        "items_lost": Figure("items lost", "census", LOWER, "items"),
        "items_gained": Figure("items gained", "census", HIGHER, "items"),
        "items_planned": Figure("items of the suite", "census", HIGHER, "items"),
        "answers_changed": Figure("share of answers that changed, right or wrong", "mean", LOWER, "share of items"),
        "choice_margin": Figure(
            "lead of the right choice over the best wrong one", "paired_mean", HIGHER, "nats", False
        ),
        "effective_length": Figure("longest length at which recovery holds", "derived", HIGHER, "tokens"),
        "perplexity": Figure("perplexity per token", "perplexity", LOWER, "perplexity", False),
        "word_perplexity": Figure("perplexity per word", "perplexity", LOWER, "perplexity per word", False),
        "byte_perplexity": Figure("perplexity per byte", "perplexity", LOWER, "perplexity per byte", False),
    },
    ProbeName.CANARIES: {
        "must_pass_flips": Figure("must-pass prompts flipped in every batch", "census", LOWER, "prompts"),
        "must_pass_unstable": Figure("fixed prompts flipped in some batches only", "census", LOWER, "prompts"),
        "fixed_prompt_failure_rate": Figure(
            "share of other fixed prompts answered wrong", "paired_proportions", LOWER, "fraction"
        ),
        "failure_rate": Figure("share of draws answered wrong", "paired_proportions", LOWER, "fraction"),
        "at_risk": Figure("share of answers with a margin below 0.5 nats", "paired_proportions", LOWER, "fraction"),
        "right_numbers_wrong_conclusion": Figure(
            "share of draws with right amounts and a wrong comparison", "paired_proportions", LOWER, "fraction"
        ),
        "schema_accuracy": Figure(
            "share of tool calls that meet their schema", "paired_proportions", HIGHER, "fraction"
        ),
        "call_trigger_agreement": Figure(
            "share of turns that call a tool as the reference does", "mean", HIGHER, "fraction"
        ),
        "decisive_margin": Figure("mean least margin of an answer", "paired_mean", HIGHER, "nats", False),
        "decisive_margin_ratio": Figure(
            "mean least margin of an answer, over the reference's", "ratio", HIGHER, "ratio", False
        ),
    },
}
"""Every metric of every probe, but those of the noise floor, which say nothing of a branch."""

FIXED_PROMPTS = ("must_pass_flips", "must_pass_unstable", "fixed_prompt_failure_rate")
TOOLS = ("schema_accuracy", "call_trigger_agreement")
PERPLEXITIES = ("perplexity", "word_perplexity", "byte_perplexity")


def figure_of(criterion: Criterion) -> Figure | None:
    """The metric it judges; None where its probe has no such metric."""
    return FIGURES[criterion.probe].get(criterion.metric)


def unjudgeable(criterion: Criterion) -> str | None:
    """Why no evidence whatever could make the criterion PASS; None where some could."""
    figure, margin = figure_of(criterion), criterion.margin
    if figure is None:
        known = ", ".join(name for name, found in FIGURES[criterion.probe].items() if found.estimator != "derived")
        return f"the {criterion.probe} probe gives no metric {criterion.metric!r}; it gives {known}"
    if figure.estimator == "derived":
        return f"{criterion.metric} is computed from another measurement and no evidence of its own; judge that one"
    if figure.estimator not in ESTIMATORS_OF_KIND[margin.kind]:
        fitting = ", ".join(kind for kind, found in ESTIMATORS_OF_KIND.items() if figure.estimator in found)
        return f"a {margin.kind} margin does not judge {criterion.metric}; {fitting or 'no margin'} does"
    if margin.kind == "max_value" and figure.direction is HIGHER:
        return f"of {criterion.metric} higher is better, and a max_value margin asks for less of it"
    if margin.kind == "max_count" and figure.direction is HIGHER:
        return f"of {criterion.metric} more is no fault, and a max_count margin counts faults"
    if margin.kind == "min_recovery" and figure.direction is LOWER:
        return f"of {criterion.metric} lower is better, so nothing is recovered"
    if margin.kind == "min_recovery" and figure.estimator == "paired_mean" and not figure.bounded:
        return f"{criterion.metric} has no bounds, so its recovery has no test; use max_increase"
    if figure.estimator == "maximum" and margin.kind != "max_share":
        return f"the greatest of what was seen bounds nothing from above: {criterion.metric} can FAIL and never PASS"
    return None


@dataclass(frozen=True)
class Asked:
    """What a family's suite asks: canaries, groups of tasks, and slices of texts (None where a person names them).

    `sources` are the independent clusters of those texts at most, None where nobody planned them.
    """

    family: str
    suite: str
    canaries: tuple[CanarySpec, ...]
    groups: tuple[TaskGroup, ...]
    texts: frozenset[str] | None
    sources: int | None = None

    def scored_of(self, criterion: Criterion) -> int | None:
        """How many canary prompts or draws a criterion's measurement can score; None where that is not known."""
        if criterion.probe is not ProbeName.CANARIES:
            return None
        chosen = [spec for spec in self.canaries if _in_slice(spec, criterion.slice)]
        declared = {figure.key: figure.items for figure in declared_figures(self.canaries)}
        if criterion.metric in FIXED_PROMPTS:
            return declared.get(criterion.key)
        return sum(spec.family.n for spec in chosen if spec.family is not None)

    def clusters_of(self, criterion: Criterion) -> int | None:
        """How many independent texts a criterion over all of them rests on at most; None where that is not known.

        The reference's own answers come on top of a corpus' sources.
        """
        if criterion.probe is ProbeName.KL:
            return self.sources if criterion.slice == ALL else None
        if criterion.probe is not ProbeName.EVALS or criterion.metric not in PERPLEXITIES:
            return None
        found = [group for group in self.groups if group.slice == criterion.slice]
        return found[0].sample if len(found) == 1 else None


def asked_of(family: Family, suite: str | None, paths: Paths, own: Path | None = None) -> Asked:
    """What is asked of that family by that suite, or its own, with a person's own canaries.

    Raises:
        UsageError: there is no such suite, or its file is malformed.
    """
    name = suite or family.suite
    place = suite_place(name, paths)
    texts = None
    plan = plan_of(name.partition("=")[0]) if place.corpus is not None else None
    if place.corpus is not None and place.corpus.is_dir():
        texts = frozenset(file.stem for file in place.corpus.glob("*.jsonl"))
    elif plan is not None:
        texts = frozenset(plan.slices)
    sources = None if plan is None else plan.most_clusters
    specs = load_specs(own=own, n=draws_per_family(name), skills=family.skills)
    return Asked(family.name, name, tuple(specs), tuple(read_suite(place.file).groups), texts, sources)


def not_asked(criterion: Criterion, asked: Asked) -> str | None:
    """Why the suite gives no measurement of that metric over that slice; None where it may."""
    by_probe = {
        ProbeName.WEIGHTS: _no_weights,
        ProbeName.KL: _no_texts,
        ProbeName.EVALS: _no_tasks,
        ProbeName.CANARIES: _no_canaries,
    }
    return by_probe[criterion.probe](criterion, asked)


def _no_weights(criterion: Criterion, asked: Asked) -> str | None:
    return None if criterion.slice == ALL else f"the weights probe measures {ALL}, not {criterion.slice!r}"


def _no_texts(criterion: Criterion, asked: Asked) -> str | None:
    name, metric = criterion.slice, criterion.metric
    if metric in (NON_FINITE, "kl_macro_average"):
        return None if name == ALL else f"{metric} is measured over {ALL} only, not over {name!r}"
    if "=" in name:
        grouping, _, value = name.partition("=")
        if grouping not in ("kind", "position", "entropy"):
            return f"tokens are grouped by kind, position and entropy, not by {grouping!r}"
        if grouping == "kind" and value not in KINDS:
            return f"there is no kind of token {value!r}; kinds are {', '.join(KINDS)}"
        given = (*(known.name for known in GROUP_METRICS), "kl_p99")
        return None if metric in given else f"{metric} is not measured by {grouping}; {', '.join(given)} are"
    if metric in QUANTILES and name != ALL and metric not in SLICE_QUANTILES:
        return f"{metric} is measured over {ALL} only; of slices {', '.join(SLICE_QUANTILES)} are"
    if asked.texts is not None and name != ALL and not name.startswith("on_policy/") and name not in asked.texts:
        return (
            f"the texts of the suite {asked.suite} have no slice {name!r}; they have {', '.join(sorted(asked.texts))}"
        )
    return None


def _no_tasks(criterion: Criterion, asked: Asked) -> str | None:
    perplexity, name = criterion.metric in PERPLEXITIES, criterion.slice
    measure = "perplexity" if perplexity else "accuracy"
    groups = [group for group in asked.groups if group.measure == measure]
    if name == SUITE and not perplexity:
        return None if len(groups) > 1 else f"the suite {asked.suite} has one group, and no figure over several"
    if any(_covers(group, name) for group in groups):
        return None
    having = [other for other, file in shipped_suites().items() if _suite_has(file, measure, name)]
    known = ", ".join(group.slice for group in groups) or "none"
    elsewhere = f"; {', '.join(having)} would ask it" if having else ""
    return f"the suite {asked.suite} has no {measure} of {name!r}, but of {known}{elsewhere}"


def _suite_has(file: Path, measure: str, name: str) -> bool:
    """Whether a suite is sure to have it: what only its data could tell does not count."""
    groups = [group for group in read_suite(file).groups if group.measure == measure]
    return any(_covers(group, name) and (group.ruler is not None or name == group.slice) for group in groups)


def _covers(group: TaskGroup, name: str) -> bool:
    """Whether a group has that slice, as far as its file tells; a length must be one of those generated."""
    if name == group.slice:
        return True
    part = name if group.slice == ALL else name.removeprefix(f"{group.slice}/")
    if not group.slice_fields or (part == name and group.slice != ALL):
        return False
    if group.ruler is not None and part.isdigit():
        return int(part) in group.ruler.lengths
    return group.slice != ALL or part in group.subsets


def _no_canaries(criterion: Criterion, asked: Asked) -> str | None:
    name, metric = criterion.slice, criterion.metric
    if metric == "right_numbers_wrong_conclusion" and name != ALL:
        return f"{metric} is measured over {ALL} only, not over {name!r}"
    chosen = [spec for spec in asked.canaries if _in_slice(spec, name)]
    if not chosen:
        ids = ", ".join(spec.id for spec in asked.canaries)
        return f"{asked.family} is asked no canary {name!r}; slices are {ALL}, {', '.join(Lane)}, {ids}"
    if metric in FIXED_PROMPTS:
        slices = [figure.slice for figure in declared_figures(asked.canaries) if figure.metric == metric]
        return None if name in slices else f"{name!r} has no must-pass prompts of which {metric} is taken"
    drawn = [spec for spec in chosen if spec.family is not None]
    if metric in TOOLS:
        drawn = [spec for spec in drawn if TOOL_CHECKS & set(spec.checks) and name not in set(Lane)]
        return None if drawn else f"{metric} is measured over tool canaries and {ALL}, not over {name!r}"
    return None if drawn else f"{name!r} draws nothing, so it has no {metric}"


def _in_slice(spec: CanarySpec, name: str) -> bool:
    return name in (ALL, spec.id) or name in {lane.value for lane in spec.lanes}
