"""The reference's competence on each family of items, and why answers are not right.

A family is a task at a length if a group has lengths (RULER: a model reads 4,096 tokens and not 131,072), else the
whole group: one subject of MMLU has too few questions to assess a model. An item is informative if the reference gets
full marks within its token budget: with a partial score, such as RULER's for three of four values, it is unknown
whether the reference can do the task or was lucky with a part.

It is counted over the reference's answers before the branch's: over all items that are only scored, and over the first
blocks of items with generated answers, until they hold `SAMPLE` of each family (`sampled`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from q36eval.evals.paired_clusters import PlannedItem
from q36eval.evals.suite import TaskGroup
from q36eval.records import Answer, Clusters, FailureCauses, FamilyCompetence, ItemOutcome

LENGTH_FIELDS = ("length", "max_length")
"""Slice fields with a number of tokens: of the sandbox's RULER documents, and of lm-eval's."""

SAMPLE = 20
"""The number of a family's items that determine its competence. A family of which the reference solves four in five
fails half of a sample 6 times in 10,000 (binomial); only near a policy's share may the sample differ from all items."""

CUT_OFF, UNREADABLE, WRONG, ERRORED = "cut_off", "unreadable", "wrong", "errored"
"""Why an answer is not right: it was cut off, it could not be read, it is wrong, or it errored."""


@dataclass(frozen=True)
class KnownAnswer:
    """The reference's answer to an item of a family: why it is not right (None: it is), and the chance of guessing.

    `asked` is false if the reference answers it together with the branch, so that it does not count here.
    """

    family: str
    cause: str | None
    chance: float
    asked: bool = True


Known = Mapping[str, KnownAnswer]
"""The reference's known answers to all planned items, by item key."""


def cause_of(answer: Answer) -> str | None:
    """Why an answer is not right; None for full marks."""
    if answer.score is None:
        return ERRORED
    if answer.score >= 1.0:
        return None
    # answers captured by earlier versions do not record how they ended
    return next((cause for cause in (CUT_OFF, UNREADABLE) if answer.detail.get(cause)), WRONG)


def family_of(group: TaskGroup, stratum: str) -> str:
    """The family of a group's items of that stratum."""
    return f"{group.name}/{stratum}" if set(group.slice_fields) & set(LENGTH_FIELDS) else group.name


def sampled(families: Mapping[PlannedItem, str]) -> list[str]:
    """The keys of the first blocks of a group's items (item -> family), until they hold `SAMPLE` items of each family,
    or all of it."""
    lacking = Counter({name: min(SAMPLE, size) for name, size in Counter(families.values()).items()})
    keys: list[str] = []
    for block in sorted({item.block for item in families}):
        if not any(count > 0 for count in lacking.values()):
            break
        own = [item for item in families if item.block == block]
        lacking.subtract(families[item] for item in own)
        keys += [item.key for item in own]
    return keys


def merged(planned: Sequence[PlannedItem], known: Known) -> dict[str, KnownAnswer]:
    """The known answers to these items; families that share a cluster become one, named after all of them.

    A policy leaves a family out with all its clusters: an item at two lengths is left out at both or at neither.
    """
    own = {item.key: known[item.key].family for item in planned}
    together: dict[str, set[str]] = {family: {family} for family in own.values()}
    of_cluster: dict[str, str] = {}
    for item in planned:
        one, other = together[of_cluster.setdefault(item.cluster, own[item.key])], together[own[item.key]]
        if one is not other:
            one |= other
            together |= dict.fromkeys(other, one)
    names = {family: " + ".join(sorted(families)) for family, families in together.items()}
    return {key: replace(known[key], family=names[family]) for key, family in own.items()}


def competence(planned: Iterable[PlannedItem], known: Known) -> tuple[FamilyCompetence, ...]:
    """The reference's competence on the families of these items, each counted over its evaluated items among them."""
    by_family: dict[str, list[KnownAnswer]] = {}
    sizes = Counter(known[item.key].family for item in planned)
    for answer in (known[item.key] for item in planned):
        if answer.asked:
            by_family.setdefault(answer.family, []).append(answer)
    return tuple(
        FamilyCompetence(
            name=family,
            items=len(answers),
            informative=sum(answer.cause is None for answer in answers),
            chance=sum(answer.chance for answer in answers) / len(answers),
            causes=dict(sorted(Counter(answer.cause for answer in answers if answer.cause is not None).items())),
            planned=None if sizes[family] == len(answers) else sizes[family],
        )
        for family, answers in sorted(by_family.items())
    )


def failure_causes(outcomes: Iterable[ItemOutcome]) -> FailureCauses:
    """For the evaluated items, why the answers of either side are not right."""
    outcomes = list(outcomes)
    sides = ([outcome.branch for outcome in outcomes], [outcome.reference for outcome in outcomes])
    branch, reference = (
        dict(sorted(Counter(cause for answer in answers if (cause := cause_of(answer)) is not None).items()))
        for answers in sides
    )
    return FailureCauses(branch=branch, reference=reference)


def with_families(clusters: Clusters, outcomes: Iterable[ItemOutcome], known: Known | None) -> Clusters:
    """The clusters, which are those of `outcomes` in the order of their first ones, each with its family."""
    if known is None:
        return clusters
    first: dict[str, str] = {}
    for outcome in outcomes:
        first.setdefault(outcome.cluster, outcome.item_key)
    return clusters.model_copy(update={"families": tuple(known[key].family for key in first.values())})
