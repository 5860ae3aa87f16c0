"""Requests to a server over HTTP: timeouts, retries with jitter, budgets. An answer counts once it is read.

Retries are safe: a request changes nothing at the server, and exactly one answer is returned.
"""

import email.utils
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic_core import from_json

from q36eval.deadline import within
from q36eval.errors import EngineError, UsageError
from q36eval.redaction import redacted

BASE_URL, API_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
END_OF_STREAM = "[DONE]"
API = ("/models", "/completions", "/chat/completions")
"""The pages that need a key. Another page (counters, a tokenizer) that is denied counts as missing."""
SAID_CHARACTERS = 200
"""The maximum length of a server's error message that is repeated."""

ValueT = TypeVar("ValueT")
Read = Callable[[Any], ValueT]
"""Converts an answer's JSON to a value, or raises `MalformedError`."""


class MalformedError(Exception):
    """An answer that does not match its request: cut, of the wrong length, of other tokens. The request is repeated."""


LEFT_OPEN_SECONDS = 1.0
"""A connection closed between two requests fails immediately; a later failure means it closed during a request."""
NOT_IMPLEMENTED = 501
"""llama-server's status for a page that it was started without; a retry does not help."""


class RefusedError(Exception):
    """The server refuses (status 4xx, or 501: not implemented): a retry would not help."""


class NoAnswerError(Exception):
    """All attempts failed; a later attempt may succeed."""


class TooLongError(NoAnswerError):
    """An answer with more bytes than the request allows; a retry would only read them again."""


class _LeftOpenError(Exception):
    """The server had closed the connection used for a request, as it may between two requests: llama-server does after
    every hundred."""


class _UnwellError(Exception):
    """A status for a later retry: overloaded, restarting, broken. `wait` is the server's request, in seconds."""

    def __init__(self, text: str, wait: float | None, throttled: bool) -> None:
        super().__init__(text)
        self.wait, self.throttled = wait, throttled


@dataclass(frozen=True)
class Address:
    """The address of a server; `base` usually ends in `/v1`. The key is sent only to the server."""

    base: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def named(cls, base_url: str | None) -> "Address":
        """The address of the option, else of the environment; the key is the environment's.

        Raises:
            UsageError: it is missing, is not an http address, or contains a password.
        """
        base = (base_url or os.environ.get(BASE_URL, "")).strip().rstrip("/")
        if not base:
            raise UsageError(
                "server-address-missing",
                f"The engine openai needs the server's address: name it with --base-url, or set {BASE_URL}.",
            )
        try:
            parts = urlsplit(base)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
            httpx.URL(base).host.encode("idna")  # what it would be looked up by
        except (ValueError, httpx.InvalidURL):
            usable = False
        if usable and (parts.username is not None or parts.password is not None):
            raise UsageError(
                "server-address-invalid",
                f"The server's address contains a password; remove it and set {API_KEY} instead.",
            )
        if not usable or parts.query or parts.fragment:
            raise UsageError(
                "server-address-invalid",
                "The server's address must be an http address without a query, such as http://127.0.0.1:8000/v1.",
            )
        return cls(base, os.environ.get(API_KEY) or None)

    @property
    def root(self) -> str:
        """The address without its version, for pages outside the API."""
        return self.base.removesuffix("/v1")


@dataclass(frozen=True)
class Limits:
    """Waiting times, in seconds, and numbers of requests."""

    connect: float = 10.0
    silence: float = 600.0
    """Between two bytes: a queued request is silent until its turn."""
    answer: float = 3600.0
    """Until an answer is complete, however slowly it arrives."""
    attempts: int = 6
    first_pause: float = 0.5
    longest_pause: float = 30.0
    longest_wait: float = 300.0
    """Maximum of a server's Retry-After."""
    give_up: float = 600.0
    """Without a single answer."""
    answer_bytes: int = 2**31
    """For any answer, whatever was requested (`expected_bytes` bounds each by its request)."""
    spare_requests: int = 1000
    """The total of requests may be three times the answers, plus this many."""


PAGE_BYTES = 2**24
"""For an answer without tokens: a list of models, a page of counters, an error message."""
TOKEN_BYTES = 2**12
"""For a generated token: its text, its id, and the event of a stream around it."""
ENTRY_BYTES = 2**8
"""For one log-probability: token, rank, text and number; and for a returned prompt id."""


def expected_bytes(body: Mapping[str, Any] | None, vocabulary: int | None) -> int:
    """A generous upper bound on the bytes of the answer to such a request."""
    if body is None:
        return PAGE_BYTES
    if "input_ids" in body:  # SGLang's own scoring
        places = len(body["input_ids"]) - int(body["logprob_start_len"]) + 1
        listed = int(body["top_logprobs_num"]) + len(body.get("token_ids_logprob", ()))
        return PAGE_BYTES + places * (2 + listed) * ENTRY_BYTES
    prompt = body.get("prompt", "")
    prompts = prompt if prompt and isinstance(prompt[0], list | tuple) else [prompt]
    read, generated = sum(map(len, prompts)), len(prompts) * int(body.get("max_tokens") or 0)
    all_of_them = vocabulary or PAGE_BYTES
    in_prompt, after = (body.get(name) or 0 for name in ("prompt_logprobs", "logprobs"))
    entries = read * (2 + (in_prompt if in_prompt >= 0 else all_of_them))
    entries += generated * (2 + (int(after) if after >= 0 else all_of_them))
    return PAGE_BYTES + entries * ENTRY_BYTES + generated * TOKEN_BYTES


class Meter(Protocol):
    """Counts the requests to a server. Its exceptions end the request, and do not count as failed attempts."""

    def before(self, body: Mapping[str, Any] | None) -> None:
        """Called before an attempt with that body; None for a page that is only read."""

    def after(self, status: int, seconds: float, retry_after: float | None, content: bytes) -> None:
        """Called after its answer."""


class Client:
    """Requests to one server, from any number of threads.

    `pause` waits between attempts; `meter` sees each of them.
    """

    def __init__(
        self,
        address: Address,
        limits: Limits | None = None,
        pause: Callable[[float], object] = time.sleep,
        meter: Meter | None = None,
    ) -> None:
        self.address, self._limits, self._pause, self._meter = address, limits or Limits(), pause, meter
        timeout = httpx.Timeout(self._limits.silence, connect=self._limits.connect, pool=None)
        headers = {"Accept-Encoding": "identity"}  # compressed data has no size bound before decompression
        headers |= {} if address.key is None else {"Authorization": f"Bearer {address.key}"}
        connections = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.Client(timeout=timeout, headers=headers, limits=connections)
        self._lock = threading.Lock()
        self._last_answer = time.monotonic()
        self._failures = self._sent = self._answered = 0
        self.unsound, self.unsound_last = 0, ""
        """Attempts that ended with a server error or an invalid answer: after a retry no answer shows them."""
        self._jitter = random.Random()
        self.vocabulary: int | None = None
        """Size of the served model's vocabulary, if known: it bounds an answer about all tokens."""

    def close(self) -> None:
        """Close all connections, including active ones."""
        self._http.close()

    def get(self, url: str, read: Read[ValueT]) -> ValueT:
        """As `post`, for read-only pages."""
        return self._asked("GET", url, None, read)

    def post(self, url: str, body: Mapping[str, Any], read: Read[ValueT], attempts: int | None = None) -> ValueT:
        """The result of `read` on the answer's JSON, in at most `attempts` attempts.

        Raises:
            RefusedError: the server refuses.
            NoAnswerError: all attempts failed.
            EngineError: the key is refused, the server has not answered for too long, or a budget is spent.
        """
        return self._asked("POST", url, body, read, attempts=attempts)

    def post_events(self, url: str, body: Mapping[str, Any], read: Callable[[list[Any]], ValueT]) -> ValueT:
        """As `post`, for a streamed answer: `read` receives its events once the last one marks its end."""
        return self._asked("POST", url, body, lambda text: read(_events(text)), is_text=True)

    def lines(self, url: str) -> list[str]:
        """The lines of a text; none if the server has no such page.

        Raises:
            NoAnswerError, EngineError: as `post`.
        """
        try:
            return self._asked("GET", url, None, str.splitlines, is_text=True)
        except RefusedError:
            return []

    def _asked(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        read: Callable[[Any], ValueT],
        *,
        is_text: bool = False,
        attempts: int | None = None,
    ) -> ValueT:
        last, most = "", attempts or self._limits.attempts
        for attempt in range(most):
            self._count_attempt()
            wait: float | None = None
            try:
                content = within(self._limits.answer, partial(self._content, method, url, body))
                value = read(content.decode("utf-8") if is_text else _json(content))
            except RefusedError:
                self._succeeded()
                raise
            except TooLongError as error:
                self._failed(unsound=str(error))
                raise
            except _UnwellError as error:
                last, wait = str(error), error.wait
                self._failed(counts=not error.throttled, unsound="" if error.throttled else last)
            except _LeftOpenError as error:
                last = str(error)
                self._failed(counts=False, unsound="")
                continue
            except TimeoutError:
                last = f"the answer was not whole after {self._limits.answer:.0f} s"
                self._failed(unsound=last)
            except (MalformedError, httpx.HTTPError, UnicodeDecodeError) as error:
                last = self._hidden(f"{type(error).__name__.removesuffix('Error')}: {error}".rstrip(": "))
                self._failed(unsound="" if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else last)
            else:
                self._succeeded()
                return value
            if attempt + 1 < most:
                self._pause(self._until_next(attempt, wait))
        raise NoAnswerError(f"no usable answer in {most} attempts; the last: {last}")

    def _until_next(self, attempt: int, wanted: float | None) -> float:
        """Full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), plus the server's
        requested wait."""
        with self._lock:
            jitter = self._jitter.uniform(0.0, min(self._limits.longest_pause, self._limits.first_pause * 2.0**attempt))
        return jitter + min(wanted or 0.0, self._limits.longest_wait)

    def _count_attempt(self) -> None:
        """Called before another request.

        Raises:
            EngineError: no answer for too long, or a budget is spent.
        """
        with self._lock:
            self._sent += 1
            silent, sent, answered = time.monotonic() - self._last_answer, self._sent, self._answered
            failures = self._failures
        if failures and silent > self._limits.give_up:
            spent = f"has given no usable answer for {silent:.0f} s"
        elif sent > 3 * answered + self._limits.spare_requests:
            spent = f"took {sent:,} requests for {answered:,} answers"
        else:
            return
        raise EngineError(
            "server-given-up", f"The server {self.address.base} {spent}; nothing more is requested of it."
        )

    def _failed(self, *, counts: bool = True, unsound: str) -> None:
        """`unsound` describes an invalid answer; empty if the server only requested a wait."""
        with self._lock:
            self._failures += counts
            self.unsound += bool(unsound)
            self.unsound_last = unsound or self.unsound_last

    @property
    def sent(self) -> int:
        """Attempts so far."""
        return self._sent

    def _succeeded(self) -> None:
        with self._lock:
            self._failures, self._answered, self._last_answer = 0, self._answered + 1, time.monotonic()

    def _content(self, method: str, url: str, body: Mapping[str, Any] | None) -> bytes:
        """The answer's bytes, complete and in time."""
        if self._meter is not None:
            self._meter.before(body)
        began = time.monotonic()
        deadline, parts, size = began + self._limits.answer, [], 0
        most = min(self._limits.answer_bytes, expected_bytes(body, self.vocabulary))
        with self._responding(method, url, body) as response:
            if encoding := response.headers.get("content-encoding"):
                raise MalformedError(f"the answer is compressed ({encoding}), which was not asked for")
            for part in response.iter_bytes():
                size += len(part)
                parts.append(part)
                if time.monotonic() > deadline:
                    raise TimeoutError
                if size > most:
                    raise TooLongError(f"the answer has more than {most:,} bytes, too many for this request")
        content = b"".join(parts)
        status = response.status_code
        wait = _retry_after(response.headers.get("retry-after"))
        if self._meter is not None:
            self._meter.after(status, time.monotonic() - began, wait, content)
        if status < 300:
            return content
        said = f"status {status}: {self._hidden(_said(content))}".rstrip(": ")
        if status in (401, 403) and url.removeprefix(self.address.base) in API:
            raise EngineError(
                "server-refused", f"The server {self.address.base} refuses the key ({said}); set {API_KEY}."
            )
        if status in (408, 409, 425, 429) or (status >= 500 and status != NOT_IMPLEMENTED):
            raise _UnwellError(said, wait, status in (429, 503))
        raise RefusedError(said)

    @contextmanager
    def _responding(self, method: str, url: str, body: Mapping[str, Any] | None) -> Iterator[httpx.Response]:
        """The response, once its headers arrived."""
        connected, began = [], time.monotonic()

        def trace(event: str, _: Any) -> None:
            if event == "connection.connect_tcp.started":
                connected.append(event)

        with ExitStack() as stack:
            try:
                streaming = self._http.stream(method, url, json=body, extensions={"trace": trace})
                response = stack.enter_context(streaming)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                if connected or time.monotonic() - began > LEFT_OPEN_SECONDS:
                    raise
                raise _LeftOpenError(f"the server had ended the connection: {self._hidden(str(error))}") from error
            yield response

    def _hidden(self, text: str) -> str:
        """The beginning of a text, without the key, in case a server repeats it: cut first it would not be found."""
        return redacted(text, self.address.key or "")[:SAID_CHARACTERS]


def _json(content: bytes) -> Any:
    """Whole vocabularies have millions of entries: parsed in Rust, with shared names, they take a third of the time."""
    try:
        return from_json(content, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise MalformedError(f"the answer is not JSON ({len(content):,} bytes): {error}") from error


def _events(text: str) -> list[Any]:
    """The JSON of every `data:` line of server-sent events (HTML standard, section 9.2), without the closing mark."""
    lines = re.split(r"\r\n|\n|\r", text)  # no other character ends a line: JSON may contain them
    said = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    if not said or said[-1] != END_OF_STREAM:
        raise MalformedError(f"the stream ends without {END_OF_STREAM}")
    return [_json(event.encode()) for event in said[:-1]]


def _said(content: bytes) -> str:
    """An error body's message, in one line."""
    text = content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
        error = body.get("error", body) if isinstance(body, dict) else body
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, RecursionError):
        pass
    return " ".join(text.split())


def _retry_after(value: str | None) -> float | None:
    """Seconds from a header of seconds or a date (RFC 9110, section 10.2.3); None if it is not usable."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
