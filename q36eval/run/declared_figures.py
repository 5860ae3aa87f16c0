"""The figures that probes declare, from files or the plan, and whether a criterion can ever pass on them."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from q36eval.canaries.specification import draws_per_family, for_family, load_specs
from q36eval.canaries.summary import declared_figures as of_canaries
from q36eval.config import Family, Paths
from q36eval.evals.suite import TaskGroup, read_suite
from q36eval.evals.summaries import declared_figures as of_evals
from q36eval.evals.summaries import only_data_tell
from q36eval.gate import Criterion
from q36eval.gate.judgement import clusters_of_kind
from q36eval.kl.breakdown import Held
from q36eval.kl.breakdown import declared_figures as of_texts
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.corpus_plan import plan_of
from q36eval.kl.measurements import DRAFT_ACCEPTANCE, DRAFT_GUESSES
from q36eval.kl.on_policy import OnPolicyPrompt
from q36eval.kl.spans import KINDS
from q36eval.metrics import METRICS, DeclaredFigure
from q36eval.records import Direction, ProbeName
from q36eval.run.items import Work
from q36eval.run.suites import SuitePlace, named_canaries, suite_place, texts_of
from q36eval.run.weights import declared_figures as of_weights
from q36eval.served.declared_server import declared_figures as of_served
from q36eval.stats import (
    ESTIMATORS_OF_KIND,
    as_expected,
    can_show,
    least_clusters,
    unseen_share,
)

ASSUMED_SCORE = METRICS[ProbeName.EVALS, "accuracy"].assumed_mean or 0.0
"""The assumed share of right answers of the reference before anything is captured."""

LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER
NAMED = 12
"""At most this many slices of a metric are named in a sentence, the most likely first."""

GROUPED_BY_TEXTS = "position="
"""The prefix of groups of tokens that only the texts determine."""


@dataclass(frozen=True)
class Subject:
    """The subject of a policy check. `own` is a folder of custom canaries.

    `corpus` means custom texts are measured, `code` that programs written by the model may run.
    """

    family: Family
    suite: str
    own: Path | None = None
    draws: int | None = None
    corpus: bool = False
    code: bool = True


@dataclass(frozen=True)
class Declared:
    """Every declared figure; `groups` and `texts_open` describe figures that cannot be known yet."""

    family: str
    suite: str
    figures: tuple[DeclaredFigure, ...]
    groups: tuple[TaskGroup, ...] = ()
    texts_open: bool = False
    probes: frozenset[ProbeName] = frozenset(ProbeName)
    """The probes that declared their figures; nothing is known of others."""
    draws: int | None = None
    """The requested draws of every canary family, if different from the suite's."""

    @cached_property
    def by_key(self) -> dict[str, DeclaredFigure]:
        """The figures by their measurement's key."""
        return {figure.key: figure for figure in self.figures}

    def of(self, probe: ProbeName, metric: str | None = None) -> list[DeclaredFigure]:
        """The figures of a probe, of one metric if it is named."""
        return [f for f in self.figures if f.metric.probe is probe and metric in (None, f.metric.name)]

    def open(self, probe: ProbeName, metric: str, name: str) -> str | None:
        """Why only missing data can show whether that figure is measured; None if it is known."""
        if probe is ProbeName.EVALS and only_data_tell(self.groups, metric, name):
            return f"only the data of the suite {self.suite} tell whether it has {metric} of {name!r}"
        grouped = name.startswith(GROUPED_BY_TEXTS) and f"{probe}.{metric}[kind={KINDS[0]}]" in self.by_key
        if probe is ProbeName.KL and grouped:
            return f"only the texts tell whether they have {metric} of {name!r}"
        if probe is ProbeName.KL and metric == DRAFT_ACCEPTANCE and name in DRAFT_GUESSES:
            return "only the two checkpoints tell whether both have a draft head"
        texts = name != "all" and "=" not in name
        if probe is ProbeName.KL and self.texts_open and texts and self.of(probe, metric):
            return f"{self.suite} brings no texts: the corpus that --corpus names must have a slice {name}"
        return None


def declared_for(subject: Subject, paths: Paths) -> Declared:
    """The declared figures, from files alone: before anything is loaded or planned.

    Raises:
        UsageError: the suite does not exist, or its file is malformed.
    """
    place = suite_place(subject.suite, paths)
    texts = None if subject.corpus else _slices_of_texts(subject.suite, place)
    plan = None if subject.corpus else plan_of(texts_of(subject.suite))
    whole = Held(clusters=None if plan is None else plan.most_clusters)
    suite, family = read_suite(place.file), subject.family
    named, context = named_canaries(subject.suite, paths), family.context_length
    draws = subject.draws or draws_per_family(subject.suite, named)
    every = load_specs(own=subject.own, n=draws, skills=family.skills, named=named, context=context)
    specs = for_family(every, family)
    groups = tuple(group for group in suite.groups if subject.code or not group.executes_code)
    figures = (
        *of_weights(),
        *of_canaries(specs),
        *of_texts({name: Held() for name in texts or ()}, {f"kind={kind}": Held() for kind in KINDS}, whole),
        *of_evals(groups),
        *of_served(),
    )
    return Declared(subject.family.name, subject.suite, figures, groups, texts is None, draws=subject.draws)


def _slices_of_texts(suite: str, place: SuitePlace) -> tuple[str, ...] | None:
    """The slices of a suite's texts, even before they are frozen; None if it has no texts."""
    plan = plan_of(texts_of(suite))
    if plan is not None:
        return plan.slices
    if place.corpus is None or not place.corpus.is_dir():
        return None
    return tuple(sorted(file.stem for file in place.corpus.glob("*.jsonl")))


def declared_by(works: Iterable[Work], family: str, suite: str) -> Declared:
    """The declared figures of planned probes; unknown for one that crashed or declares nothing."""
    whole = [work.probe for work in works if work.failed is None]
    declared = {probe.name: figures for probe in whole if (figures := probe.declared()) is not None}
    every = tuple(figure for figures in declared.values() for figure in figures)
    return Declared(family, suite, every, probes=frozenset(declared))


def declared_of_corpus(documents: Sequence[CorpusDocument], prompts: Sequence[OnPolicyPrompt]) -> list[DeclaredFigure]:
    """The divergences over documents and the prompts that the reference will answer, with the maximum of clusters."""
    # a document and a prompt of one name count twice: an upper bound
    sources = [(each.slice, "text", each.cluster or each.id) for each in documents]
    sources += [(each.slice, "prompt", each.cluster or each.id) for each in prompts]

    def held(name: str | None) -> Held:
        chosen = [source for source in sources if name in (None, source[0])]
        return Held(documents=len(chosen), clusters=len({source[1:] for source in chosen}))

    everything = held(None)
    slices = {name: held(name) for name in sorted({source[0] for source in sources})}
    return list(of_texts(slices, {f"kind={kind}": everything for kind in KINDS}, everything))


def never_passes(criterion: Criterion, declared: Declared) -> str | None:
    """Why no measurement could make the criterion PASS; None if one could, or if that is not known yet."""
    figure = declared.by_key.get(criterion.key)
    if figure is None:
        return _unmeasured(criterion, declared)
    return _unjudgeable(criterion, figure) or too_few(criterion, figure, declared)


def _unmeasured(criterion: Criterion, declared: Declared) -> str | None:
    """Why the figure is not measured, and the available alternatives. None if it may be."""
    probe, metric, name = criterion.probe, criterion.metric, criterion.slice
    if probe not in declared.probes or criterion.key in declared.by_key or declared.open(probe, metric, name):
        return None
    if not declared.of(probe, metric):
        judged = dict.fromkeys(f.metric.name for f in declared.of(probe) if f.metric.estimator != "derived")
        return f"the {probe} probe gives no metric {metric!r}; it gives {', '.join(judged) or 'nothing here'}"
    slices = [figure.slice for figure in declared.of(probe, metric)]
    near = list(dict.fromkeys([*difflib.get_close_matches(name, slices, NAMED), *slices]))
    more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
    subject = {
        ProbeName.WEIGHTS: "the weights probe gives",
        ProbeName.KL: f"the texts of {declared.suite} give",
        ProbeName.EVALS: f"the suite {declared.suite} has",
        ProbeName.CANARIES: f"the canaries of {declared.suite} for {declared.family} give",
        ProbeName.SERVED: "the served probe gives",
    }[probe]
    return f"{subject} no {metric} of {name!r}, but of {', '.join(near[:NAMED])}{more}"


def _unjudgeable(criterion: Criterion, figure: DeclaredFigure) -> str | None:
    """Why no value of that figure could make the criterion PASS; None if some value could."""
    margin, metric, judged = criterion.margin, criterion.metric, figure.metric
    if judged.estimator == "derived":
        return f"{metric} is computed from another measurement; judge that one instead"
    if judged.estimator not in ESTIMATORS_OF_KIND[margin.kind]:
        wrong_way = {HIGHER: ("max_value", "max_count"), LOWER: ("min_recovery",)}.get(judged.direction, ())
        fitting = [kind for kind, known in ESTIMATORS_OF_KIND.items() if judged.estimator in known]
        named = ", ".join(kind for kind in fitting if kind not in wrong_way)
        return f"a {margin.kind} margin does not judge {metric}; {named or 'no margin'} does"
    if margin.kind == "max_value" and judged.direction is HIGHER:
        return f"of {metric} higher is better, and a max_value margin requires less of it"
    if margin.kind == "max_count" and judged.direction is HIGHER:
        return f"more of {metric} is not a fault, and a max_count margin counts faults"
    if margin.kind == "min_recovery" and judged.direction is LOWER:
        return f"of {metric} lower is better, so nothing is recovered"
    if margin.kind == "min_recovery" and judged.estimator == "paired_mean" and not judged.bounded:
        return f"{metric} has no bounds, so its recovery has no test; use max_increase"
    if judged.estimator == "maximum" and margin.kind != "max_share":
        return f"a maximum has no upper bound: {metric} can FAIL but never PASS"
    return None


def too_few(criterion: Criterion, figure: DeclaredFigure, declared: Declared) -> str | None:
    """Why too few items are evaluated to pass: fewer than must be scored, or than the margin needs."""
    suite = declared.suite
    if declared.draws is not None and criterion.probe is ProbeName.CANARIES:
        suite += f" with --draws {declared.draws}"
    if figure.items is not None and figure.items < criterion.min_scored:
        return f"it requires {criterion.min_scored} scored, and {suite} has {figure.items} of {criterion.slice}"
    without_enough_clusters = _too_few_clusters(criterion, figure, suite)
    if without_enough_clusters is not None:
        return without_enough_clusters
    if criterion.margin.kind == "max_share" and figure.clusters is not None:
        needed = least_clusters(criterion.margin.value, criterion.confidence)
        if figure.clusters < needed:
            unseen = unseen_share(figure.clusters, criterion.confidence)
            return (
                f"its share of {criterion.margin.value:.2%} takes {needed:,} independent clusters, not one of them "
                f"beyond; {suite} has at most {figure.clusters:,} of {criterion.slice}, which show no share below "
                f"{unseen:.2%}"
            )
    judged = figure.metric
    shown = judged.estimator in ("paired_proportions", "paired_mean") and judged.bounded
    if figure.items is None or not shown or criterion.margin.against == "blessed":
        return None
    # the most favourable case: a branch cannot lose items that the reference gets wrong, and they add no recovery
    score = 1.0 if criterion.margin.kind == "min_recovery" else ASSUMED_SCORE
    identical = as_expected([1] * figure.items, score)
    shown = can_show(
        identical,
        criterion.margin,
        confidence=criterion.confidence,
        direction=judged.direction,
        estimator=judged.estimator,
    )
    by = f"by the {figure.items} items of {criterion.slice}, not even of the reference itself"
    return None if shown else f"its margin of {criterion.margin.value:g} cannot be shown {by}"


def _too_few_clusters(criterion: Criterion, figure: DeclaredFigure, suite: str) -> str | None:
    bounded = figure.metric.bounds is not None
    needed = criterion.min_clusters or clusters_of_kind(figure.metric.estimator, bounded=bounded)
    whose = "it" if criterion.min_clusters else "a figure of this kind"
    most = figure.items if figure.clusters is None else figure.clusters
    if most is not None and most < needed:
        return f"{whose} requires {needed} clusters, and {suite} has {most} of {criterion.slice}"
    if figure.effective_clusters is not None and figure.effective_clusters < needed:
        return (
            f"{whose} requires {needed} clusters, and those of {criterion.slice} in {suite} weigh as "
            f"{figure.effective_clusters} of equal size at most"
        )
    return None
