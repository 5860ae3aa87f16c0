"""The in-process engine: a transformers model with our exact loader, resident on one device."""

import hashlib
import platform
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from q36eval.engines.base import Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.engines.decoding import decode
from q36eval.engines.forks import in_forks, usable_workers
from q36eval.engines.heads import float32_logits
from q36eval.engines.sampling import Sampler
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, UsageError
from q36eval.records import DeploymentIdentity

if TYPE_CHECKING:
    from q36eval.engines.perturbed import Perturbation

RequestT = TypeVar("RequestT", ScoreRequest, GenerationRequest)
ResultT = TypeVar("ResultT")

SCORE_BATCH_TOKENS = 4096
GENERATE_BATCH_TOKENS = 16384
GENERATE_BATCH_ROWS = 192
FORKED_WEIGHT_BYTES = 2**30
"""A CPU model of up to this size is run by one process per core; a larger one by torch's threads."""


class InProcessEngine:
    """Scores and generates with a resident model. See `q36eval.engines.base.Engine` for the contract.

    Batches are formed from the whole request list by length, so the same list gives the same batches, hence bitwise
    the same numbers on the same machine.
    """

    def __init__(self, model: Any, tokenizer: Any, identity: DeploymentIdentity) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._identity = identity
        self._device: torch.device = next(model.parameters()).device
        self._context_length = int(model.config.max_position_embeddings)
        self._weight_bytes: int = sum(parameter.nbytes for parameter in model.parameters())
        self._stop_ids = _stop_ids(model, tokenizer)
        self.ignores_activation_quantization = False

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        device: str = "cpu",
        emulate_activations: bool = True,
        kv_cache_dtype: str | None = None,
    ) -> "InProcessEngine":
        """Decode the checkpoint in `folder` strictly and wrap it.

        `kv_cache_dtype` is what keys and values are stored in, `auto` or `fp8_e4m3`; None is what the checkpoint
        declares.

        Raises:
            UsageError: no such folder, or a format that is not decoded.
            CorruptCheckpointError: a tensor is missing, unexpected, used twice or of the wrong shape, or a file of the
                checkpoint cannot be read.
            EngineError: it does not fit into memory.
        """
        from transformers.utils import logging

        from q36eval.checkpoints import load_model

        _check_kernels(device)
        logging.set_verbosity_error()  # its hints about optional kernels are not news to whoever runs a gate

        try:
            loaded = load_model(
                folder, device=device, emulate_activations=emulate_activations, kv_cache_dtype=kv_cache_dtype
            )
        except Q36Error:
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise EngineError(f"{folder} does not fit into the memory of {device}.") from error
        except Exception as error:  # whatever its files made the libraries raise, the checkpoint is not loadable
            raise CorruptCheckpointError(f"{folder} cannot be built: {_one_line(error)}.") from error
        tokenizer = load_tokenizer(folder)
        identity = cls.identity_of(
            folder, device=device, emulate_activations=emulate_activations, kv_cache_dtype=kv_cache_dtype
        )
        engine = cls(loaded.model, tokenizer, identity)
        engine.ignores_activation_quantization = loaded.report.ignored_inputs > 0
        return engine

    @staticmethod
    def identity_of(
        folder: Path,
        *,
        device: str = "cpu",
        emulate_activations: bool = True,
        kv_cache_dtype: str | None = None,
    ) -> DeploymentIdentity:
        """The identity `load` would give, from the files alone.

        Raises:
            UsageError: a KV cache that is not emulated.
        """
        import transformers

        from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, open_checkpoint, tokenizer_sha256
        from q36eval.checkpoints.kv_cache import check_kv_cache_dtype, declared_kv_cache_dtype

        if kv_cache_dtype is None:
            kv_cache_dtype = declared_kv_cache_dtype(open_checkpoint(folder))
        check_kv_cache_dtype(kv_cache_dtype)

        return DeploymentIdentity(
            checkpoint_sha256=checkpoint_sha256(folder),
            tokenizer_sha256=tokenizer_sha256(folder),
            chat_template_sha256=chat_template_sha256(folder),
            engine="in-process",
            engine_version=f"transformers {transformers.__version__}, torch {torch.__version__}",
            settings={
                "device": device if device == "cpu" else torch.cuda.get_device_name(device),
                "machine": platform.machine(),
                "dtype": "bfloat16",
                "activation_emulation": "on" if emulate_activations else "off",
                **({} if device == "cpu" else {"kernels": _kernel_packages()}),
                "code": _code_sha256()[:16],
            },
            kv_cache_dtype=kv_cache_dtype,
        )

    @property
    def identity(self) -> DeploymentIdentity:
        return self._identity

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def model(self) -> Any:
        """The resident transformers model."""
        return self._model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

    @property
    def weight_bytes(self) -> int:
        """Of all parameters, as they are resident."""
        return self._weight_bytes

    def perturbations(self) -> "Sequence[Perturbation]":
        """Other ways to compute the same, for the noise floor."""
        from q36eval.engines.perturbed import perturbations

        return perturbations(self)

    @torch.inference_mode()
    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits [T, V] of final hidden states [T, H] (after the final norm) through this model's own head.

        The head's inputs are quantized first where the branch quantizes them; products accumulate in float32.
        """
        head = self._model.lm_head
        states = hidden_states.to(self._device)
        quantize = getattr(head, "quantize_input", None)
        if quantize is not None:
            states = quantize(states)
        return float32_logits(states, head.weight)

    def head_weight(self) -> torch.Tensor:
        """The decoded head [V, H]; see `Engine.head_weight`."""
        if getattr(self._model.lm_head, "quantize_input", None) is not None:
            raise EngineError("A deployment whose head quantizes its inputs cannot be captured as a reference.")
        weight: torch.Tensor = self._model.lm_head.weight.detach()
        return weight

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        """Final hidden states of every request, in batches of similar length, right-padded."""
        usable: list[ScoreRequest] = []
        for request in requests:
            problem = self._unusable(len(request.token_ids))
            if problem is None:
                usable.append(request)
            elif request.key not in known:
                yield Scored(request, None, error=problem, permanent=True)
        batches = with_news(self._score_batches(usable), known)
        for batch, results in self._computed(self._score_batch, batches):
            found = results if isinstance(results, list) else [Scored(r, None, f"engine: {results}") for r in batch]
            yield from (scored for scored in found if scored.request.key not in known)

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        """Continuations, in left-padded batches of similar prompt length.

        Nothing of a checkpoint's own generation config steers it but its end-of-turn ids.
        """
        usable: list[GenerationRequest] = []
        for request in requests:
            problem = self._unusable(len(request.token_ids) + request.max_new_tokens)
            if problem is None:
                usable.append(request)
            elif request.key not in known:
                yield Generated(request, (), "", "error", error=problem, permanent=True)
        batches = with_news(batches_by_length(usable, GENERATE_BATCH_TOKENS, GENERATE_BATCH_ROWS), known)
        for batch, results in self._computed(self._generate_batch, batches):
            failed = [Generated(r, (), "", "error", f"engine: {results}") for r in batch]
            found = results if isinstance(results, list) else failed
            yield from (generated for generated in found if generated.request.key not in known)

    def _computed(
        self, call: Callable[[list[RequestT]], list[ResultT]], batches: Iterable[list[RequestT]]
    ) -> Iterator[tuple[list[RequestT], list[ResultT] | Exception]]:
        """`call` of every batch in order, over forked workers where the model is small and runs on a CPU.

        On a GPU the next batch is under way before one is handed out, so that the device does not wait for whoever
        takes it.
        """
        workers = usable_workers() if self._device.type == "cpu" and self._weight_bytes <= FORKED_WEIGHT_BYTES else 1
        if workers > 1:
            yield from in_forks(call, list(batches), workers)
            return
        ahead = 1 if self._device.type == "cuda" else 0
        under_way: deque[tuple[list[RequestT], list[ResultT] | Exception]] = deque()
        for batch in batches:
            try:
                under_way.append((batch, call(batch)))
            except Exception as error:  # as in a worker: it costs this batch, and is told
                under_way.append((batch, error))
            while len(under_way) > ahead:
                yield under_way.popleft()
        yield from under_way

    def _unusable(self, length: int) -> str | None:
        if length > self._context_length:
            return f"{length} tokens do not fit the context of {self._context_length}"
        return None

    def _score_batches(self, requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
        return batches_by_length(requests, SCORE_BATCH_TOKENS)

    @torch.inference_mode()
    def _score_batch(self, batch: Sequence[ScoreRequest]) -> list[Scored]:
        width = max(len(request.token_ids) for request in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, request in enumerate(batch):
            ids[row, : len(request.token_ids)] = torch.tensor(request.token_ids)
        hidden = self._model.model(input_ids=ids.to(self._device), use_cache=False).last_hidden_state
        return [
            Scored(request, hidden[row, request.first - 1 : len(request.token_ids) - 1].clone())
            for row, request in enumerate(batch)
        ]

    def _generate_batch(self, batch: Sequence[GenerationRequest]) -> list[Generated]:
        prompts = [request.token_ids for request in batch]
        budgets = [request.max_new_tokens for request in batch]
        samplers = [Sampler(r.temperature, r.top_p, r.seed, r.key) if r.temperature > 0 else None for r in batch]
        answers = decode(self._model, prompts, budgets, frozenset(self._stop_ids), self._stop_ids[-1], samplers)
        return [self._finish(request, tokens) for request, tokens in zip(batch, answers, strict=True)]

    def _finish(self, request: GenerationRequest, tokens: list[int]) -> Generated:
        end = next((i for i, token in enumerate(tokens) if token in self._stop_ids), None)
        reason = "length" if end is None else "stop"
        kept = tokens[:end]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        cuts = [at for stop in request.stop if (at := text.find(stop)) >= 0]
        if cuts:
            text, reason = text[: min(cuts)], "stop"
        return Generated(request, tuple(kept), text, reason, end_id=None if end is None else tokens[end])


KERNEL_PACKAGES = ("flash-linear-attention", "causal-conv1d", "kernels")
"""Where they are installed, transformers computes Gated DeltaNet with them, and other numbers come out."""


def _kernel_packages() -> str:
    """The optional kernels that transformers finds here, with their versions."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in KERNEL_PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found) or "none"


def _check_kernels(device: str) -> None:
    """Refuse a CPU where transformers would use kernels that only run on a GPU.

    Raises:
        UsageError: flash-linear-attention can be imported, which transformers then prefers on every device.
    """
    if device != "cpu" or find_spec("fla") is None:
        return
    try:
        import fla  # type: ignore[import-not-found]  # noqa: F401
    except Exception:  # without its own needs (Triton, a driver) it is as good as absent, to transformers too
        return
    raise UsageError(
        "flash-linear-attention is installed here and its kernels do not run on a CPU: name a GPU with --device, or "
        "use an environment without that package."
    )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a checkpoint folder; nothing of the checkpoint is executed.

    Raises:
        CorruptCheckpointError: it is missing or cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare exceptions for malformed files
        raise CorruptCheckpointError(f"{folder} has no tokenizer that can be read: {_one_line(error)}.") from error


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(".")


@cache
def _code_sha256() -> str:
    """Hash of the code whose change could change an answer: engines, loader, decoders, emulation."""
    package = Path(__file__).parents[1]
    files = sorted([*(package / "engines").rglob("*.py"), *(package / "checkpoints").rglob("*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def batches_by_length(
    requests: Iterable[RequestT], max_tokens: int, max_rows: int | None = None
) -> Iterator[list[RequestT]]:
    """Batches of one group and similar length, longest first, each padded to at most `max_tokens`.

    Order depends on content alone.
    """
    ordered = sorted(requests, key=lambda r: (r.group, -len(r.token_ids), r.token_ids, r.key))
    batch: list[RequestT] = []
    for request in ordered:
        width = len(batch[0].token_ids) if batch else len(request.token_ids)
        full = batch and ((len(batch) + 1) * width > max_tokens or len(batch) == max_rows)
        if full or (batch and batch[0].group != request.group):
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


def with_news(batches: Iterable[list[RequestT]], known: Collection[str]) -> Iterator[list[RequestT]]:
    """The batches that hold a request whose key is not `known`: each is computed whole, or not at all."""
    return (batch for batch in batches if any(request.key not in known for request in batch))


def _stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """End-of-turn ids of the generation config and the tokenizer, the padding id last."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = set(configured if isinstance(configured, list) else [configured])
    ids |= {tokenizer.eos_token_id, tokenizer.pad_token_id}
    ids.discard(None)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return [*sorted(ids - {padding}), padding]
