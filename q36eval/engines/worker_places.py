"""The valid options of workers, and the resources of each. Does not import torch or Ray."""

from dataclasses import dataclass
from importlib.util import find_spec

from q36eval.engines.base import EngineOptions
from q36eval.errors import UsageError

EXTRA = 'pip install "q36eval[ray]"'
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")
"""Engine arguments for the number of GPUs of one model."""


@dataclass(frozen=True)
class Place:
    """The placement of workers: their number, GPUs each (0: on a core), in a cluster or (None) on this machine."""

    workers: int
    gpus: int
    address: str | None = None

    @classmethod
    def of(cls, options: EngineOptions) -> "Place":
        """From validated options."""
        assert options.workers is not None, "asked where there are workers"
        return cls(options.workers, 0 if options.device == "cpu" else gpus_of(options), options.ray)

    def __str__(self) -> str:
        on = f"{self.gpus} GPU{'s' * (self.gpus > 1)} each" if self.gpus else "one core each"
        where = "this machine" if self.address is None else f"the Ray cluster {self.address}"
        return f"{self.workers} worker{'s' * (self.workers > 1)} on {where}, {on}"


def check(options: EngineOptions) -> None:
    """Refuse invalid options of workers.

    Raises:
        UsageError: a cluster without a number of workers, a client's address, a GPU by its number, layers one at a
            time, or Ray is not installed.
    """
    if options.workers is None:
        if options.ray is not None:
            raise UsageError(
                "option-missing", "ray names a cluster and not how many workers to place there; add --workers."
            )
        return
    if options.ray is not None and "://" in options.ray:
        raise UsageError(
            "ray-address-invalid",
            f"ray={options.ray} is the address of a Ray client server, which workers do not use; give HOST:PORT of "
            f"the cluster's head (6379 unless it was started with another), or auto on one of its nodes.",
        )
    if options.device not in ("cpu", "cuda", "cuda:0"):
        raise UsageError(
            "device-conflict",
            f"--device {options.device} names one GPU, and workers take the GPUs that Ray gives them; write --device "
            f"cuda, and choose among the GPUs of this machine with CUDA_VISIBLE_DEVICES.",
        )
    if options.placement == "layers":
        raise UsageError(
            "option-conflict",
            "placement=layers reads all weights in every pass, so workers would read them once for each part of the "
            "work; remove --workers.",
        )
    if find_spec("ray") is None:
        raise UsageError("package-missing", f"--workers needs Ray, which is not installed here: {EXTRA}")


def gpus_of(options: EngineOptions) -> int:
    """The number of GPUs of one replica of the engine, from its arguments."""
    count = 1
    for argument in options.engine_arguments:
        name, _, value = argument.partition("=")
        if name.strip().replace("-", "_") in PARALLEL and value.strip().isdigit():
            count *= int(value)
    return count
