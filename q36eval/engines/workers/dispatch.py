"""Units out to whichever worker is free, results back in the order of the units, a lost worker's units again."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from q36eval.engines.base import Batch
from q36eval.engines.workers.pool import PLACED_WITHIN_S, LostError, Member, Pool
from q36eval.engines.workers.worker import Computed
from q36eval.errors import EngineError

AHEAD = 2
"""Units a worker holds at a time, so that it has the next one when it has computed one."""
WINDOW = 4
"""Units for each worker that are under way or wait to be handed out, at most: the bound of memory. Whoever takes
results slowly holds the workers back."""
KILLS = 3
"""So many workers may die while they hold one unit and nothing else; then it is given up, with the reason."""


class FatalUnitError(EngineError):
    """A unit that no worker survives."""


Outcome = Computed | FatalUnitError


@dataclass
class Dispatch:
    """One list of units on its way through the workers of a pool."""

    pool: Pool
    engine: int
    units: Sequence[Sequence[Batch]]
    _waiting: deque[int] = field(default_factory=deque)
    _held: dict[Any, tuple[Member, int]] = field(default_factory=dict)
    """By call: who has it, and which unit it is. A worker's calls are in the order in which it got them."""
    _done: dict[int, Outcome] = field(default_factory=dict)
    _kills: dict[int, int] = field(default_factory=dict)
    """Units that a lost worker held, each with how many were lost while they held it alone. It is handed out alone from
    then on, so that no unit pays for another."""
    _doubts: dict[int, tuple[Member, Computed]] = field(default_factory=dict)
    """Units whose results were all errors, and who said so: another worker computes them once more, and whoever fails
    at what another one can is broken. Until then it gets nothing else, and cannot use up the work by failing at it."""
    _nobody_came: bool = False
    """Whether a doubt waited in vain for a worker that joins; the next one waits for nobody."""

    def outcomes(self) -> Iterator[tuple[Sequence[Batch], Outcome]]:
        """Every unit with its results, or why it has none; in order.

        Raises:
            EngineError: no worker is left, or the engine failed in one after the other.
        """
        self._waiting = deque(range(len(self.units)))
        handed_out = 0
        try:
            while handed_out < len(self.units):
                self._hand_out(handed_out)
                while handed_out in self._done:
                    yield self.units[handed_out], self._done.pop(handed_out)
                    handed_out += 1
                    self._hand_out(handed_out)
                if handed_out < len(self.units):
                    self._take_back()
        finally:
            self._held.clear()  # whoever stops in the middle leaves units behind that nobody takes

    def _hand_out(self, handed_out: int) -> None:
        """Fill the workers' hands, as far as the window goes: the one who holds least first."""
        last = handed_out + WINDOW * max(1, len(self.pool.members))
        while self._waiting and (self._waiting[0] < last or self._waiting[0] in self._doubts):
            unit = self._waiting[0]
            loads = [(self._load(member), place) for place, member in enumerate(self.pool.members)]
            load, place = min((each for each in loads if self._may_have(each[1], unit)), default=(AHEAD, 0))
            if load >= (1 if unit in self._kills else AHEAD):
                return
            self._waiting.popleft()
            member = self.pool.members[place]
            self._held[member.actor.compute.remote(self.engine, self.units[unit])] = (member, unit)

    def _may_have(self, place: int, unit: int) -> bool:
        member = self.pool.members[place]
        if unit in self._doubts:
            return member is not self._doubts[unit][0]
        return all(member is not doubted for doubted, _ in self._doubts.values())

    def _wait_again(self, units: Sequence[int]) -> None:
        """In order, whoever lost them first: what comes first must not wait behind what is beyond the window."""
        self._waiting = deque(sorted([*units, *self._waiting], key=lambda unit: (unit not in self._doubts, unit)))

    def _load(self, member: Member) -> int:
        units = [unit for holder, unit in self._held.values() if holder is member]
        return AHEAD if any(unit in self._kills for unit in units) else len(units)

    def _take_back(self) -> None:
        """Wait for something to end: a unit, or the set-up of a worker that joins."""
        if not self.pool.members:
            self.pool.await_joining()
            return
        if not self._held:
            self._await_another()
            return
        for call in self.pool.ready([*self._held, *self.pool.joining]):
            if call in self.pool.joining:
                self.pool.joined([call])
            elif call in self._held:
                member, unit = self._held[call]
                try:
                    computed = self.pool.value(call)
                except LostError as error:
                    self._bury(member, str(error))
                except EngineError as error:  # its engine is gone, though its process lives on
                    if self._kills.get(unit, 0) + 1 >= KILLS:
                        raise
                    self._bury(member, str(error), failed=unit)
                else:
                    del self._held[call]
                    self._take(member, unit, computed)

    def _take(self, member: Member, unit: int, computed: Computed) -> None:
        """Keep what came, but for what another worker may have a better answer to."""
        doubted = self._doubts.pop(unit, None)
        if computed.broken is not None:
            others = len(self.pool.members) > 1 or (self.pool.joining and not self._nobody_came)
            if doubted is None and others:
                self._doubts[unit] = (member, computed)
                self._wait_again([unit])
                return
        else:
            member.failures = 0
        self._done[unit] = computed
        if computed.broken is None and doubted is not None and doubted[0] in self.pool.members:
            self._bury(doubted[0], str(doubted[1].broken), at_work=False)

    def _await_another(self) -> None:
        """Nobody has anything, and nobody there can be given anything: wait for one that joins, but not for ever."""
        joined = self.pool.ready(list(self.pool.joining), PLACED_WITHIN_S) if self.pool.joining else []
        if joined:
            self.pool.joined(joined)
            return
        if not self._doubts:
            raise EngineError(
                "workers-lost",
                f"{len(self._waiting)} parts of the work wait, and no worker can be given one; resume the run.",
            )
        for unit, (_, computed) in self._doubts.items():  # there is no other whom to ask
            self._waiting.remove(unit)
            self._done[unit] = computed
        self._doubts.clear()
        self._nobody_came = True

    def _bury(self, member: Member, reason: str, *, failed: int | None = None, at_work: bool = True) -> None:
        """What it held goes to whoever is left; what it held alone, too often, is given up.

        `failed` is the unit that it is known to have failed at, whatever else it held.
        """
        mine = [(call, unit) for call, (holder, unit) in self._held.items() if holder is member]
        for call, unit in mine:
            del self._held[call]
            if at_work:
                self._kills[unit] = self._kills.get(unit, 0) + (
                    unit == failed if failed is not None else len(mine) == 1
                )
            if self._kills.get(unit, 0) >= KILLS:
                requests = [request for batch in self.units[unit] for request in batch]
                keys = ", ".join(request.key for request in requests[:3])
                more = ", …" if len(requests) > 3 else ""
                self._done[unit] = FatalUnitError(
                    "workers-killed",
                    f"{KILLS} workers died while they computed {keys}{more}, the last of them: {reason}",
                )
        self._wait_again([unit for _, unit in mine if unit not in self._done])
        self.pool.lost(member, reason, at_work=at_work and bool(mine))
