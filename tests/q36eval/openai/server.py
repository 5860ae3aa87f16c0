"""A small server around an engine of this process, in the shapes in which vLLM and llama.cpp answer.

It is no vLLM: it is there so that a real model answers over real HTTP, with what was recorded of those programs'
answers.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from pydantic_core import to_json

from q36eval.engines import Engine, ScoreRequest, open_engine
from q36eval.engines.base import Generated, GenerationRequest
from tests.q36eval.scoring import log_probs_of

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"
NATS = 2e-5
"""Float32 logits written as the shortest decimal and normalised again: a few steps of float32."""
WAIT_SECONDS = 0.004
"""Answers whose questions come within so long are generated together."""

Waiting = tuple[GenerationRequest | ScoreRequest, Future[Any]]


@dataclass
class Served:
    """What is served and how. `shape` is the program whose answers are imitated."""

    engine: Engine
    name: str = "sandbox"
    shape: str = "vllm"
    max_logprobs: int = -1
    others_rows: bool = False
    """Whether a prompt's log-probabilities are those of other positions, as a vLLM that drafts gives them."""
    batch: int = 1
    """So many answers are generated, or texts scored, together; more than one moves near ties."""
    context: int = 4096
    version: str = "0.26.0"
    sglang_page: str = "/server_info"
    """Where a server of that shape gives its version."""
    started: float = field(default_factory=time.time)
    requests: int = 0
    lock: Any = field(default_factory=threading.Lock)
    waiting: list[Waiting] = field(default_factory=list)
    queue_lock: Any = field(default_factory=threading.Lock)
    lists: list[int] = field(default_factory=list)
    """How many prompts each request had that came with a list of them."""

    def ids_of(self, text: str) -> list[int]:
        """Token ids as the served tokenizer gives them."""
        return [int(token) for token in self.engine.tokenizer.encode(text, add_special_tokens=False)]

    def log_probs(self, ids: Sequence[int]) -> torch.Tensor:
        """Row t predicts `ids[t + 1]`: float32 [len(ids) - 1, V]."""
        scored = self._together(ScoreRequest("x", tuple(ids)))
        if scored.hidden_states is None:
            raise ValueError(scored.error)
        return self.engine.logits(scored.hidden_states).log_softmax(-1)

    def next_log_probs(self, ids: Sequence[int]) -> torch.Tensor:
        """The distribution after `ids`: float32 [V]."""
        return self.log_probs([*ids, 0])[-1]

    def generate(self, request: GenerationRequest) -> Generated:
        """An answer, computed together with others that wait."""
        return self._together(request)

    def _together(self, request: GenerationRequest | ScoreRequest) -> Any:
        """What comes of a request that is computed with others that wait."""
        computed = Future[Any]()
        with self.queue_lock:
            self.waiting.append((request, computed))
            if len(self.waiting) == 1:
                threading.Thread(target=self._work, daemon=True).start()
        return computed.result()

    def _work(self) -> None:
        """Compute what waits, batch by batch, until nothing does."""
        time.sleep(WAIT_SECONDS)
        with self.lock:
            while True:
                with self.queue_lock:
                    batch = self.waiting[: self.batch]
                try:
                    self._compute(batch)
                except Exception as error:  # whoever waits has to know
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                with self.queue_lock:
                    del self.waiting[: len(batch)]
                    if not self.waiting:
                        break

    def _compute(self, batch: Sequence[Waiting]) -> None:
        keyed = {str(n): entry for n, entry in enumerate(batch)}
        requests = [replace(request, key=key) for key, (request, _) in keyed.items()]
        scores = [request for request in requests if isinstance(request, ScoreRequest)]
        generations = [request for request in requests if isinstance(request, GenerationRequest)]
        for computed in (*self.engine.score(scores), *self.engine.generate(generations)):
            keyed[computed.request.key][1].set_result(computed)


class RefusedError(Exception):
    """What the server answers with status 400."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY: headers and body are two writes

    def do_GET(self) -> None:
        served = self.served
        if self.path == "/v1/models":
            owner = {"vllm": "vllm", "llama.cpp": "llamacpp", "sglang": "sglang"}.get(served.shape, "someone")
            card = {"id": served.name, "object": "model", "created": int(time.time()), "owned_by": owner}
            card |= {"root": f"/models/{served.name}", "max_model_len": served.context} if owner == "vllm" else {}
            card |= {"meta": {"n_ctx": served.context}} if owner == "llamacpp" else {}
            self._send(200, {"object": "list", "data": [card]})
        elif self.path == "/version" and served.shape == "vllm":
            self._send(200, {"version": served.version})
        elif self.path == "/props" and served.shape == "llama.cpp":
            self._send(200, {"build_info": served.version})
        elif self.path == "/metrics" and served.shape == "vllm":
            text = f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {served.started}\n"
            self._send(200, text.encode())
        elif self.path == "/metrics" and served.shape == "llama.cpp":
            self._send(501, {"error": {"message": "This server does not support metrics endpoint."}})
        elif self.path == served.sglang_page and served.shape == "sglang":
            self._send(200, {"model_path": "/models/x", "internal_states": [{}], "version": served.version})
        else:
            self._send(404, {"error": {"message": "Not Found"}})

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, body: Mapping[str, Any]) -> None:
        """Answer a request that was read."""
        served = self.served
        with served.queue_lock:
            served.requests += 1
        try:
            if self.path == "/tokenize" and served.shape in ("vllm", "llama.cpp"):
                ids = served.ids_of(body["prompt" if served.shape == "vllm" else "content"])
                self._send(200, {"tokens": ids, "count": len(ids), "max_model_len": served.context})
            elif self.path == "/v1/completions":
                self._send(200, completion(served, body))
            else:
                self._send(404, {"error": {"message": "Not Found"}})
        except RefusedError as error:
            self._send(400, {"error": {"message": str(error), "type": "BadRequestError", "code": 400}})

    def _send(self, status: int, content: Mapping[str, Any] | bytes) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if self.path == "/metrics" else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def completion(served: Served, body: Mapping[str, Any]) -> bytes:
    """The answer of `/v1/completions`, as JSON."""
    if body["model"] != served.name:
        raise RefusedError(f"The model `{body['model']}` does not exist.")
    prompt = body["prompt"]
    listed = bool(prompt) and isinstance(prompt[0], list)
    prompts = prompt if listed else [served.ids_of(prompt) if isinstance(prompt, str) else prompt]
    if listed and served.shape != "vllm":
        raise RefusedError("one prompt at a time")
    if max(map(len, prompts)) + body["max_tokens"] > served.context:
        raise RefusedError(f"This model's maximum context length is {served.context} tokens.")
    if listed:
        served.lists.append(len(prompts))
    for count in [body.get("prompt_logprobs"), body.get("logprobs")] if served.shape == "vllm" else []:
        if count is not None and served.max_logprobs >= 0 and (count < 0 or count > served.max_logprobs):
            raise RefusedError(
                f"Requested logprobs of {count}, which is greater than max allowed: {served.max_logprobs}"
            )
    rows = _rows_of(served, prompts) if served.shape == "vllm" and body.get("logprobs") is not None else {}
    choices = [_choice(served, body, ids, rows.get(tuple(ids))) for ids in prompts]
    asked, answered = sum(map(len, prompts)), sum(count for _, count, _ in choices)
    with served.queue_lock:
        number = served.requests
    answer = {
        "id": f"cmpl-{number}-{threading.get_ident()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
        "choices": [choice | {"index": index} for index, (choice, _, _) in enumerate(choices)],
        "usage": {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered},
    }
    written = to_json(answer)
    for _, _, positions in choices:
        written = written.replace(b'"prompt_logprobs":null', b'"prompt_logprobs": ' + positions, 1)
    return written


def _rows_of(served: Served, prompts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], torch.Tensor]:
    """What comes after each prompt; what is the beginning of another prompt is computed with it, as a prefix cache
    does."""
    rows: dict[tuple[int, ...], torch.Tensor] = {}
    for ids in sorted(map(tuple, prompts), key=len, reverse=True):
        if ids in rows:
            continue
        log_probs = served.log_probs([*ids, 0])
        begun = [other for other in map(tuple, prompts) if other == ids[: len(other)]]
        rows |= {other: log_probs[len(other) - 1] for other in begun}
    return rows


def _choice(
    served: Served, body: Mapping[str, Any], ids: list[int], row: torch.Tensor | None
) -> tuple[dict[str, Any], int, bytes]:
    """The answer to one prompt, its tokens' count, and its prompt's log-probabilities as JSON."""
    budget = body["max_tokens"]
    choice: dict[str, Any] = {"index": 0, "logprobs": None}
    written = b"null"
    is_vllm = served.shape == "vllm"
    if is_vllm and body.get("echo"):
        return _echoed(served, body, ids)
    in_prompt = body.get("prompt_logprobs") if is_vllm else None
    if in_prompt is not None:
        rows = served.log_probs(ids)  # not with a token more, which moves BF16
        rows = rows.roll(1, 0) if served.others_rows else rows
        row = served.next_log_probs(ids)
        positions = [_position(each, in_prompt, token) for each, token in zip(rows, ids[1:], strict=True)]
        written = b"[" + b",".join([b"null", *positions]) + b"]"
    if budget == 1 and row is not None:
        token = int(row.argmax())
        generated = Generated(
            GenerationRequest("x", tuple(ids), 1), (token,), served.engine.tokenizer.decode([token]), "length"
        )
        if body.get("logprobs") is not None:
            top = entry_of(row, body["logprobs"], token)
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}"],
                "token_logprobs": [float(row[token])],
                "top_logprobs": [{f"token_id:{name}": value for name, (value, _) in top.items()}],
                "text_offset": [0],
            }
    else:
        request = GenerationRequest(
            "x",
            tuple(ids),
            budget,
            tuple(body.get("stop") or ()),
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 1.0),
            top_k=max(0, body.get("top_k") or 0),
            seed=body.get("seed") or 0,
            presence_penalty=body.get("presence_penalty", 0.0),
        )
        generated = served.generate(request)
        if generated.error is not None:
            raise RefusedError(generated.error)
    tokens = [*generated.token_ids, *([] if generated.end_id is None else [generated.end_id])]
    choice |= {"text": generated.text, "finish_reason": generated.finish_reason, "stop_reason": generated.end_id}
    if is_vllm and body.get("return_token_ids"):
        choice |= {"token_ids": tokens, "prompt_token_ids": ids}
    return choice | {"prompt_logprobs": None}, len(tokens), written


def _echoed(served: Served, body: Mapping[str, Any], ids: list[int]) -> tuple[dict[str, Any], int, bytes]:
    """The prompt and one token more, each with its log-probability and by text the likeliest, as lm-eval reads it."""
    after = served.next_log_probs(ids)
    rows, tokens = [*served.log_probs(ids), after], [*ids, int(after.argmax())]
    texts = [served.engine.tokenizer.decode([token]) for token in tokens]
    tops: list[dict[str, float] | None] = [None]
    for row, token in zip(rows, tokens[1:], strict=True):
        entry = entry_of(row, body["logprobs"], token)
        tops.append({served.engine.tokenizer.decode([name]): value for name, (value, _) in reversed(entry.items())})
    scores = [None, *(float(row[token]) for row, token in zip(rows, tokens[1:], strict=True))]
    offsets = [len("".join(texts[:place])) for place in range(len(texts))]
    logprobs = {"tokens": texts, "token_logprobs": scores, "top_logprobs": tops, "text_offset": offsets}
    choice = {"text": "".join(texts), "logprobs": logprobs, "finish_reason": "length", "stop_reason": None}
    return choice | {"prompt_logprobs": None}, 1, b"null"


def entry_of(row: torch.Tensor, count: int, token: int) -> dict[int, tuple[float, int]]:
    """One position, as vLLM orders it: the token itself, then the likeliest, `count` of them or (-1) all.

    By token the log-probability and the rank.
    """
    size = len(row) if count < 0 else min(count, len(row))
    values, ids = row.clamp(min=-9999.0).topk(size)
    entry = {token: (max(float(row[token]), -9999.0), int((row > row[token]).sum()) + 1)}
    for place, (name, value) in enumerate(zip(ids.tolist(), values.tolist(), strict=True), 1):
        entry.setdefault(name, (value, place))
    return entry


def _position(row: torch.Tensor, count: int, token: int) -> bytes:
    """The JSON of one position; tens of millions of entries are written in a gate."""
    entry = entry_of(row, count, token)
    return to_json({name: {"logprob": value, "rank": rank} for name, (value, rank) in entry.items()})


class ManyAtOnce(ThreadingHTTPServer):
    """One that lets as many connections wait as are opened at once: on a loaded machine five, the default, are few."""

    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is what tests have: it is not printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """That handler in threads of this process; gives its address."""
    server = ManyAtOnce(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serving(served: Served, handles: type[Handler] = Handler) -> Iterator[str]:
    """The server in threads of this process; gives its address."""
    with listening(type("Handler", (handles,), {"served": served})) as root:
        yield f"{root}/v1"


def log_probs(engine: Engine, request: ScoreRequest) -> torch.Tensor:
    """What an engine scores of a request: float32 [rows, V]."""
    return log_probs_of(engine, [request])[request.key]


def opened(folder: Path) -> Engine:
    """The in-process engine of that folder, which starts no processes of its own: this one has threads."""
    engine = open_engine(folder)
    engine._workers = lambda: 1  # type: ignore[attr-defined]
    return engine
