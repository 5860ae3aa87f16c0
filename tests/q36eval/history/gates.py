"""What a gate writes, as other processes write it: run by the tests of concurrency in forked children."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from q36eval.gate import GateReport, decide
from q36eval.history import EventKind, History, RunRecord
from q36eval.records import Answer, ItemOutcome, Measurement, ProbeFailure, ProbeName
from tests.app.judged_runs import IDENTITY
from tests.q36eval.gate.evidence import measurement, only
from tests.q36eval.stats.evidence import items

BATCH = 12
POLICY = only("max_count", 0, id="intact", probe="weights", metric="integrity_faults")


def begin(history: History, branch: str = "fp8-head") -> RunRecord:
    about = {"commit": "abc", "dirty": True, "versions": {"torch": "2.13.0"}}
    known = {"identity": IDENTITY, "reference_identity": IDENTITY, "policy": POLICY, "provenance": about}
    return history.start_run(family="sandbox", branch=branch, suites={"kl": "s"}, **known)


def outcome(number: int, answer: str, score: float = 1.0) -> ItemOutcome:
    """Item `number`, which all branches are asked in the same words."""
    asked = {"probe": ProbeName.CANARIES, "group": f"canary-{number % 3}", "item_key": f"item {number}"}
    reference = Answer(score=1.0, text=f"answer {number}")
    return ItemOutcome(**asked, cluster="c", branch=Answer(score=score, text=answer), reference=reference)


def figure(name: str, value: float) -> Measurement:
    """A count of faults over two clusters."""
    return measurement(ProbeName.WEIGHTS, name, items([0.0, value], units=[1, 2], bounds=None), "census", unit="faults")


def answer(branch: str, number: int) -> str:
    """What a branch says: every other branch says every second answer too."""
    return "same" if number % 2 else f"{branch} {number}"


def gate(history: History, branch: str, batches: int, failure: ProbeFailure | None = None) -> GateReport:
    """A whole run, of which a probe may have failed.

    Half of what it writes is the same in every other, so that all want the same rows.
    """
    run = begin(history, branch)
    for batch in range(batches):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        history.add_items(run.id, [outcome(number, answer(branch, number)) for number in reversed(numbers)])
        history.add_measurement(run.id, figure(f"figure {batch}", float(batch)))
        history.add_event(run.id, EventKind.RETRY, f"batch {batch}")
    faults = figure("integrity_faults", 0.0)
    history.add_measurement(run.id, faults)
    if failure is not None:
        history.add_failure(run.id, failure)
    report = decide(POLICY, [faults])
    history.finish_run(run.id, report)
    return report


def write_batches(history: History, run_id: str, tell: Callable[[], None]) -> None:
    """Batches for ever, each in one transaction; `tell` after each."""
    batch = 0
    while True:
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        history.add_items(run_id, [outcome(number, f"{run_id} {number}" * 20) for number in numbers])
        tell()
        batch += 1


@contextmanager
def child(work: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A forked process that does `work` with the writing end of a pipe; gives its id and the reading end."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reading)
            work(writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    try:
        yield process, reading
    finally:
        os.close(reading)
