"""Whether a policy asks at least what another one does, lane by lane: a PASS by one that asks less says less. Pure.

The gate writes down with a run what its family declares (`Declaration`), for who reads the history without its file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationError

from q36eval.files import json_sha256
from q36eval.gate.judge import LEAST_CLUSTERS
from q36eval.gate.margins import Schemes, accepted_figure
from q36eval.gate.policy import Criterion, Margin, Policy, stricter
from q36eval.gate.report import GateReport
from q36eval.metrics import metric_of
from q36eval.records import Lane, Record
from q36eval.schemes import parts_of


@dataclass(frozen=True)
class Shortfall:
    """What a policy asks less than the declared one: the ids of blocking criteria that are `missing` and of those that
    allow more (`looser`), and what is true of the policy as a whole (`besides`)."""

    missing: tuple[str, ...] = ()
    looser: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """`14 criteria are missing, 2 allow more`."""
        said = list(self.besides)
        if self.missing:
            said.append(_counted(len(self.missing), "is missing", "are missing"))
        if self.looser:
            said.append(_counted(len(self.looser), "allows more", "allow more"))
        return ", ".join(said)


def shortfall(policy: Policy, declared: Policy, lanes: Iterable[Lane]) -> Shortfall | None:
    """What `policy` asks less of these lanes than `declared`; None where it asks as much, or more.

    Every blocking criterion of the declared policy in a lane must be there in that lane, blocking, over the same
    figure, with a margin that allows no more for any quantization scheme, on no fewer items and clusters, at no lower
    confidence, and no easier in its other terms. The policy is no pre-check, and takes a signature no later.
    """
    missing: dict[str, None] = {}
    looser: dict[str, None] = {}
    besides: dict[str, None] = {}
    if policy.purpose == "pre-check":
        besides["it is a pre-check"] = None
    if _tries(policy) > _tries(declared):
        besides["it allows more attempts without a signature"] = None
    for lane in lanes:
        if lane not in declared.lanes:  # nothing is asked there, which every policy would do
            besides[f"it judges no {lane} use"] = None
        for asked in _blocking(declared, lane):
            own = [one for one in _blocking(policy, lane) if _figure(one) == _figure(asked)]
            if not own:
                missing[asked.id] = None
            elif not any(_asks_as_much(one, policy, asked, declared) for one in own):
                looser[asked.id] = None
    found = Shortfall(tuple(missing), tuple(name for name in looser if name not in missing), tuple(besides))
    return None if found == Shortfall() else found


def _counted(count: int, one: str, several: str) -> str:
    return f"1 criterion {one}" if count == 1 else f"{count} criteria {several}"


def _tries(policy: Policy) -> float:
    return float("inf") if policy.max_attempts is None else policy.max_attempts


def _blocking(policy: Policy, lane: Lane) -> Iterator[Criterion]:
    return (one for one in policy.criteria if one.tier == "blocking" and lane in one.lanes)


def _figure(criterion: Criterion) -> tuple[str, ...]:
    """What is judged, and by which kind of margin against what."""
    return criterion.key, criterion.margin.kind, criterion.margin.against


def _asks_as_much(own: Criterion, policy: Policy, asked: Criterion, declared: Policy) -> bool:
    return (
        _allows_no_more(own.margin, asked.margin)
        and _threshold_is_no_higher(own.margin, policy, asked.margin, declared)
        and own.confidence >= asked.confidence
        and own.min_scored >= asked.min_scored
        and _least_clusters(own) >= _least_clusters(asked)
        and _reference_does_no_less(own, asked)
        and (own.estimand == "population" or asked.estimand == "these_items")
        and (asked.waivable or not own.waivable)
    )


def _allows_no_more(own: Margin, asked: Margin) -> bool:
    """For a checkpoint of any scheme that one of them names, of another, of none and of an unknown one.

    What holds for these holds for every mixture: there the strictest figure of a part counts.
    """
    if stricter(asked.kind, asked.value, own.value):
        return False
    named: list[Schemes] = [parts_of(figure.scheme) for figure in (*own.schemes, *asked.schemes)]
    return not any(
        stricter(asked.kind, _limit(asked, schemes), _limit(own, schemes)) for schemes in (*named, frozenset(), None)
    )


def _limit(margin: Margin, schemes: Schemes) -> float:
    figure = accepted_figure(margin, schemes)
    return margin.value if figure is None else figure.value


def _threshold_is_no_higher(own: Margin, policy: Policy, asked: Margin, declared: Policy) -> bool:
    """Of a share: what it counts begins no farther out. In numbers or in margins, one as the other says it."""
    if asked.beyond is not None:
        return own.beyond is not None and own.beyond <= asked.beyond
    if asked.beyond_margins is None:
        return True
    margins = [
        next((one.margin for one in of.criteria if one.id == margin.of), None)
        for of, margin in ((policy, own), (declared, asked))
    ]
    return (
        own.beyond_margins is not None
        and own.beyond_margins <= asked.beyond_margins
        and margins[0] is not None
        and margins[1] is not None
        and margins[0].kind == margins[1].kind
        and _allows_no_more(margins[0], margins[1])
    )


def _least_clusters(criterion: Criterion) -> int:
    """As `judge` asks for them where the criterion says nothing."""
    if criterion.min_clusters is not None:
        return criterion.min_clusters
    metric = metric_of(criterion.probe, criterion.metric)
    return LEAST_CLUSTERS if metric.estimator == "ratio" or not metric.bounded else 1


def _reference_does_no_less(own: Criterion, asked: Criterion) -> bool:
    if asked.informative is None or own.informative is None:
        return asked.informative is None
    names = type(asked.informative).model_fields
    return all(getattr(own.informative, name) >= getattr(asked.informative, name) for name in names)


DECLARED = "declared"
"""Where a run's provenance holds its `Declaration`."""


class Declaration(Record):
    """What the family's file said of the branch when its gate began: for which uses it is meant, as far as the family's
    policy judges them, its size, whether it is the reference, and the policy that judges the family.

    `asks_less` is what the run's own policy asks less than that one, by each lane that it judges (or `ALL_LANES`), as a
    sentence goes on after its name; nothing of a lane where it asks as much. `against` is the branch that it was held
    against, where that is another of the family than its reference. `template` is the hash of the chat template that
    the branch is declared to have of its own.
    """

    lanes: tuple[Lane, ...]
    size_bytes: int | None = None
    is_reference: bool = False
    policy: str
    policy_sha256: str
    asks_less: dict[str, str] = Field(default_factory=dict)
    against: str = ""
    template: str = ""


ALL_LANES = "all"


def declaration(
    own: Policy,
    declared: Policy,
    *,
    lanes: Sequence[Lane],
    size_bytes: int | None,
    is_reference: bool,
    against: str = "",
    template: str = "",
) -> Declaration:
    """What is to be written down with a run by the policy `own`, of a family whose policy is `declared`."""
    return Declaration(
        lanes=judged_lanes(lanes, declared),
        size_bytes=size_bytes,
        is_reference=is_reference,
        policy=declared.name,
        policy_sha256=json_sha256(declared.untitled.model_dump(mode="json")),
        asks_less=less_by_lane(own, declared),
        against=against,
        template=template,
    )


def judged_lanes(lanes: Sequence[Lane], declared: Policy | None) -> tuple[Lane, ...]:
    """The uses that a branch is meant for (all, where nothing is said) as far as the family's policy judges them."""
    meant = tuple(lanes) or tuple(Lane)
    judged = meant if declared is None else declared.lanes
    return tuple(lane for lane in meant if lane in judged) or meant


def less_by_lane(own: Policy, declared: Policy) -> dict[str, str]:
    """`Declaration.asks_less` of these two."""
    asked = {lane.value: (lane,) for lane in own.lanes} | {ALL_LANES: own.lanes}
    found = {name: shortfall(own, declared, lanes) for name, lanes in asked.items()}
    return {
        name: f"asks less than the family's `{declared.name}`: {less.words}"
        for name, less in found.items()
        if less is not None
    }


def recorded_declaration(provenance: Mapping[str, Any]) -> Declaration | None:
    """What a run's provenance says of that; None where it says nothing that this version can read."""
    try:
        return Declaration.model_validate(provenance[DECLARED])
    except (KeyError, ValidationError):
        return None


def policy_note(report: GateReport, provenance: Mapping[str, Any]) -> str | None:
    """A sentence beside a verdict by a policy that asks less than the family's in a lane that it judges, or against
    another branch than its reference; of a pre-check none, which says itself that it releases nothing."""
    declared = recorded_declaration(provenance)
    if declared is None or report.purpose == "pre-check":
        return None
    less = declared.asks_less.get(ALL_LANES)
    if declared.against:
        said = f"it was held against `{declared.against}`, which is not the family's reference"
    elif less is not None:
        said = f"the policy `{report.policy}` {less}"
    else:
        return None
    return f"{said}; its PASS does not say that the branch may ship"
