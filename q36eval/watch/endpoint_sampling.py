"""One endpoint, queried within the budget: opened briefly, checked before each round, reopened after a restart.

One request at a time, and with the lowest priority if the server supports priorities.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from q36eval.engines import EngineOptions
from q36eval.engines.openai.answers import completion_of
from q36eval.engines.openai.capabilities import FEW, body_of
from q36eval.engines.openai.client import Limits, MalformedError, NoAnswerError, RefusedError
from q36eval.engines.openai.deployment import OPENAI, Opened, opened
from q36eval.engines.openai.endpoint import Continuation, Endpoint, fresh_salt
from q36eval.engines.openai.flavour import VLLM
from q36eval.errors import EngineError
from q36eval.served.differentials import asked
from q36eval.watch.budget import Gauge

LIMITS = Limits(connect=5.0, silence=60.0, answer=120.0, attempts=2, first_pause=1.0, longest_pause=5.0, give_up=600.0)
"""A failed request is repeated once: an overloaded server is left alone (`budget.Gauge`), not queried again."""
OPENING_REQUESTS, OPENING_TOKENS = 14, 2_000
"""The maximum requests and tokens for opening an endpoint."""
LOWEST_PRIORITY = 1_000
"""vLLM's scheduler takes the smallest number first; other clients' requests have 0."""
ROUNDED_UP = 1e-3
"""The error in nats by which rounding may raise a certain token above 1."""
LEAST_MASS = 1e-6
"""The probability of unlisted tokens: rounding leaves less than this."""

Row = Mapping[int, float]
"""Log-probabilities of a position's likeliest tokens."""


def coarse_kl(baseline: Row, now: Row) -> float:
    """A lower bound of KL(baseline || now) in nats, from the listed most likely tokens of each.

    Common tokens count separately, and tokens that neither lists count as one outcome: merging outcomes never raises a
    divergence (Cover & Thomas 2006, theorem 2.7.1). The present probability of a token listed only in the baseline is
    at most that of the least likely listed one, and at most the unlisted total: the smallest divergence within these
    bounds is used.
    """
    both, gone = baseline.keys() & now.keys(), baseline.keys() - now.keys()
    total = math.fsum(math.exp(baseline[token]) * (baseline[token] - now[token]) for token in both)
    p_rest = max(LEAST_MASS, 1.0 - math.fsum(map(math.exp, baseline.values())))
    q_rest = max(LEAST_MASS, 1.0 - math.fsum(math.exp(now[token]) for token in both))
    unlisted = max(LEAST_MASS, 1.0 - math.fsum(map(math.exp, now.values())))
    # a list also contains the prompt's own token, which gives no bound for unlisted ones
    most = min(unlisted, *map(math.exp, sorted(now.values(), reverse=True)[:FEW]))
    # the remaining mass goes to tokens in proportion to their baseline, except those that would exceed their bound
    lost = sorted((math.exp(baseline[token]) for token in gone), reverse=True)
    for place, p in enumerate(lost):
        free = p_rest + math.fsum(lost[place:])
        if p * q_rest / free <= most:
            p_rest = free
            break
        total += p * math.log(p / most)
        q_rest = max(LEAST_MASS, q_rest - most)
    return max(0.0, total + p_rest * math.log(p_rest / q_rest))


def _log_prob(given: object) -> float:
    """A log-probability, as a number; of the least likely tokens servers write any very small one.

    Raises:
        ValueError: it is none.
    """
    if isinstance(given, bool) or not isinstance(given, int | float) or not -math.inf < given <= ROUNDED_UP:
        raise ValueError(f"{given!r} is no log-probability")
    return min(0.0, float(given))


class Asker:
    """Opens the endpoint at first use, and keeps it until the server changes.

    `changed` is called once for each replacement of the server: with a description of the old and the new one.
    """

    def __init__(
        self, folder: Path, base_url: str | None, served_model: str | None, gauge: Gauge, changed: Callable[[str], None]
    ) -> None:
        self._settings = EngineOptions(kind=OPENAI, base_url=base_url, served_model=served_model).of(folder)
        self._gauge, self._changed = gauge, changed
        self._there: Opened | None = None
        self._endpoint: Endpoint | None = None
        self._more: dict[str, Any] = {}
        self._was: str | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint that `look` found."""
        if self._endpoint is None:
            raise EngineError("engine-not-opened", "The endpoint was not opened.")
        return self._endpoint

    @property
    def scores(self) -> bool:
        """Whether it gives log-probabilities of a prompt's tokens."""
        return self._there is not None and self._there.can.top_k is not None

    def room(self) -> tuple[int, int]:
        """Requests and tokens that the round may still take."""
        return self._gauge.room()

    def look(self) -> str:
        """Identify the present server: its name. An unchanged one costs three requests.

        Raises:
            UsageError: no such model, or another tokenizer than the branch's.
            EngineError: it does not answer.
        """
        if self._endpoint is not None:
            try:
                self._endpoint.confirm()
                return self._endpoint.name
            except EngineError:
                self.close()
        self._there = opened(self._settings, LIMITS, meter=self._gauge, briefly=True)
        self._endpoint = Endpoint(self._there, self._settings)
        self._more = self._priority()
        server = self._endpoint.server
        now = f"{self._endpoint.name}, started {server.started or 'at an unknown time'}"
        if self._was is not None and self._was != now:
            self._changed(f"the server was {self._was}; it is {now}")
        self._was = now
        return self._endpoint.name

    def _priority(self) -> dict[str, Any]:
        """The request fields for low priority; empty if the server does not support them."""
        endpoint = self.endpoint
        if endpoint.server.flavour != VLLM:
            return {}
        more: dict[str, Any] = {"priority": LOWEST_PRIORITY}
        with suppress(RefusedError, NoAnswerError):
            endpoint.complete(endpoint.tokenizer.encode("1", add_special_tokens=False), 1, **more)
            return more
        return {}

    def complete(
        self, ids: Sequence[int], budget: int, *, salt: str | None = None, stream: bool = False
    ) -> "Continuation | str":
        """The greedy continuation, or the reason for none."""
        return asked(
            lambda: self.endpoint.complete(ids, budget, salt=salt or fresh_salt(), stream=stream, **self._more)
        )

    def prompt_rows(self, ids: Sequence[int], first: int) -> "list[Row] | str":
        """The likeliest tokens at each of `ids[first:]`, or why there are none."""
        assert self._there is not None, "it was looked at"
        client, server = self._there.client, self._there.server
        body = body_of(server, ids, 1, prompt_logprobs=FEW, **self._more)

        def read(content: Any) -> list[Row]:
            entries = completion_of(content, ids, echoes_ids=False, counts=False).choice.prompt_logprobs
            if not isinstance(entries, list) or len(entries) != len(ids):
                raise MalformedError("the answer lacks the log-probabilities of the prompt's tokens")
            try:
                rows: list[Row] = [
                    {int(token): _log_prob(one["logprob"]) for token, one in entry.items()} for entry in entries[first:]
                ]
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
                raise MalformedError("the log-probabilities of the prompt's tokens cannot be read") from error
            if not all(rows):
                raise MalformedError("the answer lacks the log-probabilities of some of the prompt's tokens")
            return rows

        return asked(lambda: client.post(f"{client.address.base}/completions", body, read))

    def close(self) -> None:
        """End its connections."""
        if self._there is not None:
            self._there.client.close()
        self._there = self._endpoint = None
