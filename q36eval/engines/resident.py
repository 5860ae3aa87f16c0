"""A transformers model on one device, as an engine: batches, passes over the model, answers."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from q36eval.checkpoints.gpu import give_back
from q36eval.checkpoints.kv_cache import use_scales
from q36eval.checkpoints.packed import weight_bytes
from q36eval.checkpoints.placements import LAYERS
from q36eval.engines import cpu_products
from q36eval.engines.abilities import Abilities
from q36eval.engines.answer_endings import end_ids, finished, padding_id
from q36eval.engines.base import (
    Advanced,
    Divided,
    Generated,
    GenerationRequest,
    Request,
    Scored,
    ScoreRequest,
    failed,
    parted,
)
from q36eval.engines.batches import (
    MAX_SPREAD,
    BatchedEngine,
    RequestT,
    ResultT,
    generation_batches,
    scoring_batches,
    shared_out,
)
from q36eval.engines.decoding import decode
from q36eval.engines.device_memory import DOES_NOT_FIT, costs_of, is_out_of_memory, room_of
from q36eval.engines.forks import Stopwatch, in_forks, timed, usable_workers
from q36eval.engines.logits import OutputHead, OwnHead
from q36eval.engines.memory_plan import CHUNK_TOKENS, Costs, MemoryPlan, Room, plan_memory
from q36eval.engines.qwen3_5_moe import fused_layers
from q36eval.engines.qwen3_5_moe.steps import StepMemory
from q36eval.engines.sampling import Sampler
from q36eval.engines.shared_prefix import (
    LastPrefix,
    can_be_lent,
    common_prefix,
    prefix_answered_after,
    read,
    remember,
    score_after,
    scored_after,
)
from q36eval.errors import EngineError
from q36eval.records import DeploymentIdentity

ANSWERED = "answer tokens"
FORKED_WEIGHT_BYTES = 2**30
"""A CPU model of up to this size is run by one process per core; a larger one by torch's threads."""


GIB = 2**30
UNLIMITED = 2**40
"""The context, in tokens, of a model whose config has none."""

NOT_RECORDED_SAID = "Decoding steps could not be recorded on this GPU; each takes several times as long"
OUT_OF_MEMORY_SAID = "A batch ran out of memory; it is computed in parts, and so are others that do."


class ResidentEngine(BatchedEngine):
    """Scores and generates with a model in this process.

    Batches are formed from the whole request list by length, so the same list gives the same batches, hence bitwise
    the same numbers on the same machine.
    """

    def __init__(
        self, model: Any, tokenizer: Any, identity: DeploymentIdentity, *, batch_rows: int | None = None
    ) -> None:
        self._model = model.eval()
        self.head = OwnHead.of(model)
        self.tokenizer = tokenizer
        self.identity = identity
        self.device: torch.device = next(model.parameters()).device
        self.deterministic = self.device.type == "cpu"  # the order of sums on a GPU may vary
        self._context_length = int(getattr(model.config, "max_position_embeddings", None) or UNLIMITED)
        self.weight_bytes = weight_bytes(model)
        self._stop_ids = end_ids(getattr(model.generation_config, "eos_token_id", None), tokenizer)
        self._batch_rows = batch_rows
        self._last_prefix = LastPrefix(self._model)
        self.abilities = Abilities(shares=can_be_lent(model))
        self._step_memory: StepMemory | None = None
        if self.device.type == "cuda" and fused_layers.covers(model.config):
            self._step_memory = StepMemory(model)
            fused_layers.install()
        elif cpu_products.needed(self.device):
            cpu_products.install()
        self._halvings = 0
        """The number of halvings of the current row's passes."""
        self._splits = multiprocessing.Value("q", 0)  # those of its workers included
        self._written, self._budget = multiprocessing.Value("q", 0), 0
        self._advanced: Advanced = lambda what, done, of: None

    draft_head: Any = None
    """The checkpoint's `DraftHead`, if it ships one."""

    @property
    def drafts(self) -> bool:  # type: ignore[override]
        """Whether the checkpoint ships a draft head."""
        return self.draft_head is not None

    @torch.inference_mode()
    def drafted(
        self, hidden_states: torch.Tensor, token_ids: Sequence[int], first_position: int, guesses: int
    ) -> list[torch.Tensor]:
        if self.draft_head is None:
            return super().drafted(hidden_states, token_ids, first_position, guesses)
        embedded = self._model.get_input_embeddings()(torch.tensor(list(token_ids), device=self.device))
        return drafted(self.draft_head, hidden_states.to(self.device), embedded, first_position, guesses)

    @property
    def model(self) -> Any:
        """The resident transformers model."""
        return self._model

    def keep_in(self, folder: Path | None, advanced: Advanced) -> None:
        self._advanced = advanced

    def _wrote(self, tokens: int = 0) -> None:
        """Report that many more answered tokens of the current requests, here or in a worker, whose total is shared."""
        with self._written.get_lock():
            self._written.value += tokens
        if self._budget:
            self._advanced(ANSWERED, self._written.value, self._budget)

    def use_kv_scales(self, which: str | None) -> None:
        use_scales(self._model, which)

    @cached_property
    def plan(self) -> MemoryPlan:
        """The batches that fit, as planned at the first call."""
        return plan_memory(self._costs(), self._room(), self._batch_rows)

    def batches(self) -> MemoryPlan:
        return replace(self.plan, unused=self.abilities.missing)

    def _costs(self) -> Costs:
        return costs_of(self._model)

    def _room(self) -> Room:
        beside = [] if self.draft_head is None else [self.draft_head]
        return room_of(self._model, *beside, processes=self._workers())

    @torch.inference_mode()
    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits [T, V] of final hidden states [T, H] (after the final norm) through this model's own head.

        The head's inputs are quantized first if the branch quantizes them; products accumulate in float32.
        """
        states = hidden_states.to(self.device)
        try:
            return self.head.logits(states)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._let_go()
        return self.head.logits(states)

    def output_head(self) -> OutputHead:
        if self.head.quantizes:
            raise EngineError(
                "head-quantized", "A deployment whose head quantizes its inputs cannot be captured as a reference."
            )
        return self.head.plain

    def divided(self, requests: Sequence[Request]) -> Divided:
        """Batches of similar length: of texts right-padded, of prompts left-padded."""
        usable, refused = parted(self._separate(requests), self._unusable)
        scores = len(requests) > 0 and isinstance(requests[0], ScoreRequest)
        return Divided([*(self._score_batches(usable) if scores else self._answer_batches(usable))], refused)

    def computed(self, batches: Sequence[Any]) -> Iterator[list[Any]]:
        # again for every call: between two calls, another model may lend this one its parts
        self._last_prefix = LastPrefix(self._model, self._chunk)
        scores = len(batches) > 0 and isinstance(batches[0][0], ScoreRequest)
        self._written.value = 0
        self._budget = 0 if scores else sum(request.max_new_tokens for batch in batches for request in batch)
        outcomes = self._scored_batches(batches) if scores else self._computed(self._generate_batch, batches)
        for batch, results in outcomes:
            if isinstance(results, Exception):
                results = [failed(request, f"engine: {results}") for request in batch]
            yield results

    def _scored_batches(
        self, batches: Iterable[list[ScoreRequest]]
    ) -> Iterator[tuple[list[ScoreRequest], list[Scored] | Exception]]:
        """Every batch with its results, or its error."""
        return self._computed(self._score_batch, batches)

    def _computed(
        self,
        call: Callable[[list[RequestT]], list[ResultT]],
        batches: Iterable[list[RequestT]],
    ) -> Iterator[tuple[list[RequestT], list[ResultT] | Exception]]:
        """`call` of every batch in order, over forked workers if the model is small and runs on a CPU.

        A batch that runs out of memory is computed in parts; a row that does not fit is an error. On a GPU the next
        batch is started before one is returned, so that the device does not wait for the caller.
        """
        call = partial(self._in_parts, call)
        workers = self._workers()
        if workers > 1:
            for done in in_forks(partial(timed, call), list(batches), workers, self._wrote):
                self._tell()
                yield done
            return
        ahead = 1 if self.device.type == "cuda" else 0
        under_way: deque[tuple[list[RequestT], list[ResultT] | Exception, Stopwatch]] = deque()
        for batch in batches:
            watch = Stopwatch(self.device)
            try:
                results: list[ResultT] | Exception = call(batch)
            except Exception as error:  # as in a worker: it fails this batch, and is reported
                results = error
            watch.stop()
            under_way.append((batch, results, watch))
            self._tell()
            while len(under_way) > ahead:
                yield _with_times(*under_way.popleft())
        for waiting in under_way:
            yield _with_times(*waiting)

    def _workers(self) -> int:
        return workers_of(self.device, self.weight_bytes)

    @property
    def computes_by_single_threads(self) -> bool:
        """Whether each batch is computed by one thread, with one process on every free core."""
        return self.device.type == "cpu" and self.weight_bytes <= FORKED_WEIGHT_BYTES

    def _in_parts(
        self, call: Callable[[list[RequestT]], list[ResultT]], batch: list[RequestT], halvings: int = 0
    ) -> list[ResultT]:
        """The results of `call` of a batch; if memory runs out, of its halves, and so on down to one row.

        A single row that is too large is computed in halved passes. If nothing fits, it is an error with the reason.
        Memory of earlier batches is released first: then the whole may fit.

        Raises:
            Exception: other exceptions of `call`.
        """
        # memory that the attempt takes for steps would be taken again
        earlier = self._step_memory is not None and self._step_memory.bytes > 0
        self._halvings = halvings
        try:
            return call(batch)
        except Exception as error:  # its frames hold tensors, which are released here
            if not is_out_of_memory(error):
                raise
        finally:
            self._halvings = 0
        self._let_go()
        if earlier:
            return self._in_parts(call, batch, halvings)
        with self._splits.get_lock():
            self._splits.value += 1
        width = len(batch[0].token_ids)
        if len(batch) > 1:
            middle = (len(batch) + 1) // 2
            halves = (self._in_parts(call, half) for half in (batch[:middle], batch[middle:]))
            return [result for half in halves for result in half]
        if width > CHUNK_TOKENS and (halvings == 0 or self.plan.chunk(1, width, halvings) > CHUNK_TOKENS):
            return self._in_parts(call, batch, halvings + 1)
        return [failed(batch[0], f"{width:,} tokens {DOES_NOT_FIT}")]

    @property
    def splits(self) -> int:
        """The number of times a batch or a pass that ran out of memory was made smaller."""
        return int(self._splits.value)

    def _let_go(self) -> None:
        """Release the memory of batches."""
        if self._step_memory is not None and self._step_memory.bytes > 0:
            self._step_memory = StepMemory(self._model)
        self._last_prefix = LastPrefix(self._model, self._chunk)
        give_back(self.device)

    def _chunk(self, rows: int, width: int) -> int:
        return self.plan.chunk(rows, width, self._halvings)

    def _tell(self) -> None:
        """Log once: batches in parts, and the reason for slow steps."""
        if self.splits:
            self.notify_once(OUT_OF_MEMORY_SAID)
        reason = None if self._step_memory is None else self._step_memory.not_recorded
        if reason is not None:
            self.notify_once(f"{NOT_RECORDED_SAID}: {' '.join(reason.split())[:200]}")

    def _separate(self, requests: Sequence[RequestT]) -> Sequence[RequestT]:
        """The requests without their shared prefix, if the model cannot continue from it."""
        return requests if self.abilities.shares else [replace(request, shared=0) for request in requests]

    def _unusable(self, request: Request) -> str | None:
        length, budget = len(request.token_ids), request.max_new_tokens if isinstance(request, GenerationRequest) else 0
        needed = f"{length} tokens and a budget of {budget} for the answer" if budget else f"{length} tokens"
        if length + budget > self._context_length:
            return f"{needed} do not fit the context of {self._context_length}"
        lacking = self.plan.lacking(length + budget)
        if lacking is None:
            return None
        takes, there = (f"{count / GIB:.1f} GiB" for count in lacking)
        placed = (
            ""
            if self.plan.room.placement == LAYERS
            else "; what is scored needs less with --engine-arg placement=layers"
        )
        return f"{needed} take {takes}, and {there} are left next to the weights on {self.plan.room.device}{placed}"

    def _score_batches(self, requests: list[ScoreRequest]) -> Iterator[list[ScoreRequest]]:
        return scoring_batches(requests, self.plan.score_tokens, self.plan.worth_sharing)

    def _answer_batches(self, requests: list[GenerationRequest]) -> Iterator[list[GenerationRequest]]:
        plan = self.plan
        if not self.abilities.pads:
            return ([request] for request in requests)
        rows_of = None if plan.cache_bytes is None else plan.rows_of
        return generation_batches(requests, plan.prompt_tokens, plan.rows, rows_of)

    @torch.inference_mode()
    def _score_batch(self, batch: Sequence[ScoreRequest]) -> list[Scored]:
        prefix = common_prefix(batch)
        if prefix:
            return score_after(self._model, prefix, batch, self._last_prefix)
        ids = right_padded(batch).to(self.device)
        return scored_after((), batch, read(self._model, ids, self._chunk(*ids.shape)))

    @torch.inference_mode()
    def _generate_batch(self, batch: Sequence[GenerationRequest]) -> list[Generated]:
        prefix = prefix_answered_after(batch)
        cache = self._last_prefix.own_cache(prefix, len(batch)) if prefix else None
        prompts = [request.token_ids[len(prefix) :] for request in batch]
        longest, shortest = max(map(len, prompts)), min(map(len, prompts))
        budgets = [request.max_new_tokens for request in batch]
        width = len(prefix) + longest
        held = self.plan.answering_bytes(len(batch), width, max(budgets))
        chunk = self.plan.chunk(len(batch), width, self._halvings, held)
        if chunk < longest and longest - shortest > MAX_SPREAD:  # prompts read in several passes are not padded
            middle = (len(batch) + 1) // 2
            return [*self._generate_batch(batch[:middle]), *self._generate_batch(batch[middle:])]
        # some of each prompt's last tokens remain, from which its answer continues
        ahead = (shortest - 1) // CHUNK_TOKENS * CHUNK_TOKENS
        if chunk < longest and ahead:
            ids = torch.tensor([prompt[:ahead] for prompt in prompts], device=self.device)
            cache = remember(self._model, ids, chunk, cache)
            prompts = [prompt[ahead:] for prompt in prompts]
        samplers = [_sampler_of(request) for request in batch]
        stop_ids, padding = frozenset(self._stop_ids), padding_id(self.tokenizer)
        needed, memory = [request.needed for request in batch], self._step_memory
        answers = decode(self._model, prompts, budgets, stop_ids, padding, samplers, cache, memory, needed, self._wrote)
        return [
            replace(finished(self.tokenizer, stop_ids, request, tokens), rows=len(batch))
            for request, tokens in zip(batch, answers, strict=True)
        ]


def drafted(
    draft_head: Any, states: torch.Tensor, embedded: torch.Tensor, first_position: int, guesses: int
) -> list[torch.Tensor]:
    """`Engine.drafted` of final hidden `states` [T, H] and the embeddings [T, H] of the tokens that they predict."""
    guessed = []
    for guess in range(1, min(guesses, len(embedded) - 1) + 1):
        states = draft_head.states(states[:-1], embedded[guess - 1 : -1], first_position + guess - 1)
        guessed.append(states)
    return guessed


def workers_of(device: torch.device, weight_bytes: int) -> int:
    """The number of processes that compute a model's batches concurrently."""
    return usable_workers() if device.type == "cpu" and weight_bytes <= FORKED_WEIGHT_BYTES else 1


def right_padded(batch: Sequence[ScoreRequest]) -> torch.Tensor:
    """Token ids [R, W] of a batch whose rows begin together."""
    ids = torch.zeros(len(batch), max(len(request.token_ids) for request in batch), dtype=torch.long)
    for row, request in enumerate(batch):
        ids[row, : len(request.token_ids)] = torch.tensor(request.token_ids)
    return ids


def _sampler_of(request: GenerationRequest) -> Sampler | None:
    """None for a greedy answer."""
    if request.temperature <= 0:
        return None
    return Sampler(
        request.temperature,
        request.top_p,
        request.seed,
        request.key,
        top_k=request.top_k,
        presence_penalty=request.presence_penalty,
        coupling=request.coupling,
    )


def _with_times(
    batch: list[RequestT], results: list[ResultT] | Exception, watch: Stopwatch
) -> tuple[list[RequestT], list[ResultT] | Exception]:
    return batch, results if isinstance(results, Exception) else shared_out(results, watch.seconds())
