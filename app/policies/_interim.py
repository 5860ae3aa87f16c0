"""Interim declarations of probes that do not declare yet."""

from collections.abc import Sequence

from kl.breakdown import MAXIMUM, QUANTILES, SLICE_QUANTILES
from kl.measurements import GROUP_METRICS, METRICS
from kl.spans import KINDS
from q36eval.declared import DeclaredFigure
from q36eval.gate import NON_FINITE
from q36eval.records import Direction, ProbeName

LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER


def of_texts(slices: Sequence[str]) -> list[DeclaredFigure]:
    def one(metric, name, estimator, direction=LOWER, unit="nats/token", bounded=False):
        return DeclaredFigure(ProbeName.KL, metric, name, estimator, direction, unit, bounded)

    found = [one(NON_FINITE, "all", "census", unit="tokens"), one("kl_macro_average", "all", "stratified_mean")]
    for name in ("all", *slices):
        found += [one(m.name, name, m.estimator, m.direction, m.unit, m.bounds is not None) for m in METRICS]
        found += [one(q, name, "quantile") for q in (QUANTILES if name == "all" else SLICE_QUANTILES)]
        found.append(one(MAXIMUM, name, "maximum"))
    for kind in KINDS:
        found += [
            one(m.name, f"kind={kind}", m.estimator, m.direction, m.unit, m.bounds is not None) for m in GROUP_METRICS
        ]
        found.append(one("kl_p99", f"kind={kind}", "quantile"))
    return found
