"""The program that q36eval starts in vLLM's environment: it opens one checkpoint and answers over a socket.

    python -m q36eval_vllm.worker FD STATES

FD is an open stream socket; the parent holds the other end. Each message is one line of JSON. The parent's:
`{"do": "open" | "score" | "generate", …}`; the answer to each is one line, with `error` (and `fatal`, if nothing more
can be answered) in place of results. Hidden states are transferred in files of the folder STATES, which the parent
empties. When the parent's end is closed, the program ends; if the parent was killed, the program removes the files,
which may be in memory.
"""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .capture import prompt_sha256

EXTENSION = "q36eval_vllm.capture.HiddenStates"
ONE_TOKEN: "dict[str, Any]" = {"max_tokens": 1, "temperature": 0.0, "detokenize": False, "ignore_eos": True}


class Worker:
    """One open checkpoint."""

    llm: Any = None

    def open(self, message: "dict[str, Any]") -> "dict[str, Any]":
        """Load the checkpoint; `arguments` are those of `vllm.LLM`."""
        from vllm import LLM

        self.llm = LLM(worker_extension_cls=EXTENSION, **message["arguments"])
        return {"context": int(self.llm.llm_engine.model_config.max_model_len)}

    def score(self, message: "dict[str, Any]") -> "dict[str, Any]":
        """Final hidden states of `prompts` (lists of token ids), written to the file `path`.

        `rows` gives each prompt's first row in that file and their number, or None if vLLM's states are incomplete;
        `seconds` is the computing time. With `log_probs`, `told` holds, for each prompt, the engine's own values of the
        same passes: pairs of a token and its log-probability in nats, of the second to the last, and of its answer.
        """
        from vllm import SamplingParams

        begun = time.monotonic()
        told = {"prompt_logprobs": 0, "logprobs": 0} if message["log_probs"] else {}
        uncached = SamplingParams(**ONE_TOKEN, **told, skip_reading_prefix_cache=True)  # a cached prefix has no states
        try:
            self.llm.collective_rpc("q36eval_begin", args=(message["path"],))
            outputs = self._asked(message["prompts"], [uncached] * len(message["prompts"]))
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self.llm.collective_rpc("q36eval_end")
            raise
        index = self.llm.collective_rpc("q36eval_end")[0]
        rows = [index["prompts"].get(prompt_sha256(ids)) for ids in message["prompts"]]
        answer = {"rows": rows, "width": index["width"], "dtype": index["dtype"], "seconds": time.monotonic() - begun}
        return answer | ({"told": [_told(output) for output in outputs]} if told else {})

    def generate(self, message: "dict[str, Any]") -> "dict[str, Any]":
        """Answers to `requests`, each with `token_ids` and the arguments of `SamplingParams` as `sampling`."""
        from vllm import SamplingParams

        requests = message["requests"]
        sampling = [SamplingParams(**each["sampling"]) for each in requests]
        answers = [each.outputs[0] for each in self._asked([each["token_ids"] for each in requests], sampling)]
        return {"answers": [{"token_ids": list(a.token_ids), "finish_reason": a.finish_reason} for a in answers]}

    def _asked(self, prompts: "list[list[int]]", sampling: "list[Any]") -> "list[Any]":
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = self.llm.generate(asked, sampling, use_tqdm=False)
        for output, ids in zip(outputs, prompts, strict=True):
            if list(output.prompt_token_ids) != ids:
                raise RuntimeError("vLLM answered another prompt than it was asked")
        return list(outputs)


def _told(output: Any) -> "list[tuple[int, float]]":
    """For every token after the first, and for the answered one: its id, and its log-probability by vLLM."""
    one = output.outputs[0]
    tokens = [*output.prompt_token_ids[1:], one.token_ids[0]]
    rows = [*output.prompt_logprobs[1:], one.logprobs[0]]
    return [(token, row[token].logprob) for token, row in zip(tokens, rows, strict=True)]


def is_fatal(error: BaseException) -> bool:
    """Whether the engine behind the error is gone."""
    return type(error).__name__ in ("EngineDeadError", "OutOfMemoryError") or not isinstance(error, Exception)


def main() -> None:
    """Answer messages until the parent closes its end."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(channel.fileno(), False)
    worker = Worker()
    known: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        name: getattr(worker, name) for name in ("open", "score", "generate")
    }
    try:
        with channel.makefile("r", encoding="utf-8") as lines, channel.makefile("w", encoding="utf-8") as answers:
            for line in lines:
                message = json.loads(line)
                try:
                    answer = known[message["do"]](message)
                except Exception as error:
                    answer = {
                        "error": f"{type(error).__name__}: {error}",
                        "fatal": is_fatal(error) or worker.llm is None,
                    }
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)


if __name__ == "__main__":
    main()
