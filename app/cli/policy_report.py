"""What `q36eval policy explain` prints: by lane what blocks and what only warns, with evidence and source."""

from collections.abc import Iterator

from q36eval.gate import Criterion, Policy, with_integrity
from q36eval.gate.competence import PAIRED
from q36eval.gate.margins import held_to
from q36eval.inert_text import plain
from q36eval.metrics import metric_of
from q36eval.records import Lane, ProbeName
from q36eval.reports.text import margin_text
from q36eval.stats import least_clusters

LONG = 2_000
"""Characters of a sentence that are shown: some list every name there is."""

UNDECIDED = "INCONCLUSIVE (exit 3), which blocks as well"
OTHER_SCHEMES = (
    "any other scheme: no accepted figure, so the ceiling alone holds; a mixture is held to the strictest figure of "
    "its parts. Where nothing is quantized the strictest figure holds, and where the weights were not inspected that "
    "one must hold for PASS, and the ceiling be broken for FAIL"
)
NOT_MEASURED = "What was not measured never passes: the lane is then INCONCLUSIVE (exit 3), or 4 where a probe crashed."


def policy_lines(policy: Policy) -> Iterator[str]:
    """The policy in words, lane by lane."""
    made_of = f", made of {' > '.join(policy.lineage)}" if policy.lineage else ""
    yield plain(f"{policy.name}{made_of}: {policy.description}", LONG)
    needs = "A release needs all of this"
    if policy.purpose == "pre-check":
        needs = "To have found nothing takes all of this"
        yield "A pre-check: it finds damage. Where it finds nothing it says so (exit 3), and releases nothing."
    for lane in policy.lanes:
        for tier, heading in (
            ("blocking", f"{needs}; where it is undecided: {UNDECIDED}."),
            ("advisory", "Shown beside it, and never blocking:"),
        ):
            chosen = [c for c in with_integrity(policy).criteria if c.tier == tier and lane in c.lanes]
            if chosen:
                yield f"\nLane {lane}. {heading}"
            for criterion in chosen:
                yield from _rule(criterion)
    for lane in Lane:
        if lane not in policy.lanes:
            yield f"\nLane {lane} is not judged: a PASS says nothing about it."
    yield f"\n{NOT_MEASURED}"
    yield (
        f"Of branches that lose no more than every margin allows, at most {policy.alpha:.1%} are failed by chance "
        f"(Holm's correction over all blocking criteria); one counted fault more than allowed fails by itself."
    )
    if policy.max_attempts is not None:
        yield (
            f"From attempt {policy.max_attempts + 1} of one deployment on, counted by sets of answers, a PASS takes a "
            f"reviewer's sign-off."
        )


def _rule(criterion: Criterion) -> Iterator[str]:
    margin, unit = criterion.margin, metric_of(criterion.probe, criterion.metric).unit
    by_scheme = [
        f"{figure.scheme}: {margin_text(held_to(criterion, figure).margin, unit)}; source: {figure.source}."
        for figure in margin.schemes
    ]
    whatever = " whatever the scheme" if by_scheme else ""
    yield "  - " + plain(f"{criterion.name}: {margin_text(margin, unit)}{whatever}; {_evidence(criterion)}.", LONG)
    if criterion.tier == "blocking" and criterion.on_inconclusive == "fail":
        yield "      Undecided: FAIL (exit 1): what is not proven is refused."
    if not criterion.waivable:
        yield "      Nobody may waive it."
    sentences = (_able(criterion), f"Source: {margin.source}.", *by_scheme, by_scheme and f"{OTHER_SCHEMES}.")
    yield from ("      " + plain(sentence, LONG) for sentence in sentences if sentence)
    if criterion.note:
        yield "      " + plain(f"Note: {criterion.note}", LONG)


def _evidence(criterion: Criterion) -> str:
    parts = []
    if criterion.margin.kind != "max_count":
        parts.append(f"shown with {criterion.confidence:.4g} confidence")
    if criterion.margin.kind == "max_share":
        least = least_clusters(criterion.margin.value, criterion.confidence)
        parts.append(f"by at least {least:,} independent clusters, and by that many only if not one lies beyond")
    if criterion.min_scored > 1:
        parts.append(f"on at least {criterion.min_scored:,} scored items")
    if criterion.min_clusters is not None:
        of = "documents or sources of them" if criterion.probe is ProbeName.KL else "independent clusters"
        parts.append(f"from at least {criterion.min_clusters:,} {of}, counted by weight")
    return ", ".join(parts) or "everything is counted"


def _able(criterion: Criterion) -> str:
    """What the reference must be able to do; empty where no answers that are right or wrong are compared."""
    informative, metric = criterion.informative, metric_of(criterion.probe, criterion.metric)
    answers = criterion.probe not in (ProbeName.KL, ProbeName.WEIGHTS)
    if informative is None or not (answers and metric.estimator in PAIRED and metric.bounded):
        return ""
    items = "1 item" if informative.min_items == 1 else f"{informative.min_items:,} items"
    return (
        f"The reference must solve at least {items} and {100 * informative.min_share:.4g} % of a family (above chance "
        f"for multiple choice); other families are left out, and those left must hold "
        f"{100 * informative.min_weight:.4g} % of the items."
    )
