"""Evidence for the gate's tests, made by the same `summarize` that the probes use."""

from collections.abc import Sequence

import numpy as np

from q36eval.gate import Criterion, Policy
from q36eval.records import (
    Clusters,
    Counts,
    Direction,
    Estimator,
    FamilyCompetence,
    Lane,
    Measurement,
    ProbeName,
    Schedule,
)
from q36eval.stats import summarize
from tests.q36eval.stats.evidence import items

WEIGHT_CENSUSES = (
    "integrity_faults",
    "coverage_faults",
    "errors_beyond_scheme",
    "configuration_differences",
    "served_differences",
)
LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER


def measurement(
    probe: ProbeName,
    metric: str,
    clusters: Clusters,
    estimator: Estimator,
    direction: Direction = LOWER,
    slice: str = "all",
    unit: str = "unit",
) -> Measurement:
    value, reference_value, effect, interval = summarize(clusters, estimator)
    scored, errored = sum(clusters.units), sum(clusters.errored)
    paired = clusters.bounds is not None and clusters.reference is not None
    return Measurement(
        probe=probe,
        metric=metric,
        slice=slice,
        unit=unit,
        direction=direction,
        estimator=estimator,
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        counts=Counts(total=scored + errored, scored=scored, errored=errored),
        clusters=clusters,
        competence=competence_of(clusters, direction, slice) if paired else None,
    )


def competence_of(clusters: Clusters, direction: Direction, name: str) -> tuple[FamilyCompetence, ...]:
    """What the reference gets right of items that are 0 or 1, family by family; all are one without names."""
    families = clusters.families or (name,) * len(clusters.units)
    rows = list(zip(families, clusters.units, clusters.reference, clusters.errored, strict=True))
    found = []
    for family in dict.fromkeys(families):
        items, scored, ones, errored = (
            sum(column) for column in zip(*((u + e, u, r, e) for f, u, r, e in rows if f == family), strict=True)
        )
        right = round(ones if direction is HIGHER else scored - ones)
        causes = {"wrong": scored - right, "errored": errored}
        found.append(FamilyCompetence(name=family, items=items, informative=right, causes=causes))
    return tuple(found)


def accuracy(branch: Sequence[int], reference: Sequence[int], slice: str = "mmlu", errored: int = 0) -> Measurement:
    answered = ([0] * errored + list(column[errored:]) for column in (branch, reference))
    clusters = items(*answered, errored=[1] * errored + [0] * (len(branch) - errored))
    return measurement(ProbeName.EVALS, "accuracy", clusters, "paired_mean", HIGHER, slice)


def failure_rate(
    branch: Sequence[int], reference: Sequence[int], slice: str, metric: str = "failure_rate"
) -> Measurement:
    return measurement(ProbeName.CANARIES, metric, items(branch, reference), "paired_mean", LOWER, slice)


def questions(*canaries: tuple[str, int]) -> tuple[str, ...]:
    """Names of so many questions of each canary, as the probe gives them."""
    return tuple(f"{canary}/{number:03}#0" for canary, count in canaries for number in range(count))


def named(found: Measurement, names: Sequence[str]) -> Measurement:
    """The same, its clusters named."""
    clusters = Clusters.model_validate(found.clusters.model_dump() | {"names": tuple(names)})
    return found.model_copy(update={"clusters": clusters})


def in_blocks(found: Measurement, first: int = 0) -> Measurement:
    """The same, asked in blocks of fifty, of which the first is numbered `first`."""
    schedule = Schedule(largest=1, blocks=tuple(first + row // 50 for row in range(len(found.clusters.units))))
    return found.model_copy(update={"clusters": found.clusters.model_copy(update={"schedule": schedule})})


def flips(counts: dict[str, tuple[int, int]], slice: str = "structured") -> Measurement:
    """The census of must-pass prompts: of each canary how many were asked and how many of them flipped."""
    names = questions(*((canary, asked) for canary, (asked, _) in counts.items()))
    flipped = [number < lost for asked, lost in counts.values() for number in range(asked)]
    clusters = items(flipped, bounds=None, names=names)
    return measurement(ProbeName.CANARIES, "must_pass_flips", clusters, "census", slice=slice)


def divergence(per_token: Sequence[float], slice: str = "all", tokens: int = 200) -> Measurement:
    clusters = items([k * tokens for k in per_token], units=[tokens] * len(per_token), bounds=None)
    return measurement(ProbeName.KL, "kl_divergence", clusters, "mean", LOWER, slice)


def perplexity(branch_nll: Sequence[float], reference_nll: Sequence[float], tokens: int = 200) -> Measurement:
    sums = ([float(nll) * tokens for nll in column] for column in (branch_nll, reference_nll))
    clusters = items(*sums, [tokens] * len(branch_nll), bounds=None)
    return measurement(ProbeName.EVALS, "perplexity", clusters, "perplexity")


def census(probe: ProbeName, metric: str, count: float, slice: str = "all", total: int = 100) -> Measurement:
    return measurement(probe, metric, items([count], units=[total], bounds=None), "census", slice=slice)


def criterion(kind: str, value: float, *, margin: dict[str, object] | None = None, **changes: object) -> Criterion:
    """A blocking criterion over the mean divergence, with other fields of it and of its margin."""
    whole = {"kind": kind, "value": value, "source": "test"} | (margin or {})
    known: dict[str, object] = {"id": "it", "probe": "kl", "metric": "kl_divergence", "lanes": ["freeform"]}
    return Criterion.model_validate(known | {"margin": whole} | changes)


def only(kind: str, value: float, *, margin: dict[str, object] | None = None, **changes: object) -> Policy:
    """The policy of that criterion alone."""
    return Policy(name="p", criteria=(criterion(kind, value, margin=margin, **changes),))


def small_policy(**changes: object) -> Policy:
    """Three blocking criteria over two lanes: accuracy for freeform, failures for structured, faults for both."""
    both = (Lane.STRUCTURED, Lane.FREEFORM)
    tools = {"probe": "canaries", "metric": "failure_rate", "slice": "tools", "lanes": both[:1]}
    intact = {"probe": "weights", "metric": "integrity_faults", "lanes": both, "waivable": False}
    criteria = (
        criterion("min_recovery", 0.9, id="mmlu", probe="evals", metric="accuracy", slice="mmlu"),
        criterion("max_increase", 0.1, id="tools", **tools),
        criterion("max_count", 0, id="intact", **intact),
    )
    return Policy.model_validate({"name": "small", "criteria": criteria} | changes)


def small_evidence(mmlu_lost: int = 0, tools_broken: int = 0, faults: int = 0) -> list[Measurement]:
    """What `small_policy` judges, of two hundred items each."""
    return [
        accuracy([0] * mmlu_lost + [1] * (200 - mmlu_lost), [1] * 200),
        failure_rate([1] * tools_broken + [0] * (200 - tools_broken), [0] * 200, "tools"),
        census(ProbeName.WEIGHTS, "integrity_faults", faults),
    ]


FINITE = census(ProbeName.KL, "non_finite_tokens", 0)
"""No token without finite figures, which every judged divergence must show."""


def without_competence(policy: Policy) -> Policy:
    """The policy, asking nothing of the reference."""
    criteria = tuple(criterion.model_copy(update={"informative": None}) for criterion in policy.criteria)
    return policy.model_copy(update={"criteria": criteria})


def shipped_evidence(rng: np.random.Generator, margins_worse: float) -> list[Measurement]:
    """Every blocking measurement of the sandbox policy at about its shipped size.

    At 0 the branch is identical to the reference; otherwise each true loss is that many margins.
    """
    worse = margins_worse
    right = {
        name: rng.random(n) < p
        for name, n, p in (("mmlu", 525, 0.87), ("short_answers", 525, 0.83), ("ruler", 372, 0.68))
    }
    failing = {lane: rng.random(n) < 0.04 for lane, n in (("structured", 525), ("freeform", 315))}
    nll = 1.5 + 0.5 * rng.random(120)
    noise = rng.normal(0, 0.02, 120) if worse else 0.0
    measurements = [
        *(census(ProbeName.WEIGHTS, metric, 0) for metric in WEIGHT_CENSUSES),
        census(ProbeName.KL, "non_finite_tokens", 0),
        divergence((worse * 0.014 * rng.lognormal(-0.5, 1.0, 120)).tolist()),
        perplexity((nll + worse * np.log(1 / 0.979) + noise).tolist(), nll.tolist()),
    ]
    for name, margin in (("mmlu", 0.05), ("short_answers", 0.08), ("ruler", 0.07)):
        kept = right[name] & (rng.random(right[name].size) >= worse * margin)
        measurements.append(accuracy(kept.astype(int).tolist(), right[name].astype(int).tolist(), name))
    for lane, margin in (("structured", 0.05), ("freeform", 0.08)):
        reference = failing[lane]
        branch = reference | (rng.random(reference.size) < worse * margin / (1 - reference.mean()))
        measurements.append(failure_rate(branch.astype(int).tolist(), reference.astype(int).tolist(), lane))
        measurements.append(census(ProbeName.CANARIES, "must_pass_flips", 0, lane))
    for lane, prompts, margin in (("structured", 44, 0.19), ("freeform", 31, 0.22)):
        lost = (rng.random(prompts) < worse * margin).astype(int).tolist()
        measurements.append(failure_rate(lost, [0] * prompts, lane, "fixed_prompt_failure_rate"))
    return measurements
