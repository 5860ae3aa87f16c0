"""Earlier gates of the same checkpoint: how often a PASS was tried for, and what that does to a false one. Pure."""

from datetime import datetime
from typing import Any

from pydantic import Field

from q36eval.gate.policy import Policy
from q36eval.records import Record, Verdict


class EarlierGate(Record):
    """A finished gate of the same deployment by the same criteria.

    `other_suites` are the probes that it asked another suite (another corpus among them). `answers` names the answers
    that it rests on: gates of the same name rest on the same ones, and are one try.
    """

    run_id: str
    finished: datetime
    verdict: Verdict
    answers: str
    other_suites: tuple[str, ...] = ()


class Tried(Record):
    """What a decision knows of other gates: the earlier ones, oldest first, and the name of this gate's answers.

    `unfinished` are the gates that began to measure and never came to a verdict: who saw them go badly may have ended
    them. `reused` is of an earlier version only, whose gates took answers over from other runs.
    """

    earlier: tuple[EarlierGate, ...] = ()
    unfinished: tuple[str, ...] = ()
    answers: str = ""
    reused: dict[str, Any] | None = None


class Attempts(Record):
    """How often this deployment was gated by these criteria, and the chance of a false PASS over all of it.

    `answer_sets` counts the sets of answers that all gates up to this one rest on: the same answers are no further
    try. `false_pass_each` is the chance that a branch just at a margin passes one gate, the greatest over the
    blocking criteria; `false_pass_any` that of one or more PASS among as many independent gates, which is what other
    items give. Gates of the same items are alike, and give less. `allowed` is the policy's `max_attempts`. Those that
    were begun and left `unfinished` are told and not counted: a machine that went down is no try for a PASS.
    """

    earlier: tuple[EarlierGate, ...] = ()
    unfinished: tuple[str, ...] = ()
    answer_sets: int = Field(ge=1)
    false_pass_each: float
    false_pass_any: float
    allowed: int | None = None
    reused: dict[str, Any] | None = None

    @property
    def since_pass(self) -> int:
        """The sets of answers after the last gate that passed, this one's among them."""
        passed = max((n for n, gate in enumerate(self.earlier, 1) if gate.verdict is Verdict.PASS), default=0)
        return self.answer_sets - len({gate.answers for gate in self.earlier[:passed]})

    @property
    def too_many(self) -> bool:
        """Whether the policy allows fewer: then a PASS needs a reviewer's signature."""
        return self.allowed is not None and self.since_pass > self.allowed


def attempts_of(policy: Policy, tried: Tried | None) -> Attempts | None:
    """The attempts that a decision by `policy` is the last of; None where it is the first."""
    if tried is None or not (tried.earlier or tried.unfinished or tried.reused):
        return None
    sets = len({gate.answers for gate in tried.earlier} | {tried.answers})
    each = max(
        (1.0 - c.confidence for c in policy.criteria if c.tier == "blocking" and c.margin.kind != "max_count"),
        default=0.0,
    )
    return Attempts(
        earlier=tried.earlier,
        unfinished=tried.unfinished,
        answer_sets=sets,
        false_pass_each=each,
        false_pass_any=1.0 - (1.0 - each) ** sets,
        allowed=policy.max_attempts,
        reused=tried.reused,
    )


def judged_content(policy: Policy) -> dict[str, Any]:
    """What of a policy decides: not its name, nor its words, nor how often it may be tried."""
    criteria = [
        criterion.model_dump(mode="json", exclude={"note": True, "title": True, "margin": {"source"}})
        for criterion in policy.criteria
    ]
    return {"alpha": policy.alpha, "criteria": sorted(criteria, key=lambda criterion: criterion["id"])}
