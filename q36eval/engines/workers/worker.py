"""The code in a worker: opened engines, and their computed batches. Independent of Ray."""

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from q36eval.checkpoints.gpu import give_back
from q36eval.engines.base import (
    Batch,
    Engine,
    EngineSettings,
    GenerationRequest,
    Perturbation,
    Request,
    Result,
    Scored,
    ScoreRequest,
    Scores,
)
from q36eval.engines.batches import BatchedEngine
from q36eval.engines.device_memory import DOES_NOT_FIT, OUT_OF_MEMORY
from q36eval.engines.memory_plan import MemoryPlan
from q36eval.engines.numerics import NUMERICS_VERSION
from q36eval.engines.opening import open_engine
from q36eval.errors import UsageError
from q36eval.records import DeploymentIdentity


@dataclass(frozen=True)
class Facts:
    """A worker's place and version of the code."""

    node: str
    process: int
    version: str
    numerics: int

    @classmethod
    def here(cls) -> "Facts":
        """The facts of this process."""
        try:
            installed = version("q36eval")
        except PackageNotFoundError:
            installed = "unknown"
        return cls(socket.gethostname(), os.getpid(), installed, NUMERICS_VERSION)


@dataclass(frozen=True)
class Replica:
    """The specification of one engine in each worker, replacements included."""

    number: int
    settings: EngineSettings
    identity: DeploymentIdentity | None = None
    """The required identity of the opened engine; None for a variant of one."""
    plan: MemoryPlan | None = None
    kv_scales: tuple[str | None, ...] = ()
    """The value last passed to `use_kv_scales`, if any."""
    varies: "Replica | None" = None
    perturbation: str = ""
    """The perturbation of the engine that it varies."""


@dataclass(frozen=True)
class Opened:
    """A worker's description of an opened engine, for the command."""

    facts: Facts
    identity: DeploymentIdentity
    generates: bool
    scores: Scores
    deterministic: bool
    ignores_activation_quantization: bool
    drafts: bool
    one_thread: bool
    """Whether the engine alone would compute this model in one-thread processes."""
    plan: MemoryPlan | None
    perturbations: tuple[tuple[Perturbation, bool], ...]
    """Each without its variant, and whether it has one."""


@dataclass(frozen=True)
class Division:
    """The batches of a list of requests by their indices, and errors of those that are in none."""

    batches: tuple[tuple[int, ...], ...]
    refused: tuple[tuple[int, Result], ...]


Packed = tuple[Result, "np.ndarray[Any, Any] | None", str]
"""A result without its request and states; the states' bytes (numpy has no BF16) and their dtype. Ray shares an array
with its reader without a copy; a tensor would be pickled."""

_NO_SCORE, _NO_PROMPT = ScoreRequest("", (0, 0)), GenerationRequest("", (0,), 0)


@dataclass(frozen=True)
class Computed:
    """A unit's results, and the engine's notes."""

    results: tuple[tuple[Packed, ...], ...]
    said: tuple[str, ...]
    broken: str | None = None
    """The error of all results, if another worker might succeed: this one's device may be faulty."""


def packed(result: Result) -> Packed:
    """A result in its transfer form; states leave the device here."""
    if not isinstance(result, Scored):
        return replace(result, request=_NO_PROMPT), None, ""
    bare, states = replace(result, request=_NO_SCORE, hidden_states=None), result.hidden_states
    if states is None:
        return bare, None, ""
    return bare, states.contiguous().cpu().view(torch.uint8).numpy(), str(states.dtype).removeprefix("torch.")


def unpacked(computed: Computed, batches: Sequence[Batch], device: "torch.device | str") -> Iterator[list[Result]]:
    """The results of each batch, with their requests and with states on `device`."""
    for batch, results in zip(batches, computed.results, strict=True):
        whole: list[Result] = []
        for request, (result, states, dtype) in zip(batch, results, strict=True):
            changed: dict[str, Any] = {"request": request}
            if states is not None:
                copy = np.array(states)  # Ray's array is freed with its unit
                changed["hidden_states"] = torch.from_numpy(copy).view(getattr(torch, dtype)).to(device)
            whole.append(replace(result, **changed))
        yield whole


def broken_of(batches: Sequence[Sequence[Result]]) -> str | None:
    """Why every result of a unit is an error, except errors of single requests and lack of memory."""
    errors = [result.error for batch in batches for result in batch if result.error and not result.permanent]
    if not errors or len(errors) < sum(map(len, batches)):
        return None
    of_memory = any(words in error for error in errors for words in (*OUT_OF_MEMORY, DOES_NOT_FIT))
    return None if of_memory else errors[0]


class Worker:
    """Engines by number, each a replica of one in the command.

    Two calls may be active: while one computes, the results of the previous one are packed and sent.
    """

    def __init__(self, threads: int | None) -> None:
        """`threads` of a CPU worker with its own core; None on a GPU."""
        self._threads = threads
        self._engines: dict[int, Engine] = {}
        self._said: dict[int, list[str]] = {}
        self._busy = threading.Lock()

    def facts(self) -> Facts:
        """The worker's facts."""
        return Facts.here()

    def open(self, replica: Replica) -> Opened:
        """Open an engine for the replica, or change the open one to it.

        Raises:
            Q36Error: it cannot be opened, or is another deployment here.
        """
        with self._busy:
            self._in_threads()
            return _opened(self._engine(replica))

    def _engine(self, replica: Replica) -> Engine:
        engine = self._engines.get(replica.number)
        if engine is None:
            engine = self._variant(replica.varies, replica.perturbation) if replica.varies else _loaded(replica)
            said: list[str] = []
            engine.report_to(said.append)
            self._engines[replica.number], self._said[replica.number] = engine, said
        if replica.plan is not None:
            engine.plan = replica.plan  # type: ignore[attr-defined]
        for which in replica.kv_scales:
            engine.use_kv_scales(which)
        return engine

    def _variant(self, of: Replica, name: str) -> Engine:
        varied = self._engine(of)
        variant = next(each.variant for each in varied.perturbations() if each.name == name)
        assert variant is not None, "the command knows that there is one"
        engine, plan = variant(), varied.batches()
        if plan is not None:
            engine.plan = plan  # type: ignore[attr-defined]
        return engine

    def close(self, number: int) -> None:
        """Close an engine and release its memory."""
        with self._busy:
            self._said.pop(number, None)
            engine = self._engines.pop(number, None)
            if engine is not None:
                device = torch.device(engine.device)
                del engine
                give_back(device)

    def divide(self, number: int, requests: Sequence[Request]) -> Division:
        """The batches of a list that includes known requests."""
        with self._busy:
            divided = self._batched(number).divided(requests)
        places = {id(request): place for place, request in enumerate(requests)}
        batches = tuple(tuple(places[id(request)] for request in batch) for batch in divided.batches)
        return Division(batches, tuple((places[id(result.request)], result) for result in divided.refused))

    def compute(self, number: int, batches: Sequence[Batch]) -> Computed:
        """The results of some batches of a division."""
        with self._busy:
            self._in_threads()
            engine = self._batched(number)
            results = list(engine.computed(batches))
            said = tuple(self._said[number])
            self._said[number].clear()
        sent = tuple(tuple(packed(result) for result in batch) for batch in results)
        return Computed(sent, said, broken_of(results))

    def _batched(self, number: int) -> BatchedEngine:
        engine = self._engines[number]
        assert isinstance(engine, BatchedEngine), "as every kind is that has the option workers"
        return engine

    def _in_threads(self) -> None:
        """torch's number of threads must be set in each thread of a process."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)


def _loaded(replica: Replica) -> Engine:
    """The engine of a replica.

    Raises:
        UsageError: it is another deployment here; names this node and the differing fields.
    """
    engine = open_engine(replica.settings)
    differing = [] if replica.identity is None else engine.identity.differing_fields(replica.identity)
    if differing:
        raise UsageError(
            "workers-differ",
            f"On node {socket.gethostname()} it is another deployment: {', '.join(differing)} differ from those where "
            f"the command was given. All nodes need the same files of the checkpoint, the same version of q36eval and "
            f"of its libraries, and the same kind of device.",
        )
    return engine


def _opened(engine: Engine) -> Opened:
    return Opened(
        facts=Facts.here(),
        identity=engine.identity,
        generates=engine.generates,
        scores=engine.scores,
        deterministic=engine.deterministic,
        ignores_activation_quantization=engine.ignores_activation_quantization,
        drafts=engine.drafts,
        one_thread=bool(getattr(engine, "computes_by_single_threads", False)),
        plan=engine.batches(),
        perturbations=tuple((replace(each, variant=None), each.variant is not None) for each in engine.perturbations()),
    )
