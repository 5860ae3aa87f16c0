"""Engines: what answers for a deployment, all behind one door: `open_engine(settings) -> Engine`.

Nobody outside names an engine's class. Of q36eval this package imports `checkpoints`, `records` and `errors`. `base`
and `opening` are free of torch, which is imported when an engine is opened.

To add an engine, write a file with a subclass of `Engine` and add one line to `opening.KINDS`. What it must keep:

**Identity.** `identity.engine` is the kind's key. `identity_of(settings)` reads files, or questions a server, but loads
no weights, and equals `open_engine(settings).identity`. It holds whatever may change a number: checkpoint, tokenizer
and chat template by content, versions of the engine and its libraries, dtype of the KV cache (named as declared where
the option is None), device, and every option that is set. An option that is not set leaves no trace. Of our own code
stands there `NUMERICS_VERSION`, never a hash of source.

**Settings.** `Engine.options` names the fields of `EngineOptions` that the engine has. `open_engine` refuses any other
one that is set with a `UsageError` that names it; the engine refuses values that it cannot have, before it loads. A new
option is a field of `EngineOptions` whose default means "not set", so that every other engine refuses it by itself.
`check_options` and `check` look, before a reference is waited for, whether what answers is there.

**Scores.** `score` teacher-forces each request and gives its final hidden states, after the final norm, in whatever
dtype and on whatever device the engine computes: row t predicts `token_ids[first + t]`. `logits` takes such states
through the deployment's own head to float32, accumulated in float32, its inputs quantized where the deployment does so.
`output_head` is that head, decoded, or an `EngineError` where it alone does not give the logits. `scores` says
so where an engine has no states: `likeliest` gives the log-probabilities that it has, and what needs all is left out.
A request says how much of its rows is read (`likeliest`, `whole`), so that the rest need not be had where it costs.

**Answers.** `generate` continues each request to the end of turn, a stop string or its budget. At temperature 0 it
takes the likeliest token; else it draws from numbers that follow from the request's seed and key alone.

**Batches.** Requests of two groups never share one. All requests are named in every call, with those already answered
as `known`: an engine that forms batches forms them from the whole list and computes each whole or not at all, so that
an interrupted run goes on with the same numbers. Results may come in any order, and as soon as they are there.

**Errors.** A request that got no answer comes back with `error` (`permanent` where another attempt cannot help); it is
retried, and never a wrong answer. An answer that is there is never an error, however poor. `EngineError` is raised
where nothing can be answered any more; `CorruptCheckpointError` only while opening, since it is a proven FAIL.

**Determinism.** `deterministic` says that the same batches give the same numbers bit for bit in this process, and a
kind's `repeats_itself_on` that whole runs do in any: earlier answers are then reused, and one that comes out otherwise
when it is evaluated again counts as a fault. In doubt say no.

**Noise floor and attribution.** `perturbations` are other ways to compute the same, each with the reason where it
cannot be had; none is a floor of nothing. `model` is for engines whose transformers model is in this process; the
others keep the default, which says in a sentence that they lend no parts.
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
