"""Earlier gates of the same checkpoint: their number, and its effect on the chance of a false PASS. Pure."""

from datetime import datetime
from typing import Any

from pydantic import Field

from q36eval.gate.policy import Policy
from q36eval.records import Record, Verdict


class EarlierGate(Record):
    """A finished gate of the same deployment by the same criteria.

    `other_suites` are the probes that used a different suite or corpus in that gate. `answers` identifies the set of
    answers behind the gate: gates with the same value use the same answers and count as one attempt.
    """

    run_id: str
    finished: datetime
    verdict: Verdict
    answers: str
    other_suites: tuple[str, ...] = ()


class Tried(Record):
    """The other gates known to a decision: the earlier ones, oldest first, and the identifier of this gate's answers.

    `unfinished` are gates that began to measure and never reached a verdict: somebody may have stopped them because
    they went badly. Only an earlier version sets `reused`; its gates took answers over from other runs.
    """

    earlier: tuple[EarlierGate, ...] = ()
    unfinished: tuple[str, ...] = ()
    answers: str = ""
    reused: dict[str, Any] | None = None


class Attempts(Record):
    """The number of gates of this deployment by these criteria, and the chance of a false PASS over all of them.

    `answer_sets` counts the distinct sets of answers up to this gate: the same answers are not another attempt.
    `false_pass_each` is the chance that a branch exactly at a margin passes one gate, the largest over the blocking
    criteria. `false_pass_any` is the chance of at least one PASS among that many independent gates, as with new items;
    gates with the same items are correlated, and their chance is lower. `allowed` is the policy's `max_attempts`.
    `unfinished` gates are reported but not counted: a crashed machine is not an attempt at a PASS.
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
        """The number of answer sets after the last gate that passed, including this gate's."""
        passed = max((n for n, gate in enumerate(self.earlier, 1) if gate.verdict is Verdict.PASS), default=0)
        return self.answer_sets - len({gate.answers for gate in self.earlier[:passed]})

    @property
    def too_many(self) -> bool:
        """Whether the policy allows fewer attempts; a PASS then needs a reviewer's signature."""
        return self.allowed is not None and self.since_pass > self.allowed


def attempts_of(policy: Policy, tried: Tried | None) -> Attempts | None:
    """The attempts up to and including a decision by `policy`; None for a first attempt."""
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
    """The parts of a policy that decide: everything except its name, its texts and the allowed attempts."""
    criteria = [
        criterion.model_dump(mode="json", exclude={"note": True, "title": True, "margin": {"source"}})
        for criterion in policy.criteria
    ]
    return {"alpha": policy.alpha, "criteria": sorted(criteria, key=lambda criterion: criterion["id"])}
