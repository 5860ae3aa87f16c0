"""What the probes declare they will yield for a family and a suite: from files alone, or as it is planned."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from q36eval.canaries.specification import draws_per_family, for_family, load_specs
from q36eval.canaries.summary import declared_figures as of_canaries
from q36eval.config import Family, Paths
from q36eval.evals.suite import TaskGroup, read_suite
from q36eval.evals.summaries import declared_figures as of_evals
from q36eval.evals.summaries import only_data_tell
from q36eval.kl.corpus_plan import plan_of
from q36eval.kl.declared import DRAFT_ACCEPTANCE, DRAFT_GUESSES, Held
from q36eval.kl.declared import declared_figures as of_texts
from q36eval.kl.spans import KINDS
from q36eval.records import DeclaredFigure, ProbeName
from q36eval.run.items import Work
from q36eval.run.suites import SuitePlace, shipped_suites, suite_place
from q36eval.run.weights import declared_figures as of_weights
from q36eval.served.declared import declared_figures as of_served

GROUPED_BY_TEXTS = ("position=", "entropy=")
"""Beginnings of the names of groups of tokens of which only the texts, and the reference, tell which there are."""


@dataclass(frozen=True)
class Subject:
    """What a policy is checked for. `own` is a folder of a person's own canaries.

    `corpus` says that a person's own texts are measured, `against_reference` that the reference's weights are here,
    `code` that programs which the model writes may run.
    """

    family: Family
    suite: str
    own: Path | None = None
    draws: int | None = None
    corpus: bool = False
    against_reference: bool = True
    code: bool = True


@dataclass(frozen=True)
class Declared:
    """Every figure that is declared; `groups` and `texts_open` say of which more may be yielded than is known yet."""

    family: str
    suite: str
    figures: tuple[DeclaredFigure, ...]
    groups: tuple[TaskGroup, ...] = ()
    texts_open: bool = False
    probes: frozenset[ProbeName] = frozenset(ProbeName)
    """The probes that declared what they yield; of others nothing is known."""
    draws: int | None = None
    """Draws of every canary family, where a person wants other than the suite's."""

    @cached_property
    def by_key(self) -> dict[str, DeclaredFigure]:
        """The figures by their measurement's key."""
        return {figure.key: figure for figure in self.figures}

    def of(self, probe: ProbeName, metric: str | None = None) -> list[DeclaredFigure]:
        """The figures of a probe, of one metric if it is named."""
        return [f for f in self.figures if f.probe == probe and (metric is None or f.metric == metric)]

    def open(self, probe: ProbeName, metric: str, name: str) -> str | None:
        """Why only what is not here yet can tell whether that figure is yielded; None where what is here tells."""
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
    """What will be yielded, from files alone: before anything is loaded or planned.

    Raises:
        UsageError: there is no such suite, or its file is malformed.
    """
    place = suite_place(subject.suite, paths)
    texts = None if subject.corpus else _slices_of_texts(subject.suite, place)
    plan = None if subject.corpus else plan_of(subject.suite.partition("=")[0])
    whole = Held(clusters=None if plan is None else plan.most_clusters)
    draws = subject.draws or draws_per_family(subject.suite)
    specs = for_family(load_specs(own=subject.own, n=draws, skills=subject.family.skills), subject.family.answers)
    groups = tuple(group for group in read_suite(place.file).groups if subject.code or not group.executes_code)
    figures = (
        *of_weights(against_reference=subject.against_reference),
        *of_canaries(specs),
        *of_texts({name: Held() for name in texts or ()}, {f"kind={kind}": Held() for kind in KINDS}, whole),
        *of_evals(groups),
        *of_served(),
    )
    return Declared(subject.family.name, subject.suite, figures, groups, texts is None, draws=subject.draws)


def _slices_of_texts(suite: str, place: SuitePlace) -> tuple[str, ...] | None:
    """The slices of the texts that a suite brings, frozen yet or not; None where it brings none."""
    plan = plan_of(suite.partition("=")[0])
    if plan is not None:
        return plan.slices
    if place.corpus is None or not place.corpus.is_dir():
        return None
    return tuple(sorted(file.stem for file in place.corpus.glob("*.jsonl")))


def declared_by(works: Iterable[Work], family: str, suite: str) -> Declared:
    """What the probes of planned work will yield; of one that crashed or declares nothing, nothing is known.

    Nor of one that keeps the likeliest tokens alone: whoever gates against such a pack looks for damage.
    """
    whole = [work.probe for work in works if work.failed is None and work.probe.kind != "top-k"]
    declared = {probe.name: figures for probe in whole if (figures := probe.declared()) is not None}
    every = tuple(figure for figures in declared.values() for figure in figures)
    return Declared(family, suite, every, probes=frozenset(declared))


def suites_with(key: str, but: str) -> list[str]:
    """The shipped suites, `but` for one, whose files declare that figure."""
    declared = {
        name: {figure.key for figure in of_evals(read_suite(file).groups)} for name, file in shipped_suites().items()
    }
    return [name for name, keys in declared.items() if name != but and key in keys]


def limited(declared: Declared, probes: Sequence[ProbeName]) -> Declared:
    """Of a run that leaves some probes out, which a person has chosen: only what the others yield counts."""
    return replace(declared, probes=declared.probes & frozenset(probes))
