"""Every unit comes back once and in order whichever workers die or fail, by a pool whose answers a test decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from q36eval.engines.base import Batch, ScoreRequest
from q36eval.engines.workers.dispatch import KILLS, Dispatch, FatalUnitError
from q36eval.engines.workers.packing import Packed
from q36eval.engines.workers.pool import LostError, Member, Pool
from q36eval.engines.workers.worker import Computed
from q36eval.errors import EngineError

SENT = Computed(Packed((), (), None, ""), (), 0)
Answer = Computed | Exception


@dataclass
class Calls:
    """The actor of a worker: a call is who was asked, and for which unit."""

    name: int
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def compute(self) -> "Calls":
        return self

    def remote(self, engine: int, unit: Sequence[Batch]) -> tuple[int, int]:
        self.asked.append((self.name, int(unit[0][0].key)))
        return self.asked[-1]


@dataclass
class Workers:
    """Without Ray: `answers` says what comes of a call, `next_of` which of those under way ends next."""

    count: int
    answers: Callable[[tuple[int, int]], Answer]
    next_of: Callable[[list[tuple[int, int]]], tuple[int, int]] = min
    replaced: bool = False
    members: list[Member] = field(init=False)
    joining: dict[Any, Member] = field(default_factory=dict)
    losses: list[tuple[int, str, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member(Calls(name)) for name in range(self.count)]

    def ready(self, calls: Sequence[Any], seconds: float | None = None) -> list[Any]:
        under_way = [call for call in calls if isinstance(call, tuple)]
        assert under_way or seconds is not None, "nothing is under way: a wait without end"
        set_up = [call for call in calls if self.replaced and not isinstance(call, tuple)]
        return set_up or ([self.next_of(under_way)] if under_way else [])

    def joined(self, calls: Sequence[Any]) -> None:
        self.members += [self.joining.pop(call) for call in calls]

    def await_joining(self) -> None:
        if not self.joining:
            raise EngineError("All workers are lost")
        self.joined(list(self.joining))

    def value(self, call: tuple[int, int]) -> Computed:
        answer = self.answers(call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lost(self, member: Member, reason: str, *, at_work: bool = False) -> None:
        self.losses.append((member.actor.name, reason, at_work))
        self.members.remove(member)
        self.joining[f"set-up {len(self.losses)}"] = Member(Calls(self.count + len(self.losses) - 1))


def outcomes(workers: Workers, units: int) -> list[tuple[int, Answer]]:
    requests = [[[ScoreRequest(str(n), (1, 2))]] for n in range(units)]
    dispatch = Dispatch(cast(Pool, workers), 1, requests)
    return [(int(unit[0][0].key), outcome) for unit, outcome in dispatch.outcomes()]


def test_a_node_that_takes_two_workers_with_it_keeps_nobody_waiting() -> None:
    """One held the first units, the other later ones: what is left is handed out in order, within a smaller window."""
    others_answered = 0

    def answers(call: tuple[int, int]) -> Answer:
        nonlocal others_answered
        others_answered += 1
        return LostError("its node died") if call[0] >= 2 and others_answered > 12 else SENT

    def all_but_the_slow_one(calls: list[tuple[int, int]]) -> tuple[int, int]:
        if others_answered >= 12:
            return min((call for call in calls if call[0] >= 2), default=min(calls))
        return next(call for call in calls if call[0] != 2)

    workers = Workers(4, answers, all_but_the_slow_one)
    assert outcomes(workers, 40) == [(n, SENT) for n in range(40)]
    assert [name for name, _, _ in workers.losses] == [2, 3]


def test_a_unit_that_workers_die_of_is_given_up_and_the_rest_is_computed() -> None:
    workers = Workers(2, lambda call: LostError("killed") if call[1] == 3 else SENT, replaced=True)
    came = outcomes(workers, 9)
    assert [(n, type(outcome)) for n, outcome in came] == [
        (n, FatalUnitError if n == 3 else Computed) for n in range(9)
    ]
    assert str(came[3][1]) == f"{KILLS} workers died while they computed 3, the last of them: killed"


def test_a_work_that_nobody_can_be_given_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatch, "_hand_out", lambda self, handed_out: None)
    with pytest.raises(EngineError, match=r"2 parts of the work wait, and no worker can be given one"):
        outcomes(Workers(1, lambda call: SENT), 2)
