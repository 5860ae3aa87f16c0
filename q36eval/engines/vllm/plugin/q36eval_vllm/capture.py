"""Final hidden states of every prompt position, taken in vLLM's worker after each forward pass.

vLLM's model runner hands the states of all tokens of a step, after the final norm, to its method
`_get_prompt_logprobs_dict`. That call lies outside every CUDA graph and every compiled region, and comes after eager,
piecewise and whole-graph passes alike, so taking them there changes no setting of the engine.
"""

import hashlib
import os
import queue
import threading
import types
from dataclasses import dataclass, field
from typing import Any

import torch

METHOD = "_get_prompt_logprobs_dict"


def prompt_sha256(token_ids: Any) -> str:
    """A prompt's name in what is taken: rows are found again by what was asked, not by an id that vLLM gave."""
    return hashlib.sha256(torch.tensor(list(token_ids), dtype=torch.int32).numpy().tobytes()).hexdigest()


@dataclass
class Taken:
    """What came of one request's prompt of `length` tokens, whose rows lie in the file from row `begin` on."""

    sha256: str
    length: int
    begin: int
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Of each piece the position of its first row, and its number of rows."""

    def is_whole(self) -> bool:
        """Whether every position was seen; one may be computed twice."""
        at = 0
        for position, count in sorted(self.seen):
            if position > at:
                return False
            at = max(at, position + count)
        return at == self.length


class Writing:
    """A file that rows are written to while the next step is computed: a thread waits for their copies and writes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._queue: queue.SimpleQueue[tuple[Any, torch.Tensor, int] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, name="q36eval-states", daemon=True)
        self._thread.start()

    def add(self, rows: torch.Tensor, first: int) -> None:
        """Rows [N, H] of the file, from row `first` on. The copy into host memory makes no step wait."""
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
            RuntimeError: not everything is: a file system is full, or the device failed; says why.
        """
        self._queue.put(None)
        self._thread.join()
        os.close(self._file)
        if self._error is not None:
            raise RuntimeError(f"the hidden states could not be written: {self._error!r}") from self._error

    def _write(self) -> None:
        while (next_rows := self._queue.get()) is not None:
            if self._error is not None:
                continue
            copied, rows, offset = next_rows
            try:
                if copied is not None:
                    copied.synchronize()
                _write_at(self._file, rows, offset)
            except BaseException as error:  # else a file that ends early would be all that tells
                self._error = error


class HiddenStates:
    """Mixed into vLLM's worker by `worker_extension_cls`; called through `collective_rpc`."""

    _q36eval_file: Writing

    def q36eval_begin(self, path: str) -> bool:
        """Start to take states, and to write them to a file, row after row; of several workers the first one does.

        Raises:
            RuntimeError: this vLLM's runner has no such place.
            OSError: the file cannot be made.
        """
        runner = self.model_runner  # type: ignore[attr-defined]
        if not hasattr(runner, METHOD):
            raise RuntimeError(f"{type(runner).__name__} has no {METHOD}, where hidden states are taken")
        if getattr(self, "rank", 0) != 0:
            return True
        if hasattr(self, "_q36eval_file"):  # another worker could not begin, and nobody asked this one to end
            self._q36eval_file.close()
        self._q36eval_taken: dict[str, Taken] = {}
        self._q36eval_rows, self._q36eval_kind = 0, (0, "")
        self._q36eval_file = Writing(path)
        original = getattr(type(runner), METHOD)

        def taking(runner_itself: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> Any:
            self._q36eval_take(hidden_states, num_scheduled_tokens)
            return original(runner_itself, hidden_states, num_scheduled_tokens)

        setattr(runner, METHOD, types.MethodType(taking, runner))
        return True

    def _q36eval_take(self, hidden_states: torch.Tensor, scheduled: dict[str, int]) -> None:
        runner = self.model_runner  # type: ignore[attr-defined]
        self._q36eval_kind = (int(hidden_states.shape[-1]), str(hidden_states.dtype).removeprefix("torch."))
        for request_id, count in scheduled.items():
            state = runner.requests[request_id]
            position = int(state.num_computed_tokens)
            kept = min(count, len(state.prompt_token_ids) - position)  # what is answered is not asked for
            if kept <= 0:
                continue
            if request_id not in self._q36eval_taken:
                prompt = state.prompt_token_ids
                self._q36eval_taken[request_id] = Taken(prompt_sha256(prompt), len(prompt), self._q36eval_rows)
                self._q36eval_rows += len(prompt)
            taken = self._q36eval_taken[request_id]
            begin = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]])
            self._q36eval_file.add(hidden_states[begin : begin + kept], taken.begin + position)
            taken.seen.append((position, kept))

    def q36eval_end(self) -> "dict[str, Any]":
        """Stop, and say where in the file each prompt lies.

        Returns:
            `width`, `dtype`, and `prompts`: by a prompt's hash its first row and the number of its rows. A prompt of
            which a position was not seen is left out. Empty of a worker that is not the first.

        Raises:
            RuntimeError: not all of them are in the file.
        """
        if getattr(self, "rank", 0) != 0:
            return {}
        delattr(self.model_runner, METHOD)  # type: ignore[attr-defined] # the runner's own method is its class's
        written = self._q36eval_file
        del self._q36eval_file
        written.close()
        whole = [taken for taken in self._q36eval_taken.values() if taken.is_whole()]
        self._q36eval_taken = {}
        width, dtype = self._q36eval_kind
        return {"width": width, "dtype": dtype, "prompts": {each.sha256: [each.begin, each.length] for each in whole}}


def _write_at(file: int, rows: torch.Tensor, offset: int) -> None:
    """All bytes: one call of the system may take fewer."""
    array: Any = rows.contiguous().view(torch.uint8).numpy()
    left = memoryview(array).cast("B")
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
