"""Engines: the programs that run a deployment, all opened by `open_engine(settings) -> Engine`.

Code outside names no engine class. From q36eval this package imports `checkpoints`, `records` and `errors`. `base` and
`opening` are free of torch, which is imported when an engine is opened.

To add an engine, write a file with a subclass of `Engine` and add one line to `opening.KINDS`. Its contract:

**Identity.** `identity.engine` is the kind's key. `identity_of(settings)` reads files, or queries a server, but loads
no weights, and equals `open_engine(settings).identity`. It holds everything that may change a number: checkpoint,
tokenizer and chat template by content, versions of the engine and its libraries, dtype of the KV cache (named as
declared where the option is None), device, and every option that is set. An unset option does not appear. Our own code
is represented by `NUMERICS_VERSION`, never by a hash of source.

**Settings.** `Engine.options` names the fields of `EngineOptions` that the engine has. `open_engine` refuses any other
option that is set with a `UsageError` that names it; the engine refuses invalid values before it loads. A new option is
a field of `EngineOptions` whose default means "not set", so that every other engine refuses it automatically.
`check_options` and `check` verify, before any wait for a reference, that the engine is available.

**Scores.** `score` teacher-forces each request and gives its final hidden states, after the final norm, in the engine's
dtype and on its device: row t predicts `token_ids[first + t]`. `logits` takes such states through the deployment's own
head to float32, accumulated in float32, its inputs quantized where the deployment does so. `output_head` is that head,
decoded, or an `EngineError` where it alone does not give the logits. An engine without states declares it in `scores`:
`likeliest` gives its log-probabilities, and figures that need all are left out. A request states which parts of its
rows are read (`likeliest`, `whole`), so that an engine can skip costly others.

**Answers.** `generate` continues each request to the end of turn, a stop string or its budget. At temperature 0 it
takes the most likely token; else its random numbers depend only on the request's seed and key.

**Batches.** Requests of two groups never share one. Every call lists all requests, with those already answered as
`known`: an engine forms batches from the whole list and computes each whole or not at all, so that an interrupted run
continues with the same numbers. Results may arrive in any order, as soon as they are ready.

**Errors.** A request without an answer returns with `error` (`permanent` if another attempt cannot help); it is
retried, and never counts as wrong. An existing answer is never an error, however poor. `EngineError` is raised if
nothing can be answered any more; `CorruptCheckpointError` only while opening, since it is a proven FAIL.

**Determinism.** `deterministic` means that the same batches give the same numbers bit for bit in this process, and a
kind's `repeats_itself_on` that whole runs do in any process: earlier answers are then reused, and a changed answer on a
repeat counts as a fault. In doubt say no.

**Noise floor and attribution.** `perturbations` are other ways to compute the same, each unavailable one with a reason;
without any the floor is empty. `model` is for engines whose transformers model is in this process; the others keep the
default, which raises an error that they lend no parts.
"""

from q36eval.engines.base import (
    IN_PROCESS,
    Engine,
    EngineOptions,
    EngineSettings,
    ScoreRequest,
)
from q36eval.engines.opening import (
    as_reference,
    check_deployment,
    check_options,
    identity_of,
    open_engine,
    opens_checkpoints,
    planned,
    repeats_itself,
)

__all__ = [
    "IN_PROCESS",
    "Engine",
    "EngineOptions",
    "EngineSettings",
    "ScoreRequest",
    "as_reference",
    "check_deployment",
    "check_options",
    "identity_of",
    "open_engine",
    "opens_checkpoints",
    "planned",
    "repeats_itself",
]
