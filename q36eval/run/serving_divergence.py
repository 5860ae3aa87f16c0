"""The serving error in a gate: when the branch is decoded here, and the report if it cannot be."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from q36eval.engines import Engine, as_reference, opens_checkpoints
from q36eval.errors import CorruptCheckpointError, EngineError
from q36eval.history import History
from q36eval.probes import Progress, Sink
from q36eval.records import DeploymentIdentity, Measurement, ProbeFailure, ProbeName
from q36eval.run.request import Request
from q36eval.served.declared_server import SERVING_KL

if TYPE_CHECKING:
    from q36eval.kl.corpus import CorpusDocument
    from q36eval.run.decoded_branch import DecodedHere

DECODING, SERVING = "decoding the branch here, to see what serving adds", "the same texts as they are served"


@dataclass
class ServingAdds:
    """Measures `serving_kl` in one gate, or reports why not. `seconds` is its total time.

    A resumed run may already have its figure, from an earlier server: it is measured again, and if that fails, the
    earlier one is not used.
    """

    request: Request
    history: History
    run_id: str
    reference: DeploymentIdentity
    sink: Sink
    texts: "Callable[[], Sequence[CorpusDocument]]"
    seconds: float = 0.0
    _decoded: "DecodedHere | None" = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)

    def decode_first(self, progress: Progress) -> None:
        """Decode the branch before its serving engine starts: the engine may later occupy the whole device.

        An endpoint uses separate memory, and is checked first: if it cannot show the divergence, nothing is decoded.
        """
        if self._is_served and opens_checkpoints(self.request.engine):
            self._decode(progress)

    def measure(self, branch: Engine, progress: Progress) -> list[Measurement]:
        """The figure, written immediately, and its floor if known; nothing if it cannot be measured."""
        from q36eval.run.decoded_branch import NO_STATES, NOT_SERVED, known_floor

        if not self._is_served:
            self._refuse(NOT_SERVED.format(kind=self.request.engine.kind))
        elif branch.scores != "states":
            self._refuse(NO_STATES)
        elif self._decoded is None and not self._refused:
            self._decode(progress)
        if self._decoded is None:
            return []
        progress.stage(SERVING, 1)
        started = time.monotonic()
        try:
            figures = [self._decoded.served_by(branch)]
        except EngineError as error:
            self._refuse(f"what serving adds: {error}", crashed=True)
            return []
        finally:
            self._decoded = None  # frees the memory of its states and heads for the probes
            self.seconds += time.monotonic() - started
        names = [self.request.branch.name, self.request.family.reference]
        floor = known_floor(self.history, self.request.family.name, names, branch.identity, self.reference)
        figures += [] if floor is None else [floor]
        for figure in figures:
            self.sink.add_measurement(figure)
        progress.advance()
        return figures

    @property
    def _is_served(self) -> bool:
        return as_reference(self.request.engine).kind != self.request.engine.kind

    def _decode(self, progress: Progress) -> None:
        from q36eval.run.decoded_branch import DecodedHere

        progress.stage(DECODING, 1)
        started = time.monotonic()
        try:
            self._decoded = DecodedHere.of(self.request.branch.folder, self.request.engine, self.texts())
        except (CorruptCheckpointError, EngineError) as error:
            crashed = isinstance(error, EngineError)
            self._refuse(f"what serving adds: the branch cannot be decoded here: {error}", crashed=crashed)
        self.seconds += time.monotonic() - started
        progress.advance()

    def _refuse(self, reason: str, *, crashed: bool = False) -> None:
        self._refused = True
        crashed = crashed or any(each.metric == SERVING_KL for each in self.history.measurements(self.run_id))
        failure = ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="crashed" if crashed else "skipped")
        self.sink.add_failure(failure)
