"""Events sent to receivers over HTTP: stored until accepted, repeated with growing pauses, signed.

At least once: a receiver that stores the delivery's id (`webhook-id`) processes none twice. Headers and signature
follow Standard Webhooks (https://www.standardwebhooks.com), whose libraries verify them. Addresses may be secrets: only
their host is ever displayed. Pauses are stored on disk, so that they survive a restart.
"""

import base64
import hashlib
import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from standardwebhooks.webhooks import Webhook

from q36eval.deadline import within
from q36eval.errors import UsageError
from q36eval.watch.incidents import Event
from q36eval.watch.store import Delivery, Store
from q36eval.watch.verdicts import sentence

Kind = Literal["json", "slack"]
LEAST_SECRET_BYTES = 24
SECRET, WEBHOOKS, SLACK = "Q36EVAL_WATCH_SECRET", "Q36EVAL_WATCH_WEBHOOKS", "Q36EVAL_WATCH_SLACK"
"""Environment variables: the secret of the signature, and addresses of receivers, separated by blanks."""
TIMEOUT_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 3600.0
GIVEN_UP_S = 7 * 86400.0
"""The time after which an undelivered event is given up."""
_NAMES = uuid.UUID("6f1f3d0a-7f4d-4f0c-9b57-3d8f0f5f9c11")


class Receiver:
    """One receiver: its address, and its format."""

    def __init__(self, url: str, kind: Kind) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "webhook-invalid",
                "A webhook's address must be an http address such as https://hooks.example.org/q36eval.",
            )
        self.url, self.kind = url, kind
        self.host = parts.hostname
        self.target = hashlib.sha256(f"{kind} {url}".encode()).hexdigest()[:16]


def receivers(webhooks: Iterable[str], slack: Iterable[str]) -> list[Receiver]:
    """The receivers of a deployment's file and of the environment, each once.

    Raises:
        UsageError: an address is invalid.
    """
    generic = [*webhooks, *os.environ.get(WEBHOOKS, "").split()]
    chat = [*slack, *os.environ.get(SLACK, "").split()]
    every = [Receiver(url, "json") for url in generic] + [Receiver(url, "slack") for url in chat]
    return list({one.target: one for one in every}.values())


def payload(deployment: str, branch: str, begun: str, run: str, event: Event) -> dict[str, Any]:
    """The content of the generic webhook; `begun` distinguishes this watch's events from those of a later baseline."""
    return {
        "id": str(uuid.uuid5(_NAMES, f"{deployment}/{begun}/{event.number}")),
        "event": event.kind.value,
        "deployment": deployment,
        "branch": branch,
        "at": event.at.isoformat(),
        "incident": event.incident,
        "run": run,
        "reason": event.reason,
        "figures": event.figures,
        "text": sentence(deployment, event),
    }


def post(store: Store, everyone: Sequence[Receiver], said: dict[str, Any], now: float) -> None:
    """Store one event for each receiver. Within the transaction of its cause."""
    bodies = {"json": said, "slack": {"text": said["text"]}}
    for one in everyone:
        body = json.dumps(bodies[one.kind], sort_keys=True)
        store.post(Delivery(said["id"], one.target, one.kind, body, now, 0, now))


def _signing(secret: str | None) -> Webhook | None:
    """The signer with that secret.

    Raises:
        UsageError: it is not base64, or shorter than Standard Webhooks requires.
    """
    if secret is None:
        return None
    try:
        length = len(base64.b64decode(secret.removeprefix("whsec_"), validate=True))
    except ValueError:
        length = 0
    if length < LEAST_SECRET_BYTES:
        raise UsageError(
            "webhook-secret-invalid",
            f"{SECRET} is not base64 of at least {LEAST_SECRET_BYTES} bytes; make one with: openssl rand -base64 32.",
        )
    return Webhook(secret)


class Courier:
    """Delivers due events to their receivers. It uses the machine's clock, whatever clock the watch uses."""

    def __init__(
        self, store: Store, everyone: Sequence[Receiver], log: Callable[[str], None], secret: str | None = None
    ) -> None:
        self._store, self._log = store, log
        self._everyone = {one.target: one for one in everyone}
        self._signing = _signing(secret or os.environ.get(SECRET) or None)
        self._http = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=True)

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def deliver(self, now: float | None = None) -> int:
        """Try every due event once; returns the number accepted.

        Raises:
            StorageError: the result cannot be stored; the events are tried again.
        """
        taken, bad = 0, set[str]()
        for one in self._store.due(time.time() if now is None else now):
            # a receiver that refuses one event does not delay others
            problem = "its receiver did not take the one before" if one.target in bad else self._sent(one)
            bad |= {one.target} if problem is not None else set()
            moment = time.time() if now is None else now
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**one.attempts) * random.uniform(0.5, 1.5)
            result = "delivered" if problem is None else "given_up" if moment - one.made > GIVEN_UP_S else "failed"
            with self._store.transaction():
                if result == "failed":
                    self._store.postpone(one, moment + pause)
                else:
                    self._store.delivered(one)
                self._store.count("webhook", result)
            taken += problem is None
            if problem is not None:
                what_next = f"next attempt in {pause:.0f} s" if result == "failed" else "given up after a week"
                self._log(f"Delivery {one.delivery} was not taken ({problem}); {what_next}.")
        return taken

    def _sent(self, one: Delivery) -> str | None:
        """Send it; returns the reason if it was not accepted."""
        receiver = self._everyone.get(one.target)
        if receiver is None:
            return "no receiver of that address is configured any more"
        at = datetime.now(UTC)
        headers = {"Content-Type": "application/json", "webhook-id": one.delivery}
        headers["webhook-timestamp"] = str(int(at.timestamp()))
        if self._signing is not None:
            headers["webhook-signature"] = self._signing.sign(one.delivery, at, one.body)

        def status() -> int:
            """The status of the answer; its body is not read."""
            with self._http.stream("POST", receiver.url, content=one.body.encode(), headers=headers) as answer:
                return answer.status_code

        try:
            answered = within(TIMEOUT_S, status)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return f"{receiver.host}: {type(error).__name__}"  # its text may contain the address
        return f"{receiver.host} answers with status {answered}" if answered >= 300 else None
