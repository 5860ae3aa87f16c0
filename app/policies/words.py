"""A policy in words: by lane, what would block, what only warns, on how much evidence, and what is not decided."""

from dataclasses import dataclass

from q36eval.gate import Criterion, Policy
from q36eval.gate.competence import PAIRED
from q36eval.gate.margins import held_to
from q36eval.metrics import DeclaredFigure, metric_of
from q36eval.records import Lane, ProbeName
from q36eval.run.declared_figures import Declared
from q36eval.stats import least_clusters

WHOSE = {"reference": "the reference's", "blessed": "the last blessed run's"}
UNDECIDED = "INCONCLUSIVE (exit 3), which blocks as well"
OTHER_SCHEMES = (
    "any other scheme: no accepted figure, so the ceiling alone holds; a mixture is held to the strictest figure of "
    "its parts. Where nothing is quantized the strictest figure holds, and where the weights were not inspected that "
    "one must hold for PASS, and the ceiling be broken for FAIL"
)
NOT_MEASURED = "What was not measured never passes: the lane is then INCONCLUSIVE (exit 3), or 4 where a probe crashed."


@dataclass(frozen=True)
class Rule:
    """One criterion in words. `asks` is what must be shown, `evidence` on how much, `undecided` what follows if not.

    Where the margin depends on the scheme, `by_scheme` says what is asked of each, with its source, and what of others.
    """

    id: str
    title: str
    probe: str
    asks: str
    evidence: str
    undecided: str
    waivable: bool
    source: str
    note: str
    by_scheme: tuple[str, ...] = ()
    able: str = ""
    """What the reference must be able to do of what is compared."""


@dataclass(frozen=True)
class LaneRules:
    """What one lane is judged by."""

    lane: str
    blocks: tuple[Rule, ...]
    warns: tuple[Rule, ...]


@dataclass(frozen=True)
class PolicyWords:
    """A policy explained."""

    name: str
    description: str
    purpose: str
    lineage: tuple[str, ...]
    explained_for: str
    false_fail: str
    lanes: tuple[LaneRules, ...]
    not_judged: tuple[str, ...]
    not_measured: str = NOT_MEASURED
    attempts: str = ""


def explain(policy: Policy, declared: Declared) -> PolicyWords:
    """The policy in words for what is `declared` of a family and a suite."""
    return PolicyWords(
        policy.name,
        policy.description,
        policy.purpose,
        policy.lineage,
        f"family {declared.family}, suite {declared.suite}",
        f"Of branches that lose no more than every margin allows, at most {policy.alpha:.1%} are failed by chance "
        f"(Holm's correction over all blocking criteria); one counted fault more than allowed fails by itself.",
        tuple(
            LaneRules(lane, *(_rules(policy, lane, tier, declared) for tier in ("blocking", "advisory")))
            for lane in policy.lanes
        ),
        tuple(lane.value for lane in Lane if lane not in policy.lanes),
        attempts=""
        if policy.max_attempts is None
        else f"From attempt {policy.max_attempts + 1} of one deployment on, counted by sets of answers, a PASS takes a "
        f"reviewer's sign-off.",
    )


def _rules(policy: Policy, lane: Lane, tier: str, declared: Declared) -> tuple[Rule, ...]:
    chosen = [criterion for criterion in policy.criteria if criterion.tier == tier and lane in criterion.lanes]
    return tuple(_rule_of(criterion, declared) for criterion in chosen)


def _rule_of(criterion: Criterion, declared: Declared) -> Rule:
    figure = declared.by_key.get(criterion.key)
    unit = "" if figure is None else figure.metric.unit
    return Rule(
        criterion.id,
        criterion.heading,
        criterion.probe,
        f"{_what(criterion)}: {allowed(criterion, unit)}{' whatever the scheme' if criterion.margin.schemes else ''}",
        _evidence(criterion),
        _undecided(criterion),
        criterion.waivable,
        criterion.margin.source,
        criterion.note,
        _by_scheme(criterion, unit),
        _able(criterion, figure),
    )


def _by_scheme(criterion: Criterion, unit: str) -> tuple[str, ...]:
    """What is asked of each scheme that has a figure, and of those that have none."""
    figures = criterion.margin.schemes
    if not figures:
        return ()
    each = (
        f"{figure.scheme}: {allowed(held_to(criterion, figure), unit)}; source: {figure.source}" for figure in figures
    )
    return (*each, OTHER_SCHEMES)


def _what(criterion: Criterion) -> str:
    words = metric_of(criterion.probe, criterion.metric).label
    return words if criterion.slice == "all" else f"{words} ({criterion.slice})"


def allowed(criterion: Criterion, unit: str = "") -> str:
    """What its margin allows, in words, in the `unit` of its figure."""
    kind, value, whose = criterion.margin.kind, criterion.margin.value, WHOSE[criterion.margin.against]
    spaced = f" {unit}" if unit else ""
    if kind == "max_count":
        return "none" if value == 0 else f"at most {value:g}"
    if kind == "max_share":
        return f"at most {value:.2%} of clusters beyond {_threshold(criterion)}"
    if kind == "max_value":
        return f"at most {value:g}{spaced}"
    if kind == "min_recovery":
        return f"at least {value:.4g} of {whose} (a loss of at most {1 - value:.2%})"
    if kind == "min_retention":
        return f"at most {1 / value - 1:.2%} above {whose} (retention {value:.4g})"
    points = f" ({100 * value:g} in 100)" if unit == "fraction" else spaced
    return f"worse than {whose} by at most {value:g}{points}"


def _threshold(criterion: Criterion) -> str:
    margin = criterion.margin
    if margin.of is not None:
        return f"{margin.beyond_margins:g} times the margin of {margin.of}"
    return f"{margin.beyond:g} nats per token or unit"


def _evidence(criterion: Criterion) -> str:
    parts = []
    if criterion.margin.kind != "max_count":
        parts.append(f"shown with {criterion.confidence:.4g} confidence")
    if criterion.margin.kind == "max_share":
        least = least_clusters(criterion.margin.value, criterion.confidence)
        parts.append(f"by at least {least:,} independent clusters, and by so many only if not one lies beyond")
    if criterion.min_scored > 1:
        parts.append(f"on at least {criterion.min_scored:,} scored items")
    if criterion.min_clusters is not None:
        of = "documents or sources of them" if criterion.probe is ProbeName.KL else "independent clusters"
        parts.append(f"from at least {criterion.min_clusters:,} {of}, counted by weight")
    return ", ".join(parts) or "everything is counted"


def _able(criterion: Criterion, figure: DeclaredFigure | None) -> str:
    """What the reference must be able to do; empty where no answers that are right or wrong are compared."""
    informative = criterion.informative
    if informative is None or criterion.probe in (ProbeName.KL, ProbeName.WEIGHTS):
        return ""
    if figure is not None and not (figure.metric.estimator in PAIRED and figure.metric.bounded):
        return ""
    items = "1 item" if informative.min_items == 1 else f"{informative.min_items:,} items"
    return (
        f"The reference must solve at least {items} and {100 * informative.min_share:.4g} % of a family (above chance "
        f"for multiple choice); other families are left out, and those left must hold "
        f"{100 * informative.min_weight:.4g} % of the items"
    )


def _undecided(criterion: Criterion) -> str:
    if criterion.tier == "advisory":
        return "shown, and nothing more"
    if criterion.on_inconclusive == "fail":
        return "FAIL (exit 1): what is not proven is refused"
    return UNDECIDED
