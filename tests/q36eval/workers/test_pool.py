"""Workers that are gone, or that another one takes the place of, by actors whose answers a test decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from q36eval.engines.worker_places import Place
from q36eval.engines.workers import pool as pools
from q36eval.engines.workers.engine import WorkersEngine
from q36eval.engines.workers.pool import REPLACEMENTS_IN_A_ROW, LostError, Member, Pool
from q36eval.engines.workers.worker import Facts, Instruction, Opened
from q36eval.errors import CorruptCheckpointError, EngineError, UsageError
from tests.raising import raises

Answer = Callable[[], Any]
HERE = Facts.here()


@dataclass
class Scripted:
    """An actor: whether it lives, what it says of itself, and what it was told."""

    lives: bool = True
    facts_: Facts = HERE
    fails: Exception | None = None
    told: list[str] = field(default_factory=list)
    killed: bool = False

    @property
    def follow(self) -> Any:
        return SimpleNamespace(remote=lambda instructions: lambda: self._followed(instructions))

    @property
    def facts(self) -> Any:
        return SimpleNamespace(remote=lambda: lambda: self.facts_)

    def _followed(self, instructions: Sequence[Instruction]) -> Any:
        if not self.lives:
            raise LostError("it is gone")
        self.told = [each.step for each in instructions]
        return self.fails or (self if self.told[-1:] == ["open"] else None)


class Scripts(Pool):
    """`others` take the places of those that are lost, in this order."""

    others: list[Scripted]

    def _actor(self) -> Member:
        return Member(self.others.pop(0))

    def value(self, call: Answer) -> Any:
        return call()

    def ready(self, calls: Sequence[Any], seconds: float | None = None) -> list[Any]:
        return list(calls)[:1]


def settle(pool: Pool) -> None:
    """Wait for every worker that is being set up."""
    while pool.joining:
        pool.joined(pool.ready(list(pool.joining)))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scripts]:
    def made(*actors: Scripted, others: Sequence[Scripted] = ()) -> Scripts:
        scripts = Scripts(Place(len(actors), 0), [Member(actor, HERE) for actor in actors])
        scripts.others = list(others)
        return scripts

    monkeypatch.setattr(pools, "_kill", lambda actor: setattr(actor, "killed", True))
    return made


def test_a_worker_that_died_idle_does_not_end_what_is_set_up_next(pool: Callable[..., Scripts]) -> None:
    well, gone, new = Scripted(), Scripted(lives=False), Scripted()
    scripts = pool(gone, well, others=[new])
    assert scripts.instruct(1, "open") == cast(list[Opened], [well])
    scripts.instruct(1, "plan")
    settle(scripts)
    assert [member.actor for member in scripts.members] == [well, new]
    assert new.told == ["open", "plan"], "the one in its place is set up as the others"
    assert scripts.losses == 1


def test_the_only_worker_that_died_idle_is_answered_for_by_the_one_in_its_place(pool: Callable[..., Scripts]) -> None:
    new = Scripted()
    scripts = pool(Scripted(lives=False), others=[new])
    assert scripts.instruct(1, "open") == cast(list[Opened], [new])


def test_a_step_that_every_worker_dies_of_ends_with_the_reason(pool: Callable[..., Scripts]) -> None:
    scripts = pool(*[Scripted(lives=False) for _ in range(2)], others=[Scripted(lives=False) for _ in range(2)])
    with raises(EngineError, "workers-lost", "it is gone"):
        scripts.instruct(1, "open")
    assert scripts.others == [], "one replacement each and no more"
    assert scripts._instructions == []


def test_a_step_that_fails_is_raised_as_it_would_be_here(pool: Callable[..., Scripts]) -> None:
    with raises(CorruptCheckpointError, "file-truncated"):
        pool(Scripted(), Scripted(fails=CorruptCheckpointError("file-truncated", "too short"))).instruct(1, "open")


def test_workers_with_other_code_are_refused(pool: Callable[..., Scripts]) -> None:
    with raises(UsageError, "workers-differ", "0.0.1 there"):
        pool(Scripted(), Scripted(facts_=replace(HERE, version="0.0.1")))._meet()


def test_a_replacement_with_other_code_is_none(pool: Callable[..., Scripts]) -> None:
    """A node that came later may have another version."""
    older, new = Scripted(facts_=replace(HERE, version="0.0.1")), Scripted()
    scripts = pool(Scripted(), Scripted(), others=[older, new])
    scripts.lost(scripts.members[0], "killed")
    settle(scripts)
    assert older.killed
    assert older not in [member.actor for member in scripts.members]
    assert scripts.members[-1].actor is new


def test_replacements_with_other_code_alone_leave_no_worker(pool: Callable[..., Scripts]) -> None:
    older = [Scripted(facts_=replace(HERE, numerics=-1)) for _ in range(REPLACEMENTS_IN_A_ROW)]
    scripts = pool(Scripted(), others=older)
    scripts.lost(scripts.members[0], "killed")
    with raises(EngineError, "workers-lost", "NUMERICS_VERSION"):
        scripts.await_joining()


@pytest.mark.parametrize("count", [1, 3])
def test_the_plan_is_among_the_steps_of_whoever_comes_later(pool: Callable[..., Scripts], count: int) -> None:
    """One with less free memory would plan other batches, and what is measured would depend on a loss."""
    plan = SimpleNamespace(
        score_tokens=4096, prompt_tokens=4096, rows=8, batches=1, room=SimpleNamespace(placement="decoded")
    )
    new = Scripted()
    scripts = pool(*[Scripted() for _ in range(count)], others=[new])
    engine = WorkersEngine.__new__(WorkersEngine)
    engine._pool, engine._number = scripts, 1
    engine._plan_alike([plan] * count)  # type: ignore[list-item]
    scripts.lost(scripts.members[0], "killed")
    settle(scripts)
    assert new.told == ["plan"]
    assert scripts._instructions[-1].value is plan


@pytest.mark.parametrize("name", ["ObjectStoreFullError", "OutOfDiskError"])
def test_what_ray_itself_has_no_room_for_is_an_engine_that_failed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ray = pytest.importorskip("ray")

    def fails(call: object) -> None:
        raise getattr(ray.exceptions, name)("no room is left\nand more")

    monkeypatch.setattr(ray, "get", fails)
    with raises(EngineError, "ray-failed"):
        Pool(Place(1, 0)).value(None)
