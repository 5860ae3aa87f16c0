"""The output of `q36eval policy explain`: blocking and advisory parts, each criterion once."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from q36eval.app.cli.tables import plain_table
from q36eval.gate import Criterion, Policy, with_integrity
from q36eval.gate.competence import PAIRED
from q36eval.gate.margins import held_to
from q36eval.inert_text import plain
from q36eval.metrics import metric_of
from q36eval.records import Lane, ProbeName
from q36eval.reports.text import margin_text, unseen_text
from q36eval.stats import least_clusters

if TYPE_CHECKING:
    from rich.console import RenderableType

LONG = 2_000
"""The maximum length of a sentence: some list every name."""

OTHER_SCHEMES = (
    "Schemes: for any other scheme the ceiling alone holds; a mixture is held to the strictest figure of its parts. "
    "Where nothing is quantized the strictest figure holds; where the weights were not inspected that one must hold "
    "for PASS, and the ceiling be broken for FAIL."
)
NOT_MEASURED = "A missing measurement never passes: the lane is INCONCLUSIVE (exit 3), or exit 4 if a probe broke off."


def policy_parts(policy: Policy) -> "Iterator[RenderableType]":
    """The policy as two tables, blocking and advisory, with general sentences."""
    made_of = f", made of {' > '.join(policy.lineage)}" if policy.lineage else ""
    yield plain(f"{policy.name}{made_of}: {policy.description}", LONG)
    if policy.purpose == "pre-check":
        yield "A pre-check finds damage. If it finds none, it exits with 3 and approves no release."
    criteria = with_integrity(policy).criteria
    for tier, heading in (("blocking", "All of this is needed:"), ("advisory", "Shown, never blocking:")):
        chosen = [criterion for criterion in criteria if criterion.tier == tier]
        if chosen:
            yield f"\n{heading}"
            yield plain_table(("criterion", "lanes", "rule"), list(map(_row, chosen)), [])
    for lane in Lane:
        if lane not in policy.lanes:
            yield f"Lane {lane} is not judged: a PASS says nothing about it."
    yield from dict.fromkeys(filter(None, map(_able, criteria)))
    for criterion in criteria:
        if criterion.margin.kind == "max_share":
            least = least_clusters(criterion.margin.value, criterion.confidence)
            yield f"{unseen_text(least, criterion.confidence)}."
    shown_at = sorted({f"{100 * criterion.confidence:g} %" for criterion in criteria})
    yield f"Margins are shown at {' or '.join(shown_at)} confidence, one-sided."
    yield from [OTHER_SCHEMES] if any(criterion.margin.schemes for criterion in criteria) else []
    yield f"{NOT_MEASURED} Undecided: INCONCLUSIVE (exit 3), which blocks as well."
    yield (
        f"Of branches that lose no more than every margin allows, at most {policy.alpha:.1%} are failed by chance "
        f"(Holm's correction over all blocking criteria); one counted fault above its limit fails the branch."
    )
    if policy.max_attempts is not None:
        yield (
            f"From attempt {policy.max_attempts + 1} of one deployment on, counted by sets of answers, a PASS takes a "
            f"reviewer's sign-off."
        )
    yield "Sources, notes and every setting: --full."


def _row(criterion: Criterion) -> tuple[str, str, str]:
    margin, unit = criterion.margin, metric_of(criterion.probe, criterion.metric).unit
    rules = [f"{each.scheme}: {margin_text(held_to(criterion, each).margin, unit)}" for each in margin.schemes]
    rules = [margin_text(margin, unit) + (" whatever the scheme" if rules else ""), *rules, *_evidence(criterion)]
    if criterion.tier == "blocking" and criterion.on_inconclusive == "fail":
        rules.append("undecided: FAIL (exit 1)")
    rules += [] if criterion.waivable else ["no waiver"]
    lanes = "both" if len(criterion.lanes) == len(Lane) else ", ".join(criterion.lanes)
    return criterion.name, lanes, "; ".join(rules)


def _evidence(criterion: Criterion) -> list[str]:
    parts = []
    if criterion.margin.kind == "max_share":
        least = least_clusters(criterion.margin.value, criterion.confidence)
        parts.append(f"at least {least:,} independent clusters, and with that many not one beyond")
    if criterion.min_scored > 1:
        parts.append(f"at least {criterion.min_scored:,} scored items")
    if criterion.min_clusters is not None:
        of = "documents or sources of them" if criterion.probe is ProbeName.KL else "independent clusters"
        parts.append(f"at least {criterion.min_clusters:,} {of}, counted by weight")
    return parts


def _able(criterion: Criterion) -> str:
    """The required competence of the reference; empty without a comparison of right and wrong answers."""
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
