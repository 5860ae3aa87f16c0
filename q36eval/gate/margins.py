"""The applicable margin: the figure for the quantization schemes found by inspection, and derived thresholds.

The cost of a scheme in divergence or perplexity is a property of the scheme; a figure published for one scheme does not
apply to another. The scheme is read from the checkpoint's tensors, never from a name. A share criterion may define its
threshold as a multiple of another criterion's margin, and follows that margin (`with_thresholds`). Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from q36eval.gate.policy import Criterion, Margin, Policy, SchemeFigure, stricter
from q36eval.gate.report import CriterionResult, HeldMargin
from q36eval.records import Measurement, ProbeName
from q36eval.schemes import finer_than, mixture_name, parts_of
from q36eval.stats import loss_limit

QUANTIZED_TENSORS = "quantized_tensors"
"""The weights probe's count of quantized weights by scheme (slice), with their sum as `all`."""

Schemes = frozenset[str] | None
"""A checkpoint's schemes, empty if nothing is quantized; None if its weights were not inspected."""


def schemes_found(measurements: Sequence[Measurement]) -> Schemes:
    """The schemes of the inspected weights; None without inspection or if the counts do not add up."""
    census = [m for m in measurements if m.probe is ProbeName.WEIGHTS and m.metric == QUANTIZED_TENSORS]
    counts = {(m.slice, m.value) for m in census}
    total = [count for name, count in counts if name == "all"]
    parts = [(name, count) for name, count in counts if name != "all"]
    if len(total) != 1 or sum(count for _, count in parts) != total[0]:
        return None
    return frozenset(name for name, count in parts if count > 0)


@dataclass(frozen=True)
class HeldMargins:
    """A policy with the margins for one checkpoint, and their reasons by criterion.

    `ceilings` are the criteria of an unknown scheme, set to their ceilings: only a result within the strictest figure
    passes, and only one beyond the ceiling fails.
    """

    policy: Policy
    why: dict[str, HeldMargin] = field(default_factory=dict)
    ceilings: dict[str, Criterion] = field(default_factory=dict)

    def judged(self, criterion: Criterion, judge: Callable[[Criterion], CriterionResult]) -> CriterionResult:
        """The criterion's result from `judge`, with the margin that was used."""
        result = judge(criterion)
        ceiling = self.ceilings.get(criterion.id)
        if ceiling is not None:
            at_ceiling = judge(ceiling)
            proven = at_ceiling.p_fail <= 1.0 - criterion.confidence
            p_fail = {name: getattr(at_ceiling, name) for name in ("p_fail", "p_fail_adjusted")}
            result = at_ceiling if proven else result.model_copy(update=p_fail)
        return result.model_copy(update={"held": self.why.get(criterion.id)})

    @property
    def failing(self) -> Policy:
        """The policy at the margins beyond which a criterion fails."""
        criteria = tuple(self.ceilings.get(criterion.id, criterion) for criterion in self.policy.criteria)
        return self.policy.model_copy(update={"criteria": criteria})


def margins_held(policy: Policy, measurements: Sequence[Measurement]) -> HeldMargins:
    """The policy for the branch of these measurements."""
    return margins_for(policy, schemes_found(measurements))


def margins_for(policy: Policy, schemes: Schemes) -> HeldMargins:
    """The policy for a checkpoint with these schemes."""
    why = {c.id: _held(c.margin, schemes) for c in policy.criteria if c.margin.schemes}
    accepted = _with_margins(policy, {name: margin.accepted for name, margin in why.items()})
    if schemes is not None or not why:
        return HeldMargins(accepted, why)
    # a threshold that is a multiple of another criterion's margin has a separate ceiling
    at_ceiling = _with_margins(policy, dict.fromkeys(why)).criteria
    ceilings = {own.id: own for own, strict in zip(at_ceiling, accepted.criteria, strict=True) if own != strict}
    return HeldMargins(accepted, why, ceilings)


def _with_margins(policy: Policy, figures: Mapping[str, SchemeFigure | None]) -> Policy:
    """The policy with these criteria set to their figures (None: to their ceilings), and the thresholds that follow
    them."""
    criteria = tuple(held_to(c, figures[c.id]) if c.id in figures else c for c in policy.criteria)
    return with_thresholds(policy.model_copy(update={"criteria": criteria}))


def _held(margin: Margin, schemes: Schemes) -> HeldMargin:
    return HeldMargin(
        schemes=None if schemes is None else tuple(sorted(schemes)),
        accepted=accepted_figure(margin, schemes),
        ceiling=margin.value,
        ceiling_source=margin.source,
    )


def accepted_figure(margin: Margin, schemes: Schemes) -> SchemeFigure | None:
    """The figure for a checkpoint with these schemes; None if the margin has none for them.

    An exact match of the mixture comes first; else the strictest figure of its parts, or of a coarser scheme than one
    of them: 8-bit weights may lose no more than 4-bit ones. Unquantized or unknown: the strictest figure.
    """
    for figure in margin.schemes:
        if parts_of(figure.scheme) == schemes:
            return figure
    fitting = [figure for figure in margin.schemes if not schemes or _holds_for_a_part(figure.scheme, schemes)]
    strictest = None
    for figure in fitting:
        if strictest is None or stricter(margin.kind, figure.value, strictest.value):
            strictest = figure
    return strictest


def _holds_for_a_part(figure: str, schemes: frozenset[str]) -> bool:
    return parts_of(figure) <= schemes or any(finer_than(part, figure) for part in schemes)


def held_to(criterion: Criterion, figure: SchemeFigure | None) -> Criterion:
    """The criterion set to that figure, or to its ceiling alone."""
    changed: dict[str, object] = {"schemes": ()}
    if figure is not None:
        changed |= {"value": figure.value, "source": figure.source}
    return criterion.model_copy(update={"margin": criterion.margin.model_copy(update=changed)})


def held_words(held: HeldMargin) -> str | None:
    """A note for the reader of the verdict; None if the scheme's own figure was used."""
    if held.schemes is None:
        return "the weights were not inspected, so the strictest figure holds for PASS and the ceiling for FAIL"
    if not held.schemes:
        return "nothing is quantized, so the strictest figure holds"
    name = mixture_name(held.schemes)
    if held.accepted is None:
        return f"no accepted figure for {name}, so only the ceiling holds"
    if parts_of(held.accepted.scheme) != frozenset(held.schemes):
        if not parts_of(held.accepted.scheme) <= frozenset(held.schemes):
            return f"no accepted figure for {name}, so that of the coarser {held.accepted.scheme} holds"
        return f"no accepted figure for {name}, so that of its part {held.accepted.scheme} holds"
    return None


def with_thresholds(policy: Policy) -> Policy:
    """The policy with every threshold as a number: `beyond_margins` times the margin in this policy.

    The threshold thus follows a margin that a scheme or an extending policy changes.
    """
    margins = {criterion.id: criterion.margin for criterion in policy.criteria}

    def with_threshold(criterion: Criterion) -> Criterion:
        margin = criterion.margin
        if margin.beyond_margins is None or margin.of not in margins:
            return criterion
        beyond = margin.beyond_margins * loss_limit(margins[margin.of])
        return criterion.model_copy(update={"margin": margin.model_copy(update={"beyond": beyond})})

    return policy.model_copy(update={"criteria": tuple(map(with_threshold, policy.criteria))})
