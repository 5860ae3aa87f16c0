"""The budget of requests and tokens, charged on disk before a request is sent, and the back-off from a busy server.

A request is charged with its maximum cost: its prompt, and all tokens that it allows. The unused part is refunded with
the answer; a kill in between loses the refund, never the charge. If a server counts more, its count is charged, within
limits.
"""

import json
import re
import statistics
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from q36eval.watch.settings import BackOff, Budget
from q36eval.watch.store import Store

Reason = Literal["throttled", "latency", "budget", "spool", "disk"]
TEMPLATE_TOKENS = 2048
"""The tokens that a server's chat template may add: its instructions for tools, and marks around each turn."""
FEWEST_TIMED = 4
"""The minimum of answers before a round counts as slow."""
REMEMBERED = 20
"""Rounds in the baseline of latency."""
_USED = re.compile(rb'"(prompt|completion)_tokens"\s*:\s*(\d+)')


class PutOffError(Exception):
    """The round ends here and does not count; `wait` is the server's requested pause (s)."""

    def __init__(self, reason: Reason, words: str, wait: float = 0.0) -> None:
        super().__init__(words)
        self.reason, self.wait = reason, wait


def most_tokens(body: Mapping[str, Any] | None) -> int:
    """The maximum tokens of a request. A text has at most as many as it has bytes."""
    if body is None:
        return 0
    prompt = body.get("prompt", body.get("content", ""))
    if "messages" in body:
        said = json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)
        read = len(said.encode()) + TEMPLATE_TOKENS
    else:
        read = len(prompt.encode()) if isinstance(prompt, str) else least_tokens(body)
    return read + int(body.get("max_tokens") or 0)


def least_tokens(body: Mapping[str, Any] | None) -> int:
    """The minimum tokens of a request, whatever the server counts."""
    prompt = (body or {}).get("prompt")
    if not isinstance(prompt, list | tuple) or not prompt:
        return 0
    return sum(map(len, prompt)) if isinstance(prompt[0], list | tuple) else len(prompt)


class Gauge:
    """Runs before and after every request: checks the budget, then the server's load shown by the answer.

    `baseline_s` is the usual time per generated token in seconds; None until a few rounds are known.
    """

    def __init__(self, store: Store, budget: Budget, back_off: BackOff, now: Callable[[], datetime]) -> None:
        self._store, self._budget, self._back_off, self._now = store, budget, back_off, now
        self._reserved = self._uncounted = self._sent = 0
        self._reserved_day, self._generates = "", False
        self.requests = self.tokens = 0
        self._timed: list[float] = []
        self.medians: list[float] = json.loads(store.kept("latencies") or "[]")

    @property
    def baseline_s(self) -> float | None:
        """The median of the newest measured rounds' medians."""
        return statistics.median(self.medians) if len(self.medians) >= 3 else None

    @property
    def latency_ratio(self) -> float | None:
        """This round's time per token over the baseline."""
        base = self.baseline_s
        return None if base is None or base <= 0 or not self._timed else statistics.median(self._timed) / base

    def begin(self, worst: tuple[int, int]) -> None:
        """Begin a round that may cost that many requests and tokens.

        Raises:
            PutOffError: today's remaining budget is too small.
        """
        self.requests = self.tokens = 0
        self._timed = []
        day = self._day()
        spent = self._store.spent(day)
        left = (self._budget.requests_per_day - spent.requests, self._budget.tokens_per_day - spent.tokens)
        if worst[0] > left[0] or worst[1] > left[1]:
            raise PutOffError(
                "budget",
                f"today's budget has {max(0, left[0]):,} requests and {max(0, left[1]):,} tokens left; a round may "
                f"take {worst[0]:,} and {worst[1]:,}",
            )

    def room(self) -> tuple[int, int]:
        """The requests and tokens remaining for this round."""
        return self._budget.requests_per_round - self.requests, self._budget.tokens_per_round - self.tokens

    def before(self, body: Mapping[str, Any] | None) -> None:
        """Charge a request, on the disk.

        Raises:
            PutOffError: it may exceed the round's or the day's budget. Nothing was charged, and nothing may be sent.
            StorageError: the disk does not keep the charge.
        """
        tokens, day, budget = most_tokens(body), self._day(), self._budget
        with self._store.transaction():
            spent = self._store.spent(day)
            for charged, limit, words in (
                (self.requests + 1, budget.requests_per_round, "a round may take {:,} requests"),
                (self.tokens + tokens, budget.tokens_per_round, "a round may take {:,} tokens"),
                (spent.requests + 1, budget.requests_per_day, "{:,} requests a day are spent"),
                (spent.tokens + tokens, budget.tokens_per_day, "{:,} tokens a day are spent"),
            ):
                if charged > limit:
                    raise PutOffError("budget", words.format(limit))
            self._store.spend(day, 1, tokens)
            self._store.count("budget_requests")
            self._store.count("budget_tokens", by=self._uncounted)
        self.requests, self.tokens = self.requests + 1, self.tokens + tokens
        self._reserved = self._uncounted = tokens
        self._reserved_day = day
        self._sent = least_tokens(body)
        self._generates = int((body or {}).get("max_tokens") or 0) > 1

    def after(self, status: int, seconds: float, retry_after: float | None, content: bytes) -> None:
        """Refund the unused part, and check the server's load.

        Raises:
            PutOffError: it is throttled, or has become slow.
            StorageError: the disk does not store the refund.
        """
        used = dict(_USED.findall(content)) if status < 300 else {}
        completion = int(used[b"completion"]) if b"completion" in used else None
        if b"prompt" in used and completion is not None:
            # a server's count is limited: not less than was sent, nor more than any template can add
            told = max(self._sent, int(used[b"prompt"]) + completion)
            actual = min(self._reserved + TEMPLATE_TOKENS, told)
            with self._store.transaction():
                self._store.spend(self._reserved_day, 0, actual - self._reserved)
            self.tokens += actual - self._reserved
            self._reserved = self._uncounted = actual
        if status in (429, 503):
            wait = max(retry_after or 0.0, 1.0)
            raise PutOffError("throttled", f"the server answers with status {status}", wait)
        if completion is not None and self._generates:
            self._timed.append(seconds / (1 + completion))
            self._look_at_latency()

    def _look_at_latency(self) -> None:
        ratio = self.latency_ratio
        if len(self._timed) < FEWEST_TIMED or ratio is None or ratio <= self._back_off.latency_multiple:
            return
        if statistics.median(self._timed) > self._back_off.latency_floor_s:
            words = f"the server takes {ratio:.1f} times as long for a token as it did"
            raise PutOffError("latency", words)

    def end(self) -> None:
        """Count the tokens of the last request. Within a transaction of the store."""
        self._store.count("budget_tokens", by=self._uncounted)
        self._uncounted = 0

    def measured(self) -> None:
        """The round was measured: its time per token belongs to the baseline. Within a transaction of the store."""
        if self._timed:
            self.medians = [*self.medians, statistics.median(self._timed)][-REMEMBERED:]
            self._store.keep("latencies", json.dumps(self.medians))

    def _day(self) -> str:
        return f"{self._now():%Y-%m-%d}"
