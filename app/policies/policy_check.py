"""Whether a policy can be used: the errors of its file, its margins, its slices and its lanes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from q36eval.app.policies.files import family_of, suite_of
from q36eval.config import Paths
from q36eval.gate import Policy
from q36eval.gate.policy_file import policy_problems, read_policy
from q36eval.records import Lane, ProbeName
from q36eval.run.declared_figures import Declared, Subject, declared_for, never_passes


@dataclass(frozen=True)
class PolicyCheck:
    """The result. `problems` prevent the use of the policy as written, `remarks` are notes for a reader.

    `checked_for` names the family and the suite; it is empty if the file itself is not a policy. Margins below the
    reference's noise floor are refused by the gate, which measures it.
    """

    file: str
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = field(default=())
    checked_for: str = ""

    @property
    def sound(self) -> bool:
        """Whether no problem prevents its use."""
        return not self.problems


def check_policy(
    file: Path, paths: Paths, family: str | None = None, suite: str | None = None, canaries: Path | None = None
) -> PolicyCheck:
    """Every problem of a policy file that can be found before a branch is measured.

    `canaries` is a folder of custom canaries in addition to the shipped ones.

    Raises:
        UsageError: the family or the suite to check it for is unknown or malformed.
    """
    problems = policy_problems(file, paths.policies)
    if problems:
        return PolicyCheck(str(file), problems)
    policy = read_policy(file)
    chosen = family_of(policy, family, paths)
    subject = Subject(chosen, suite or suite_of(policy, chosen), own=canaries)
    declared = declared_for(subject, paths)
    never = {criterion.id: never_passes(criterion, declared) for criterion in policy.criteria}
    return PolicyCheck(
        str(file),
        tuple(f"{name}: {why}." for name, why in never.items() if why is not None),
        tuple(_remarks(policy, declared)),
        checked_for=f"family {declared.family}, suite {declared.suite}",
    )


def _remarks(policy: Policy, declared: Declared) -> Iterator[str]:
    for lane in Lane:
        if lane not in policy.lanes:
            yield f"Lane {lane} is not judged: a PASS says nothing about it."
            continue
        blocking = {c.probe for c in policy.criteria if c.tier == "blocking" and lane in c.lanes}
        for probe in ProbeName:
            # figures that only an endpoint shows are not a gap in a policy for checkpoints
            if probe not in blocking and probe is not ProbeName.SERVED:
                yield f"Lane {lane} is unguarded by {probe}: nothing that the {probe} probe finds can block it."
    for criterion in policy.criteria:
        if criterion.margin.against == "blessed" and criterion.tier == "blocking":
            words = "it blocks every branch that was never blessed, since there is nothing to hold it against"
            yield f"{criterion.id}: {words}."
        open_ = declared.open(criterion.probe, criterion.metric, criterion.slice)
        if criterion.key not in declared.by_key and open_:
            yield f"{criterion.id}: {open_}."
