"""Events to receivers over HTTP: kept until they are taken, tried again with growing pauses, signed.

At least once: a receiver that keeps the delivery's id (`X-Q36eval-Delivery`) sees none twice. The signature is
`X-Q36eval-Signature: t=SECONDS,v1=HEX`, the HMAC-SHA256 of `SECONDS.BODY` by the shared secret, so that neither the
body nor the time can be another's. Addresses may be secrets themselves: only their host is ever named.
"""

import hashlib
import hmac
import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from q36eval.errors import UsageError
from q36eval.watch.incidents import Event, EventKind
from q36eval.watch.store import Delivery, Store
from q36eval.watch.verdicts import sentence

Kind = Literal["json", "slack"]
SECRET, WEBHOOKS, SLACK = "Q36EVAL_WATCH_SECRET", "Q36EVAL_WATCH_WEBHOOKS", "Q36EVAL_WATCH_SLACK"
"""Environment variables: the secret of the signature, and addresses that no command line shows, with blanks between."""
DELIVERY, SIGNATURE = "X-Q36eval-Delivery", "X-Q36eval-Signature"
TIMEOUT_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 3600.0
GIVEN_UP_S = 7 * 86400.0
"""After so long a receiver that never took a delivery is not coming back for it."""
_NAMES = uuid.UUID("6f1f3d0a-7f4d-4f0c-9b57-3d8f0f5f9c11")
COLOURS = {EventKind.OPENED: "warning", EventKind.CONFIRMED: "danger", EventKind.CLOSED: "good"}


class Receiver:
    """One receiver: its address, and what it reads."""

    def __init__(self, url: str, kind: Kind) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "webhook-invalid",
                "A webhook's address is no http address; give one like https://hooks.example.org/q36eval.",
            )
        self.url, self.kind = url, kind
        self.host = parts.hostname
        self.target = hashlib.sha256(f"{kind} {url}".encode()).hexdigest()[:16]


def receivers(webhooks: Iterable[str], slack: Iterable[str]) -> list[Receiver]:
    """The receivers of the options and of the environment, each once.

    Raises:
        UsageError: an address is none.
    """
    generic = [*webhooks, *os.environ.get(WEBHOOKS, "").split()]
    chat = [*slack, *os.environ.get(SLACK, "").split()]
    every = [Receiver(url, "json") for url in generic] + [Receiver(url, "slack") for url in chat]
    return list({one.target: one for one in every}.values())


def payload(deployment: str, branch: str, begun: str, run: str, event: Event) -> dict[str, Any]:
    """What the generic webhook says; `begun` tells this watch's events from those of one begun anew."""
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


def post(store: Store, everyone: Sequence[Receiver], said: dict[str, Any], event: Event, now: float) -> None:
    """Keep one event for each receiver. Within the transaction of what it is about."""
    attachment = {"color": COLOURS.get(event.kind, "good"), "text": said["text"], "fallback": said["text"]}
    bodies = {"json": said, "slack": {"text": said["text"], "attachments": [attachment]}}
    for one in everyone:
        body = json.dumps(bodies[one.kind], sort_keys=True)
        store.post(Delivery(said["id"], one.target, one.kind, body, now, 0, now))


def signature(secret: str, body: str, seconds: int) -> str:
    """The header's value."""
    mac = hmac.new(secret.encode(), f"{seconds}.{body}".encode(), hashlib.sha256)
    return f"t={seconds},v1={mac.hexdigest()}"


class Courier:
    """Takes what is due to its receivers. Its own time is the machine's, whatever clock the watch lives by."""

    def __init__(
        self, store: Store, everyone: Sequence[Receiver], log: Callable[[str], None], secret: str | None = None
    ) -> None:
        self._store, self._log = store, log
        self._everyone = {one.target: one for one in everyone}
        self._secret = secret if secret is not None else os.environ.get(SECRET) or None
        self._http = httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=True)

    def close(self) -> None:
        """End its connections."""
        self._http.close()

    def deliver(self, now: float | None = None) -> int:
        """Try everything that is due once; how many were taken.

        Raises:
            StorageError: what became of them cannot be kept; they are tried again.
        """
        taken = 0
        for one in self._store.due(time.time() if now is None else now):
            problem = self._sent(one)
            moment = time.time() if now is None else now
            if problem is None:
                with self._store.transaction():
                    self._store.delivered(one)
                    self._store.count("webhook", "delivered")
                taken += 1
            elif moment - one.made > GIVEN_UP_S:
                with self._store.transaction():
                    self._store.delivered(one)
                    self._store.count("webhook", "given_up")
                self._log(f"Delivery {one.delivery} is given up after a week: {problem}.")
            else:
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**one.attempts) * random.uniform(0.5, 1.5)
                with self._store.transaction():
                    self._store.postpone(one, moment + pause)
                    self._store.count("webhook", "failed")
                self._log(f"Delivery {one.delivery} was not taken ({problem}); next attempt in {pause:.0f} s.")
        return taken

    def _sent(self, one: Delivery) -> str | None:
        """Send it; why it was not taken."""
        receiver = self._everyone.get(one.target)
        if receiver is None:
            return "no receiver of that address is configured any more"
        headers = {"Content-Type": "application/json", DELIVERY: one.delivery}
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, one.body, int(time.time()))
        try:
            answer = self._http.post(receiver.url, content=one.body.encode(), headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{receiver.host}: {type(error).__name__}"  # its text may hold the address
        if answer.status_code >= 300:
            return f"{receiver.host} answers with status {answer.status_code}"
        return None
