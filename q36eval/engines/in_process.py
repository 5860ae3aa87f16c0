"""The in-process engine: a transformers model with our exact loader, resident on one device."""

import hashlib
import platform
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)

from q36eval.engines.base import Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error
from q36eval.records import DeploymentIdentity

RequestT = TypeVar("RequestT", ScoreRequest, GenerationRequest)

SCORE_BATCH_TOKENS = 8192
GENERATE_BATCH_TOKENS = 16384
GENERATE_BATCH_ROWS = 64


class InProcessEngine:
    """Scores and generates with a resident model. See `q36eval.engines.base.Engine` for the contract.

    Batches are formed from the whole request list by length, so the same list gives the same batches, hence bitwise
    the same numbers on the same machine.
    """

    def __init__(self, model: Any, tokenizer: Any, identity: DeploymentIdentity) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._identity = identity
        self._device = next(model.parameters()).device
        self._context_length = int(model.config.max_position_embeddings)
        self._stop_ids = _stop_ids(model, tokenizer)
        model.generation_config = type(model.generation_config)()
        self.ignores_activation_quantization = False

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu", emulate_activations: bool = True) -> "InProcessEngine":
        """Decode the checkpoint in `folder` strictly and wrap it.

        Raises:
            UsageError: no such folder, or a format that is not decoded.
            CorruptCheckpointError: a tensor is missing, unexpected, used twice or of the wrong shape, or a file of the
                checkpoint cannot be read.
            EngineError: it does not fit into memory.
        """
        from transformers.utils import logging

        from q36eval.checkpoints import load_model

        logging.set_verbosity_error()  # its hints about optional kernels are not news to whoever runs a gate

        try:
            loaded = load_model(folder, device=device, emulate_activations=emulate_activations)
        except Q36Error:
            raise
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise EngineError(f"{folder} does not fit into the memory of {device}.") from error
        except Exception as error:  # whatever its files made the libraries raise, the checkpoint is not loadable
            raise CorruptCheckpointError(f"{folder} cannot be built: {_one_line(error)}.") from error
        tokenizer = load_tokenizer(folder)
        identity = cls.identity_of(folder, device=device, emulate_activations=emulate_activations)
        engine = cls(loaded.model, tokenizer, identity)
        engine.ignores_activation_quantization = loaded.report.ignored_inputs > 0
        return engine

    @staticmethod
    def identity_of(folder: Path, *, device: str = "cpu", emulate_activations: bool = True) -> DeploymentIdentity:
        """The identity `load` would give, from the files alone."""
        import transformers

        from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, tokenizer_sha256

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
                "code": _code_sha256()[:16],
            },
        )

    @property
    def identity(self) -> DeploymentIdentity:
        return self._identity

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

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
        return F.linear(states.float(), head.weight.float())

    def head_weight(self) -> torch.Tensor:
        """The decoded head [V, H]; see `Engine.head_weight`."""
        if getattr(self._model.lm_head, "quantize_input", None) is not None:
            raise EngineError("A deployment whose head quantizes its inputs cannot be captured as a reference.")
        weight: torch.Tensor = self._model.lm_head.weight.detach()
        return weight

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[Scored]:
        """Final hidden states of every request, in batches of similar length, right-padded."""
        usable: list[ScoreRequest] = []
        for request in requests:
            problem = self._unusable(len(request.token_ids))
            if problem is None:
                usable.append(request)
            else:
                yield Scored(request, None, error=problem)
        for batch in batches_by_length(usable, SCORE_BATCH_TOKENS):
            yield from self._score_batch(batch)

    def generate(self, requests: Sequence[GenerationRequest]) -> Iterator[Generated]:
        """Greedy continuations, in left-padded batches of similar prompt length."""
        by_budget: dict[int, list[GenerationRequest]] = {}
        for request in requests:
            problem = self._unusable(len(request.token_ids) + request.max_new_tokens)
            if problem is None:
                by_budget.setdefault(request.max_new_tokens, []).append(request)
            else:
                yield Generated(request, (), "", "error", error=problem)
        for budget in sorted(by_budget):
            for batch in batches_by_length(by_budget[budget], GENERATE_BATCH_TOKENS, GENERATE_BATCH_ROWS):
                yield from self._generate_batch(batch, budget)

    def _unusable(self, length: int) -> str | None:
        if length > self._context_length:
            return f"{length} tokens do not fit the context of {self._context_length}"
        return None

    @torch.inference_mode()
    def _score_batch(self, batch: Sequence[ScoreRequest]) -> Iterator[Scored]:
        width = max(len(request.token_ids) for request in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, request in enumerate(batch):
            ids[row, : len(request.token_ids)] = torch.tensor(request.token_ids)
        try:
            hidden = self._model.model(input_ids=ids.to(self._device), use_cache=False).last_hidden_state
        except (RuntimeError, MemoryError) as error:
            yield from (Scored(request, None, error=f"engine: {error}") for request in batch)
            return
        for row, request in enumerate(batch):
            yield Scored(request, hidden[row, request.first - 1 : len(request.token_ids) - 1].clone())

    @torch.inference_mode()
    def _generate_batch(self, batch: Sequence[GenerationRequest], budget: int) -> Iterator[Generated]:
        width = max(len(request.token_ids) for request in batch)
        ids = torch.full((len(batch), width), self._stop_ids[-1], dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - len(request.token_ids) :] = torch.tensor(request.token_ids)
            mask[row, width - len(request.token_ids) :] = 1
        try:
            output = self._model.generate(
                input_ids=ids.to(self._device),
                attention_mask=mask.to(self._device),
                generation_config=self._greedy(budget),
            )
        except (RuntimeError, MemoryError) as error:
            yield from (Generated(request, (), "", "error", error=f"engine: {error}") for request in batch)
            return
        for row, request in enumerate(batch):
            yield self._finish(request, output[row, width:].tolist())

    def _greedy(self, budget: int) -> Any:
        """Greedy decoding and nothing else: what a checkpoint's own generation config asks for does not steer it."""
        from transformers import GenerationConfig

        return GenerationConfig(
            max_new_tokens=budget,
            do_sample=False,
            num_beams=1,
            eos_token_id=self._stop_ids,
            pad_token_id=self._stop_ids[-1],
        )

    def _finish(self, request: GenerationRequest, tokens: list[int]) -> Generated:
        end = next((i for i, token in enumerate(tokens) if token in self._stop_ids), None)
        reason = "length" if end is None else "stop"
        kept = tokens[:end]
        text = self._tokenizer.decode(kept, skip_special_tokens=False)
        cuts = [at for stop in request.stop if (at := text.find(stop)) >= 0]
        if cuts:
            text, reason = text[: min(cuts)], "stop"
        return Generated(request, tuple(kept), text, reason)


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
    """Batches of similar length, longest first, each padded to at most `max_tokens`; order depends on content alone."""
    ordered = sorted(requests, key=lambda request: (-len(request.token_ids), request.token_ids, request.key))
    batch: list[RequestT] = []
    for request in ordered:
        width = len(batch[0].token_ids) if batch else len(request.token_ids)
        full = batch and ((len(batch) + 1) * width > max_tokens or len(batch) == max_rows)
        if full:
            yield batch
            batch = []
        batch.append(request)
    if batch:
        yield batch


def _stop_ids(model: Any, tokenizer: Any) -> list[int]:
    """End-of-turn ids of the generation config and the tokenizer, the padding id last."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = set(configured if isinstance(configured, list) else [configured])
    ids |= {tokenizer.eos_token_id, tokenizer.pad_token_id}
    ids.discard(None)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return [*sorted(ids - {padding}), padding]
