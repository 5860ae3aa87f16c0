"""Interim declarations of probes that do not declare yet."""

from collections.abc import Sequence

from canaries.answers import TOOL_CHECKS
from canaries.checks.discount import discount
from canaries.specification import CanarySpec
from canaries.summary import _slices
from kl.breakdown import MAXIMUM, QUANTILES, SLICE_QUANTILES
from kl.measurements import GROUP_METRICS, METRICS
from kl.spans import KINDS
from q36eval.declared import DeclaredFigure
from q36eval.gate import NON_FINITE
from q36eval.records import Direction, ProbeName

LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER


def of_canaries(specs: Sequence[CanarySpec]) -> list[DeclaredFigure]:
    found = []

    def add(metric, name, chosen, estimator, direction, unit, bounded=True):
        n = sum(s.family.n if s.family else len(s.must_pass) for s in chosen)
        found.append(DeclaredFigure(ProbeName.CANARIES, metric, name, estimator, direction, unit, bounded, n, n))

    families = [s for s in specs if s.family is not None]
    for name, chosen in _slices(families):
        if not chosen:
            continue
        add("failure_rate", name, chosen, "paired_proportions", LOWER, "fraction")
        add("at_risk", name, chosen, "paired_proportions", LOWER, "fraction")
        add("decisive_margin", name, chosen, "paired_mean", HIGHER, "nats", False)
        add("decisive_margin_ratio", name, chosen, "ratio", HIGHER, "ratio", False)
    concl = [s for s in families if discount.name in s.checks]
    if concl:
        add("right_numbers_wrong_conclusion", "all", concl, "paired_proportions", LOWER, "fraction")
    for name, chosen in _slices([s for s in families if TOOL_CHECKS & set(s.checks)], lanes=()):
        if chosen:
            add("call_trigger_agreement", name, chosen, "mean", HIGHER, "fraction")
            add("schema_accuracy", name, chosen, "paired_proportions", HIGHER, "fraction")
    fixed = [s for s in specs if s.must_pass is not None]
    for name, chosen in _slices(fixed)[len(fixed) :]:
        if chosen:
            add("must_pass_flips", name, chosen, "census", LOWER, "prompts")
            add("must_pass_unstable", name, chosen, "census", LOWER, "prompts")
    return found


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
