"""Final hidden states of every prompt position, taken in vLLM's worker after each forward pass.

vLLM's model runner hands the states of all tokens of a step, after the final norm, to its method
`_get_prompt_logprobs_dict`. That call lies outside every CUDA graph and every compiled region, and comes after eager,
piecewise and whole-graph passes alike, so taking them there changes no setting of the engine.
"""

import hashlib
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

METHOD = "_get_prompt_logprobs_dict"


def prompt_sha256(token_ids: Any) -> str:
    """A prompt's name in what is taken: rows are found again by what was asked, not by an id that vLLM gave."""
    return hashlib.sha256(torch.tensor(list(token_ids), dtype=torch.int32).numpy().tobytes()).hexdigest()


@dataclass
class Taken:
    """The states of one request's prompt of `length` tokens, by the position of the first row of each piece."""

    sha256: str
    length: int
    pieces: dict[int, torch.Tensor] = field(default_factory=dict)

    def rows(self) -> "list[torch.Tensor] | None":
        """All rows [length, H] in order, in parts; None where a position is missing. One computed twice counts once."""
        parts: list[torch.Tensor] = []
        at = 0
        for position in sorted(self.pieces):
            piece = self.pieces[position]
            if position > at:
                return None
            parts.append(piece[at - position :])
            at = max(at, position + len(piece))
        return parts if at == self.length else None


def to_host(rows: torch.Tensor) -> torch.Tensor:
    """A copy in host memory; one of a GPU is there once the device is synchronized, and no step waits for it."""
    if not rows.is_cuda:
        return rows.to("cpu", copy=True)
    return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows, non_blocking=True)


class HiddenStates:
    """Mixed into vLLM's worker by `worker_extension_cls`; called through `collective_rpc`."""

    def q36eval_begin(self) -> bool:
        """Start to take states.

        Raises:
            RuntimeError: this vLLM's runner has no such place.
        """
        runner = self.model_runner  # type: ignore[attr-defined]
        if not hasattr(runner, METHOD):
            raise RuntimeError(f"{type(runner).__name__} has no {METHOD}, where hidden states are taken")
        self._q36eval_taken: dict[str, Taken] = {}
        original = getattr(type(runner), METHOD)

        def taking(runner_itself: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> Any:
            self._q36eval_take(hidden_states, num_scheduled_tokens)
            return original(runner_itself, hidden_states, num_scheduled_tokens)

        setattr(runner, METHOD, types.MethodType(taking, runner))
        return True

    def _q36eval_take(self, hidden_states: torch.Tensor, scheduled: dict[str, int]) -> None:
        runner = self.model_runner  # type: ignore[attr-defined]
        for request_id, count in scheduled.items():
            state = runner.requests[request_id]
            position = int(state.num_computed_tokens)
            kept = min(count, len(state.prompt_token_ids) - position)  # what is answered is not asked for
            if kept <= 0:
                continue
            if request_id not in self._q36eval_taken:
                prompt = state.prompt_token_ids
                self._q36eval_taken[request_id] = Taken(prompt_sha256(prompt), len(prompt))
            begin = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]])
            rows = hidden_states[begin : begin + kept]
            self._q36eval_taken[request_id].pieces[position] = to_host(rows)

    def q36eval_end(self, path: str) -> "dict[str, Any]":
        """Stop, write what was taken to a file, row after row, and say where each prompt lies in it.

        Returns:
            `width`, `dtype`, and `prompts`: by a prompt's hash its first row and the number of its rows. A prompt of
            which a position was not seen is left out.
        """
        delattr(self.model_runner, METHOD)  # type: ignore[attr-defined] # the runner's own method is its class's
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        prompts: dict[str, list[int]] = {}
        at, width, dtype = 0, 0, ""
        with Path(path).open("wb", buffering=0) as file:
            for taken in self._q36eval_taken.values():
                parts = taken.rows()
                if parts is None or taken.sha256 in prompts:
                    continue
                width, dtype = parts[0].shape[1], str(parts[0].dtype).removeprefix("torch.")
                for part in parts:
                    _write(file, part)
                prompts[taken.sha256] = [at, taken.length]
                at += taken.length
        self._q36eval_taken = {}
        return {"width": width, "dtype": dtype, "prompts": prompts}

    def q36eval_describe(self) -> "dict[str, str]":
        """What computes there: the model's class, and by kind of module the class of its quantization's kernel."""
        model = self.model_runner.model  # type: ignore[attr-defined]
        model = model.unwrap() if hasattr(model, "unwrap") else model
        described = {"model": type(model).__name__}
        for name, module in model.named_modules():
            method = getattr(module, "quant_method", None)
            kind = name.rsplit(".", 1)[-1]
            if method is None or kind in described:
                continue
            scheme = getattr(module, "scheme", None)
            parts = (method, scheme, getattr(scheme, "kernel", None) or getattr(scheme, "fp8_linear", None))
            described[kind] = " ".join(type(part).__name__ for part in parts if part is not None)
        return described


def _write(file: Any, rows: torch.Tensor) -> None:
    """All bytes: one call of the system may take fewer."""
    array: Any = rows.contiguous().view(torch.uint8).numpy()
    left = memoryview(array).cast("B")
    while left:
        left = left[file.write(left) :]
