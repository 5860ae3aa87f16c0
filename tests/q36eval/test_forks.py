"""Forked workers give what the same calls give in this process, in order, and lose nothing in silence."""

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
import torch

from q36eval.engines.forks import WorkerError, in_forks, usable_workers

pytestmark = pytest.mark.skipif(usable_workers() == 1 and not hasattr(os, "fork"), reason="no fork here")


def product(batch: list[int]) -> list[torch.Tensor]:
    time.sleep(0.02 * (batch[0] % 3))  # so that later batches are often ready first
    generator = torch.Generator().manual_seed(batch[0])
    matrix = torch.randn(64, 64, generator=generator).bfloat16()
    return [matrix @ matrix + number for number in batch]


@pytest.mark.long
def test_results_come_in_order_and_equal_those_of_one_process() -> None:
    batches = [[number, number + 1] for number in range(11)]
    for workers in (1, 2, 5):
        found = list(in_forks(product, batches, workers))
        assert [batch for batch, _ in found] == batches
        for batch, answer in found:
            assert all(map(torch.equal, answer, product(batch)))


def fragile(batch: list[int]) -> list[Any]:
    if batch == [2]:
        raise ValueError("no such thing")
    if batch == [4]:
        os._exit(9)  # as when the kernel kills it for memory
    if batch == [5]:
        raise SystemExit(3)
    return [lambda: None] if batch == [6] else [os.getpid()]


def test_a_batch_that_fails_says_why_and_the_others_are_computed() -> None:
    found = {batch[0]: answer for batch, answer in in_forks(fragile, [[n] for n in range(8)], 2)}
    failed = {number for number, answer in found.items() if isinstance(answer, WorkerError)}
    assert sorted(found) == list(range(8))
    assert failed == {2, 4, 5, 6}
    for number, cause in ((2, "no such thing"), (4, "memory"), (5, "systemexit: 3"), (6, "pickle")):
        assert cause in str(found[number]).lower()
    assert os.getpid() not in [answer[0] for answer in found.values() if isinstance(answer, list)]


class Heavy:
    """Pickles to far more than a pipe holds, and says when it is about to be sent."""

    def __init__(self, sending: Any) -> None:
        self.sending = sending

    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        self.sending.set()
        return bytes, (bytes(8_000_000),)


def test_a_worker_killed_while_it_sends_costs_one_batch() -> None:
    sending = multiprocessing.get_context("fork").Event()

    def large(batch: list[int]) -> list[Any]:
        return [os.getpid(), Heavy(sending) if batch == [2] else batch[0]]

    calls = in_forks(large, [[n] for n in range(6)], 2)
    _, first = next(calls)
    # the worker that had batch 0 holds batch 2, which cannot be sent whole while nobody reads
    assert sending.wait(60)
    os.kill(first[0], signal.SIGKILL)
    found = [first, *(answer for _, answer in calls)]
    assert [isinstance(answer, WorkerError) for answer in found] == [n == 2 for n in range(6)]


def test_batches_left_when_every_worker_is_dead_are_errors() -> None:
    found = [answer for _, answer in in_forks(fragile, [[4]] * 6, 2)]
    assert all(isinstance(answer, WorkerError) for answer in found)
    assert sum("every process died" in str(answer) for answer in found) == 4


def test_an_abandoned_call_leaves_no_process_behind() -> None:
    calls = in_forks(product, [[n] for n in range(50)], 2)
    next(calls)
    assert multiprocessing.active_children()
    calls.close()
    assert not multiprocessing.active_children()
