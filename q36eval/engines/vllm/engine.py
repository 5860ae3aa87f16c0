"""The engine `vllm`: scored by vLLM's final hidden states, answered by vLLM."""

import copy
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from q36eval.checkpoints import (
    chat_template_sha256,
    checkpoint_sha256,
    load_tokenizer,
    open_checkpoint,
    tokenizer_sha256,
)
from q36eval.checkpoints.draft import has_draft_head
from q36eval.checkpoints.kv_cache import check_kv_cache_dtype, declared_kv_cache_dtype
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.engines.answer_endings import configured_end, end_ids, engine_seed, finished
from q36eval.engines.base import (
    ENGINE_ARG,
    Divided,
    EngineOptions,
    EngineSettings,
    Generated,
    GenerationRequest,
    Perturbation,
    Request,
    ScoreRequest,
    failed,
    parted,
)
from q36eval.engines.batches import BatchedEngine, batches_by_length, in_order, shared_out
from q36eval.engines.head import Head
from q36eval.engines.logits import OutputHead
from q36eval.engines.numerics import NUMERICS_VERSION
from q36eval.engines.vllm.environment import Environment, environment
from q36eval.engines.vllm.process import AskError, WorkerProcess
from q36eval.engines.vllm.self_test import check_states
from q36eval.engines.vllm.window import ScoringWindow
from q36eval.errors import EngineError, UsageError
from q36eval.files import checkpoint_path
from q36eval.records import DeploymentIdentity

KIND = "vllm"
WINDOW_TOKENS = 32_768
"""The number of prompt tokens submitted at once. Their states are transferred in one file (256 MiB at a width of 4,096)
while the next are computed."""
WINDOW_ANSWERS, WINDOW_PROMPT_TOKENS = 1_024, 2_000_000
"""Answers submitted at once, and the tokens of their prompts (16 MB as JSON); vLLM batches them itself."""

ARGUMENTS: dict[str, Any] = {
    "dtype": "bfloat16",
    "enable_prefix_caching": False,
    "generation_config": "vllm",  # the checkpoint's own sampling settings are ignored
    "seed": 0,
}
RESERVED = frozenset({"model", "tokenizer", "worker_extension_cls", "generation_config"})
"""Engine arguments that are not allowed: they would change the deployment, or suppress states."""


Windows = Callable[[list[ScoreRequest]], Iterator[list[ScoreRequest]]]


class VLLMEngine(BatchedEngine):
    """A checkpoint opened by vLLM in another process."""

    options: ClassVar[frozenset[str]] = frozenset(
        {"device", "kv_cache_dtype", "recurrent_state_dtype", "engine_python", "engine_arguments", "workers", "ray"}
    )

    def __init__(
        self,
        worker: WorkerProcess,
        context: int,
        head: Head,
        tokenizer: Any,
        stop_ids: Sequence[int],
        identity: DeploymentIdentity,
    ) -> None:
        self._worker, self._context, self._head = worker, context, head
        self._windows_of_texts: Windows = partial(batches_by_length, max_tokens=WINDOW_TOKENS)
        self.tokenizer, self._stop_ids, self.identity = tokenizer, tuple(stop_ids), identity
        self.device = head.device

    @classmethod
    def check_options(cls, options: EngineOptions) -> None:
        """Check the environment, and parse its arguments.

        Raises:
            UsageError: it does not exist, or an argument is reserved.
        """
        _check_known(_own_arguments(options), environment(options.engine_python))

    @classmethod
    def load(cls, settings: EngineSettings) -> "VLLMEngine":
        """Start vLLM on the checkpoint, and compare its states with its own log-probabilities.

        Raises:
            UsageError: no environment, or an invalid option value.
            CorruptCheckpointError: the head's weights contradict the checkpoint's description.
            EngineError: vLLM does not load the checkpoint, or its states do not match its answers.
        """
        there = environment(settings.engine_python)
        with opened_once():
            held = hold(settings.folder)
            identity = cls.identity_of(settings)
            head, tokenizer = Head.of(settings), load_tokenizer(held)
            stop_ids = end_ids(configured_end(held), tokenizer)
            worker = WorkerProcess(there)
            try:
                opened = worker.ask("open", "it opened the checkpoint", arguments=_arguments(settings, there))
            except AskError as error:
                raise EngineError("engine-not-opened", f"vLLM does not open {settings.folder}: {error}.") from error
            held.check()  # so that the identity describes the bytes that vLLM loaded
        engine = cls(worker, int(opened["context"]), head, tokenizer, stop_ids, identity)
        check_states(engine, worker, engine._context)
        return engine

    @classmethod
    def identity_of(cls, settings: EngineSettings) -> DeploymentIdentity:
        """From the files, the environment's versions and the settings.

        Raises:
            UsageError: no environment, or an invalid option value.
        """
        there = environment(settings.engine_python)
        folder, kv_cache_dtype = hold(settings.folder), settings.kv_cache_dtype
        if kv_cache_dtype is None:
            kv_cache_dtype = declared_kv_cache_dtype(open_checkpoint(folder))
        check_kv_cache_dtype(kv_cache_dtype)
        own = _own_arguments(settings)
        _check_drafts(own, folder)
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "gpu"
        return DeploymentIdentity(
            checkpoint_sha256=checkpoint_sha256(folder),
            tokenizer_sha256=tokenizer_sha256(folder),
            chat_template_sha256=chat_template_sha256(folder),
            engine=KIND,
            engine_version=str(there),
            settings={
                "device": "cpu" if there.on_cpu else gpu,
                "machine": there.machine,
                "dtype": "bfloat16",
                **({"arguments": json.dumps(own, sort_keys=True)} if own else {}),
                **({"recurrent_state_dtype": settings.recurrent_state_dtype} if settings.recurrent_state_dtype else {}),
                "numerics": str(NUMERICS_VERSION),
            },
            kv_cache_dtype=kv_cache_dtype,
        )

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits [T, V] through the checkpoint's own head, decoded and applied here.

        vLLM's own are rounded to BF16, which alone costs about 2e-5 nats.
        """
        return self._head.logits(hidden_states)

    def output_head(self) -> OutputHead:
        return self._head.plain()

    def divided(self, requests: Sequence[Request]) -> Divided:
        """The windows; each is the same if submitted alone."""
        fitting, refused = parted(requests, self._too_long)
        scores = len(requests) > 0 and isinstance(requests[0], ScoreRequest)
        return Divided([*(self._windows_of_texts(fitting) if scores else windows_of_answers(fitting))], refused)

    def computed(self, batches: Sequence[Any]) -> Iterator[list[Any]]:
        if batches and isinstance(batches[0][0], GenerationRequest):
            yield from map(self._answer_window, batches)
            return
        under_way: ScoringWindow | None = None
        try:
            for window in batches:
                # submitted once the previous one is computed, whose states are read and used meanwhile
                before, under_way = under_way, ScoringWindow(self._worker, window)
                if before is not None:
                    yield before.results(self.device)
            if under_way is not None:
                yield under_way.results(self.device)
        finally:
            if under_way is not None:  # a caller that stops early leaves a window behind
                under_way.forget()

    def _too_long(self, request: Request) -> str | None:
        budget = request.max_new_tokens if isinstance(request, GenerationRequest) else 0
        length, what = len(request.token_ids) + budget, " with the answer's budget" if budget else ""
        return None if length <= self._context else f"{length} tokens{what} do not fit the context of {self._context}"

    def _answer_window(self, window: list[GenerationRequest]) -> list[Generated]:
        started = time.monotonic()
        asked = [{"token_ids": list(each.token_ids), "sampling": self._sampling(each)} for each in window]
        what = f"it answered {len(window)} prompts, among them {window[0].key}"
        try:
            answers = self._worker.ask("generate", what, requests=asked)["answers"]
        except AskError as error:
            return [failed(request, f"vLLM: {error}") for request in window]
        results = [
            finished(self.tokenizer, self._stop_ids, request, answer["token_ids"])
            if answer["finish_reason"] in ("stop", "length")
            else failed(request, f"vLLM ended an answer by {answer['finish_reason']!r}")
            for request, answer in zip(window, answers, strict=True)
        ]
        return shared_out(results, time.monotonic() - started)

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        """The arguments of vLLM's `SamplingParams`; the seed depends on the request's seed and key."""
        return {
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "presence_penalty": request.presence_penalty,
            "seed": engine_seed(request),
            "stop": list(request.stop),
            "stop_token_ids": list(self._stop_ids),
            "ignore_eos": True,  # the ends of a turn are listed above
            "skip_special_tokens": False,
        }

    def perturbations(self) -> Sequence[Perturbation]:
        return (
            Perturbation("batch-of-one", "every document alone", lambda: self.in_windows(one_by_one)),
            Perturbation("another-batch", "batches of other size and company", lambda: self.in_windows(other_company)),
        )

    def in_windows(self, windows_of: "Windows") -> "VLLMEngine":
        """The same process, with other windows."""
        variant = copy.copy(self)
        variant._windows_of_texts = windows_of
        return variant


def one_by_one(requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
    """One request per window."""
    yield from ([request] for request in requests)


def other_company(requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
    """Windows of half as many tokens, in an order by keys instead of lengths."""
    ordered = sorted(requests, key=lambda request: (request.group, request.key))
    return in_order(ordered, lambda window, one: _length(window) + len(one.token_ids) > WINDOW_TOKENS // 2)


def windows_of_answers(requests: Sequence[GenerationRequest]) -> Iterator[list[GenerationRequest]]:
    """Windows of one group each and in order, at the maximum size."""
    groups = {group: at for at, group in enumerate(dict.fromkeys(request.group for request in requests))}

    def is_full(window: list[GenerationRequest], request: GenerationRequest) -> bool:
        return len(window) == WINDOW_ANSWERS or _length(window) + len(request.token_ids) > WINDOW_PROMPT_TOKENS

    return in_order(sorted(requests, key=lambda request: groups[request.group]), is_full)


def _length(window: Sequence[Request]) -> int:
    return sum(len(request.token_ids) for request in window)


def _arguments(settings: EngineSettings, there: Environment) -> dict[str, Any]:
    """The arguments of `vllm.LLM`, the user's own last."""
    folder = str(checkpoint_path(settings.folder))
    chosen = {**ARGUMENTS, "model": folder, "tokenizer": folder}
    if there.on_cpu:
        chosen |= {"enforce_eager": True, "max_num_seqs": 16}
    if "text_config" in open_checkpoint(hold(settings.folder)).config and "language_model_only" in there.arguments:
        chosen["language_model_only"] = True  # images are never used
    if settings.kv_cache_dtype not in (None, "auto"):
        chosen["kv_cache_dtype"] = settings.kv_cache_dtype
    if settings.recurrent_state_dtype is not None:
        chosen["mamba_ssm_cache_dtype"] = settings.recurrent_state_dtype
    return chosen | _own_arguments(settings)


def _own_arguments(options: EngineOptions) -> dict[str, Any]:
    """The arguments in `--engine-arg NAME=VALUE`; a value is JSON, or else a string.

    Raises:
        UsageError: a reserved name.
    """
    own: dict[str, Any] = {}
    for each in options.engine_arguments:
        name, _, value = each.partition("=")
        name = name.strip().replace("-", "_")
        if name in RESERVED:
            raise UsageError("engine-arg-reserved", f"--engine-arg cannot set {name}: q36eval sets it for vLLM.")
        try:
            own[name] = json.loads(value)
        except ValueError:
            own[name] = value
    if own.get("pipeline_parallel_size", 1) != 1:
        raise UsageError(
            "engine-arg-reserved",
            "--engine-arg cannot set pipeline_parallel_size: the last layers' states are taken of every position by "
            "the first worker; use tensor_parallel_size.",
        )
    return own


def _check_known(own: Mapping[str, Any], there: Environment) -> None:
    """Refuse a name unknown to both q36eval and this vLLM, before any wait for a reference."""
    unknown = [] if not there.arguments else [name for name in own if name not in there.arguments]
    if not unknown:
        return
    described = EngineOptions.described()
    names = sorted(described[name].name for name in VLLMEngine.options if described[name].flag is None)
    raise UsageError(
        "engine-arg-unknown",
        f"There is no {ENGINE_ARG} {unknown[0]}; NAME is one of "
        f"{', '.join(names)}, or an argument of {there.distribution} {there.version}: "
        f"{', '.join(sorted(there.arguments))}.",
    )


def _check_drafts(own: Mapping[str, Any], folder: HeldFolder) -> None:
    """Refuse drafts from the checkpoint's own head if it has none, before vLLM needs minutes to detect it."""
    drafts = own.get("speculative_config")
    if not isinstance(drafts, Mapping) or drafts.get("model") is not None:
        return
    if str(drafts.get("method", "")).endswith("mtp") and not has_draft_head(open_checkpoint(folder)):
        raise UsageError(
            "draft-head-missing",
            f"--engine-arg speculative_config asks for drafts (MTP), and {folder.path} has no draft head; "
            f"leave it out.",
        )
