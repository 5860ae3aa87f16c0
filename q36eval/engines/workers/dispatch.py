"""Sends units to free workers, returns results in the order of the units, and repeats a lost worker's units.

Ray's own retries are not suitable. `max_task_retries` waits for the same actor, so the units of a node that never
returns would wait while others are free. `ActorPool` gives an actor one call at a time, and the next one only when its
result is taken.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from q36eval.engines.base import Batch
from q36eval.engines.workers.pool import PLACED_WITHIN_S, LostError, Member, Pool
from q36eval.engines.workers.worker import Computed, Replica
from q36eval.errors import EngineError, Q36Error

AHEAD = 2
"""Units a worker holds at a time, so that it has the next one when it has computed one."""
WINDOW = 4
"""The maximum of active and waiting units per worker: bounds the memory."""
KILLS = 3
"""The number of lost workers, or engine failures, after which one unit is given up."""


class FatalUnitError(EngineError):
    """A unit that kills every worker."""


Outcome = Computed | FatalUnitError


@dataclass
class Dispatch:
    """One list of units, computed by the workers of a pool."""

    pool: Pool
    replica: Replica
    units: Sequence[Sequence[Batch]]
    _waiting: set[int] = field(default_factory=set)
    _held: dict[Any, tuple[Member, int | None]] = field(default_factory=dict)
    """By call: the worker and its unit; None while it opens the replica."""
    _done: dict[int, Outcome] = field(default_factory=dict)
    _kills: Counter[int] = field(default_factory=Counter)
    """Units held by a worker when it was lost, with the number of losses. They are computed alone from then on, so that
    a unit suffers from another at most once."""

    def outcomes(self) -> Iterator[tuple[Sequence[Batch], Outcome]]:
        """Every unit with its results, or its error; in order.

        Raises:
            EngineError: no worker remains, or the engine failed repeatedly.
        """
        self._waiting = set(range(len(self.units)))
        for member in self.pool.members:
            self._open(member)
        try:
            for unit, batches in enumerate(self.units):
                self._hand_out(unit)
                while unit not in self._done:
                    self._take_back()
                    self._hand_out(unit)
                yield batches, self._done.pop(unit)
        finally:
            self._held.clear()  # the caller may stop early

    def _open(self, member: Member) -> None:
        if not member.has(self.replica):
            self._held[member.actor.open.remote(self.replica)] = (member, None)

    def _hand_out(self, first: int) -> None:
        """Give units within the window to the workers with the fewest."""
        window = range(first, first + WINDOW * len(self.pool.members))
        for unit in [unit for unit in window if unit in self._waiting]:
            most = 1 if unit in self._kills else AHEAD
            free = [each for each in self.pool.members if self._load(each) < most]
            if free:
                member = min(free, key=self._load)
                self._waiting.remove(unit)
                self._held[member.actor.compute.remote(self.replica.number, self.units[unit])] = (member, unit)

    def _load(self, member: Member) -> int:
        units = [unit for holder, unit in self._held.values() if holder is member]
        return AHEAD if any(unit is None or unit in self._kills for unit in units) else len(units)

    def _take_back(self) -> None:
        """Wait for a unit, or for a worker to open the replica."""
        opens_only = all(unit is None for _, unit in self._held.values())
        calls = self.pool.ready(list(self._held), PLACED_WITHIN_S if opens_only else None) if self._held else []
        if not calls:
            raise EngineError(
                "workers-lost",
                f"{len(self._waiting)} parts of the work wait, and no worker can be given one; resume the run.",
            )
        for call in calls:
            member, unit = self._held.pop(call, (None, None))
            if member is None:
                continue  # its worker's loss was detected by another call
            try:
                if unit is None:
                    self.pool.opened(member, self.replica, call)
                    continue
                computed = self.pool.value(call)
            except LostError as error:
                self._lost(member, str(error), [unit, *self._units_of(member)])
            except Q36Error as error:  # its engine is gone, though its process is alive
                if unit is not None and self._kills[unit] + 1 >= KILLS:
                    raise
                self._lost(member, str(error), [unit])
            else:
                self._take(member, unit, computed)

    def _take(self, member: Member, unit: int, computed: Computed) -> None:
        """Store the results; if all are errors the device may be faulty, and another process computes the unit."""
        if computed.broken is None:
            member.failures = 0
        elif self._kills[unit] + 1 < KILLS:
            self._lost(member, computed.broken, [unit], at_work=False)
            return
        self._done[unit] = computed

    def _units_of(self, member: Member) -> list[int]:
        return [unit for holder, unit in self._held.values() if holder is member and unit is not None]

    def _lost(self, member: Member, reason: str, to_blame: Sequence[int | None], *, at_work: bool = True) -> None:
        """Reassign its units, and replace the worker; give up a unit that kills too often."""
        blamed = [unit for unit in to_blame if unit is not None]
        self._kills.update(blamed)
        self._waiting |= {*blamed, *self._units_of(member)}
        self._held = {call: held for call, held in self._held.items() if held[0] is not member}
        for unit in [unit for unit in blamed if self._kills[unit] >= KILLS]:
            self._waiting.remove(unit)
            requests = [request.key for batch in self.units[unit] for request in batch]
            more = ", …" if len(requests) > 3 else ""
            self._done[unit] = FatalUnitError(
                "workers-killed",
                f"{KILLS} workers died while they computed {', '.join(requests[:3])}{more}, the last of them: {reason}",
            )
        self.pool.lost(member, reason, at_work=at_work and bool(blamed))
        if member in self.pool.members:
            self._open(member)
