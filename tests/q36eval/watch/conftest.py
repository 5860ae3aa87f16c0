"""A real sandbox model behind a real server that counts what it is sent, and a clock that a test moves."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.engines import Engine
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.watch.service import Setting, Watch
from q36eval.watch.settings import Alarm, Amounts, BackOff, Deployment
from tests.q36eval.openai.server import SANDBOX, serving
from tests.q36eval.served.chat_server import ChatHandler, Chatting

PATHS = Paths.default()
FEW = Amounts(required=4, suspects=2, families=4, kl=3, differentials=3)
QUICK = Alarm(
    calibration_rounds=4,
    anchors=12,
    closing_rounds=2,
    years_between_false_openings=0.1,
    rounds_between_false_closings=20,
)
"""A short calibration shows little, so that the threshold is low too; both are the default's in what runs long."""


class Clock:
    """Stands still until it is moved."""

    def __init__(self, hour: int = 12, minute: int = 0) -> None:
        self.time = datetime(2026, 11, 20, hour, minute, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def later(self, **how: float) -> None:
        self.time += timedelta(**how)


class Counting(ChatHandler):
    """Counts every request and token, and answers `refusing` with that status."""

    seen: dict[str, int]
    refusing: dict[str, Any]

    def _refused(self) -> bool:
        self.seen["requests"] += 1
        status = self.refusing.get("status")
        if status is None:
            return False
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.send_response(status)
        self.send_header("Retry-After", str(self.refusing.get("retry_after", 0)))
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def parse_request(self) -> bool:
        """Whether a request was read, and is not answered yet."""
        return super().parse_request() and not self._refused()

    def _send(self, status: int, content: Mapping[str, Any] | bytes) -> None:
        """What a request took is what it is told, whole or streamed: once, the last time that it is said."""
        said = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.seen["tokens"] += sum(map(int, dict(re.findall(rb'"(prompt|completion)_tokens": ?(\d+)', said)).values()))
        super()._send(status, content)


class Place:
    """A served model whose weights can be exchanged, what it was sent, and watches of it by a clock of the test."""

    def __init__(self, served: Chatting, address: str, handler: type[Counting], **setting: Any) -> None:
        self.served, self.address, self.seen, self.refusing = served, address, handler.seen, handler.refusing
        self.clock, self.setting = Clock(), setting

    def exchange(self, engine: Engine) -> None:
        """Serve other weights under the same name, as a bad rollout does."""
        with self.served.lock, self.served.queue_lock:
            self.served.engine = engine
            self.served.known.clear()

    def deployment(self, **fields: Any) -> Deployment:
        given: dict[str, Any] = {"name": "prod", "branch": "bf16", "base_url": self.address}
        given |= {"canaries": ("enum-select", "enum-select-must-pass"), "amounts": FEW, "alarm": QUICK}
        given |= {"back_off": BackOff(latency_floor_s=60.0)}  # how busy this machine is decides nothing
        return Deployment(**(given | fields))

    def watch(
        self,
        deployment: Deployment | None = None,
        log: Callable[[str], object] = lambda _: None,
        *,
        recalibrate: bool = False,
        **fields: Any,
    ) -> Watch:
        """A watch of it, with state and history of the test's own."""
        setting = Setting(**({"deployment": deployment or self.deployment()} | self.setting | fields))
        return Watch(setting, log, self.clock.now, recalibrate=recalibrate)


@pytest.fixture(scope="module")
def setting() -> dict[str, Any]:
    """What every watch is set to."""
    return {"family": load_family(None, PATHS), "policy": read_policy(PATHS.policies / "watch.yaml"), "folder": SANDBOX}


@pytest.fixture
def place(local: Engine, setting: dict[str, Any], tmp_path: Path) -> Iterator[Place]:
    handler: Any = type("Handler", (Counting,), {"seen": {"requests": 0, "tokens": 0}, "refusing": {}})
    served = Chatting(local)
    kept = {"state": tmp_path / "watch", "open_history": lambda: History.open(tmp_path / "history.sqlite")}
    with serving(served, handles=handler) as address:
        yield Place(served, address, handler, **setting, **kept)
