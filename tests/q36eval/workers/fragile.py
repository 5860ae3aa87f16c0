"""Workers that die or differ, for tests: real ones in every other way."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace

from q36eval.engines.base import Batch
from q36eval.engines.workers.worker import Computed, Facts, Worker

POISON = "poison"


class Fragile(Worker):
    """Dies of every unit that holds a poisoned request."""

    def compute(self, number: int, batches: Sequence[Batch]) -> Computed:
        if any(request.key.startswith(POISON) for batch in batches for request in batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(number, batches)


class Older(Worker):
    """Has other code than the driver."""

    def facts(self) -> Facts:
        return replace(super().facts(), version="0.0.1")
