"""Runs all sequences of a plan through one layer after another, for a model whose weights exceed every memory.

For each layer its weights are read and decoded once; every batch passes through it and waits in host memory for the
next. Each layer is run by the model's own forward pass with the other layers replaced by identities: masks, positions
and kernels are those of a resident model, and so are the numbers, bit for bit with the same batches.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

from q36eval.checkpoints.architecture import base_of
from q36eval.checkpoints.gpu import give_back
from q36eval.checkpoints.weight_slots import StoredLayers
from q36eval.engines.device_memory import is_out_of_memory
from q36eval.engines.memory_plan import CHUNK_TOKENS
from q36eval.engines.shared_prefix import lent, spans
from q36eval.errors import UsageError
from q36eval.files import json_sha256

SAVE_EVERY_S = 20.0
"""The minimum interval between writes of states to disk; a killed pass loses that time and the current layer."""
SAVING_S = 2.0
"""If writing takes longer, the interval grows in proportion: at most a tenth of the time is spent on it."""

ABANDONED_S = 7 * 24 * 3600.0
"""Stored states not resumed for this long are deleted by the next pass: they take up to half of the memory."""


@dataclass(frozen=True)
class Segment:
    """Rows that are computed together: their token ids [R, W]; `after` is the index of their prefix.

    A prefix directly precedes the segments that continue it.
    """

    ids: Tensor
    after: int | None = None
    is_prefix: bool = False


class LayerPass:
    """One pass over the model: `hidden_states` of every segment, or its error.

    With a `folder` the states are saved there every `SAVE_EVERY_S` seconds, and a pass over the same segments of the
    same deployment (`owner`) resumes from them. `unchanged` raises if the files changed, so that no states of other
    bytes are saved. `chunk` is `MemoryPlan.chunk`: long rows go through a layer in parts.
    """

    def __init__(
        self,
        model: Any,
        layers: StoredLayers,
        segments: Sequence[Segment],
        *,
        owner: str = "",
        folder: Path | None = None,
        unchanged: Callable[[], None] = lambda: None,
        chunk: Callable[[int, int, int], int] = lambda rows, width, halvings: max(CHUNK_TOKENS, width >> halvings),
    ) -> None:
        self._model, self._layers, self._segments, self._unchanged = model, layers, segments, unchanged
        self._chunk = chunk
        self._device = next(model.parameters()).device
        self.hidden_states: list[Tensor] = []
        """After the final norm [R, W, H], in host memory."""
        self.errors: dict[int, str] = {}
        self._copies = _Copies(self._device)
        self._file = None if folder is None else folder / f"{_content_sha256(owner, segments)[:32]}.safetensors"

    @torch.inference_mode()
    def run(self, advanced: Callable[[int, int], None]) -> None:
        """Compute all layers, or those missing from a saved pass.

        Raises:
            CorruptCheckpointError: a layer's weights cannot be decoded.
            ChangedError, EngineError: a file cannot be read, or has changed.
        """
        first = self._recall()
        if first == 0:
            self.hidden_states = [self._embedded(segment.ids) for segment in self._segments]
        saved, pause = time.monotonic(), SAVE_EVERY_S
        advanced(first, len(self._layers))
        for layer in self._layers.one_by_one(first):
            with _alone(base_of(self._model), layer):
                self._one_layer(layer)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # ensures that copies to host memory are complete
            advanced(layer + 1, len(self._layers))
            begun = time.monotonic()
            if self._file is not None and begun - saved >= pause:
                self._unchanged()
                self._keep(self._file, layer + 1)
                saved = time.monotonic()
                pause = SAVE_EVERY_S * max(1.0, (saved - begun) / SAVING_S)

    def forget(self) -> None:
        """Delete its saved states."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            shutil.rmtree(_written_in(self._file), ignore_errors=True)
            with suppress(OSError):  # another pass is saved there, too
                self._file.parent.rmdir()

    def _embedded(self, ids: Tensor) -> Tensor:
        embedded = self._model.get_input_embeddings()(ids.to(self._device))
        if self._device.type == "cpu":
            return embedded  # type: ignore[no-any-return]
        return torch.empty(embedded.shape, dtype=embedded.dtype, pin_memory=True).copy_(embedded)

    def _one_layer(self, layer: int) -> None:
        """Run every segment through that layer; one that fails is left out from then on."""
        remembered: Any = None
        ahead: Tensor | None = None
        for at, segment in enumerate(self._segments):
            # removed from the list, so that they are freed if memory runs out
            own, ahead = [ahead], None
            if segment.after in self.errors:
                self.errors[at] = self.errors[segment.after]
            if at in self.errors:
                continue
            states = self.hidden_states[at]
            if segment.is_prefix:
                remembered = DynamicCache(config=self._model.config)
            try:
                if own[0] is None:
                    own = [self._on_the_way(at)]
                if own[0] is not None:
                    self._copies.arrived(own[0])
                ahead = self._on_the_way(at + 1)
                output = self._output(states, layer, segment, remembered, own.pop())
            except Exception as error:  # fails only this batch, as in a resident model, and is reported
                self.errors[at] = f"{type(error).__name__}: {error}"
                continue
            if states.device == output.device:
                self.hidden_states[at] = output
            else:
                self._copies.to_host(output, states)

    def _on_the_way(self, at: int) -> Tensor | None:
        """The states of that segment, copied to the device concurrently; None if absent or if copying fails now: they
        are copied again at their turn, and a failure is reported then."""
        if at == len(self._segments) or at in self.errors:
            return None
        try:
            return self._copies.to_device(self.hidden_states[at])
        except Exception:
            return None

    def _output(
        self,
        states: Tensor,
        layer: int,
        segment: Segment,
        remembered: Any,
        inputs: Tensor | None = None,
        halvings: int = 0,
    ) -> Tensor:
        """The layer's output for a segment's `states` [R, W, H]; if memory runs out, in smaller passes.

        A prefix is `remembered`, and its continuations start from it. `inputs` are the states on the device.
        """
        rows, width = states.shape[:2]
        try:
            return self._attempt(states if inputs is None else inputs, layer, segment, remembered, halvings)
        except Exception as error:
            least = rows == 1 if segment.after is not None else self._chunk(rows, width, halvings) <= CHUNK_TOKENS
            if least or not is_out_of_memory(error):
                raise
        inputs = None
        give_back(self._device)
        if segment.after is not None:
            halves = torch.split(states, -(-rows // 2))
            return torch.cat([self._output(half, layer, segment, remembered) for half in halves])
        if segment.is_prefix:
            remembered.layers[layer] = DynamicCache(config=self._model.config).layers[layer]
        return self._output(states, layer, segment, remembered, halvings=halvings + 1)

    def _attempt(self, states: Tensor, layer: int, segment: Segment, remembered: Any, halvings: int) -> Tensor:
        rows, width = states.shape[:2]
        inputs = states.to(self._device, non_blocking=True)
        if segment.after is not None:
            return self._run(inputs, _after(remembered, layer, self._segments[segment.after].ids.shape[1], rows))
        chunk = self._chunk(rows, width, halvings)
        if chunk >= width and not segment.is_prefix:
            return self._run(inputs, None)
        own = remembered if segment.is_prefix else DynamicCache(config=self._model.config)
        parts = [self._run(inputs[:, span], _grown(own, layer, span.start)) for span in spans(width, chunk)]
        return torch.cat(parts, dim=1)

    def _run(self, inputs: Tensor, cache: Cache | None) -> Tensor:
        states: Tensor = base_of(self._model)(
            inputs_embeds=inputs, past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        return states

    def _keep(self, file: Path, layers_done: int) -> None:
        tensors = {str(at): states for at, states in enumerate(self.hidden_states) if at not in self.errors}
        written = {"layers": str(layers_done), "errors": json.dumps(self.errors), "sha256": _states_sha256(tensors)}
        with suppress(OSError, SafetensorError):  # on a full disk the pass continues, and a killed one starts again
            file.parent.mkdir(parents=True, exist_ok=True)
            for other in file.parent.iterdir():
                if time.time() - other.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(other) if other.is_dir() else other.unlink(missing_ok=True)
            folder = _written_in(file)
            shutil.rmtree(folder, ignore_errors=True)  # killed while writing
            folder.mkdir()
            save_file(
                tensors, folder / file.name, metadata=written
            )  # no second copy of the states, which take up to half of the memory
            (folder / file.name).replace(file)
            folder.rmdir()

    def _recall(self) -> int:
        """The number of layers finished by a saved pass, whose states are then loaded; 0 without one."""
        if self._file is None or not self._file.exists():
            return 0
        try:
            with safe_open(self._file, framework="pt") as kept:
                written = kept.metadata()
                errors = {int(at): error for at, error in json.loads(written["errors"]).items()}
                states = {at: kept.get_tensor(str(at)) for at in range(len(self._segments)) if at not in errors}
        except (OSError, SafetensorError, KeyError, ValueError):
            return 0  # computed again and overwritten
        shapes = {at: (*segment.ids.shape, self._model.config.hidden_size) for at, segment in enumerate(self._segments)}
        if any(tuple(tensor.shape) != shapes[at] for at, tensor in states.items()):
            return 0
        if _states_sha256({str(at): tensor for at, tensor in states.items()}) != written.get("sha256"):
            return 0  # damaged since
        pinned = self._device.type == "cuda"
        kept_states = (states.get(at, torch.empty(0)) for at in range(len(self._segments)))
        self.hidden_states = [tensor.pin_memory() if pinned else tensor for tensor in kept_states]
        self.errors = errors
        return int(written["layers"])


class _Copies:
    """Copies of states between page-locked host memory and a GPU, concurrent with the layers' computation.

    Nothing is copied if the model is in host memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._streams = streams

    def to_device(self, states: Tensor) -> Tensor:
        """The states on the device; readable once `arrived`."""
        if self._streams is None:
            return states.to(self._device)
        with torch.cuda.stream(self._streams[0]):
            return states.to(self._device, non_blocking=True)

    def arrived(self, inputs: Tensor) -> None:
        """Later computations wait for them, and for all copies already started."""
        if self._streams is not None:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_stream(self._streams[0])
            inputs.record_stream(computing)

    def to_host(self, output: Tensor, states: Tensor) -> None:
        """Copies into `states`, which are complete after a device synchronization."""
        if self._streams is None:
            states.copy_(output)
            return
        self._streams[1].wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._streams[1]):
            states.copy_(output, non_blocking=True)
        output.record_stream(self._streams[1])


def _written_in(file: Path) -> Path:
    """The folder of a pass while it is written: the library writes under a temporary name first."""
    return file.with_suffix(".writing")


class _HandsOn(nn.Module):
    """Replaces a layer that is not run now."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states


@torch.inference_mode()
def check_layers_alone(model: Any) -> None:
    """Refuse a model that does more around its layers than embedding tokens and the final norm.

    Without any layer and norm it must return its input.

    Raises:
        UsageError: it does not, so its layers cannot be run one at a time.
    """
    device = next(model.parameters()).device
    given = torch.randn(1, 3, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    given = given.to(device, model.dtype)
    with _alone(base_of(model), -1):
        handed_on = base_of(model)(inputs_embeds=given, use_cache=False).last_hidden_state
    if not torch.equal(handed_on, given):
        raise UsageError(
            "placement-unsupported",
            f"{type(model).__name__} cannot be run layer by layer, since it changes what its first layer is given; "
            f"choose another --engine-arg placement.",
        )


@contextmanager
def _alone(text_model: Any, layer: int) -> Iterator[None]:
    """In the block the model consists of that layer, plus the final norm for the last one; -1 is none."""
    own = dict(text_model.named_children())
    place = next(at for at, module in enumerate(own.values()) if isinstance(module, nn.ModuleList))
    name, layers = [*own.items()][place]
    others = _HandsOn()
    alone = {name: nn.ModuleList([layers[layer] if at == layer else others for at in range(len(layers))])}
    if layer != len(layers) - 1:
        alone |= {each: others for each in [*own][place + 1 :] if "norm" in each}
    try:
        text_model._modules.update(alone)
        yield
    finally:
        text_model._modules.update(own)


class _Length(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """An attention layer's cache of which only the length is read."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.is_initialized = True
        self.keys = self.values = torch.empty(1).expand(1, 1, length, 1)


def _after(remembered: Any, layer: int, length: int, rows: int) -> Cache:
    """The cache of `rows` rows after a prefix of that length, with the data of this one layer."""
    own = lent(remembered.layers[layer], rows)
    linear = LinearAttentionLayer()
    linear.has_previous_state = dict.fromkeys(linear.has_previous_state, True)
    others = [linear if isinstance(each, LinearAttentionLayer) else _Length(length) for each in remembered.layers]
    return Cache(layers=[own if at == layer else other for at, other in enumerate(others)])


def _grown(own: Cache, layer: int, length: int) -> Cache:
    """The cache of rows after that many tokens went through this one layer; `own` continues to store them."""
    others = [
        LinearAttentionLayer() if isinstance(each, LinearAttentionLayer) else _Length(length) for each in own.layers
    ]
    return Cache(layers=[own.layers[layer] if at == layer else other for at, other in enumerate(others)])


def _states_sha256(tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, tensor in tensors.items():
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def _content_sha256(owner: str, segments: Sequence[Segment]) -> str:
    """Hash of everything that determines a pass: the deployment and its segments."""
    hashed = hashlib.sha256(owner.encode())
    for segment in segments:
        hashed.update(json_sha256([list(segment.ids.shape), segment.after, segment.is_prefix]).encode())
        hashed.update(segment.ids.numpy().tobytes())
    return hashed.hexdigest()
