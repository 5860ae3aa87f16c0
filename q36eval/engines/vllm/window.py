"""Texts that vLLM scores together: requested, computed concurrently with other work here, and their states read."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import torch

from q36eval.engines.base import Scored, ScoreRequest
from q36eval.engines.batches import shared_out
from q36eval.engines.vllm.process import AskError, WorkerProcess

_numbers = count()


class ScoringWindow:
    """Requested when created. A row of states predicts the next token, so no prompt includes its last token."""

    def __init__(self, worker: WorkerProcess, requests: Sequence[ScoreRequest], log_probs: bool = False) -> None:
        self._requests = requests
        self._path = worker.states / f"states-{next(_numbers)}"
        self._prompts = [list(request.token_ids[:-1]) for request in requests]
        longest = max(map(len, self._prompts))
        what = f"it scored {len(requests)} texts of up to {longest} tokens, among them {requests[-1].key}"
        self._asked = worker.begin("score", what, prompts=self._prompts, path=str(self._path), log_probs=log_probs)

    def forget(self) -> None:
        """Discard it: once it is computed, remove its states."""
        self._asked.wait()
        with suppress(FileNotFoundError):
            self._path.unlink()

    def told(self) -> list[list[tuple[int, float]]]:
        """With `log_probs`, for each text vLLM's values in the passes of the states: after each of its tokens but the
        last, the next one (at the end its answer) and its log-probability in nats."""
        told: list[list[tuple[int, float]]] = self._asked.answer()["told"]
        return told

    def results(self, device: "torch.device | str") -> list[Scored]:
        """The rows of every text on that device, or its error.

        Raises:
            EngineError: vLLM is gone.
        """
        begun = time.monotonic()
        try:
            answer = self._asked.answer()
            states = self._states(answer).to(device)
            alive = states.any(dim=-1).cpu()  # computed on the device, which is faster than a CPU
        except AskError as error:
            return [Scored(request, None, error=f"vLLM: {error}") for request in self._requests]
        finally:
            with suppress(FileNotFoundError):
                self._path.unlink()
        places = zip(self._requests, self._prompts, answer["rows"], strict=True)
        rows = [_scored(request, len(prompt), place, states, alive) for request, prompt, place in places]
        return shared_out(rows, float(answer["seconds"]) + time.monotonic() - begun)

    def _states(self, answer: Mapping[str, Any]) -> torch.Tensor:
        """The rows [N, H] of the plug-in's file, memory-mapped; none if it wrote none."""
        if not answer["dtype"]:
            return torch.empty(0, 1)
        dtype, width = getattr(torch, answer["dtype"]), int(answer["width"])
        values = self._path.stat().st_size // dtype.itemsize
        return torch.from_file(str(self._path), shared=False, size=values, dtype=dtype).view(-1, width)


def _scored(
    request: ScoreRequest, length: int, place: "Sequence[int] | None", states: torch.Tensor, alive: torch.Tensor
) -> Scored:
    if place is None or place[1] != length:
        return Scored(request, None, error="vLLM did not show the states of every token")
    if place[0] + place[1] > len(states):
        return Scored(request, None, error="vLLM's file of states ends early")
    wanted = slice(place[0] + request.first - 1, place[0] + place[1])
    if not alive[wanted].all():
        return Scored(request, None, error="vLLM showed states of zeros")
    return Scored(request, states[wanted].clone())
