"""The noise floor of a run's reference: measured once, stored next to its captures, and read by every run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.engines import Engine
from q36eval.errors import UsageError
from q36eval.locks import exclusive
from q36eval.probes import Captures, Probe, Progress
from q36eval.records import DeploymentIdentity, Measurement, ProbeName
from q36eval.references import Header
from q36eval.run.items import Work
from q36eval.run.reference import Reference

if TYPE_CHECKING:
    from q36eval.kl.floor_file import ReferenceFloor


def floor_file(captures: Path, identity: DeploymentIdentity, probe: Probe) -> Path:
    """The path of the floor of that reference on that probe's suite, next to its captures."""
    from q36eval.kl.floor_file import floor_path

    return floor_path(captures, identity, probe.suite_sha256)


def floor_state(folder: Path, header: Header) -> str | None:
    """The missing part of a capture's noise floor, and the command to measure it; None if complete.

    Only a divergence over the full vocabulary has a floor. A floor on which the engine failed throughout counts as
    missing.

    Raises:
        UsageError: the file is damaged or another reference's.
    """
    from q36eval.kl.floor_file import floor_path, read_floor

    if header.probe is not ProbeName.KL or header.kind != "hidden-states":
        return None
    path = floor_path(folder, header.identity, header.suite_sha256)
    floor = read_floor(path, header.identity, header.suite_sha256)
    if floor is not None and floor.usable:
        return None
    broke = "" if floor is None else f" (the engine failed: {', '.join(floor.failed)})"
    command = f"`q36eval reference capture --out {folder}`"
    return f"floor missing{broke}: finish with {command} and the options it was captured with"


def known_floor(reference: Reference, probes: Sequence[Probe]) -> list[Measurement]:
    """The figures of an existing floor, before any checkpoint is loaded; none without one.

    Raises:
        UsageError: the file is damaged or another reference's; or only a pack of the reference is available, so that no
            floor can be measured, and it has none.
    """
    from q36eval.kl.floor_file import measurements, read_floor

    probe = next((probe for probe in probes if probe.name is ProbeName.KL), None)
    if probe is None:
        return []
    captures, pack = reference.root, reference.pack
    if pack is not None:
        lacking = floor_state(captures, pack.capture_of(probe.name, probe.suite_sha256))
        if lacking is not None:
            raise UsageError(
                "floor-missing", f"No margin of KL can be judged against the reference pack {captures}: {lacking}."
            )
    floor = read_floor(floor_file(captures, reference.identity, probe), reference.identity, probe.suite_sha256)
    return [] if floor is None else list(measurements(floor))


@dataclass(frozen=True)
class FloorKeeper:
    """Has the floor of one reference measured if none is stored.

    `load_reference` is called only then; None if the reference's weights are not available, and then no floor is
    measured.
    """

    identity: DeploymentIdentity
    captures: Path
    load_reference: Callable[[], Engine] | None
    progress: Progress
    documents: int | None = None
    """Measure it on this many documents only, and store it apart from the floors that margins are compared with."""

    def figures(self, works: Sequence[Work], captures: Captures) -> list[Measurement]:
        """The floor of the KL's texts, whose captures are complete; none if it can be neither read nor measured."""
        from q36eval.kl.floor_file import measurements

        work = next((work for work in works if work.probe.name is ProbeName.KL and work.failed is None), None)
        floor = None if work is None else self.floor(work, captures)
        return [] if floor is None else list(measurements(floor))

    def floor(self, work: Work, captures: Captures) -> "ReferenceFloor | None":
        """The stored floor, else measured now and stored; None if neither is possible.

        A floor on which the engine partly failed is stored with that fact, so that a pack holds every possible
        measurement; it is measured again whenever the reference is available.
        """
        from q36eval.kl.corpus import in_turn
        from q36eval.kl.floor import measure_floor
        from q36eval.kl.floor_file import read_floor, write_floor
        from q36eval.kl.probe import KLProbe

        probe = work.probe
        if not isinstance(probe, KLProbe):
            return None
        path, suite = floor_file(self.captures, self.identity, probe), probe.suite_sha256
        if self.documents is not None:
            path = path.with_name(f"{path.stem}-of-{self.documents}{path.suffix}")
        floor = read_floor(path, self.identity, suite)
        if self.load_reference is None or (floor is not None and not floor.failed):
            return floor
        waiting = "waiting for another run to measure the noise floor"
        with exclusive(path.with_suffix(".lock"), lambda: self.progress.stage(waiting, 1)):
            floor = read_floor(path, self.identity, suite)
            if floor is None or floor.failed:
                engine = self.load_reference()
                self.progress.stage("measuring the noise floor", len(engine.perturbations()))
                slices = {item.key: probe.slice_of(item.key) for item in work.items}
                capture = captures[probe.name]
                items = in_turn(work.items, lambda item: slices[item.key])[: self.documents]
                floor = measure_floor(engine, capture, items, slices, self.identity, suite, self.progress)
                write_floor(path, floor)
        return floor
