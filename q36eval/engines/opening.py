"""Opening an engine: the registry of kinds, `open_engine`, and facts known without opening. Does not import torch."""

from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from q36eval.engines.base import ENGINE_ARG, IN_PROCESS, Engine, EngineOptions, EngineSettings
from q36eval.engines.memory_plan import MemoryPlan
from q36eval.engines.worker_places import check as check_workers
from q36eval.errors import UsageError
from q36eval.records import DeploymentIdentity


@dataclass(frozen=True)
class Kind:
    """One kind of engine: the class, as `module:name`, and the devices on which it is deterministic.

    It is deterministic if the same list of requests gives bitwise the same answers in every process. `reference` is the
    default kind for the reference of its branches; None: the same kind.
    """

    engine: str
    repeats_itself_on: frozenset[str] = frozenset()
    reference: str | None = None


WORKERS = "q36eval.engines.workers.engine:WorkersEngine"
"""The class for several replicas of any engine that supports the option."""

KINDS: dict[str, Kind] = {
    # batches depend on the whole list, and a CPU's reductions have one order; a GPU's kernels choose their own
    IN_PROCESS: Kind("q36eval.engines.in_process:InProcessEngine", repeats_itself_on=frozenset({"cpu"})),
    # its reference is exact BF16, not vLLM's BF16: one capture serves both kinds of branches
    "vllm": Kind("q36eval.engines.vllm.engine:VLLMEngine", reference=IN_PROCESS),
    "openai": Kind("q36eval.engines.openai.engine:OpenAIEngine", reference=IN_PROCESS),
}
"""Every engine by its kind, the `engine` of its identities. A module is imported only when its kind is opened."""


def open_engine(settings: EngineSettings | Path) -> Engine:
    """The engine of those settings; a folder alone is opened with the default options.

    Raises:
        UsageError: an unknown kind, an option that this kind does not support, or an invalid value.
        CorruptCheckpointError: the checkpoint contradicts its description.
        EngineError: the engine could not be opened.
    """
    settings = EngineSettings(settings) if isinstance(settings, Path) else settings
    return _opened_by(settings).load(settings)


def identity_of(settings: EngineSettings | Path) -> DeploymentIdentity:
    """The identity that `open_engine` would give, without loading any weights; raises as it does."""
    settings = EngineSettings(settings) if isinstance(settings, Path) else settings
    return _opened_by(settings).identity_of(settings)


def planned(settings: EngineSettings) -> MemoryPlan | None:
    """The batches that the engine of `open_engine` would form, without loading any weights; raises as it does."""
    return _opened_by(settings).planned(settings)


def as_reference(options: EngineOptions, by: str | None = None) -> EngineOptions:
    """The options for the reference of deployments with these options: the same engine with its own batching, or the
    kind's reference engine. `by` selects another one, for capturing a reference on request.

    Its KV cache and its states keep the model's dtypes, if the engine has a choice; its weights are used as stored.
    Options that its engine does not support apply to the branch alone.
    """
    engine = _engine_class(options)
    kind = by or KINDS[options.kind].reference or options.kind
    if kind != options.kind:
        engine = class_of(kind)
        others: dict[str, Any] = {
            option.name: option.default for option in fields(EngineOptions) if option.name not in engine.options
        }
        options = replace(options, **others | {"kind": kind})
    described = EngineOptions.described()
    of_branch: dict[str, Any] = {
        each.name: each.default for each in fields(EngineOptions) if described[each.name].of_branch
    }
    stored = replace(options, **of_branch)
    return replace(stored, kv_cache_dtype="auto" if "kv_cache_dtype" in engine.options else None)


def opens_checkpoints(options: EngineOptions) -> bool:
    """Whether an engine with these options opens any checkpoint, the reference included."""
    return _engine_class(options).opens_checkpoints


def check_options(options: EngineOptions) -> None:
    """Refuse an unknown engine, an option that it does not support, and an invalid value.

    Raises:
        UsageError: names it.
    """
    _engine_class(options).check_options(options)


def check_deployment(settings: EngineSettings) -> None:
    """Check that the engine is available, before any measurement; raises as `open_engine`."""
    _engine_class(settings).check(settings)


def _engine_class(settings: EngineOptions) -> type[Engine]:
    if settings.kind not in KINDS:
        raise UsageError("engine-unknown", f"There is no engine {settings.kind!r}; known: {', '.join(KINDS)}.")
    engine: type[Engine] = class_of(settings.kind)
    described = EngineOptions.described()
    for option in fields(EngineOptions):
        is_set = getattr(settings, option.name) != option.default
        if option.name == "kind" or not is_set or option.name in engine.options:
            continue
        if option.name == "engine_arguments":
            name = settings.engine_arguments[0].partition("=")[0]
            names = sorted(described[each].name for each in engine.options if described[each].flag is None)
            known = f"its NAMEs are: {', '.join(names)}" if names else "it has none"
            sentence = f"The engine {settings.kind} has no {ENGINE_ARG} {name}; {known}."
            raise UsageError("engine-arg-unsupported", sentence)
        why = "" if engine.opens_checkpoints else " What computes there, and on how many GPUs, is the server's."
        said = f"The engine {settings.kind} has no {described[option.name].written}; remove that option."
        raise UsageError("option-unsupported", said + (why if option.name in ("workers", "ray") else ""))
    check_workers(settings)
    return engine


def _opened_by(settings: EngineSettings) -> type[Engine]:
    """The class of the engine, or of its replicas."""
    engine = _engine_class(settings)
    replicas: type[Engine] = engine if settings.workers is None else _named(WORKERS)
    return replicas


def class_of(kind: str) -> Any:
    """The class of the engines of that kind."""
    return _named(KINDS[kind].engine)


def _named(engine: str) -> Any:
    module, _, name = engine.partition(":")
    return getattr(import_module(module), name)


def repeats_itself(identity: DeploymentIdentity) -> bool:
    """Whether the same list of requests gives bitwise the same answers in every process of that deployment.

    Not true for a server: its batches depend on other clients' requests.
    """
    kind = KINDS.get(identity.engine)
    return kind is not None and identity.settings.get("device") in kind.repeats_itself_on
