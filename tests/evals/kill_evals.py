"""Measures a small suite again and again, kills each run at a random moment and resumes it; run by a test.

Usage: `kill_evals.py FOLDER KILLS SEED`. Every run is a process of its own, forked from this one, with a history of
its own. FOLDER then holds `whole.sqlite`, which nothing interrupted, one history a kill, and beside each a list of the
items whose outcome was written, one line each. Every other kill comes right after a write, in the middle of the asking
however busy the machine: the workers' seconds are not this process's, so a moment of CPU time seldom falls there.
"""

import itertools
import os
import random
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from q36eval.engines import Engine, open_engine
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import Criterion, Margin, Policy, PolicyRule
from q36eval.history import History
from q36eval.probes import Progress, Sink, WorkItem
from q36eval.records import ItemOutcome, Lane, Measurement, ProbeFailure, ProbeName
from q36eval.run.rounds import run_probes
from tests.evals.small_suite import ROOT, answers_in, write_small_suite
from tests.kills import killed_after, whole

COUNTS = {f"mmlu{kind}/{name}.jsonl": 15 for kind in ("", "_dev") for name in ("geology", "law", "botany")}
COUNTS |= {f"short_answers{kind}/law.jsonl": 8 for kind in ("", "_dev")} | {"perplexity/czech.jsonl": 4}


def policy() -> Policy:
    """Lenient, so that the MMLU form is settled before all of it is asked."""
    margin = Margin(kind="min_recovery", value=0.4, source="for this test")
    criterion = Criterion(
        id="mmlu", probe=ProbeName.EVALS, metric="accuracy", slice="mmlu", margin=margin, lanes=(Lane.FREEFORM,)
    )
    return Policy(name="lenient", criteria=(criterion,))


class Planned(EvalsProbe):
    """Plans once, so that a run is mostly asking."""

    items: list[WorkItem] | None = None

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        if self.items is None:
            self.items = super().plan(tokenizer)
        return self.items


class LoggingSink(Sink):
    """A run in history; what was written is also listed in a file. Kills its process after write `last`, from 1."""

    def __init__(self, history: History, run_id: str, log: Path, last: int | None) -> None:
        self._history, self._run, self._log, self._last = history, run_id, log, last
        self._writes = itertools.count(1)

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self._history.add_items(self._run, list(outcomes))
        with self._log.open("a") as file:
            file.writelines(f"{outcome.item_key}\n" for outcome in outcomes)
        if next(self._writes) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def add_measurement(self, measurement: Measurement) -> None:
        self._history.add_measurement(self._run, measurement)

    def add_failure(self, failure: ProbeFailure) -> None:
        self._history.add_failure(self._run, failure)

    def known_items(self) -> list[ItemOutcome]:
        return self._history.items(self._run)


def measure(place: Path, probe: EvalsProbe, engine: Engine, captures: Path, last: int | None = None) -> None:
    """One run, or what is left of it where the process that began it died; dies itself after write `last`."""
    file = place.with_suffix(".sqlite")
    if not file.exists():  # bringing a new file to the newest schema is most of what a short run takes
        shutil.copy(captures.with_name("empty.sqlite"), file)
    history = History.open(file)
    begun = history.list_runs()
    run = begun[0] if begun else history.start_run(family="f", branch="b", identity=None, reference_identity=None)

    sink = LoggingSink(history, run.id, place.with_suffix(".asked"), last)
    answers = answers_in(captures, engine)
    run_probes(lambda: engine, engine.tokenizer, answers, [probe], sink, Progress(), PolicyRule(policy()))
    history.close()


def main(folder: Path, kills: int, seed: int) -> None:
    suite = write_small_suite(folder / "suite", COUNTS, block_items=15)
    engine = open_engine(ROOT / "data" / "sandbox" / "bf16")
    probe = Planned(suite)
    probe.plan(engine.tokenizer)
    History.open(folder / "empty.sqlite").close()
    rng = random.Random(seed)

    def run(place: Path, last: int | None = None) -> partial[None]:
        return partial(measure, place, probe, engine, folder / "captures", last)

    def to_the_end(place: Path) -> float:
        return whole(run(place), f"the run in {place}")

    to_the_end(folder / "captured")  # the reference's answers are there from now on
    lasted = min(to_the_end(folder / "whole"), to_the_end(folder / "another"))
    writes = len((folder / "whole.asked").read_text().split())
    for number in range(kills):
        place, moment = folder / f"run{number}", lasted * (number + rng.random()) / kills
        last = rng.randrange(1, writes) if number % 2 else None
        while not killed_after(run(place, last), float(last is None) * moment):
            for path in folder.glob(f"{place.name}.*"):  # it was faster than those two
                path.unlink()
            moment *= 0.8
        asked = place.with_suffix(".asked")
        print(
            f"{number}: {f'{moment:.2f} of {lasted:.2f} s' if last is None else 'at a write'}, "
            f"{len(asked.read_text().split()) if asked.exists() else 0} items"
        )
        to_the_end(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
