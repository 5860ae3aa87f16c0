"""What every engine is: `Engine`, its settings, and the requests and results that travel through it. Free of torch.

The contract in words stands in the docstring of `q36eval.engines`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from q36eval.checkpoints.kv_cache import check_kv_cache_dtype, check_kv_scales
from q36eval.checkpoints.placements import check_placement
from q36eval.checkpoints.state_dtypes import check_state_dtype
from q36eval.errors import EngineError, UsageError
from q36eval.records import DeploymentIdentity

if TYPE_CHECKING:
    import torch

    from q36eval.engines.logits import OutputHead
    from q36eval.engines.memory_plan import MemoryPlan

IN_PROCESS = "in-process"


ENGINE_ARG = "--engine-arg"
"""The option by which those without a flag are written, `NAME=VALUE`."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """How an option of an engine is written on a command line, and which values it may have.

    `flag` is its own option; without one it is a NAME of `--engine-arg`, the field's by default. `read` makes the value
    from its text, and `check` refuses one. An option `of_branch` stays at its default where the reference is opened.
    """

    help: str
    metavar: str
    flag: str | None = None
    name: str = ""
    read: Callable[[str], Any] = str
    check: Callable[[Any], None] | None = None
    of_branch: bool = False

    @property
    def written(self) -> str:
        """As a person writes it."""
        return self.flag or f"{ENGINE_ARG} {self.name}"


def _option(default: Any, help: str, metavar: str, **more: Any) -> Any:
    return field(default=default, metadata=MappingProxyType({"": Option(help=help, metavar=metavar, **more)}))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError("option-value", f"{text!r} is not a whole number of at least 1.")
    return int(text)


def _no(text: str) -> bool:
    """The opposite of what is written: `weights_only=true` does not emulate activations."""
    if text.lower() not in ("true", "false"):
        raise UsageError("option-value", f"{text!r} is neither true nor false.")
    return text.lower() == "false"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a person chooses for a deployment, whatever checkpoint it is. An option left at its default is not set.

    The command line makes its options, its help and its errors from these fields: a further option is a field here, and
    what the engine that has it (`Engine.options`) does with it.
    """

    kind: str = _option(IN_PROCESS, "Engine: in-process, vllm, or openai for a server.", "KIND", flag="--engine")
    """A key of `q36eval.engines.opening.KINDS`."""
    device: str = _option("cpu", "cpu, or a GPU such as cuda:0.", "DEVICE", flag="--device")
    kv_cache_dtype: str | None = _option(
        None,
        "KV cache of the branch: auto, fp8_e4m3, turboquant_4bit_nc (_3bit_nc, _k3v4_nc, _k8v4); "
        "what it declares by default.",
        "DTYPE",
        flag="--kv-cache-dtype",
        check=check_kv_cache_dtype,
        of_branch=True,
    )
    """What keys and values are stored in; None is what the checkpoint declares."""
    base_url: str | None = _option(
        None,
        "Address of an OpenAI-compatible server; OPENAI_BASE_URL by default. A key is read from OPENAI_API_KEY.",
        "URL",
        flag="--base-url",
        of_branch=True,
    )
    """Where a server answers, `http://127.0.0.1:8000/v1`; None is what the environment says."""
    workers: int | None = _option(
        None,
        "Spread the work over this many replicas, each on its own GPU (or core); no figure depends on it.",
        "N",
        flag="--workers",
        read=_count,
    )
    """Replicas of the engine that share the work, each its own process; None: this process does it."""
    engine_arguments: tuple[str, ...] = _option(
        (),
        "A rarer option, by a NAME listed below, or vLLM's own argument, such as gpu_memory_utilization=0.7; "
        "repeat it for several.",
        "NAME=VALUE",
        flag=ENGINE_ARG,
    )
    """vLLM's own arguments, each `NAME=VALUE`; a NAME of the command line that is a field below sets that field."""

    served_model: str | None = _option(
        None, "Name of the branch at the server; needed if it serves several.", "MODEL", of_branch=True
    )
    engine_python: str | None = _option(None, "Python of vLLM's environment; Q36EVAL_VLLM_PYTHON by default.", "FILE")
    ray: str | None = _option(
        None, "Ray cluster for the workers: auto or HOST:PORT; this machine by default.", "ADDRESS"
    )
    batch_rows: int | None = _option(
        None,
        "Generate at most this many answers of the branch together; what fits by default.",
        "N",
        name="batch_size",
        read=_count,
        of_branch=True,
    )
    placement: str | None = _option(
        None,
        "Weights decoded or packed on the device, or layers, one at a time; what fits by default.",
        "WHERE",
        check=check_placement,
    )
    """`decoded`, `packed`, or `layers` for weights that do not fit (all that scores, no answers). No number depends on
    it."""
    emulate_activations: bool = _option(
        True, "true: do not emulate the quantization of activations.", "true", name="weights_only", read=_no
    )
    """Whether activations are quantized where the checkpoint says so."""
    kv_scales: str | None = _option(
        None,
        "Scales of a quantized KV cache: stored, or ignored (1 for all); the worse of both by default.",
        "WHICH",
        check=check_kv_scales,
        of_branch=True,
    )
    recurrent_state_dtype: str | None = _option(
        None,
        "Recurrent state of linear attention: float32, bfloat16 or float16; float32 by default.",
        "DTYPE",
        check=check_state_dtype,
        of_branch=True,
    )
    conv_state_dtype: str | None = _option(
        None,
        "Convolution state of linear attention: float32, bfloat16 or float16; as the model by default.",
        "DTYPE",
        check=check_state_dtype,
        of_branch=True,
    )

    @classmethod
    def described(cls) -> dict[str, Option]:
        """How each option is written on a command line, by the name of its field."""
        options: dict[str, Option] = {each.name: each.metadata[""] for each in fields(EngineOptions)}
        return {name: replace(option, name=option.name or name) for name, option in options.items()}

    @classmethod
    def read(cls, values: Mapping[str, Any], arguments: Sequence[str] = ()) -> "EngineOptions":
        """The options of a command line: `values` by field, and `arguments`, each `NAME=VALUE` of `--engine-arg`.

        Raises:
            UsageError: an argument that is not `NAME=VALUE`, is given twice or has its own option; a value that no
                engine takes.
        """
        described = cls.described()
        fields_of = {option.name: name for name, option in described.items() if option.flag is None}
        given, rest = dict(values), []
        for argument in arguments:
            written, equals, value = argument.partition("=")
            name = written.strip().replace("-", "_")
            if not name or not equals:
                raise UsageError("engine-arg-malformed", f"{ENGINE_ARG} {argument!r} is not NAME=VALUE.")
            if name in described and name not in fields_of.values():
                raise UsageError(
                    "option-conflict", f"{ENGINE_ARG} {name} has its own option; write {described[name].flag} {value}."
                )
            if name not in fields_of:
                rest.append(argument)
                continue
            if fields_of[name] in given:
                raise UsageError("option-conflict", f"{ENGINE_ARG} {name} is given twice; give it once.")
            try:
                given[fields_of[name]] = described[fields_of[name]].read(value)
            except UsageError as error:
                raise UsageError("option-value", f"{ENGINE_ARG} {name}: {error}") from error
        options = cls(**given, engine_arguments=tuple(rest))
        for name, option in described.items():
            if option.check is not None and getattr(options, name) is not None:
                option.check(getattr(options, name))
        return options

    def of(self, folder: Path) -> "EngineSettings":
        """The deployment of that checkpoint folder with these options."""
        return EngineSettings(folder, **{each.name: getattr(self, each.name) for each in fields(EngineOptions)})


@dataclass(frozen=True)
class EngineSettings(EngineOptions):
    """One deployment to open: a checkpoint folder and the options. Hashable, and small enough to send elsewhere."""

    folder: Path


Scores = Literal["states", "likeliest", "nothing"]
"""What an engine's `score` gives: states, from which logits of the whole vocabulary follow; the log-probabilities of
the likeliest tokens alone; or nothing."""

Coupling = Literal["inverse_cdf", "gumbel"]
"""How random numbers become tokens, which decides how alike two deployments answer that draw the same numbers.

`inverse_cdf`: one uniform number picks a rank of the sorted nucleus; a small change of one probability moves every
boundary after it. `gumbel`: each token has noise of its own, by prompt, seed, position and token, and the greatest sum
of log-probability and noise wins; two distributions of total variation d differ in at most 2d / (1 + d) of draws, and
nothing that draws each side by itself does better in the worst case (Daliri et al. 2024, arXiv 2408.07978).
"""


@dataclass(frozen=True)
class ScoreRequest:
    """Teacher-force `token_ids` and return what predicts `token_ids[first:]` (so `first >= 1`).

    Requests of different `group`s never share a batch: what else is evaluated in a run changes no number. The first
    `shared` tokens are those of other requests of the group too, so that an engine may compute them once; that it does
    changes no more than another batch would.

    With `likeliest` set, of every row only so many of its likeliest tokens and the text's own token are read, but for
    the rows numbered in `whole`, of which any token may be. Where each log-probability has its price an engine may
    give the other rows' remaining tokens as equally likely; what is read of them is exact all the same.
    """

    key: str
    token_ids: tuple[int, ...]
    first: int = 1
    group: str = ""
    shared: int = 0
    likeliest: int | None = None
    whole: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scored:
    """Row t of `hidden_states` [len(token_ids) - first, H], after the final norm, predicts `token_ids[first + t]`.

    `error` is set instead when the engine could not score the request, `permanent` where asking again would not help.
    `seconds` is its part of the time its batch took to compute; 0 where the engine does not know. `repeated_seconds` is
    the part of requests in that batch whose results were known, which stands with one result of the batch.
    """

    request: ScoreRequest
    hidden_states: "torch.Tensor | None"
    error: str | None = None
    seconds: float = 0.0
    repeated_seconds: float = 0.0
    permanent: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """Continuation of `token_ids` until end of turn, a stop string or `max_new_tokens`; `group` and `shared` as above.

    Greedy at temperature 0, else sampled from the nucleus that holds `top_p` (of the `top_k` likeliest, where that is
    not 0), after `presence_penalty` was taken from the logit of every token answered before. An engine's random numbers
    for a request come from its `seed` and `key` alone, whatever other requests there are: two deployments draw the same
    numbers for the same request, and `coupling` says what becomes of them. One that is not `needed` fills its
    batch: its answer is dropped, so it may end early.
    """

    key: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    group: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    shared: int = 0
    top_k: int = 0
    presence_penalty: float = 0.0
    coupling: Coupling = "inverse_cdf"
    needed: bool = True


@dataclass(frozen=True)
class Generated:
    """The continuation: `text` is decoded without end-of-turn tokens, cut before a stop string.

    `finish_reason` is `stop` (end of turn or stop string), `length`, or `error`; `end_id` is the end-of-turn token that
    came after `token_ids`, where one did and the engine tells. `seconds`, `repeated_seconds` and `permanent` are those
    of `Scored`. So many `rows` the batch that answered had, this one included; 0 where the engine does not know.
    """

    request: GenerationRequest
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    error: str | None = None
    end_id: int | None = None
    seconds: float = 0.0
    repeated_seconds: float = 0.0
    permanent: bool = False
    rows: int = 0


Request = ScoreRequest | GenerationRequest
Result = Scored | Generated
Batch = Sequence[Request]
"""Requests of one kind that an engine computes together."""


def failed(request: Request, reason: str, *, permanent: bool = False) -> Any:
    """The result of a request that got no answer."""
    if isinstance(request, ScoreRequest):
        return Scored(request, None, error=reason, permanent=permanent)
    return Generated(request, (), "", "error", error=reason, permanent=permanent)


def parted(requests: Sequence[Any], problem_of: Callable[[Any], str | None]) -> tuple[list[Any], list[Any]]:
    """The requests without a problem, and the results of the others, which no second attempt would change."""
    problems = [problem_of(request) for request in requests]
    pairs = list(zip(requests, problems, strict=True))
    refused = [failed(request, problem, permanent=True) for request, problem in pairs if problem is not None]
    return [request for request, problem in pairs if problem is None], refused


@dataclass(frozen=True)
class Divided:
    """A list of requests as an engine computes it: `batches`, and errors of the requests that it computes in none."""

    batches: Sequence[Batch]
    refused: Sequence[Result] = ()


@dataclass(frozen=True)
class Perturbation:
    """Another way to compute what a deployment computes, which ought to change no answer: for the noise floor.

    `variant` is the perturbed engine; None where `skipped` says why there is none here. `rescores` is False where the
    hidden states stay what they are and only logits change. Of every request only the first `prefix` tokens are scored
    (None: all).
    """

    name: str
    what: str
    variant: "Callable[[], Engine] | None" = None
    skipped: str | None = None
    rescores: bool = True
    prefix: int | None = None


Advanced = Callable[[str, int, int], None]
"""Called with a kind of step, how many of them are done, and of how many at most."""


class Engine(ABC):
    """A deployment that answers; the contract is that of `q36eval.engines`."""

    options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `EngineOptions` that this kind of engine has; any other one that is set is refused by name."""

    identity: DeploymentIdentity
    tokenizer: Any
    """As transformers has it: `encode`, `decode`, `apply_chat_template`, `eos_token_id`."""

    opens_checkpoints: ClassVar[bool] = True
    """Whether it opens whatever checkpoint it is given; one that only asks a server has what that has open."""

    generates: bool = True
    """Whether it gives answers; one that only scores leaves what needs them unmeasured."""

    scores: Scores = "states"
    """What is left unmeasured where it gives no states: a divergence, and whatever else needs all logits."""

    why_no_scores: str = ""
    """What came of asking for a prompt's log-probabilities, where it gives nothing."""

    deterministic: bool = False
    """Whether the same batches give the same numbers bit for bit, whenever they are computed."""

    ignores_activation_quantization: bool = False
    """Whether the checkpoint quantizes activations and the settings switch that off: not what is served."""

    device: "torch.device | str" = "cpu"
    """Where its hidden states lie."""

    spread: Mapping[str, Any] | None = None
    """Over which workers its work is spread, as a run's provenance has it; None where this process does it."""

    @classmethod  # noqa: B027 - most are checked where they are read
    def check_options(cls, options: EngineOptions) -> None:
        """Refuse values that it cannot have, before anything else is done.

        Raises:
            UsageError: names the option.
        """

    @classmethod  # noqa: B027 - files are looked at when they are loaded
    def check(cls, settings: EngineSettings) -> None:
        """Look whether what answers is there and fit for the branch, before a reference is waited for.

        Raises:
            UsageError, EngineError: as `load`.
        """

    @classmethod
    def load(cls, settings: EngineSettings) -> "Engine":
        """Open the deployment; called through `open_engine`, which has refused options of other kinds.

        Raises:
            UsageError: no such folder, an option's value, or a format that is not decoded.
            CorruptCheckpointError: the checkpoint is not what it says it is.
            EngineError: it could not be opened (memory, a server that does not answer).
        """
        raise NotImplementedError(f"{cls.__name__} is not opened by its settings")

    @classmethod
    def identity_of(cls, settings: EngineSettings) -> DeploymentIdentity:
        """The identity that the engine of `load` has, without loading any weights.

        Raises:
            UsageError, CorruptCheckpointError: as `load`.
        """
        raise NotImplementedError(f"{cls.__name__} is not opened by its settings")

    @classmethod
    def planned(cls, settings: EngineSettings) -> "MemoryPlan | None":
        """The batches of the engine of `load`, without loading any weights; None where it does not plan them.

        Raises:
            UsageError, CorruptCheckpointError: as `load`.
        """
        return None

    def batches(self) -> "MemoryPlan | None":
        """What it computes together, and where its memory goes; None where it does not plan that."""
        return None

    @abstractmethod
    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        """A result for every request whose key is not `known`, in any order."""

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        """As `score`, of answers."""

    @abstractmethod
    def logits(self, hidden_states: "torch.Tensor") -> "torch.Tensor":
        """Float32 logits [T, V] of final hidden states [T, H] through this deployment's own head."""

    @abstractmethod
    def output_head(self) -> "OutputHead":
        """The decoded output projection, for a capture that rebuilds this deployment's logits later.

        Raises:
            EngineError: the head quantizes its inputs, so that it alone does not give its logits.
        """

    def likeliest(self, hidden_states: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        """Of an engine that scores the `likeliest` tokens alone: their ids int64 [T, K] and log-probabilities [T, K].

        -1 and NaN stand where a position has fewer. The prompt's own token is among them.

        Raises:
            EngineError: it does not score so.
        """
        raise EngineError(
            "engine-cannot", f"The engine {self.identity.engine} gives logits, and no list of the likeliest tokens."
        )

    _notify: "Callable[[str], None] | None" = None

    def report_to(self, notify: Callable[[str], None]) -> None:
        """Receive whom to tell, in a sentence, what a person should know of how it computes."""
        self._notify = notify

    def notify(self, sentence: str) -> None:
        """Tell a person, if there is one."""
        if self._notify is not None:
            self._notify(sentence)

    def notify_once(self, sentence: str) -> None:
        """As `notify`, however often it is said."""
        told: set[str] = self.__dict__.setdefault("_told", set())
        if sentence not in told:
            told.add(sentence)
            self.notify(sentence)

    def use_kv_scales(self, which: str | None) -> None:
        """Compute with these scales of a quantized KV cache from here on (`q36eval.checkpoints.kv_cache`); with None
        without quantizing it.

        Raises:
            EngineError: it has no choice of them.
        """
        raise EngineError("engine-cannot", f"The engine {self.identity.engine} has no choice of KV-cache scales.")

    def keep_in(self, folder: Path | None, advanced: Advanced) -> None:  # noqa: B027 - most keep nothing
        """Receive a folder for long computations to be resumed from (None: they begin anew), and whom to tell of what
        how many steps of how many are done."""

    def perturbations(self) -> Sequence[Perturbation]:
        """Other ways to compute the same; none gives an empty noise floor."""
        return ()

    drafts: bool = False
    """Whether it has a draft head, whose guesses `drafted` gives."""

    def drafted(
        self, hidden_states: "torch.Tensor", token_ids: Sequence[int], first_position: int, guesses: int
    ) -> "list[torch.Tensor]":
        """States of the draft head, guess by guess, for `logits`: of guess k, row t predicts `token_ids[t + k]`.

        Row t of the final `hidden_states` [T, H] predicts `token_ids[t]` and stands at position `first_position` + t.
        Guess k has T − k rows, k from 1; every guess reads the texts's own tokens, and the states of the guess before.

        Raises:
            EngineError: there is none.
        """
        raise EngineError("engine-cannot", f"The engine {self.identity.engine} has no draft head here.")

    @property
    def model(self) -> Any:
        """The transformers model, for an attribution that lends its parts (`q36eval.engines.parts`).

        Raises:
            EngineError: it is not in this process.
        """
        raise EngineError(
            "engine-cannot",
            f"The engine {self.identity.engine} has no model in this process whose parts could be exchanged; "
            f"use the engine in-process.",
        )
