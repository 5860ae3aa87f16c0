"""Every unit comes back once and in order whichever workers die or fail, by a pool whose answers a test decides.

What workers cannot have is refused in a sentence, before anything is opened and without Ray.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from q36eval.engines import EngineOptions, check_options, open_engine
from q36eval.engines import worker_places as places
from q36eval.engines.base import Batch, EngineSettings, Scored, ScoreRequest
from q36eval.engines.worker_places import Place, gpus_of
from q36eval.engines.workers import pool as pools
from q36eval.engines.workers.dispatch import AHEAD, KILLS, WINDOW, Dispatch, FatalUnitError
from q36eval.engines.workers.engine import WorkersEngine
from q36eval.engines.workers.pool import REPLACEMENTS_IN_A_ROW, LostError, Member, Pool
from q36eval.engines.workers.worker import Computed, Facts, Opened, Replica, broken_of
from q36eval.errors import EngineError, UsageError
from tests.raising import failing, raises

SENT = Computed((), ())
REPLICA = Replica(1, EngineSettings(Path("branch")))
Answer = Computed | Exception


@dataclass
class Calls:
    """The actor of a worker: a call is who was asked, and for which unit, or the name of a replacement that opens."""

    name: int
    asked: list[tuple[int, int]] = field(default_factory=list)

    @property
    def compute(self) -> Any:
        return SimpleNamespace(remote=self._asked)

    @property
    def open(self) -> Any:
        return SimpleNamespace(remote=lambda replica: f"opens {self.name}")

    def _asked(self, engine: int, unit: Sequence[Batch]) -> tuple[int, int]:
        self.asked.append((self.name, int(unit[0][0].key)))
        return self.asked[-1]


class Workers(Pool):
    """Without Ray: `answers` says what comes of a call, `next_of` which of those under way ends next."""

    def __init__(
        self,
        count: int,
        answers: Callable[[tuple[int, int]], Answer],
        next_of: Callable[[list[tuple[int, int]]], tuple[int, int]] = min,
        replaced: bool = False,
    ) -> None:
        super().__init__(Place(count, 0))
        self.answers, self.next_of, self.replaced = answers, next_of, replaced
        self.members = [Member(Calls(name), Facts.here(), {1: REPLICA}) for name in range(count)]
        self.lost_workers: list[tuple[int, str, bool]] = []

    def ready(self, calls: Sequence[Any], seconds: float | None = None) -> list[Any]:
        under_way = [call for call in calls if isinstance(call, tuple)]
        assert under_way or seconds is not None, "nothing is under way: a wait without end"
        set_up = [call for call in calls if self.replaced and not isinstance(call, tuple)]
        return set_up or ([self.next_of(under_way)] if under_way else [])

    def opened(self, member: Member, replica: Replica, call: Any) -> Any:
        member.facts, member.opened = Facts.here(), {1: replica}

    def value(self, call: tuple[int, int]) -> Computed:
        answer = self.answers(call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lost(self, member: Member, reason: str, *, at_work: bool = False) -> None:
        self.lost_workers.append((member.actor.name, reason, at_work))
        super().lost(member, reason, at_work=at_work)

    def _actor(self) -> Any:
        return Calls(self.place.workers + len(self.lost_workers) - 1)


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_kill", lambda actor: None)


def outcomes(workers: Workers, units: int) -> list[tuple[int, Answer]]:
    requests = [[[ScoreRequest(str(n), (1, 2))]] for n in range(units)]
    dispatch, came = Dispatch(workers, REPLICA, requests), []
    for unit, outcome in dispatch.outcomes():
        # what waits to be taken is bounded, however slowly it is taken: the workers wait
        computed = [unit for _, unit in dispatch._held.values() if unit is not None]
        assert len(computed) <= AHEAD * workers.place.workers
        assert len(computed) + len(dispatch._done) <= WINDOW * workers.place.workers
        came.append((int(unit[0][0].key), outcome))
    return came


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
    assert [name for name, _, _ in workers.lost_workers] == [2, 3]


def test_a_unit_that_workers_die_of_is_given_up_and_the_rest_is_computed() -> None:
    workers = Workers(2, lambda call: LostError("killed") if call[1] == 3 else SENT, replaced=True)
    came = outcomes(workers, 9)
    assert [(n, type(outcome)) for n, outcome in came] == [
        (n, FatalUnitError if n == 3 else Computed) for n in range(9)
    ]
    assert str(came[3][1]) == f"{KILLS} workers died while they computed 3, the last of them: killed"


BROKEN = Computed((), (), broken="engine: an illegal memory access")


GONE = EngineError("engine-died", "vLLM ended while it answered 200 prompts")


@pytest.mark.parametrize(("fails", "at_work"), [(GONE, True), (BROKEN, False)], ids=["gone", "all errors"])
def test_a_worker_whose_engine_fails_is_replaced_and_no_item_is_an_error(fails: Answer, at_work: bool) -> None:
    """It answers at once, so that it would be given most of the work."""
    workers = Workers(2, lambda call: fails if call[0] == 1 else SENT, max, replaced=True)
    assert outcomes(workers, 30) == [(n, SENT) for n in range(30)]
    reason = fails.broken if isinstance(fails, Computed) else str(fails)
    assert workers.lost_workers == [(1, reason, at_work)]


def test_an_engine_that_fails_everywhere_ends_the_work_as_it_would_alone() -> None:
    workers = Workers(3, lambda call: EngineError("engine-died", "vLLM ended") if call[1] == 4 else SENT, replaced=True)
    with raises(EngineError, "engine-died") as raised:
        outcomes(workers, 30)
    assert not isinstance(raised.value, FatalUnitError)
    assert len(workers.lost_workers) == KILLS - 1


def test_what_fails_in_every_process_is_an_error_as_with_the_engine_alone() -> None:
    workers = Workers(3, lambda call: BROKEN if call[1] % 7 == 0 else SENT, replaced=True)
    assert outcomes(workers, 30) == [(n, SENT if n % 7 else BROKEN) for n in range(30)]
    assert len(workers.lost_workers) == (KILLS - 1) * len(range(0, 30, 7))


@pytest.mark.parametrize("next_of", [min, max])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_where_all_fails_the_work_ends_with_the_reason(
    count: int, next_of: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_has", lambda: "2 cores")
    with raises(EngineError, "workers-lost", BROKEN.broken):
        outcomes(Workers(count, lambda call: BROKEN, next_of, replaced=True), 20)


@pytest.mark.parametrize(
    ("errors", "broken"),
    [
        (["engine: an illegal memory access"] * 2, "engine: an illegal memory access"),
        (["engine: an illegal memory access", None], None),
        (["engine: CUDA out of memory"] * 2, None),
        (["4,096 tokens do not fit into the memory that the weights leave"] * 2, None),
        ([None, None], None),
    ],
)
def test_a_unit_is_computed_again_only_where_all_of_it_failed_and_not_for_want_of_memory(
    errors: list[str | None], broken: str | None
) -> None:
    request = ScoreRequest("a", (1, 2))
    assert broken_of([[Scored(request, None, error=error) for error in errors]]) == broken
    assert broken_of([[Scored(request, None, error=error, permanent=True) for error in errors]]) is None


# -- workers that are gone, or that another one takes the place of, by actors whose answers a test decides

HERE = Facts.here()


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

    def value(self, call: Callable[[], Any]) -> Any:
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


def test_a_replacement_with_other_code_is_not_given_work(pool: Callable[..., Scripts]) -> None:
    """A node that came later may have another version."""
    older, new = Scripted(facts_=replace(HERE, version="0.0.1")), Scripted()
    scripts = pool(Scripted(), others=[older, new])
    scripts.lost(scripts.members[0], "killed")
    dispatch = Dispatch(scripts, REPLICA, [[]])  # a unit of nothing, which ends when a worker is there
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
    monkeypatch.setattr(ray, "get", failing(getattr(ray.exceptions, name)("no room is left\nand more")))
    with raises(EngineError, "ray-failed"):
        Pool(Place(1, 0)).value(None)


# -- what workers cannot have

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"


@pytest.mark.parametrize(
    ("code", "value", "options"),
    [
        ("option-missing", "", EngineOptions(ray="auto")),
        ("ray-address-invalid", "ray://head:10001", EngineOptions(workers=2, ray="ray://head:10001")),
        ("device-conflict", "cuda:1", EngineOptions(workers=2, device="cuda:1")),
        ("option-conflict", "", EngineOptions(workers=2, placement="layers")),
        ("option-unsupported", "--workers", EngineOptions(workers=2, kind="openai", base_url="http://127.0.0.1:1/v1")),
    ],
)
def test_what_workers_cannot_have(
    code: str, value: str, options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: find_spec("json"))  # as where Ray is installed
    for opens in (lambda: check_options(options), lambda: open_engine(options.of(SANDBOX))):
        with raises(UsageError, code, value):
            opens()


def test_what_workers_inherit_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the command's secrets, nothing that has all of them take one GPU, and its code where it is a checkout."""
    pytest.importorskip("ray")
    secrets = ["Q36EVAL_HISTORY", "Q36EVAL_WATCH_SLACK", "OPENAI_API_KEY", "HF_TOKEN", "RAY_AUTH_TOKEN"]
    inherited = dict.fromkeys([*secrets, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"], "theirs")
    kept = pools.local_environment(inherited | {"PATH": "/bin", "PYTHONPATH": "mine"})
    assert "theirs" not in kept.values()
    assert kept["PATH"] == "/bin"
    assert kept["RAY_AUTH_MODE"] == "token"
    assert len(kept["RAY_AUTH_TOKEN"]) == 64
    assert kept["PYTHONPATH"] == f"{SANDBOX.parents[2]}{os.pathsep}mine"
    installed = tmp_path / "site-packages" / "q36eval" / "engines" / "workers" / "pool.py"
    monkeypatch.setattr(pools, "__file__", str(installed))
    assert pools.local_environment({"PYTHONPATH": "mine"})["PYTHONPATH"] == "mine"
    assert "PYTHONPATH" not in pools.local_environment({})


def test_without_ray_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    with raises(UsageError, "package-missing", 'pip install "q36eval[ray]"'):
        open_engine(EngineOptions(workers=2).of(SANDBOX))
    check_options(EngineOptions())


def test_a_worker_takes_the_gpus_that_its_engine_spreads_a_model_over() -> None:
    two = EngineOptions(workers=3, device="cuda", kind="vllm", engine_arguments=("tensor-parallel-size=2", "seed=4"))
    assert gpus_of(two) == 2
    assert str(Place.of(two)) == "3 workers on this machine, 2 GPUs each"
    assert str(Place.of(EngineOptions(workers=1, ray="a:1"))) == "1 worker on the Ray cluster a:1, one core each"
