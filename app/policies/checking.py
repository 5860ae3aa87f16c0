"""Whether a policy can be judged by: what is wrong with its file, its margins, its slices and its lanes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from q36eval.app.policies.files import family_of, suite_of
from q36eval.app.policies.noise import KnownFloor, known_floor
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate import Criterion, Policy
from q36eval.gate.margins import held_to
from q36eval.gate.noise import below_floor, floor_of, has_floor
from q36eval.gate.policy_file import extended, policy_problems, read_policy
from q36eval.records import Lane, ProbeName
from q36eval.run.declared_figures import Declared, Subject, declared_for, never_passes
from q36eval.stats import unseen_share

HARMLESS_CONFIDENCE = 0.9
"""One-sided: a PASS at less is wrong more than once in ten."""


@dataclass(frozen=True)
class PolicyCheck:
    """What was found. `problems` keep the policy from being judged as it says, `remarks` a reader should know.

    `checked_for` says against which family's suite, `floor` where the noise floor is from; both are empty where the
    file itself is no policy. `unseen` says which losses the texts may not hold at all.
    """

    file: str
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = field(default=())
    checked_for: str = ""
    unseen: tuple[str, ...] = ()
    floor: str = ""

    @property
    def sound(self) -> bool:
        """Whether nothing keeps it from being judged."""
        return not self.problems


def check_policy(
    file: Path, paths: Paths, family: str | None = None, suite: str | None = None, canaries: Path | None = None
) -> PolicyCheck:
    """Everything that can be said against a policy file before a branch is measured.

    `canaries` is a folder of a person's own beside the shipped ones.

    Raises:
        UsageError: the family or the suite to check it for is unknown or malformed.
    """
    problems = policy_problems(file, paths.policies)
    if problems:
        return PolicyCheck(str(file), problems)
    policy = read_policy(file)
    chosen = family_of(policy, family, paths)
    subject = Subject(chosen, suite or suite_of(policy, chosen), own=canaries)
    declared, known = declared_for(subject, paths), _floor(chosen, paths)
    return PolicyCheck(
        str(file),
        tuple(_problems(policy, declared, known)),
        (*_promoted(policy, extended(file, paths.policies)), *_remarks(policy, declared)),
        checked_for=f"family {declared.family}, suite {declared.suite}",
        floor=known.source,
        unseen=tuple(_unseen(policy, declared)),
    )


def _promoted(policy: Policy, bases: Sequence[Policy]) -> Iterator[str]:
    """What a release inherits of a policy that is too small for one."""
    names = [base.name for base in bases if base.purpose == "pre-check"]
    if policy.purpose == "release" and names:
        yield (
            f"Its purpose is a release, and it extends {names[0]}, a pre-check: the margins that it inherits are for "
            f"finding damage, not for releasing."
        )


def _unseen(policy: Policy, declared: Declared) -> Iterator[str]:
    """Of criteria over texts, alike for all that rest on the same ones."""
    rows: dict[tuple[int, float], list[str]] = {}
    for criterion in policy.criteria:
        figure = declared.by_key.get(criterion.key)
        clusters = None if figure is None or (figure.bounded and figure.estimator != "maximum") else figure.clusters
        if clusters and criterion.margin.kind in ("max_share", "max_value", "min_retention"):
            rows.setdefault((clusters, criterion.confidence), []).append(criterion.id)
    for (clusters, confidence), names in rows.items():
        yield (
            f"{', '.join(names)}: of {clusters:,} independent texts at most, a catastrophe in fewer than "
            f"{unseen_share(clusters, confidence):.2%} of all is missed more often than {1.0 - confidence:.1%} of the "
            f"time."
        )


def _floor(family: Family, paths: Paths) -> KnownFloor:
    try:
        return known_floor(family, paths)
    except UsageError as error:  # a history that cannot be read keeps no policy from being checked
        return KnownFloor(source=f"no noise floor could be read: {error}")


def _problems(policy: Policy, declared: Declared, known: KnownFloor) -> Iterator[str]:
    for criterion in policy.criteria:
        never = never_passes(criterion, declared)
        below = _below_floor(criterion, known)
        if never:
            yield f"{criterion.id}: {never}."
        elif below:
            yield f"{criterion.id}: {below}; widen the margin."


def _below_floor(criterion: Criterion, known: KnownFloor) -> str | None:
    """Why its ceiling, or the figure of a scheme, cannot be judged."""
    floor = floor_of(criterion, known.measurements)
    ceiling = below_floor(held_to(criterion, None), floor)
    figures = ((figure.scheme, below_floor(held_to(criterion, figure), floor)) for figure in criterion.margin.schemes)
    if ceiling is not None:
        return ceiling.text
    return next((f"for {scheme}, {why.text}" for scheme, why in figures if why is not None), None)


def _remarks(policy: Policy, declared: Declared) -> Iterator[str]:
    for lane in Lane:
        if lane not in policy.lanes:
            yield f"Lane {lane} is not judged: a PASS says nothing about it."
            continue
        blocking = {c.probe for c in policy.criteria if c.tier == "blocking" and lane in c.lanes}
        for probe in ProbeName:
            # what only an endpoint can show is no gap of a policy for checkpoints
            if probe not in blocking and probe is not ProbeName.SERVED:
                yield f"Lane {lane} is unguarded by {probe}: nothing that the {probe} probe finds can block it."
    for criterion in policy.criteria:
        yield from (f"{criterion.id}: {sentence}" for sentence in _remarks_on(criterion, declared))


def _remarks_on(criterion: Criterion, declared: Declared) -> Iterator[str]:
    if criterion.confidence < HARMLESS_CONFIDENCE:
        wrong = 1.0 - criterion.confidence
        yield f"at a confidence of {criterion.confidence:.1%} a loss at its margin passes {wrong:.0%} of the time."
    if criterion.margin.against == "blessed" and criterion.tier == "blocking":
        yield "it blocks every branch that was never blessed, since there is nothing to hold it against."
    open_ = declared.open(criterion.probe, criterion.metric, criterion.slice)
    if criterion.key not in declared.by_key and open_:
        yield f"{open_}."
    if criterion.margin.value == 0 and has_floor(criterion.probe, criterion.metric):
        yield "a margin of 0 is kept by no computation that rounds."
