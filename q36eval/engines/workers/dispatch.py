"""Units out to whichever worker is free, results back in the order of the units, a lost worker's units again."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from q36eval.engines.base import Batch
from q36eval.engines.workers.pool import LostError, Member, Pool
from q36eval.engines.workers.worker import Computed
from q36eval.errors import EngineError

AHEAD = 2
"""Units a worker holds at a time, so that it has the next one when it has computed one."""
WINDOW = 4
"""Units for each worker that are under way or wait to be handed out, at most: the bound of memory. Whoever takes
results slowly holds the workers back."""
KILLS = 3
"""So many workers may die over one unit; then it is given up, with the reason."""


class FatalUnitError(EngineError):
    """A unit that no worker survives."""


Outcome = Computed | EngineError


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

    def outcomes(self) -> Iterator[tuple[Sequence[Batch], Outcome]]:
        """Every unit with its results, or why it has none; in order.

        Raises:
            EngineError: no worker is left.
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
        while self._waiting and self._waiting[0] < last:
            loads = [(self._load(member), place) for place, member in enumerate(self.pool.members)]
            load, place = min(loads, default=(AHEAD, 0))
            if load >= AHEAD:
                return
            unit, member = self._waiting.popleft(), self.pool.members[place]
            self._held[member.actor.compute.remote(self.engine, self.units[unit])] = (member, unit)

    def _load(self, member: Member) -> int:
        return sum(holder is member for holder, _ in self._held.values())

    def _take_back(self) -> None:
        """Wait for something to end: a unit, or the set-up of a worker that joins."""
        if not self.pool.members:
            self.pool.await_joining()
            return
        for call in self.pool.ready([*self._held, *self.pool.joining]):
            if call in self.pool.joining:
                self.pool.joined([call])
            elif call in self._held:
                member, unit = self._held[call]
                try:
                    self._done[unit] = self.pool.value(call)
                    member.failures = 0
                except LostError as error:
                    self._bury(member, str(error))
                    continue
                except EngineError as error:  # raised where it was to be computed: the unit is at fault, not the worker
                    self._done[unit] = error
                self._held.pop(call, None)

    def _bury(self, member: Member, reason: str) -> None:
        """The unit it was at counts as its killer; what it held goes to whoever is left."""
        mine = [(call, unit) for call, (holder, unit) in self._held.items() if holder is member]
        for call, _ in mine:
            del self._held[call]
        units = [unit for _, unit in mine]
        if units:
            killer = units[0]
            self._kills[killer] = self._kills.get(killer, 0) + 1
            if self._kills[killer] >= KILLS:
                units.remove(killer)
                keys = ", ".join(request.key for request in self.units[killer][0][:3])
                self._done[killer] = FatalUnitError(
                    f"{KILLS} workers died while they computed a unit of {sum(map(len, self.units[killer]))} requests "
                    f"({keys}, …), the last of them: {reason}"
                )
        self._waiting.extendleft(reversed(units))
        self.pool.lost(member, reason)
