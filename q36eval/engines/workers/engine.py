"""The front end of the workers' engines: one worker plans, all compute, and the head is applied here."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

import torch

from q36eval.checkpoints import load_tokenizer
from q36eval.checkpoints.draft import load_draft_head
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.engines.base import (
    Batch,
    Divided,
    EngineSettings,
    Perturbation,
    Request,
    failed,
)
from q36eval.engines.batches import BatchedEngine
from q36eval.engines.head import Embeddings, Head
from q36eval.engines.logits import OutputHead
from q36eval.engines.memory_plan import MemoryPlan
from q36eval.engines.numerics import rounded
from q36eval.engines.opening import class_of, identity_of, planned
from q36eval.engines.resident import drafted
from q36eval.engines.shared_prefix import common_prefix
from q36eval.engines.worker_places import Place
from q36eval.engines.workers.dispatch import Dispatch, FatalUnitError
from q36eval.engines.workers.pool import Pool, pool_at
from q36eval.engines.workers.worker import Opened, Replica, unpacked
from q36eval.errors import UsageError
from q36eval.files import checkpoint_path
from q36eval.records import DeploymentIdentity

LAYERS_REFUSED = (
    "The model does not fit the device and would be run layer by layer, which reads all weights in every pass: workers "
    "would read them once for each part of the work. Leave out --workers."
)


class WorkersEngine(BatchedEngine):
    """Replicas of one deployment."""

    def __init__(
        self, pool: Pool, replica: Replica, opened: Opened, settings: EngineSettings, head: Head, tokenizer: Any
    ) -> None:
        self._pool, self._replica, self._opened, self._settings = pool, replica, opened, settings
        self._head, self.tokenizer, self.identity = head, tokenizer, opened.identity
        self.device = head.device
        self.generates, self.scores, self.deterministic = opened.generates, opened.scores, opened.deterministic
        self.ignores_activation_quantization, self.drafts = opened.ignores_activation_quantization, opened.drafts
        self._plan = opened.plan
        self.options = class_of(settings.kind).options  # type: ignore[misc]  # those of the engine that is replicated
        self._losses = pool.losses
        self._rounds_logits = False
        weakref.finalize(self, pool.close, replica.number)

    @classmethod
    def load(cls, settings: EngineSettings) -> "WorkersEngine":
        """Open the deployment in every worker, and its head here.

        Raises:
            UsageError, CorruptCheckpointError, EngineError: as the engine alone, from any worker; or workers are
                unavailable, or have another deployment than this machine.
        """
        place, theirs = Place.of(settings), _of_a_worker(settings)
        with opened_once():
            held = hold(settings.folder)
            expected = identity_of(theirs)
            # before workers plan with the remaining memory
            head, tokenizer = Head.of(theirs), load_tokenizer(held)
            held.check()
            pool = pool_at(place)
            replica = Replica(pool.new_number(), theirs, expected)
            opened = pool.open(replica)
            engine = cls(pool, replica, opened[0], theirs, head, tokenizer)
            engine._plan_alike([each.plan for each in opened if each.plan is not None])
            if engine.drafts:
                engine._draft_head = load_draft_head(
                    open_checkpoint(held), torch.device(theirs.device), torch.bfloat16, theirs.emulate_activations
                )
                engine._embeddings = Embeddings.of(theirs)
        return engine

    @classmethod
    def identity_of(cls, settings: EngineSettings) -> DeploymentIdentity:
        """The identity of the engine alone; raises as that."""
        return identity_of(_of_a_worker(settings))

    @classmethod
    def planned(cls, settings: EngineSettings) -> MemoryPlan | None:
        return planned(_of_a_worker(settings))

    _draft_head: Any = None
    _embeddings: Embeddings | None = None

    def _plan_alike(self, plans: Sequence[MemoryPlan]) -> None:
        """All workers, replacements included, form the batches of the one with the least room."""
        if not plans:
            return
        least = min(plans, key=lambda plan: (plan.score_tokens, plan.prompt_tokens, plan.rows, plan.batches))
        if least.room.placement == "layers":
            raise UsageError("option-conflict", LAYERS_REFUSED)
        self._change(plan=least)
        self._plan = least

    def _change(self, **changed: Any) -> None:
        """Apply to all workers, and to all replacements."""
        self._replica = replace(self._replica, **changed)
        self._pool.open(self._replica)

    @property
    def spread(self) -> dict[str, Any]:  # type: ignore[override]
        """The number of workers, their nodes, and the number lost."""
        nodes = sorted(member.facts.node for member in self._pool.members if member.facts is not None)
        return {
            "workers": self._pool.place.workers,
            "ray": self._pool.place.address or "this machine",
            "nodes": {node: nodes.count(node) for node in dict.fromkeys(nodes)},
            "lost": self._pool.losses - self._losses,
        }

    def batches(self) -> MemoryPlan | None:
        return self._plan

    def divided(self, requests: Sequence[Request]) -> Divided:
        division = self._pool.divide(self._replica, requests)
        refused = [replace(result, request=requests[place]) for place, result in division.refused]  # type: ignore[arg-type]
        return Divided([[requests[place] for place in batch] for batch in division.batches], refused)

    def computed(self, batches: Sequence[Batch]) -> Iterator[list[Any]]:
        units = list(in_units(batches))
        with _one_thread(self._opened.one_thread):
            for unit, outcome in Dispatch(self._pool, self._replica, units).outcomes():
                self._tell_of_losses()
                if isinstance(outcome, FatalUnitError):
                    # another attempt would lose as many workers again
                    lost = partial(failed, reason=f"engine: {outcome}", permanent=True)
                    yield from ([lost(request) for request in batch] for batch in unit)
                    continue
                for sentence in outcome.said:
                    self.notify_once(sentence)
                yield from unpacked(outcome, unit, self.device)

    def _tell_of_losses(self) -> None:
        lost = self._pool.losses - self._losses
        if lost:
            self.notify_once(
                f"{lost} worker{'s were' if lost > 1 else ' was'} lost so far; what "
                f"{'they' if lost > 1 else 'it'} had not handed over is computed again by others."
            )

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Float32 logits [T, V], by the head of this process."""
        logits = self._head.logits(hidden_states)
        return rounded(logits) if self._rounds_logits else logits

    def output_head(self) -> OutputHead:
        return self._head.plain()

    @torch.inference_mode()
    def drafted(
        self, hidden_states: torch.Tensor, token_ids: Sequence[int], first_position: int, guesses: int
    ) -> list[torch.Tensor]:
        if self._draft_head is None or self._embeddings is None:
            return super().drafted(hidden_states, token_ids, first_position, guesses)
        embedded = self._embeddings.of_tokens(token_ids)
        return drafted(self._draft_head, hidden_states.to(self.device), embedded, first_position, guesses)

    def use_kv_scales(self, which: str | None) -> None:
        self._change(kv_scales=(which,))

    def perturbations(self) -> Sequence[Perturbation]:
        return tuple(
            replace(each, variant=partial(self._varied, each.name, each.rescores)) if there else each
            for each, there in self._opened.perturbations
        )

    def _varied(self, name: str, rescores: bool) -> "WorkersEngine":
        replica = Replica(self._pool.new_number(), self._settings, varies=self._replica, perturbation=name)
        opened = self._pool.open(replica)
        variant = WorkersEngine(self._pool, replica, opened[0], self._settings, self._head, self.tokenizer)
        variant._varies, variant._rounds_logits = self, not rescores
        return variant

    _varies: "WorkersEngine | None" = None
    """The engine that this one varies, which stays open as long as this one."""


UNIT_BATCHES = 4
"""The maximum of batches after one prefix in one unit: the worker computes their prefix once. Others are sent singly.
If several workers compute a prefix, nothing changes: its tokens and passes are the same."""


def in_units(batches: Sequence[Batch]) -> Iterator[list[Batch]]:
    """The units, in order."""
    for (_, prefix), members in groupby(batches, key=lambda batch: (batch[0].group, common_prefix(batch))):
        alike = list(members)
        size = UNIT_BATCHES if prefix else 1
        yield from (alike[at : at + size] for at in range(0, len(alike), size))


def _of_a_worker(settings: EngineSettings) -> EngineSettings:
    """The settings in a worker: on the first of its GPUs."""
    device = settings.device if settings.device == "cpu" else "cuda:0"
    return replace(settings, folder=checkpoint_path(settings.folder), device=device, workers=None, ray=None)


@contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    """While workers compute, torch has one thread in this process, as with forked workers."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if wanted:
            torch.set_num_threads(before)
