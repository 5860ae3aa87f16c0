"""Workers as Ray actors: connecting, placing, losing and replacing. The only module that imports Ray."""

import atexit
import logging
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from q36eval.engines.base import Request
from q36eval.engines.worker_places import Place
from q36eval.engines.workers.worker import Division, Facts, Opened, Replica, Worker
from q36eval.errors import EngineError, Q36Error, UsageError
from q36eval.redaction import SECRETS

PLACED_WITHIN_S = 300.0
"""The time limit for Ray to place and start a worker."""
REACHED_WITHIN_S = 10.0
REPLACEMENTS_IN_A_ROW = 3
"""The number of workers in one place that may fail in their set-up or die idle in a row; then the place stays empty."""
SPARE = 2
"""Cores that a local cluster counts for each worker, whatever the machine has: a replacement need not wait until the
lost worker's core counts as free."""
CALLS_AT_ONCE = 2
"""While a worker computes a unit, it packs the previous one."""
FIXED_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""A local cluster listens on every interface, and its clients can run code: this token is required."""
NOT_FOR_RAY = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
"""With it all workers of a machine would use its first GPU."""


class LostError(Exception):
    """A worker is gone: its process or its node died."""


@dataclass(eq=False)
class Member:
    """A worker's place: its actor, its facts, its open engines, and its failures in a row."""

    actor: Any
    facts: Facts | None = None
    """None until it has answered."""
    opened: dict[int, Replica] = field(default_factory=dict)
    failures: int = 0

    def has(self, replica: Replica) -> bool:
        """Whether it is alive and has the replica open in its present form."""
        return self.facts is not None and self.opened.get(replica.number) == replica


@dataclass
class Pool:
    """The workers of one place."""

    place: Place
    members: list[Member] = field(default_factory=list)
    losses: int = 0
    _numbers: int = 0

    @classmethod
    def start(cls, place: Place) -> "Pool":
        """Connect and have every worker placed.

        Raises:
            UsageError: no such cluster, this machine has too few GPUs, or a node has another version of q36eval.
            EngineError: they were not placed in time.
        """
        _connect(place)
        pool = cls(place)
        pool.members = [Member(pool._actor()) for _ in range(place.workers)]
        try:
            pool._meet()
        except Q36Error:
            pool.end()
            raise
        return pool

    def new_number(self) -> int:
        """A number for another engine."""
        self._numbers += 1
        return self._numbers

    def open(self, replica: Replica) -> list[Opened]:
        """Have all workers open a replica, or change the open one to it; returns each one's answer.

        Lost workers are replaced, and the replacement opens it when next needed.

        Raises:
            Q36Error: one of them cannot, for a reason that also applies here.
            EngineError: none remains.
        """
        answers: list[Opened] = []
        while not answers:
            placed = [member for member in self.members if member.facts is not None] or self.members
            for member, call in [(each, each.actor.open.remote(replica)) for each in placed]:
                if member.facts is None and not self.ready([call], PLACED_WITHIN_S):
                    self.leave_out(member)
                    continue
                try:
                    answers.append(self.opened(member, replica, call))
                except LostError as error:
                    self.lost(member, f"it died while it was set up: {error}")
        return answers

    def opened(self, member: Member, replica: Replica, call: Any) -> Opened:
        """The answer of a worker to the request to open a replica.

        Raises:
            LostError: it died.
            Q36Error: it cannot, or it is on a node with another version of q36eval.
        """
        answer = self.value(call)
        assert isinstance(answer, Opened)
        _check_version(answer.facts, Facts.here())
        member.facts = answer.facts
        member.opened[replica.number] = replica
        return answer

    def close(self, number: int) -> None:
        """Close an engine in all workers after their active calls, without waiting."""
        import ray

        if not ray.is_initialized():
            return
        for member in self.members:
            if member.opened.pop(number, None) is not None:
                with suppress(Exception):  # a lost worker has no open engines
                    member.actor.close.remote(number)

    def lost(self, member: Member, reason: str, *, at_work: bool = False) -> None:
        """Replace a lost worker; `at_work` means its unit may be the cause.

        Raises:
            EngineError: none remains.
        """
        self.losses += 1
        _kill(member.actor)  # it may only be unreachable
        member.failures += not at_work
        if member.failures > REPLACEMENTS_IN_A_ROW:
            self.leave_out(member, reason)
            return
        member.actor, member.facts, member.opened = self._actor(), None, {}

    def leave_out(self, member: Member, reason: str = "Ray placed none in time") -> None:
        """Leave a worker's place empty.

        Raises:
            EngineError: none is left.
        """
        _kill(member.actor)
        self.members.remove(member)
        if not self.members:
            raise EngineError(
                "workers-lost",
                f"All workers are lost, and none that was started instead stayed; the last one: {reason}. The cluster "
                f"has {_has()}.",
            )

    def ready(self, calls: Sequence[Any], seconds: float | None = None) -> list[Any]:
        """Those of the calls that have ended; waits for at least one."""
        import ray

        ended, _ = ray.wait(list(calls), num_returns=1, timeout=seconds, fetch_local=False)
        return list(ended)

    def value(self, call: Any) -> Any:
        """The result of a call.

        Raises:
            LostError: its worker, or its result, is gone.
            Q36Error: the call's own exception.
            EngineError: it failed otherwise, or Ray's own memory or disk is full.
        """
        import ray

        gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)
        try:
            return ray.get(call)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Q36Error):
                raise error.cause from error
            raise EngineError("worker-failed", f"{type(error.cause).__name__}: {error.cause}") from error
        except (*gone, ray.exceptions.OutOfMemoryError, ray.exceptions.WorkerCrashedError) as error:
            raise LostError(_first_line(error)) from error
        except ray.exceptions.RayError as error:  # mostly a lack of memory or disk space
            raise EngineError("ray-failed", f"Ray cannot hand over a result: {_first_line(error)}.") from error

    def divide(self, replica: Replica, requests: Sequence[Request]) -> Division:
        """The batches of requests, from any worker; each forms the same.

        Raises:
            EngineError: none remains.
        """
        import ray

        listed = ray.put(list(requests))
        while True:
            member = next((each for each in self.members if each.has(replica)), None)
            if member is None:
                self.open(replica)
                continue
            try:
                division = self.value(member.actor.divide.remote(replica.number, listed))
            except LostError as error:
                self.lost(member, str(error))
                continue
            assert isinstance(division, Division)
            return division

    def end(self) -> None:
        """Kill all workers."""
        for member in self.members:
            _kill(member.actor)
        self.members = []

    def _actor(self) -> Any:
        import ray

        resources: dict[str, Any] = {"num_gpus": self.place.gpus} if self.place.gpus else {"num_cpus": 1}
        kind = ray.remote(max_concurrency=CALLS_AT_ONCE, max_restarts=0, max_task_retries=0, **resources)(Worker)
        return kind.remote(None if self.place.gpus else 1)

    def _meet(self) -> None:
        """Wait for all workers and compare their code with this process's."""
        import ray

        calls = [member.actor.facts.remote() for member in self.members]
        placed, waiting = ray.wait(calls, num_returns=len(calls), timeout=PLACED_WITHIN_S)
        if waiting:
            raise EngineError(
                "workers-not-placed",
                f"Ray placed {len(placed)} of {self.place.workers} workers within {PLACED_WITHIN_S:.0f} s. Wanted are "
                f"{self.place}, and the cluster has {_has()}. Ask for fewer with --workers, or add nodes.",
            )
        for member, call in zip(self.members, calls, strict=True):
            try:
                member.facts = self.value(call)
            except LostError as error:
                raise EngineError("workers-not-placed", f"A worker could not be started: {error}.") from error
            assert member.facts is not None, "it answered"
            _check_version(member.facts, Facts.here())


_pools: dict[Place, Pool] = {}


def pool_at(place: Place) -> Pool:
    """The workers of that place, started at the first request; raises as `Pool.start`."""
    import ray

    if not ray.is_initialized():
        _pools.clear()
    for other in [each for each in _pools if each != place]:
        _pools.pop(other).end()  # it may hold the GPUs that these need
    if place not in _pools:
        _pools[place] = Pool.start(place)
    return _pools[place]


def _shut_down() -> None:
    """Leave the cluster; a local one ends, and its logs are removed."""
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
                    **quiet,
                )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            there = "started here" if place.address is None else f"reached at {place.address}"
            raise UsageError("ray-not-reached", f"Ray cannot be {there}: {_first_line(error)}") from error
    # a node's messages on dead processes go to stdout whatever the log settings; our own messages replace them
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
    """Ray reads its authentication settings once, when first imported in a process."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled, without types

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _reach(address: str) -> None:
    """Check that the address accepts connections: Ray itself would try for minutes.

    Raises:
        OSError: it does not.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), REACHED_WITHIN_S).close()


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
    """The part of the command's environment for a local cluster and its workers."""
    unwanted = (*SECRETS, "Q36EVAL_HISTORY", *NOT_FOR_RAY)  # no worker needs these
    kept = {name: value for name, value in inherited.items() if not any(fnmatch(name, each) for each in unwanted)}
    code = Path(__file__).resolve().parents[3]
    if (code / "pyproject.toml").is_file():  # a checkout need not be installed
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(code), kept.get("PYTHONPATH", "")]))
    return kept | FIXED_ENVIRONMENT | TOKEN


@contextmanager
def _environment(*, local: bool) -> Iterator[None]:
    """Processes that Ray starts inherit the environment set here."""
    before = dict(os.environ)
    without = {name: value for name, value in before.items() if name not in NOT_FOR_RAY}
    wanted = local_environment(before) if local else without | FIXED_ENVIRONMENT
    for name in before.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    try:
        yield
    finally:  # variables set by Ray itself stay
        for name in wanted.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray replaces the SIGTERM handler; this restores the command's."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray sets none either
            for number, handler in before.items():
                signal.signal(number, handler)
