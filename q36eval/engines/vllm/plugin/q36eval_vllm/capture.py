"""Final hidden states of every prompt position, taken in vLLM's worker after each forward pass.

Every model runner of vLLM keeps the states of a step's tokens, after the final norm, between its methods
`execute_model` and `sample_tokens`. They are copied there: outside every CUDA graph and compiled region, after eager,
piecewise and whole-graph passes, so this changes no setting of the engine. The tokens of a step are read from the
scheduler's output to the runner.
"""

import hashlib
import os
import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

METHOD, STATE = "execute_model", "execute_model_state"
"""The wrapped method of the runner, and the attribute that holds the states."""


def prompt_sha256(token_ids: Any) -> str:
    """A prompt's key in the results: rows are matched by the prompt, not by vLLM's ids."""
    return hashlib.sha256(torch.tensor(list(token_ids), dtype=torch.int32).numpy().tobytes()).hexdigest()


@dataclass
class Taken:
    """The result for one request's prompt of `length` tokens, whose rows start at row `begin` of the file."""

    sha256: str
    length: int
    begin: int
    seen: set[int] = field(default_factory=set)
    """The positions with a row; one may be computed twice."""


class Writing:
    """A file for rows, written while the next step is computed: a thread waits for their copies and writes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._queue: queue.SimpleQueue[tuple[Any, torch.Tensor, int] | None] = queue.SimpleQueue()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="q36eval-states", daemon=True)
        self._thread.start()

    def add(self, rows: torch.Tensor, first: int) -> None:
        """Write rows [N, H] from row `first` on. The copy into host memory does not block a step."""
        if rows.is_cuda:
            there = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows, non_blocking=True)
            copied: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record()
        else:
            there, copied = rows.to("cpu", copy=True), None
        self._queue.put((copied, there, first * rows.shape[1] * rows.element_size()))

    def close(self) -> None:
        """Return once everything is in the file.

        Raises:
            RuntimeError: a write failed: a file system is full, or the device failed; names the cause.
        """
        self._queue.put(None)
        self._thread.join()
        os.close(self._file)
        if self.error is not None:
            raise RuntimeError(f"the hidden states could not be taken: {self.error!r}") from self.error

    def _write(self) -> None:
        while (next_rows := self._queue.get()) is not None:
            if self.error is not None:
                continue
            copied, rows, offset = next_rows
            try:
                if copied is not None:
                    copied.synchronize()
                _write_at(self._file, rows, offset)
            except BaseException as error:  # else a truncated file would be the only sign
                self.error = error


class HiddenStates:
    """Mixed into vLLM's worker by `worker_extension_cls`; called through `collective_rpc`."""

    _q36eval_file: Writing

    def q36eval_begin(self, path: str) -> None:
        """Start to take states, and to write them to a file, row after row; only the first of several workers does.

        Raises:
            RuntimeError: this vLLM's runner lacks the attribute.
            OSError: the file cannot be created.
        """
        runner = self.model_runner  # type: ignore[attr-defined]
        if not hasattr(runner, STATE):
            raise RuntimeError(f"{type(runner).__name__} has no {STATE}, where hidden states are taken")
        if getattr(self, "rank", 0) != 0:
            return
        self._q36eval_taken: dict[str, Taken] = {}
        self._q36eval_rows, self._q36eval_kind = 0, (0, "")
        self._q36eval_file = Writing(path)
        original = getattr(runner, METHOD)

        def taking(scheduled: Any, *more: Any, **named: Any) -> Any:
            output = original(scheduled, *more, **named)
            try:
                self._q36eval_take(scheduled, getattr(runner, STATE))
            except Exception as error:  # reported at the end, and vLLM continues
                self._q36eval_file.error = error
            return output

        setattr(runner, METHOD, taking)

    def _q36eval_take(self, scheduled: Any, state: Any) -> None:
        """The rows of the scheduled prompts; `state` is None for a step that computed nothing."""
        new, known = scheduled.scheduled_new_reqs, scheduled.scheduled_cached_reqs
        positions = dict(zip(known.req_ids, known.num_computed_tokens, strict=True))
        for each in new:
            positions[each.req_id], length = each.num_computed_tokens, len(each.prompt_token_ids)
            if each.req_id not in self._q36eval_taken:  # else it starts again
                taken = Taken(prompt_sha256(each.prompt_token_ids), length, self._q36eval_rows)
                self._q36eval_taken[each.req_id] = taken
                self._q36eval_rows += length
        if state is None:
            return
        states, begin = state.hidden_states, 0
        self._q36eval_kind = (int(states.shape[-1]), str(states.dtype).removeprefix("torch."))
        # vLLM's first model runner keeps its batch private, the second one stores it with the states
        batch = getattr(state, "input_batch", None) or self.model_runner.input_batch  # type: ignore[attr-defined]
        for request_id in batch.req_ids:
            count, taken = scheduled.num_scheduled_tokens[request_id], self._q36eval_taken[request_id]
            position = int(positions[request_id])
            kept = min(count, taken.length - position)  # generated tokens are not needed
            if kept > 0:
                self._q36eval_file.add(states[begin : begin + kept], taken.begin + position)
                taken.seen.update(range(position, position + kept))
            begin += count

    def q36eval_end(self) -> "dict[str, Any]":
        """Stop, and return each prompt's rows in the file.

        Returns:
            `width`, `dtype`, and `prompts`: by a prompt's hash its first row and the number of its rows. A prompt with
            a missing position is left out. Empty for a worker that is not the first.

        Raises:
            RuntimeError: not all of them are in the file.
        """
        if getattr(self, "rank", 0) != 0:
            return {}
        delattr(self.model_runner, METHOD)  # type: ignore[attr-defined] # the runner's own method is its class's
        written = self._q36eval_file
        del self._q36eval_file
        written.close()
        whole = [taken for taken in self._q36eval_taken.values() if len(taken.seen) == taken.length]
        self._q36eval_taken = {}
        width, dtype = self._q36eval_kind
        return {"width": width, "dtype": dtype, "prompts": {each.sha256: [each.begin, each.length] for each in whole}}


def _write_at(file: int, rows: torch.Tensor, offset: int) -> None:
    """Write all bytes: one system call may write fewer."""
    array: Any = rows.contiguous().view(torch.uint8).numpy()
    left = memoryview(array).cast("B")
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
