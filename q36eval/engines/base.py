"""The interface of every engine: `Engine`, its settings, its requests and its results. Does not import torch.

The docstring of `q36eval.engines` describes the contract.
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
"""The option for engine arguments without a separate flag, `NAME=VALUE`."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The command-line form of an engine's option, and its valid values.

    `flag` is its own option; without one it is a NAME of `--engine-arg`, the field's by default. `read` converts its
    text to the value, and `check` refuses an invalid one. An option `of_branch` keeps its default for the reference.
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
        """The form that a person writes."""
        return self.flag or f"{ENGINE_ARG} {self.name}"


def _option(default: Any, help: str, metavar: str, **more: Any) -> Any:
    return field(default=default, metadata=MappingProxyType({"": Option(help=help, metavar=metavar, **more)}))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError("option-value", f"{text!r} is not a whole number of at least 1.")
    return int(text)


def _no(text: str) -> bool:
    """Inverts the written value: `weights_only=true` does not emulate activations."""
    if text.lower() not in ("true", "false"):
        raise UsageError("option-value", f"{text!r} is neither true nor false.")
    return text.lower() == "false"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """A person's settings for a deployment, independent of the checkpoint. An option left at its default is not set.

    The command line derives its options, help and errors from these fields: a further option needs a field here, and
    its use in the engine that has it (`Engine.options`).
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
    """The dtype of keys and values; None uses the checkpoint's declaration."""
    base_url: str | None = _option(
        None,
        "Address of an OpenAI-compatible server; OPENAI_BASE_URL by default. A key is read from OPENAI_API_KEY.",
        "URL",
        flag="--base-url",
        of_branch=True,
    )
    """The address of a server, `http://127.0.0.1:8000/v1`; None uses the environment's."""
    workers: int | None = _option(
        None,
        "Spread the work over this many replicas, each on its own GPU (or core); no figure depends on it.",
        "N",
        flag="--workers",
        read=_count,
    )
    """Replicas of the engine that share the work, each in a separate process; None: this process does the work."""
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
    """`decoded`, `packed`, or `layers` for weights that do not fit (scores only, no answers). It changes no number."""
    emulate_activations: bool = _option(
        True, "true: do not emulate the quantization of activations.", "true", name="weights_only", read=_no
    )
    """Whether activations are quantized as the checkpoint declares."""
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
        """The command-line form of each option, by the name of its field."""
        options: dict[str, Option] = {each.name: each.metadata[""] for each in fields(EngineOptions)}
        return {name: replace(option, name=option.name or name) for name, option in options.items()}

    @classmethod
    def read(cls, values: Mapping[str, Any], arguments: Sequence[str] = ()) -> "EngineOptions":
        """The options of a command line: `values` by field, and `arguments`, each `NAME=VALUE` of `--engine-arg`.

        Raises:
            UsageError: an argument that is not `NAME=VALUE`, is given twice or has its own option; a value that no
                engine accepts.
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
    """One deployment to open: a checkpoint folder and the options. Hashable, and small enough to send to other
    processes."""

    folder: Path


Scores = Literal["states", "likeliest", "nothing"]
"""The results of an engine's `score`: states, which determine the logits of the whole vocabulary; only the
log-probabilities of the most likely tokens; or nothing."""

Coupling = Literal["inverse_cdf", "gumbel"]
"""How random numbers become tokens, which determines how similar two deployments with the same numbers answer.

`inverse_cdf`: one uniform number picks a rank of the sorted nucleus; a small change of one probability moves every
boundary after it. `gumbel`: each token has separate noise, by prompt, seed, position and token, and the largest sum of
log-probability and noise wins; two distributions of total variation d differ in at most 2d / (1 + d) of draws, and no
method that draws for each side independently is better in the worst case (Daliri et al. 2024, arXiv 2408.07978).
"""


@dataclass(frozen=True)
class ScoreRequest:
    """Teacher-force `token_ids` and return the predictions of `token_ids[first:]` (so `first >= 1`).

    Requests of different `group`s never share a batch: other work of a run changes no number. The first `shared` tokens
    also begin other requests of the group, so that an engine may compute them once; this changes no more than another
    batch would.

    With `likeliest` set, only that many most likely tokens of each row and the text's own token are read, except in the
    rows numbered in `whole`, where any token may be. If log-probabilities are costly, an engine may return the
    remaining tokens of the other rows as equally likely; the values that are read stay exact.
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

    `error` is set instead if the engine could not score the request, `permanent` if another attempt would not help.
    `seconds` is its share of its batch's computing time; 0 if unknown. `repeated_seconds` is the share of requests in
    that batch whose results were known; only one result of the batch has it.
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

    Greedy at temperature 0, else sampled from the nucleus that holds `top_p` (of the `top_k` most likely tokens, if not
    0), after subtracting `presence_penalty` from the logit of every token answered before. An engine's random numbers
    for a request come from its `seed` and `key` alone, independent of other requests: two deployments draw the same
    numbers for the same request, and `coupling` turns them into tokens. A request that is not `needed` fills its batch:
    its answer is dropped, so it may end early.
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

    `finish_reason` is `stop` (end of turn or stop string), `length`, or `error`; `end_id` is the end-of-turn token
    after `token_ids`, if any and if the engine reports it. `seconds`, `repeated_seconds` and `permanent` are those of
    `Scored`. `rows` is the number of rows in its batch, this one included; 0 if unknown.
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
    """The result of a request without an answer."""
    if isinstance(request, ScoreRequest):
        return Scored(request, None, error=reason, permanent=permanent)
    return Generated(request, (), "", "error", error=reason, permanent=permanent)


def parted(requests: Sequence[Any], problem_of: Callable[[Any], str | None]) -> tuple[list[Any], list[Any]]:
    """The requests without a problem, and the permanent errors of the others."""
    problems = [problem_of(request) for request in requests]
    pairs = list(zip(requests, problems, strict=True))
    refused = [failed(request, problem, permanent=True) for request, problem in pairs if problem is not None]
    return [request for request, problem in pairs if problem is None], refused


@dataclass(frozen=True)
class Divided:
    """A list of requests divided for computing: `batches`, and errors of the requests that are in no batch."""

    batches: Sequence[Batch]
    refused: Sequence[Result] = ()


@dataclass(frozen=True)
class Perturbation:
    """Another way to compute a deployment's results, which should change no answer: for the noise floor.

    `variant` is the perturbed engine; if unavailable it is None and `skipped` is the reason. `rescores` is False if
    only logits change and hidden states do not. Only the first `prefix` tokens of every request are scored (None: all).
    """

    name: str
    what: str
    variant: "Callable[[], Engine] | None" = None
    skipped: str | None = None
    rescores: bool = True
    prefix: int | None = None


Advanced = Callable[[str, int, int], None]
"""Called with a kind of step, the number done, and the maximum number."""


class Engine(ABC):
    """A running deployment; the contract is that of `q36eval.engines`."""

    options: ClassVar[frozenset[str]] = frozenset()
    """The fields of `EngineOptions` that this kind of engine supports; any other one that is set is refused by name."""

    identity: DeploymentIdentity
    tokenizer: Any
    """A transformers tokenizer: `encode`, `decode`, `apply_chat_template`, `eos_token_id`."""

    opens_checkpoints: ClassVar[bool] = True
    """Whether it opens any given checkpoint; an engine that queries a server uses the server's model."""

    generates: bool = True
    """Whether it generates answers; with one that only scores, figures that need answers are not measured."""

    scores: Scores = "states"
    """Without states, a divergence and other figures that need all logits are not measured."""

    why_no_scores: str = ""
    """The result of requesting a prompt's log-probabilities, if it gives none."""

    deterministic: bool = False
    """Whether the same batches always give the same numbers bit for bit."""

    ignores_activation_quantization: bool = False
    """Whether the settings switch off the checkpoint's activation quantization, so that the engine differs from
    serving."""

    device: "torch.device | str" = "cpu"
    """The device of its hidden states."""

    spread: Mapping[str, Any] | None = None
    """Its workers, for a run's provenance; None if this process does the work."""

    @classmethod  # noqa: B027 - most are checked where they are read
    def check_options(cls, options: EngineOptions) -> None:
        """Refuse invalid values before anything else.

        Raises:
            UsageError: names the option.
        """

    @classmethod  # noqa: B027 - files are looked at when they are loaded
    def check(cls, settings: EngineSettings) -> None:
        """Check that the engine is available and suits the branch, before any wait for a reference.

        Raises:
            UsageError, EngineError: as `load`.
        """

    @classmethod
    def load(cls, settings: EngineSettings) -> "Engine":
        """Open the deployment; called through `open_engine`, which has refused options of other kinds.

        Raises:
            UsageError: no such folder, an option's value, or a format that is not decoded.
            CorruptCheckpointError: the checkpoint contradicts its description.
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
        """Its batch limits and memory use; None if it does not plan them."""
        return None

    @abstractmethod
    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        """A result for every request whose key is not `known`, in any order."""

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        """As `score`, for answers."""

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
        """For an engine that scores only the most likely tokens: their ids int64 [T, K] and log-probabilities [T, K].

        A position with fewer has -1 and NaN in the rest. The prompt's own token is among them.

        Raises:
            EngineError: it does not score this way.
        """
        raise EngineError(
            "engine-cannot", f"The engine {self.identity.engine} gives logits, and no list of the likeliest tokens."
        )

    _notify: "Callable[[str], None] | None" = None

    def report_to(self, notify: Callable[[str], None]) -> None:
        """Receive the callback for notes to a person on how it computes."""
        self._notify = notify

    def notify(self, sentence: str) -> None:
        """Send a note to the person, if a callback is set."""
        if self._notify is not None:
            self._notify(sentence)

    def notify_once(self, sentence: str) -> None:
        """As `notify`, but at most once per sentence."""
        told: set[str] = self.__dict__.setdefault("_told", set())
        if sentence not in told:
            told.add(sentence)
            self.notify(sentence)

    def use_kv_scales(self, which: str | None) -> None:
        """Compute with these scales of a quantized KV cache from here on (`q36eval.checkpoints.kv_cache`); with None
        without quantizing it.

        Raises:
            EngineError: it does not support a choice.
        """
        raise EngineError("engine-cannot", f"The engine {self.identity.engine} has no choice of KV-cache scales.")

    def keep_in(self, folder: Path | None, advanced: Advanced) -> None:  # noqa: B027 - most keep nothing
        """Receive a folder from which long computations resume (None: they start again), and a callback for the number
        of finished steps and of all steps."""

    def perturbations(self) -> Sequence[Perturbation]:
        """Other ways to compute the same; none gives an empty noise floor."""
        return ()

    drafts: bool = False
    """Whether it has a draft head, for `drafted`."""

    def drafted(
        self, hidden_states: "torch.Tensor", token_ids: Sequence[int], first_position: int, guesses: int
    ) -> "list[torch.Tensor]":
        """States of the draft head, guess by guess, for `logits`: of guess k, row t predicts `token_ids[t + k]`.

        Row t of the final `hidden_states` [T, H] predicts `token_ids[t]` and has position `first_position` + t. Guess k
        has T − k rows, k from 1; every guess reads the text's own tokens, and the states of the previous guess.

        Raises:
            EngineError: it has no draft head.
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
