"""The threshold of a share criterion that names it by another criterion's margin. Pure."""

from q36eval.gate.policy import Criterion, Policy
from q36eval.stats import loss_limit


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
