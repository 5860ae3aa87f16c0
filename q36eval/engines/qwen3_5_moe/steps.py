"""Decoding steps with fixed memory, so that a GPU replays each as one CUDA graph.

A step of a batch launches thousands of small kernels, and computing takes less time than launching them. Here keys,
values and states are in memory that is allocated once (`StepMemory`): a step always reads and writes the same addresses
for given numbers of rows and key columns, and a recorded graph runs it in one launch. Rows and columns are rounded up
(`ROWS`, `columns_of`), so that few graphs serve every batch. Without a GPU the same steps run operation by operation.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from q36eval.checkpoints.architecture import base_of
from q36eval.checkpoints.gpu import give_back
from q36eval.engines.qwen3_5_moe.delta import delta_step

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
COLUMNS = 256
ATTENTION = "q36eval_step"
RECORDING_TRIES = 4
"""The number of failed recordings, on a temporarily full device, after which steps are no longer recorded."""


def rows_of(rows: int) -> int:
    """The number of rows that a step of `rows` rows computes."""
    return next((size for size in ROWS if size >= rows), rows)


def columns_of(columns: int) -> int:
    """The number of key columns of a step that needs `columns`: 256, 384, 512, 768, 1,024 and so on."""
    size = COLUMNS
    while size < columns:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return size


class StepMemory:
    """The caches of one model's batches during decoding, and the graphs recorded over them.

    It is as large as the largest batch so far, and used for all later ones.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self.records = self.device.type == "cuda"
        """Whether steps are recorded and replayed."""
        self.not_recorded: str | None = None
        """Why they are not, if recording a graph failed."""
        self.graphs: dict[tuple[int, int], tuple[Any, Tensor]] = {}
        self._ran: set[tuple[int, int]] = set()
        self._failures = 0
        self._rows = self._cells = 0
        self._states: dict[int, tuple[Tensor, Tensor]] = {}
        self._keys: dict[int, tuple[Tensor, Tensor]] = {}
        self._logits = torch.empty(0)
        self._pool: Any = None
        self._parts: Any = None
        self.ids = self.begins = self.column = torch.empty(0)

    @property
    def bytes(self) -> int:
        """Its size, without the graphs' own memory."""
        remembered = (one for memory in (self._states, self._keys) for pair in memory.values() for one in pair)
        return self._logits.nbytes + sum(one.nbytes for one in remembered)

    def reserve(self, layers: Sequence[Any], rows: int, columns: int) -> None:
        """Make room for `rows` rows of `columns` columns of the caches of `layers`.

        Graphs are dropped if memory moves, or if a part of the model was replaced since they were recorded.
        """
        parts = _parts(self.model)
        moves = rows > self._rows or rows * columns > self._cells
        if moves or parts != self._parts:
            self.graphs.clear()
            self._ran.clear()
            self._pool, self._parts = None, parts
        if not moves:
            return
        self._rows, self._cells = max(rows, self._rows), max(rows * columns, self._cells)
        self._states.clear()
        self._keys.clear()
        self._logits = torch.empty(0)
        for at, layer in enumerate(layers):
            if isinstance(layer, LinearAttentionLayer):
                recurrent, conv = (states[0] for states in (layer.recurrent_states, layer.conv_states))
                self._states[at] = self._zeros_like(recurrent), self._zeros_like(conv)
            else:
                self._keys[at] = self._cells_of(layer.keys), self._cells_of(layer.values)
        self.ids = torch.zeros(self._rows, 1, dtype=torch.long, device=self.device)
        self.begins = torch.zeros(self._rows, 1, dtype=torch.long, device=self.device)
        self.column = torch.zeros(1, dtype=torch.long, device=self.device)

    def _zeros_like(self, states: Tensor) -> Tensor:
        return torch.zeros((self._rows, *states.shape[1:]), dtype=states.dtype, device=self.device)

    def _cells_of(self, keys: Tensor) -> Tensor:
        return torch.zeros(self._cells * keys.shape[1] * keys.shape[3], dtype=keys.dtype, device=self.device)

    def states(self, at: int, rows: int) -> tuple[Tensor, ...]:
        """A linear layer's recurrent state [rows, heads, Dk, Dv] and the inputs of its convolution [rows, C, K]."""
        return tuple(states[:rows] for states in self._states[at])

    def keys(self, at: int, shape: Sequence[int]) -> tuple[Tensor, ...]:
        """An attention layer's keys and values as [rows, heads, columns, D]."""
        return tuple(cells[: prod(shape)].view(*shape) for cells in self._keys[at])

    def float32(self, logits: Tensor) -> Tensor:
        """Logits [R, V] in float32, in one buffer shared by all steps: separate buffers per graph would occupy memory
        for every step size, as long as the graphs exist."""
        if self._logits.shape[1:] != logits.shape[1:]:
            self._logits = torch.empty((self._rows, logits.shape[1]), dtype=torch.float32, device=self.device)
        return self._logits[: len(logits)].copy_(logits)

    def run(self, key: tuple[int, int], compute: Callable[[], Tensor]) -> Tensor:
        """The result of `compute` for a step of `key`: rows and columns. The second step of a key is recorded."""
        if key in self.graphs:
            graph, output = self.graphs[key]
            graph.replay()
            return output
        if not self.records or key not in self._ran:
            self._ran.add(key)  # every kernel is compiled now
            return compute()
        recorded = self._recorded(compute)
        if recorded is None:
            return compute()
        self.graphs[key] = recorded
        graph, output = recorded
        graph.replay()
        return output

    def _recorded(self, compute: Callable[[], Tensor]) -> tuple[Any, Tensor] | None:
        """A graph of `compute` and its output; None if recording failed, with its memory released."""
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = compute()
        except Exception as error:  # most often a lack of memory, which a recording cannot check
            self._failures += 1
            if self._failures == RECORDING_TRIES:
                self.records, self.not_recorded = False, f"{type(error).__name__}: {error}"
        else:
            return graph, output
        del graph
        give_back(self.device)  # the failed graph's memory is released with its error
        return None


class Steps:
    """The steps after a pass over a batch's prompts.

    `layers` are the pass's caches for rows [R], of `width` columns, of which the first `begins` [R] are padding; `most`
    is the maximum of columns at the end.
    """

    def __init__(self, memory: StepMemory, layers: Sequence[Any], begins: Tensor, width: int, most: int) -> None:
        self._memory, self._layers = memory, layers
        self._live, self._width = len(begins), width
        self._rows, self._columns = rows_of(len(begins)), columns_of(width + 1)
        memory.reserve(layers, self._rows, columns_of(max(most, width + 1)))
        memory.begins.zero_()
        memory.begins[: self._live, 0] = begins
        self._shapes: dict[int, tuple[int, int]] = {}
        """For every attention layer, heads and their dimensions."""
        for at, layer in enumerate(layers):
            if isinstance(layer, LinearAttentionLayer):
                remembered = layer.recurrent_states[0], layer.conv_states[0]
                for own, states in zip(memory.states(at, self._live), remembered, strict=True):
                    own.copy_(states)
            else:
                self._shapes[at] = layer.keys.shape[1], layer.keys.shape[3]
                self._put(at, (layer.keys, layer.values))

    def _put(self, at: int, remembered: Sequence[Tensor]) -> None:
        """Keys and values of the live rows, [R, heads, width, D] each; what follows them is zero."""
        for own, states in zip(self._memory.keys(at, self._shape(at)), remembered, strict=True):
            own[: self._live, :, : self._width] = states
            own[: self._live, :, self._width :] = 0  # the data of an earlier batch may be NaN
            own[self._live :] = 0

    def _shape(self, at: int) -> tuple[int, int, int, int]:
        heads, dimensions = self._shapes[at]
        return self._rows, heads, self._columns, dimensions

    def _moved(self, rows: Tensor | None, columns: int) -> None:
        """Move keys and values to `columns` columns, keeping only `rows`: one layer after the other, since moving needs
        the memory twice."""
        before = self._live, self._rows, self._columns
        after = (*(before[:2] if rows is None else (len(rows), rows_of(len(rows)))), columns)
        for at in self._shapes:
            self._live, self._rows, self._columns = before
            old = [own[: self._live, :, : self._width] for own in self._memory.keys(at, self._shape(at))]
            moving = [states.clone() if rows is None else states[rows] for states in old]
            self._live, self._rows, self._columns = after
            self._put(at, moving)
        self._live, self._rows, self._columns = after

    def keep(self, kept: Tensor) -> None:
        """Continue with these live rows only, in that order: int64 [R']."""
        for at in range(len(self._layers)):
            if at not in self._shapes:
                for states in self._memory.states(at, self._live):
                    states[: len(kept)] = states[kept]
        begins = self._memory.begins
        begins[: len(kept)] = begins[: self._live][kept]
        begins[len(kept) :] = 0
        self._moved(kept, self._columns)

    def next(self, tokens: Tensor) -> Tensor:
        """Float32 logits [R, V] after one more token of every live row, int64 [R]; valid until the next step."""
        memory = self._memory
        if self._width == self._columns:
            self._moved(None, columns_of(self._width + 1))
        memory.ids[: self._live, 0] = tokens
        memory.column.fill_(self._width)
        self._width += 1
        return memory.run((self._rows, self._columns), self._compute)[: self._live]

    def _compute(self) -> Tensor:
        memory, model = self._memory, self._memory.model
        begins = memory.begins[: self._rows]
        columns = torch.arange(self._columns, device=memory.device)
        hidden = (columns < begins) | (columns > memory.column)
        mask = torch.zeros(hidden.shape, device=memory.device).masked_fill(hidden, -torch.inf)
        with stepping(model):
            states = base_of(model)(
                input_ids=memory.ids[: self._rows],
                attention_mask={"full_attention": mask, "linear_attention": None},
                position_ids=memory.column - begins,
                past_key_values=self._cache(),
                use_cache=True,
            ).last_hidden_state[:, -1]
        return memory.float32(model.lm_head(states))

    def _cache(self) -> Cache:
        made: list[Any] = []
        for at in range(len(self._layers)):
            if at in self._shapes:
                keys, values = self._memory.keys(at, self._shape(at))
                made.append(_Keys(keys, values, self._memory.column))
            else:
                recurrent, conv = self._memory.states(at, self._rows)
                made.append(_States(recurrent, conv))
        return Cache(layers=made)


class _Keys(DynamicLayer):  # type: ignore[misc]  # transformers has no types
    """Keys and values [R, heads, C, D] of which one column is written."""

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.keys, self.values, self._column = keys, values, column

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self._column, key_states)
        self.values.index_copy_(2, self._column, value_states)
        return self.keys, self.values


class _States(LinearAttentionLayer):  # type: ignore[misc]
    """States that a step updates in place."""

    writes_in_place = True

    def __init__(self, recurrent: Tensor, conv: Tensor) -> None:
        super().__init__()
        self.recurrent_states, self.conv_states = {0: recurrent}, {0: conv}
        self.dtype, self.device = conv.dtype, conv.device
        for known in (self.is_conv_states_initialized, self.is_recurrent_states_initialized, self.has_previous_state):
            known[0] = True
        self.conv_kernel_size[0] = conv.shape[-1]

    def update_recurrent_state(self, recurrent_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        own = self.recurrent_states[0]
        return own if recurrent_states is own else own.copy_(recurrent_states)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one query a row [R, Hq, 1, D] to keys and values [R, Hkv, C, D]; the mask [R, C] is added.

    The heads of a group are one product, so that keys are read once and never repeated. Scores are float32.
    """
    rows, heads, _, width = query.shape
    columns = key.shape[2]
    grouped = query.reshape(rows * key.shape[1], heads // key.shape[1], width)
    keys, values = (states.reshape(-1, columns, states.shape[-1]) for states in (key, value))
    if query.is_cuda and query.dtype == torch.bfloat16:
        scores = torch.bmm(grouped, keys.transpose(1, 2), out_dtype=torch.float32)
    else:
        scores = torch.bmm(grouped.float(), keys.float().transpose(1, 2))
    scores = scores.view(rows, heads, columns) * scaling + attention_mask.unsqueeze(1)
    shares = scores.softmax(-1).to(value.dtype)
    output = torch.bmm(shares.view(len(keys), -1, columns), values)
    return output.view(rows, 1, heads, values.shape[-1]), None


AttentionInterface.register(ATTENTION, _attend)


@contextmanager
def stepping(model: Any) -> Iterator[None]:
    """In the block the model computes one token per row with `Steps`."""
    config, attention = model.config, model.config._attn_implementation
    recurrent = modeling.torch_recurrent_gated_delta_rule
    config._attn_implementation = ATTENTION
    modeling.torch_recurrent_gated_delta_rule = delta_step
    try:
        yield
    finally:
        config._attn_implementation = attention
        modeling.torch_recurrent_gated_delta_rule = recurrent


def _parts(model: nn.Module) -> list[Any]:
    """The key of a model with the same kernels on the same memory."""
    parts: list[Any] = []
    for module in model.modules():
        own = [tensor.data_ptr() for tensor in (*module.parameters(False), *module.buffers(False))]
        parts.append((id(module), type(module), getattr(module, "kv_cache_scales_used", None), own))
    return parts
