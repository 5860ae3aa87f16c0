"""Which margin holds: the figure of the quantization schemes that inspection found, and thresholds counted in margins.

What a scheme costs in divergence or perplexity is a property of the scheme, and what a card promised for one is no law
for another. The scheme is what stands in the checkpoint, tensor by tensor, never what somebody calls it. A share
criterion may name its threshold by another criterion's margin, and follows it (`with_thresholds`). Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from q36eval.gate.policy import Criterion, Margin, Policy, SchemeFigure, stricter
from q36eval.gate.report import CriterionResult, HeldMargin
from q36eval.records import Measurement, ProbeName
from q36eval.schemes import finer_than, mixture_name, parts_of
from q36eval.stats import loss_limit

QUANTIZED_TENSORS = "quantized_tensors"
"""The weights probe's census of quantized weights, by scheme (its slice) and as `all` their sum."""

Schemes = frozenset[str] | None
"""Those of a checkpoint, none where nothing is quantized; None where its weights were not inspected."""


def schemes_found(measurements: Sequence[Measurement]) -> Schemes:
    """The schemes of the weights that were inspected; None where they were not, or where the census does not add up."""
    census = [m for m in measurements if m.probe is ProbeName.WEIGHTS and m.metric == QUANTIZED_TENSORS]
    counts = {(m.slice, m.value) for m in census}
    total = [count for name, count in counts if name == "all"]
    parts = [(name, count) for name, count in counts if name != "all"]
    if len(total) != 1 or sum(count for _, count in parts) != total[0]:
        return None
    return frozenset(name for name, count in parts if count > 0)


@dataclass(frozen=True)
class HeldMargins:
    """A policy with the margins that hold for one checkpoint, and why, by criterion.

    `ceilings` are the criteria, at their ceilings, whose scheme nobody knows: no less than their strictest figure
    passes, and nothing below the ceiling fails.
    """

    policy: Policy
    why: dict[str, HeldMargin] = field(default_factory=dict)
    ceilings: dict[str, Criterion] = field(default_factory=dict)

    def judged(self, criterion: Criterion, judge: Callable[[Criterion], CriterionResult]) -> CriterionResult:
        """The criterion as `judge` finds it, with which margin held."""
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
    """The policy as it holds for the branch of these measurements."""
    return margins_for(policy, schemes_found(measurements))


def margins_for(policy: Policy, schemes: Schemes) -> HeldMargins:
    """The policy as it holds for a checkpoint of these schemes."""
    why = {c.id: _held(c.margin, schemes) for c in policy.criteria if c.margin.schemes}
    accepted = _with_margins(policy, {name: margin.accepted for name, margin in why.items()})
    if schemes is not None or not why:
        return HeldMargins(accepted, why)
    # a threshold that counts in another criterion's margins has a ceiling of its own
    at_ceiling = _with_margins(policy, dict.fromkeys(why)).criteria
    ceilings = {own.id: own for own, strict in zip(at_ceiling, accepted.criteria, strict=True) if own != strict}
    return HeldMargins(accepted, why, ceilings)


def _with_margins(policy: Policy, figures: Mapping[str, SchemeFigure | None]) -> Policy:
    """The policy with these criteria held to their figures (None: to their ceilings), and what counts in them."""
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
    """The figure that a checkpoint of these schemes is held to; None where the margin has none for them.

    That of exactly this mixture; else the strictest of those of its parts, or of a coarser scheme than one of them:
    8-bit weights may lose no more than 4-bit ones. Where nothing is quantized nothing may be lost, and where nobody
    knows the scheme it may be any: the strictest of all.
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
    """The criterion held to that figure, or to its ceiling alone."""
    changed: dict[str, object] = {"schemes": ()}
    if figure is not None:
        changed |= {"value": figure.value, "source": figure.source}
    return criterion.model_copy(update={"margin": criterion.margin.model_copy(update=changed)})


def held_words(held: HeldMargin) -> str | None:
    """What a reader must know beside the verdict; None where the figure of the scheme itself held."""
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
    """The policy with every threshold in numbers: what `beyond_margins` asks for, from the margin as it stands here.

    So it follows a margin that is set for a scheme or by another policy that extends this one.
    """
    margins = {criterion.id: criterion.margin for criterion in policy.criteria}

    def with_threshold(criterion: Criterion) -> Criterion:
        margin = criterion.margin
        if margin.beyond_margins is None or margin.of not in margins:
            return criterion
        beyond = margin.beyond_margins * loss_limit(margins[margin.of])
        return criterion.model_copy(update={"margin": margin.model_copy(update={"beyond": beyond})})

    return policy.model_copy(update={"criteria": tuple(map(with_threshold, policy.criteria))})
