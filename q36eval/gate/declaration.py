"""A family's declaration of a branch, as the gate records it with a run, and whether the run follows it. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from q36eval.errors import UsageError
from q36eval.files import json_sha256
from q36eval.gate.policy import Policy
from q36eval.records import Lane, Record

DECLARED = "declared"
"""The key of the `Declaration` in a run's provenance."""


class Declaration(Record):
    """The branch's entry in the family's file when its gate began.

    `lanes` are the branch's intended uses, limited to those that the family's policy judges. `policy` and
    `policy_sha256` identify that policy, `lanes_sha256` is its hash for these lanes. `against` is the baseline branch,
    if it is not the family's reference. `template` is the hash of a chat template that the family declares for this
    branch alone.
    """

    lanes: tuple[Lane, ...]
    is_reference: bool = False
    policy: str
    policy_sha256: str
    lanes_sha256: str = ""
    against: str = ""
    template: str = ""

    @property
    def required_sha256(self) -> str:
        """The `policy_sha256` of the policy that can approve a release of the branch."""
        return self.lanes_sha256 or self.policy_sha256


def policy_sha256(policy: Policy) -> str:
    """The hash that identifies a policy: over everything except the titles of criteria."""
    return json_sha256(policy.untitled.model_dump(mode="json"))


def recorded_policy_sha256(recorded: Mapping[str, Any] | None, lanes: Sequence[Lane] = ()) -> str | None:
    """`policy_sha256` of a run's recorded policy, limited to these lanes; None if this version cannot compute it."""
    try:
        return policy_sha256(Policy.model_validate(recorded).for_lanes(lanes))
    except (ValidationError, UsageError):
        return None


def declaration(
    declared: Policy, *, lanes: Sequence[Lane] = (), is_reference: bool = False, against: str = "", template: str = ""
) -> Declaration:
    """The declaration of a branch in a family whose policy is `declared`; no `lanes` means all of them."""
    meant = tuple(lanes) or tuple(Lane)
    judged = tuple(lane for lane in meant if lane in declared.lanes)
    return Declaration(
        lanes=judged or meant,
        is_reference=is_reference,
        policy=declared.name,
        policy_sha256=policy_sha256(declared),
        lanes_sha256=policy_sha256(declared.for_lanes(judged)),
        against=against,
        template=template,
    )


def recorded_declaration(provenance: Mapping[str, Any]) -> Declaration | None:
    """The declaration in a run's provenance; None if this version finds no readable one."""
    try:
        return Declaration.model_validate(provenance[DECLARED])
    except (KeyError, ValidationError):
        return None


def no_release(policy: Mapping[str, Any] | None, provenance: Mapping[str, Any]) -> str | None:
    """A clause: why a PASS by `policy` does not approve a release; None if the run follows its family's declaration."""
    declared = recorded_declaration(provenance)
    if declared is None:
        return None
    if declared.against:
        return f"it was compared with `{declared.against}`, which is not the family's reference"
    if recorded_policy_sha256(policy, declared.lanes) != declared.required_sha256:
        lanes = " and ".join(declared.lanes)
        return f"its policy is not the family's `{declared.policy}` for the lanes of this branch ({lanes})"
    return None
