"""Workers that are gone, or that another one takes the place of, by actors whose answers a test decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from q36eval.engines.base import EngineSettings
from q36eval.engines.worker_places import Place
from q36eval.engines.workers import pool as pools
from q36eval.engines.workers.dispatch import Dispatch
from q36eval.engines.workers.engine import WorkersEngine
from q36eval.engines.workers.pool import REPLACEMENTS_IN_A_ROW, LostError, Member, Pool
from q36eval.engines.workers.worker import Facts, Opened, Replica
from q36eval.errors import CorruptCheckpointError, EngineError
from tests.raising import raises

Answer = Callable[[], Any]
HERE = Facts.here()
REPLICA = Replica(1, EngineSettings(Path("branch")))


@dataclass
class Scripted:
    """An actor: whether it lives, what it says of itself, and what it was told to open."""

    lives: bool = True
    facts_: Facts = HERE
    fails: Exception | None = None
    told: list[Replica] = field(default_factory=list)
    killed: bool = False

    @property
    def open(self) -> Any:
        return SimpleNamespace(remote=lambda replica: lambda: self._opened(replica))

    def _opened(self, replica: Replica) -> Opened:
        if not self.lives:
            raise LostError("it is gone")
        self.told.append(replica)
        if self.fails is not None:
            raise self.fails
        return Opened(self.facts_, cast(Any, None), True, "states", True, False, False, False, replica.plan, ())


class Scripts(Pool):
    """`others` take the places of those that are lost, in this order."""

    others: list[Scripted]

    def _actor(self) -> Any:
        return self.others.pop(0)

    def value(self, call: Answer) -> Any:
        return call()

    def ready(self, calls: Sequence[Any], seconds: float | None = None) -> list[Any]:
        return list(calls)[:1]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripts]:
    def made(*actors: Scripted, others: Sequence[Scripted] = ()) -> Scripts:
        scripts = Scripts(Place(len(actors), 0), [Member(actor, HERE) for actor in actors])
        scripts.others = list(others)
        return scripts

    monkeypatch.setattr(pools, "_kill", lambda actor: setattr(actor, "killed", True))
    monkeypatch.setattr(pools, "_has", lambda: "2 cores")
    return made


def no_work(scripts: Scripts) -> Dispatch:
    """Units of nothing, which end when a worker is there."""
    return Dispatch(scripts, REPLICA, [[]])


def test_a_worker_that_died_idle_does_not_end_what_is_set_up_next(pool: Callable[..., Scripts]) -> None:
    well, gone, new = Scripted(), Scripted(lives=False), Scripted()
    scripts = pool(gone, well, others=[new])
    assert len(scripts.open(REPLICA)) == 1
    assert [member.actor for member in scripts.members] == [new, well]
    assert scripts.losses == 1


def test_a_set_up_that_every_worker_dies_of_ends_with_the_reason(pool: Callable[..., Scripts]) -> None:
    others = [Scripted(lives=False) for _ in range(2 * REPLACEMENTS_IN_A_ROW)]
    scripts = pool(*[Scripted(lives=False) for _ in range(2)], others=others)
    with raises(EngineError, "workers-lost", "it is gone"):
        scripts.open(REPLICA)
    assert scripts.others == []


def test_a_set_up_that_fails_is_raised_as_it_would_be_here(pool: Callable[..., Scripts]) -> None:
    with raises(CorruptCheckpointError, "file-truncated"):
        pool(Scripted(), Scripted(fails=CorruptCheckpointError("file-truncated", "too short"))).open(REPLICA)


def test_a_replacement_with_other_code_is_not_given_work(pool: Callable[..., Scripts]) -> None:
    """A node that came later may have another version."""
    older, new = Scripted(facts_=replace(HERE, version="0.0.1")), Scripted()
    scripts = pool(Scripted(), others=[older, new])
    scripts.lost(scripts.members[0], "killed")
    dispatch = no_work(scripts)
    dispatch._open(scripts.members[0])
    dispatch._take_back()
    assert older.killed
    assert scripts.members[0].actor is new
    assert not scripts.members[0].has(REPLICA)
    dispatch._take_back()
    assert scripts.members[0].has(REPLICA)


@pytest.mark.parametrize("count", [1, 3])
def test_a_later_worker_opens_the_replica_with_the_plan(pool: Callable[..., Scripts], count: int) -> None:
    """One with less free memory would plan other batches, and what is measured would depend on a loss."""
    plan = SimpleNamespace(
        score_tokens=4096, prompt_tokens=4096, rows=8, batches=1, room=SimpleNamespace(placement="decoded")
    )
    new = Scripted()
    scripts = pool(*[Scripted() for _ in range(count)], others=[new])
    engine = WorkersEngine.__new__(WorkersEngine)
    engine._pool, engine._replica = scripts, REPLICA
    engine._plan_alike([plan] * count)  # type: ignore[list-item]
    scripts.lost(scripts.members[0], "killed")
    dispatch = Dispatch(scripts, engine._replica, [])
    dispatch._open(scripts.members[0])
    dispatch._take_back()
    assert [replica.plan for replica in new.told] == [plan]


@pytest.mark.parametrize("name", ["ObjectStoreFullError", "OutOfDiskError"])
def test_what_ray_itself_has_no_room_for_is_an_engine_that_failed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ray = pytest.importorskip("ray")

    def fails(call: object) -> None:
        raise getattr(ray.exceptions, name)("no room is left\nand more")

    monkeypatch.setattr(ray, "get", fails)
    with raises(EngineError, "ray-failed"):
        Pool(Place(1, 0)).value(None)
