"""An accelerated day of `q36eval watch`: 96 rounds against a real model over HTTP, damaged at a random time.

    python -m benchmarks.watch_day --damage int2-experts --seed 24

The clock is the only thing that is not real: a wait of 15 minutes takes none. The server counts what it is sent. The
deployment watches one canary of short answers, so that a day takes minutes; the alarm is the default's, and its
calibration the first six hours.
"""

import argparse
import random
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.gate.policy_file import read_policy
from q36eval.history import History
from q36eval.watch.clock import Clock
from q36eval.watch.incidents import EventKind
from q36eval.watch.service import Outcome, Setting, Watch
from q36eval.watch.settings import Alarm, Amounts, BackOff, Budget, Deployment
from tests.branches import folder_of
from tests.q36eval.openai.server import SANDBOX, opened, serving
from tests.q36eval.served.chat_server import Chatting
from tests.q36eval.watch.conftest import Counting, Place

BUDGET = Budget(requests_per_day=2_400, tokens_per_day=700_000, requests_per_round=40, tokens_per_round=20_000)
AMOUNTS = Amounts(required=4, suspects=2, families=4, kl=6, differentials=1)


class Accelerated:
    """Waits take no time."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 20, tzinfo=UTC)

    def now(self) -> datetime:
        """The time."""
        return self.time

    def wait(self, until: datetime, beat: Any) -> None:
        """Be there at once."""
        beat()
        self.time = max(self.time, until)


@dataclass(frozen=True)
class Day:
    """What came of it. Rounds are numbered from 0; a change that never came is None."""

    outcomes: list[Outcome]
    damaged_in: int
    opened_in: int | None
    confirmed_in: int | None
    charged: tuple[int, int]
    counted: tuple[int, int]
    kept_runs: int
    seconds: float


def a_day(damage: str, seed: int, rounds: int = 96, alarm: Alarm | None = None) -> Day:
    """A day in which the served model is exchanged in a random round after the calibration."""
    rng, began = random.Random(seed), time.monotonic()
    known = alarm or Alarm()
    damaged_in = rng.randrange(known.calibration_rounds + 1, rounds - 6)
    paths, clock = Paths.default(), Accelerated()
    family = load_family(None, paths)
    handler: Any = type("Handler", (Counting,), {"seen": {"requests": 0, "tokens": 0}, "refusing": {}})
    served, found, outcomes = Chatting(opened(SANDBOX)), dict[EventKind, int](), list[Outcome]()
    with serving(served, handles=handler) as address, tempfile.TemporaryDirectory() as folder:
        place = Place(served, address, handler)
        deployment = Deployment(
            name="day",
            branch="bf16",
            base_url=address,
            canaries=("enum-select", "enum-select-must-pass"),
            amounts=AMOUNTS,
            budget=BUDGET,
            alarm=known,
            back_off=BackOff(latency_floor_s=60.0),
        )
        setting = Setting(
            deployment=deployment,
            family=family,
            policy=read_policy(paths.policies / "watch.yaml"),
            folder=SANDBOX,
            state=Path(folder) / "watch",
            open_history=lambda: History.open(Path(folder) / "history.sqlite"),
        )
        there: Clock = clock
        with Watch(setting, lambda _: None, there) as watch:
            for number in range(rounds):
                if number == damaged_in:
                    place.exchange(opened(folder_of(damage)))
                outcome = watch.wake()
                watch.serve_outside()
                outcomes.append(outcome)
                for event in outcome.events:
                    found.setdefault(event.kind, number)
                clock.time += timedelta(minutes=15)
            spent = watch.store.spent("2026-11-20")
        kept = len(History.open(Path(folder) / "history.sqlite").list_runs())
    return Day(
        outcomes,
        damaged_in,
        found.get(EventKind.OPENED),
        found.get(EventKind.CONFIRMED),
        (spent.requests, spent.tokens),
        (place.seen["requests"], place.seen["tokens"]),
        kept,
        time.monotonic() - began,
    )


def main() -> None:
    """Print the day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--damage", default="int2-experts")
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=96)
    given = parser.parse_args()
    day = a_day(given.damage, given.seed, given.rounds)
    results = {result: sum(one.result == result for one in day.outcomes) for result in ("pass", "inconclusive", "fail")}
    print(f"{given.damage}: exchanged in round {day.damaged_in}, opened in {day.opened_in}, confirmed in "
          f"{day.confirmed_in}; {results}; {day.kept_runs} runs kept")  # fmt: skip
    print(f"charged {day.charged[0]:,} requests and {day.charged[1]:,} tokens of {BUDGET.requests_per_day:,} and "
          f"{BUDGET.tokens_per_day:,}; the server counted {day.counted[0]:,} and {day.counted[1]:,}")  # fmt: skip
    print(f"{day.seconds:.0f} s")


if __name__ == "__main__":
    main()
