"""The in-process engine for weights that exceed the memory: every pass reads each layer once for everything scored.

Its numbers equal those of the resident engine, bit for bit: batches, prefixes and kernels are the same. It does not
generate: each token would read all weights. Answers of such a model come from a pack captured elsewhere, or from a
server.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.placements import LAYERS
from q36eval.checkpoints.stored_groups import give_back_pinned
from q36eval.checkpoints.weight_slots import StoredLayers
from q36eval.engines.base import Advanced, Engine, Generated, GenerationRequest, Perturbation, Scored, ScoreRequest
from q36eval.engines.batches import shared_out
from q36eval.engines.device_memory import costs_of, pinned_bytes
from q36eval.engines.layer_pass import LayerPass, Segment, check_layers_alone
from q36eval.engines.memory_plan import Costs, Room, rounded_down
from q36eval.engines.perturbation import of_batches
from q36eval.engines.resident import ResidentEngine, right_padded
from q36eval.engines.shared_prefix import common_prefix, rest_of, scored_after
from q36eval.memory import available_bytes
from q36eval.records import DeploymentIdentity

NO_ANSWERS = "a model that is run layer by layer generates no answers"
STATES_SHARE = 0.5
"""The share of free host memory for hidden states between two layers."""

Outcome = tuple[list[ScoreRequest], list[Scored] | Exception]


class LayerByLayerEngine(ResidentEngine):
    """Scores with a model of which one layer at a time is on the device."""

    generates = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        identity: DeploymentIdentity,
        *,
        layers: StoredLayers,
        held: HeldFolder,
        batch_rows: int | None = None,
    ) -> None:
        super().__init__(model, tokenizer, identity, batch_rows=batch_rows)
        check_layers_alone(model)
        self._layers, self._held = layers, held
        self._folder: Path | None = None

    def keep_in(self, folder: Path | None, advanced: Advanced) -> None:
        self._folder, self._advanced = folder, advanced

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        """An error for every request: this engine does not generate."""
        for request in requests:
            if request.key not in known:
                yield Generated(request, (), "", "error", error=NO_ANSWERS, permanent=True)

    def perturbations(self) -> Sequence[Perturbation]:
        def made(kind: type[ResidentEngine]) -> Callable[[], Engine]:
            variant: Any = type(kind.__name__, (kind, LayerByLayerEngine), {})
            return lambda: variant(self._model, self.tokenizer, self.identity, layers=self._layers, held=self._held)

        return of_batches(self, made, "the model is run layer by layer")

    def _scored_batches(self, batches: Iterable[list[ScoreRequest]]) -> Iterator[Outcome]:
        """All batches, in as few passes as host memory for their states allows."""
        give_back_pinned()
        token_bytes = self._model.config.hidden_size * self._model.dtype.itemsize
        # in steps, so that a killed pass resumes with the same texts even if slightly more or less memory is free
        room = rounded_down(int(STATES_SHARE * available_bytes()))
        waiting: list[list[ScoreRequest]] = []
        held = 0
        for batch in batches:
            size = len(batch) * max(len(request.token_ids) for request in batch) * token_bytes
            size = size if self.device.type == "cpu" else pinned_bytes(size)
            if waiting and held + size > room:
                yield from self._pass(waiting)
                waiting, held = [], 0
            waiting.append(batch)
            held += size
        if waiting:
            yield from self._pass(waiting)

    def _costs(self) -> Costs:
        return costs_of(self._model, one_layer=True)

    def _room(self) -> Room:
        return replace(super()._room(), placement=LAYERS, decoded=self._layers.decoded_bytes)

    def _pass(self, batches: list[list[ScoreRequest]]) -> Iterator[Outcome]:
        segments, places, prefixes = _segments(batches)
        owner = self.identity.model_dump_json()
        layer_pass = LayerPass(
            self._model,
            self._layers,
            segments,
            owner=owner,
            folder=self._folder,
            unchanged=self._held.check,
            chunk=self.plan.chunk,
        )
        started = time.monotonic()
        with self._held.being_read():
            layer_pass.run(partial(self._advanced, "layer"))
        self._held.check()  # so that the identity describes the computed bytes
        seconds = time.monotonic() - started
        tokens = sum(segment.ids.numel() for segment in segments)
        for batch, place, prefix in zip(batches, places, prefixes, strict=True):
            if place in layer_pass.errors:
                yield batch, RuntimeError(layer_pass.errors[place])
                continue
            hidden = layer_pass.hidden_states[place]
            results = scored_after(prefix, batch, hidden)
            yield batch, shared_out(results, seconds * segments[place].ids.numel() / tokens)
        layer_pass.forget()


def _segments(
    batches: Sequence[list[ScoreRequest]],
) -> tuple[list[Segment], list[int], list[tuple[int, ...]]]:
    """The work of the batches, in order; the index of each batch in it, and its prefix (empty without one)."""
    segments: list[Segment] = []
    places, prefixes = [], []
    last: tuple[int, ...] = ()
    place_of_last = 0
    for batch in batches:
        prefix = common_prefix(batch)
        if prefix and prefix != last:
            last, place_of_last = prefix, len(segments)
            segments.append(Segment(torch.tensor([prefix]), is_prefix=True))
        places.append(len(segments))
        prefixes.append(prefix)
        segments.append(Segment(rest_of(prefix, batch), place_of_last) if prefix else Segment(right_padded(batch)))
    return segments, places, prefixes
