"""Workers as Ray actors: connected to, placed, lost and replaced. The only module that imports Ray."""

import atexit
import logging
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from q36eval.engines.base import EngineSettings
from q36eval.engines.worker_places import Place
from q36eval.engines.workers.worker import Facts, Instruction, Opened, Step, Worker
from q36eval.errors import EngineError, Q36Error, UsageError
from q36eval.memory import available_bytes
from q36eval.records import DeploymentIdentity

PLACED_WITHIN_S = 300.0
"""A worker that Ray has not placed and started by then has no place."""
REACHED_WITHIN_S = 10.0
REPLACEMENTS_IN_A_ROW = 3
"""So many replacements of one worker may fail in their set-up or die idle, none having computed anything; then its
place stays empty. What a unit may cost stands in `dispatch`."""
OBJECT_STORE_BYTES = 2 * 2**30
"""Of a local cluster's shared memory: what workers have computed and nobody has taken (see `dispatch.WINDOW`)."""
SMALLEST_STORE_BYTES = 128 * 2**20
SPARE = 2
"""Cores that a local cluster counts for each worker, whatever the machine has: one that takes the place of a lost one
need not wait until that one's core counts as free."""
CALLS_AT_ONCE = 2
"""While a worker computes a unit it packs the one before."""
FIXED_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""A local cluster listens on every interface, and whoever may call it runs code there: only who has this may."""
NOT_FOR_WORKERS = ("Q36EVAL_HISTORY", "Q36EVAL_WATCH_*", "*_API_KEY", "*_TOKEN", "*_SECRET", "*_PASSWORD")
"""Secrets of the command's, which no worker needs."""
NOT_FOR_RAY = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
"""With it all workers of a machine would take its first GPU."""


class LostError(Exception):
    """A worker is gone: its process or its node died."""


@dataclass(eq=False)
class Member:
    """One worker: its actor, who it is, and how many in its place failed since one of them computed something."""

    actor: Any
    facts: Facts | None = None
    failures: int = 0

    @property
    def node(self) -> str:
        """Where it is, for people."""
        return "a node of the cluster" if self.facts is None else f"node {self.facts.node}"


@dataclass
class Pool:
    """The workers of one place. `members` compute, `joining` take the place of lost ones and are being set up."""

    place: Place
    members: list[Member] = field(default_factory=list)
    joining: dict[Any, Member] = field(default_factory=dict)
    losses: int = 0
    _instructions: list[Instruction] = field(default_factory=list)
    _numbers: int = 0
    _serial: int = 0

    @classmethod
    def start(cls, place: Place) -> "Pool":
        """Connect and have every worker placed.

        Raises:
            UsageError: no such cluster, or this machine has not so many GPUs.
            EngineError: they could not be placed in time, or have another version of q36eval.
        """
        _connect(place)
        pool = cls(place)
        pool.members = [pool._actor() for _ in range(place.workers)]
        pool._meet()
        return pool

    def new_number(self) -> int:
        """For another engine."""
        self._numbers += 1
        return self._numbers

    def instruct(self, engine: int, step: Step, value: Any = None) -> list[Opened]:
        """Have all workers take a step, and all that replace them; what each answered, where it answers.

        A worker that is gone is replaced; that one may have died of the step, so it has one replacement and no more.

        Raises:
            Q36Error: the step failed in one of them, as it would have failed here.
            EngineError: none is left.
        """
        self._remember(Instruction(self._serial + 1, engine, step, value))
        try:
            while True:
                answers = self._answers()
                if self.members:
                    return answers
        except Q36Error:
            self._forget(engine)
            raise

    def _answers(self) -> list[Opened]:
        if not self.members:
            self.await_joining()
        answers = []
        for member, call in [(member, self._follow(member)) for member in self.members]:
            try:
                answer = self.value(call)
            except LostError as error:
                member.failures = max(member.failures, REPLACEMENTS_IN_A_ROW - 1)
                self.lost(member, f"it died on {member.node} while it was set up: {error}")
                continue
            if isinstance(answer, Q36Error):
                raise answer
            if answer is not None:
                answers.append(answer)
        return answers

    def expect(self, engine: int, settings: EngineSettings, identity: DeploymentIdentity) -> None:
        """What a worker opens that takes the place of a lost one must have this identity."""
        self._instructions = [
            replace(each, value=(settings, identity)) if (each.engine, each.step) == (engine, "open") else each
            for each in self._instructions
        ]

    def close(self, engine: int) -> None:
        """Have an engine given up everywhere, once what is under way there has ended: nobody waits for that.

        The instruction stays among those that count, so that no worker opens the next engine before it.
        """
        import ray

        if not ray.is_initialized():
            return
        self._forget(engine)
        self._remember(Instruction(self._serial + 1, engine, "close"))
        for member in self.members:
            with suppress(Exception):  # a lost worker has nothing open
                self._follow(member)

    def _remember(self, instruction: Instruction) -> None:
        self._serial = instruction.serial
        self._instructions = [*self._instructions, instruction]
        self.joining = {self._follow(member): member for member in self.joining.values()}

    def _forget(self, engine: int) -> None:
        self._instructions = [each for each in self._instructions if each.engine != engine]

    def _follow(self, member: Member) -> Any:
        return member.actor.follow.remote(self._instructions)

    def await_joining(self) -> None:
        """Wait until there is a worker.

        Raises:
            EngineError: there will be none.
        """
        until = time.monotonic() + PLACED_WITHIN_S
        while not self.members:
            ended = self.ready(list(self.joining), max(0.0, until - time.monotonic())) if self.joining else []
            if not ended:
                raise EngineError(
                    "workers-lost",
                    f"All workers are lost, and Ray placed none instead within {PLACED_WITHIN_S:.0f} s; the cluster "
                    f"has {_has()}.",
                )
            self.joined(ended)

    def joined(self, calls: Sequence[Any]) -> None:
        """Take in workers whose set-up ended, well or not.

        Raises:
            EngineError: none is left.
        """
        for call in calls:
            member = self.joining.pop(call)
            try:
                answer = self.value(call)
                member.facts = self.value(member.actor.facts.remote())
                _check_version(member.facts, Facts.here())
            except LostError as error:
                self._replace(str(error), member.failures + 1)
                continue
            except UsageError as error:  # another node than those that were asked at the start
                answer = error
            if isinstance(answer, Q36Error):
                _kill(member.actor)
                self._replace(str(answer), member.failures + 1)
                continue
            self.members.append(member)

    def lost(self, member: Member, reason: str, *, at_work: bool = False) -> None:
        """Put another worker in the place of one that is gone; `at_work` where what it was at may be to blame.

        Raises:
            EngineError: none is left.
        """
        self.losses += 1
        _kill(member.actor)  # it may only be out of reach
        self.members.remove(member)
        self._replace(reason, member.failures if at_work else member.failures + 1)

    def _replace(self, reason: str, failures: int) -> None:
        if failures <= REPLACEMENTS_IN_A_ROW:
            new = self._actor()
            new.failures = failures
            self.joining[self._follow(new)] = new
        elif not self.members and not self.joining:
            raise EngineError(
                "workers-lost", f"No worker is left, and none that was started instead stayed; the last one: {reason}."
            )

    def ready(self, calls: Sequence[Any], seconds: float | None = None) -> list[Any]:
        """Those of the calls that have ended; waits for one."""
        import ray

        ended, _ = ray.wait(list(calls), num_returns=1, timeout=seconds, fetch_local=False)
        return list(ended)

    def value(self, call: Any) -> Any:
        """What a call returned.

        Raises:
            LostError: its worker is gone, or its result with it.
            EngineError: what it raised, or Ray's own memory or disk is full.
        """
        import ray

        gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            raise EngineError(
                getattr(error.cause, "code", "worker-failed"), f"{type(error.cause).__name__}: {error.cause}"
            ) from error
        except (*gone, ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError) as error:
            raise LostError(_first_line(error)) from error
        except ray.exceptions.RayError as error:  # no room in memory or on the disk, above all
            raise EngineError("ray-failed", f"Ray cannot hand over a result: {_first_line(error)}.") from error

    def whichever(self, method: str, *values: Any) -> Any:
        """What one of the workers answers; another one where it is lost meanwhile.

        Raises:
            EngineError: none is left.
        """
        while True:
            if not self.members:
                self.await_joining()
            member = self.members[0]
            try:
                return self.value(getattr(member.actor, method).remote(*values))
            except LostError as error:
                self.lost(member, str(error))

    def put(self, value: Any) -> Any:
        """Into the object store, once for all that it is sent to."""
        import ray

        return ray.put(value)

    def end(self) -> None:
        """Kill all workers."""
        for member in [*self.members, *self.joining.values()]:
            _kill(member.actor)
        self.members, self.joining = [], {}

    def _actor(self) -> Member:
        import ray

        resources: dict[str, Any] = {"num_gpus": self.place.gpus} if self.place.gpus else {"num_cpus": 1}
        kind = ray.remote(max_concurrency=CALLS_AT_ONCE, max_restarts=0, max_task_retries=0, **resources)(Worker)
        return Member(kind.remote(None if self.place.gpus else 1))

    def _meet(self) -> None:
        """Wait for all workers and hold their code to this process's."""
        calls = {member.actor.facts.remote(): member for member in self.members}
        waiting, until = list(calls), time.monotonic() + PLACED_WITHIN_S
        while waiting:
            ended = self.ready(waiting, max(0.0, until - time.monotonic()))
            if not ended:
                placed = self.place.workers - len(waiting)
                self.end()
                raise EngineError(
                    "workers-not-placed",
                    f"Ray placed {placed} of {self.place.workers} workers within {PLACED_WITHIN_S:.0f} s. Wanted are "
                    f"{self.place}, and the cluster has {_has()}. Ask for fewer with --workers, or add nodes.",
                )
            for call in ended:
                waiting.remove(call)
                try:
                    calls[call].facts = self.value(call)
                except LostError as error:
                    self.end()
                    raise EngineError("workers-not-placed", f"A worker could not be started: {error}.") from error
        for member in self.members:
            assert member.facts is not None, "it answered"
            try:
                _check_version(member.facts, Facts.here())
            except UsageError:
                self.end()
                raise


_pools: dict[Place, Pool] = {}


def pool_at(place: Place) -> Pool:
    """The workers of that place, started when they are first wanted; raises as `Pool.start`."""
    import ray

    if not ray.is_initialized():
        _pools.clear()
    for other in [each for each in _pools if each != place]:
        _pools.pop(other).end()  # it may hold the GPUs that these need
    if place not in _pools:
        _pools[place] = Pool.start(place)
    return _pools[place]


def _shut_down() -> None:
    """Leave the cluster; one of this machine ends, and its logs go with it."""
    import ray

    ray.shutdown()
    for folder in _session_folders:
        shutil.rmtree(folder, ignore_errors=True)
    _session_folders.clear()


_session_folders: list[str] = []


def _check_version(theirs: Facts, own: Facts) -> None:
    for name, here, there in (
        ("version of q36eval", own.version, theirs.version),
        ("NUMERICS_VERSION", own.numerics, theirs.numerics),
    ):
        if here != there:
            raise UsageError(
                "workers-differ",
                f"The worker on node {theirs.node} has another {name} than this machine: {there} there, {here} here. "
                f"Install the same version on all nodes.",
            )


def _connect(place: Place) -> None:
    import ray

    if ray.is_initialized():
        if _connected_to == [place.address]:
            return
        _shut_down()
    quiet: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    with _signals_kept(), _environment(local=place.address is None):
        _read_environment()
        try:
            if place.address is not None:
                _reach(place.address)
                ray.init(address=place.address, **quiet)
            else:
                ray.init(
                    address="local",
                    num_cpus=SPARE * place.workers,
                    include_dashboard=False,
                    object_store_memory=_store_bytes(),
                    **quiet,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            there = "started here" if place.address is None else f"reached at {place.address}"
            raise UsageError("ray-not-reached", f"Ray cannot be {there}: {_first_line(error)}") from error
    # what a node says of a process that died goes to stdout, whatever is asked of logs; who lost it says it in words
    if hasattr(ray, "_private"):
        ray._private.worker.print_to_stdstream = lambda *said, **how: None
    _connected_to[:] = [place.address]
    if place.address is None:
        with suppress(AttributeError):
            _session_folders.append(ray._private.worker._global_node.get_session_dir_path())
            atexit.register(_shut_down)
    if place.address is None and place.gpus * place.workers > ray.cluster_resources().get("GPU", 0):
        has = _has()
        _shut_down()
        raise UsageError(
            "gpus-insufficient",
            f"--workers {place.workers} needs {place.gpus * place.workers} GPUs, and this machine shows {has}.",
        )


_connected_to: list[str | None] = []


def _read_environment() -> None:
    """Ray reads how calls are authenticated once, when it is first imported in a process."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, without types

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _reach(address: str) -> None:
    """See that somebody listens there: Ray itself would try for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), REACHED_WITHIN_S).close()


def _store_bytes() -> int:
    """What the object store of this machine may take: bounded by what is free, and in the shared memory."""
    free = available_bytes()
    with suppress(OSError, AttributeError):
        shared = os.statvfs("/dev/shm")
        free = min(free, shared.f_bavail * shared.f_frsize * 4)
    return max(SMALLEST_STORE_BYTES, min(OBJECT_STORE_BYTES, free // 8))


def _has() -> str:
    import ray

    resources = ray.cluster_resources()
    gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    return f"{gpus} GPU{'s' * (gpus != 1)} and {cores} core{'s' * (cores != 1)}"


def _kill(actor: Any) -> None:
    import ray

    with suppress(Exception):  # gone is gone
        ray.kill(actor)


def _first_line(error: BaseException) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def local_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What a cluster of this machine and its workers find in their environment, of what the command has."""
    unwanted = (*NOT_FOR_WORKERS, *NOT_FOR_RAY)
    kept = {name: value for name, value in inherited.items() if not any(fnmatch(name, each) for each in unwanted)}
    code = Path(__file__).resolve().parents[3]
    if (code / "pyproject.toml").is_file():  # a checkout, which need not be installed
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(code), kept.get("PYTHONPATH", "")]))
    return kept | FIXED_ENVIRONMENT | TOKEN


@contextmanager
def _environment(*, local: bool) -> Iterator[None]:
    """What Ray starts inherits this process's environment as it is meanwhile."""
    before = dict(os.environ)
    without = {name: value for name, value in before.items() if name not in NOT_FOR_RAY}
    wanted = local_environment(before) if local else without | FIXED_ENVIRONMENT
    changed = [name for name in {*before, *wanted} if before.get(name) != wanted.get(name)]
    _set_environment(changed, wanted)
    try:
        yield
    finally:
        _set_environment(changed, before)  # Ray set some of its own meanwhile


def _set_environment(names: Sequence[str], values: Mapping[str, str]) -> None:
    for name in names:
        if name in values:
            os.environ[name] = values[name]
        else:
            os.environ.pop(name, None)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; what it means to a command stays."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray sets none either
            for number, handler in before.items():
                signal.signal(number, handler)
