"""A proxy on loopback that does to answers what networks and servers do, one fault at a time.

`Proxy.fault` names the fault, `Proxy.times` says how often each request meets it; then it is passed on unharmed.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import httpx

from tests.q36eval.openai.server import ManyAtOnce


class Proxy:
    """What it does to whom; `met` counts the faults by request."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.removesuffix("/v1")
        self.fault: str | None = None
        self.times = 1
        self.retry_after = "0"
        self.met: Counter[tuple[str, bytes]] = Counter()
        self.passed = 0
        self.foreign = b"{}"
        """An answer to a prompt of nobody here."""
        self.lock = threading.Lock()
        self.http = httpx.Client(timeout=120.0, limits=httpx.Limits(max_connections=None))

    def fault_of(self, path: str, body: bytes) -> str | None:
        """The fault that this request meets now; only what is asked of the model meets any."""
        with self.lock:
            if self.fault is None or path != "/v1/completions" or self.met[self.fault, body] >= self.times:
                return None
            self.met[self.fault, body] += 1
            return self.fault


def _choice(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda answer: change(answer["choices"][0])


def _shifted(choice: dict[str, Any]) -> None:
    """As by a server whose echo is off by one: each position has the log-probabilities of the one before it."""
    if choice.get("prompt_logprobs"):
        given = choice["prompt_logprobs"]
        choice["prompt_logprobs"] = [None, given[1], *given[1:-1]]
    else:
        choice["token_ids"] = choice["token_ids"][1:]


def _fewer(choice: dict[str, Any]) -> None:
    if choice.get("prompt_logprobs"):
        choice["prompt_logprobs"] = choice["prompt_logprobs"][:-1]
    else:
        choice["token_ids"] = choice["token_ids"][:-1]


def _thinner(choice: dict[str, Any]) -> None:
    """One token of a position is missing."""
    if choice.get("prompt_logprobs"):
        choice["prompt_logprobs"][-1].popitem()
    else:
        choice["token_ids"] = [10**6, *choice["token_ids"][1:]]


def _heavier(choice: dict[str, Any]) -> None:
    """Log-probabilities that are none."""
    if choice.get("prompt_logprobs"):
        for entry in choice["prompt_logprobs"][-1].values():
            entry["logprob"] += 0.5
    else:
        choice["finish_reason"] = "abort"


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "wrong prompt count": lambda answer: answer["usage"].update(prompt_tokens=answer["usage"]["prompt_tokens"] + 1),
    "wrong answer count": lambda answer: answer["usage"].update(completion_tokens=10**6),
    "no choice": lambda answer: answer["choices"].clear(),
    "two choices": lambda answer: answer["choices"].append(answer["choices"][0]),
    "null text": _choice(lambda choice: choice.update(text=None)),
    "nothing that was requested": _choice(
        lambda choice: choice.update(prompt_logprobs=None, logprobs=None, token_ids=None)
    ),
    "shifted": _choice(_shifted),
    "a position missing": _choice(_fewer),
    "a token missing": _choice(_thinner),
    "no distribution": _choice(_heavier),
    "another model": lambda answer: answer.update(model="gpt-oss"),
}
"""Faults of what is said, as changes of the answer."""

WIRE = (
    "dropped",
    "cut",
    "truncated",
    "dripping",
    "doubled",
    "no JSON",
    "429",
    "500",
    "503",
    "answer to another prompt",
)
"""Faults of how it is said."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *arguments: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self._passed_on(b"")

    def do_POST(self) -> None:
        self._passed_on(self.rfile.read(int(self.headers["Content-Length"])))

    def _passed_on(self, body: bytes) -> None:
        proxy = self.proxy
        fault = proxy.fault_of(self.path, body)
        if fault == "dropped":
            self.close_connection = True
            return
        if fault == "401":
            self._send(401, json.dumps({"error": f"no such key: {self.headers['Authorization']}"}).encode(), {})
            return
        if fault in ("429", "500", "503"):
            self._send(int(fault), b'{"error": {"message": "try later"}}', {"Retry-After": proxy.retry_after})
            return
        headers = {"Content-Type": "application/json"} if body else {}
        answer = proxy.http.request(self.command, proxy.upstream + self.path, content=body or None, headers=headers)
        content = answer.content
        if fault is None:
            with proxy.lock:
                proxy.passed += 1
        elif fault in CHANGES:
            said = json.loads(content)
            CHANGES[fault](said)
            content = json.dumps(said).encode()
        self._send(answer.status_code, content, {}, fault)

    def _send(self, status: int, content: bytes, headers: dict[str, str], fault: str | None = None) -> None:
        if fault == "truncated":
            content = content[: len(content) // 2]
        elif fault == "doubled":
            content = content + content
        elif fault == "no JSON":
            content = b"<html>upstream timed out</html>"
        elif fault == "answer to another prompt":
            content = self.proxy.foreign
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if fault == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        if fault == "dripping":
            self._drip(content)
            return
        self.wfile.write(content)

    def _drip(self, content: bytes) -> None:
        """A byte now and then, for as long as the client stays."""
        self.close_connection = True
        waiting = threading.Event()
        try:
            for byte in content:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                if waiting.wait(0.05):
                    return
        except OSError:
            return


@contextmanager
def proxied(upstream: str) -> Iterator[tuple[Proxy, str]]:
    """The proxy before that server, and its address."""
    proxy = Proxy(upstream)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    server = ManyAtOnce(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy, f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        proxy.http.close()
