"""What runs in a worker: engines opened there, and the batches they compute. It knows nothing of Ray."""

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import torch

from q36eval.checkpoints.gpu import give_back
from q36eval.engines.base import Batch, Engine, EngineSettings, Perturbation, Request, Result, Scores
from q36eval.engines.device_memory import OUT_OF_MEMORY
from q36eval.engines.memory_plan import MemoryPlan
from q36eval.engines.numerics import NUMERICS_VERSION
from q36eval.engines.opening import identity_of, open_engine
from q36eval.engines.out_of_memory import DOES_NOT_FIT
from q36eval.engines.workers.packing import Packed, packed
from q36eval.errors import EngineError, Q36Error, UsageError
from q36eval.records import DeploymentIdentity


@dataclass(frozen=True)
class Facts:
    """Where a worker is, and with which code."""

    node: str
    process: int
    version: str
    numerics: int

    @classmethod
    def here(cls) -> "Facts":
        """Of this process."""
        try:
            installed = version("q36eval")
        except PackageNotFoundError:
            installed = "unknown"
        return cls(socket.gethostname(), os.getpid(), installed, NUMERICS_VERSION)


@dataclass(frozen=True)
class Opened:
    """What the driver is told of an engine that a worker has open."""

    identity: DeploymentIdentity
    generates: bool
    scores: Scores
    deterministic: bool
    ignores_activation_quantization: bool
    drafts: bool
    one_thread: bool
    """Whether the engine alone would compute this model by processes of one thread each."""
    plan: MemoryPlan | None
    perturbations: tuple[tuple[Perturbation, bool], ...]
    """Each without its variant, and whether there is one."""


ALIKE = (
    "All nodes need the same files of the checkpoint, the same version of q36eval and of its libraries, and the same "
    "kind of device."
)

Step = Literal["open", "vary", "plan", "scales", "close"]


@dataclass(frozen=True)
class Instruction:
    """A step of a worker's set-up, repeated in every worker that takes the place of a lost one.

    `serial` counts them. What is opened must have the identity that its `value` names, where it names one.
    """

    serial: int
    engine: int
    step: Step
    value: Any = None


@dataclass(frozen=True)
class Division:
    """The batches of a list of requests by their places in it, and errors of those that are in none."""

    batches: tuple[tuple[int, ...], ...]
    refused: tuple[tuple[int, Result], ...]


@dataclass(frozen=True)
class Computed:
    """A unit's results, what the engine wants said, and how often it ran out of memory so far."""

    results: Packed
    said: tuple[str, ...]
    splits: int
    broken: str | None = None
    """The error of all results, where another worker might have computed them: this one's device may be at fault."""


def broken_of(batches: Sequence[Sequence[Result]]) -> str | None:
    """Why every result of a unit is an error, unless it is one of a request, or of too little memory."""
    errors = [result.error for batch in batches for result in batch if result.error and not result.permanent]
    if not errors or len(errors) < sum(map(len, batches)):
        return None
    of_memory = any(words in error for error in errors for words in (*OUT_OF_MEMORY, DOES_NOT_FIT))
    return None if of_memory else errors[0]


def check_identity(own: DeploymentIdentity, expected: DeploymentIdentity) -> None:
    """Refuse to compute for a deployment that is another one here.

    Raises:
        UsageError: names this node, and the fields that differ.
    """
    differing = own.differing_fields(expected)
    if differing:
        raise UsageError(
            "workers-differ",
            f"On node {socket.gethostname()} it is another deployment: {', '.join(differing)} differ from those where "
            f"the command was given. {ALIKE}",
        )


class Worker:
    """Engines by number, each a replica of one that the driver stands for.

    Two calls may be in it at once: while one computes, the results of the one before are packed and sent.
    """

    def __init__(self, threads: int | None) -> None:
        """`threads` of a CPU worker, whose core is its own; None on a GPU."""
        self._threads = threads
        self._engines: dict[int, Engine] = {}
        self._said: dict[int, list[str]] = {}
        self._followed = 0
        self._answer: Opened | None = None
        self._busy = threading.Lock()

    def facts(self) -> Facts:
        """Who answers."""
        return Facts.here()

    def identify(self, settings: EngineSettings) -> DeploymentIdentity | Q36Error:
        """What a deployment is where this worker is, or why it is none."""
        try:
            return identity_of(settings)
        except Q36Error as error:
            return error

    def follow(self, instructions: Sequence[Instruction]) -> "Opened | Q36Error | None":
        """Take the steps that were not taken yet, of all that count; the last one's answer, or why it failed.

        The answer to a step that was taken before is given again.
        """
        with self._busy:
            self._in_threads()
            for instruction in (each for each in instructions if each.serial > self._followed):
                try:
                    self._answer = self._follow(instruction)
                except Q36Error as error:
                    return error
                except Exception as error:
                    return EngineError("worker-failed", f"{type(error).__name__}: {error}")
                self._followed = instruction.serial
            return self._answer

    def _follow(self, instruction: Instruction) -> Opened | None:
        number, value = instruction.engine, instruction.value
        if instruction.step == "open":
            settings, identity = value
            assert isinstance(settings, EngineSettings)
            engine = open_engine(settings)
            if identity is not None:
                check_identity(engine.identity, identity)
            return self._opened(number, engine)
        if instruction.step == "vary":
            of, name = value
            perturbations = self._engines[of].perturbations()
            variant = next(each.variant for each in perturbations if each.name == name)
            assert variant is not None, "the driver was told that there is one"
            engine = variant()
            plan = self._engines[of].batches()
            if plan is not None:
                engine.plan = plan  # type: ignore[attr-defined]
            return self._opened(number, engine)
        if instruction.step == "plan":
            self._engines[number].plan = value  # type: ignore[attr-defined]
        elif instruction.step == "scales":
            self._engines[number].use_kv_scales(value)
        else:
            self._said.pop(number, None)
            engine_or_none = self._engines.pop(number, None)
            if engine_or_none is not None:
                device = torch.device(engine_or_none.device)
                del engine_or_none
                give_back(device)
        return None

    def _opened(self, number: int, engine: Engine) -> Opened:
        said: list[str] = []
        engine.report_to(said.append)
        self._engines[number], self._said[number] = engine, said
        return Opened(
            identity=engine.identity,
            generates=engine.generates,
            scores=engine.scores,
            deterministic=engine.deterministic,
            ignores_activation_quantization=engine.ignores_activation_quantization,
            drafts=engine.drafts,
            one_thread=bool(getattr(engine, "computes_by_single_threads", False)),
            plan=engine.batches(),
            perturbations=tuple(
                (replace(each, variant=None), each.variant is not None) for each in engine.perturbations()
            ),
        )

    def divide(self, number: int, requests: Sequence[Request]) -> Division:
        """The batches of a list that holds known requests too."""
        with self._busy:
            divided = self._engines[number].divided(requests)
        places = {id(request): place for place, request in enumerate(requests)}
        batches = tuple(tuple(places[id(request)] for request in batch) for batch in divided.batches)
        return Division(batches, tuple((places[id(result.request)], result) for result in divided.refused))

    def compute(self, number: int, batches: Sequence[Batch]) -> Computed:
        """The results of some batches of a division."""
        with self._busy:
            self._in_threads()
            engine = self._engines[number]
            results = list(engine.computed(batches))
            said = tuple(self._said[number])
            self._said[number].clear()
            splits = engine.splits
        return Computed(packed(results), said, splits, broken_of(results))

    def _in_threads(self) -> None:
        """How many threads torch takes is said in each of a process's threads."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
