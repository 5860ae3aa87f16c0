"""A verdict belongs to the bytes it names: a gate whose checkpoints change under it gives none, and is not resumed."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import q36eval.run.branch
import q36eval.run.preflight
from q36eval.app.targets import resolve
from q36eval.checkpoints import open_files
from q36eval.engines import in_process
from q36eval.errors import ChangedError, UsageError
from q36eval.history import RunRecord, RunState
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.records import ProbeName, Verdict
from q36eval.references import captures_in
from q36eval.run.request import Request, Target
from tests.app.sandbox_gates import POLICY, Gates, Heard, kl
from tests.q36eval.checkpoints.inspection.damage import flip
from tests.raising import raises

WEIGHTS = "model.safetensors"


class CopiedGates(Gates):
    """Gates of copied folders against a copy of the sandbox's reference, which calls back when a stage begins."""

    def __init__(self, state: Path) -> None:
        super().__init__(state, POLICY + kl(0.03))
        self.built = resolve("bf16", self.family, self.paths).folder
        self.reference = self.copy("reference")

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.built, self.paths.state / name))

    def gate(
        self, branch: Path, begun: Callable[[str], object] = lambda _: None, *, kl: bool = False, resume: Any = None
    ) -> RunRecord:
        probes = (ProbeName.WEIGHTS, ProbeName.KL) if kl else (ProbeName.WEIGHTS,)
        policy = self.policy.model_copy(update={"criteria": self.policy.criteria[: len(probes)]})
        reference = Target("bf16", self.reference)
        return self(branch, reference=reference, policy=policy, probes=probes, resume=resume, progress=Heard(begun))


@pytest.fixture
def gates(tmp_path: Path, some_documents: list[CorpusDocument], monkeypatch: pytest.MonkeyPatch) -> CopiedGates:
    probes = {ProbeName.KL: KLProbe(some_documents)}
    chosen = lambda names, *_: [probes[name] for name in names if name in probes]  # noqa: E731
    monkeypatch.setattr(q36eval.run.preflight, "build_probes", chosen)
    return CopiedGates(tmp_path)


def no_verdict(gates: CopiedGates, branch: Path, begun: Callable[[str], object], **named: Any) -> str:
    """Gate, and see that it ends with that sentence, without a verdict, and cannot be gone on with; the run's id."""
    with raises(ChangedError, "files-changed", WEIGHTS):
        gates.gate(branch, begun, **named)
    (run,) = gates.history.list_runs()
    assert (run.state, run.report) == (RunState.INTERRUPTED, None)
    return run.id


@pytest.mark.long
def test_weights_overwritten_between_inspection_and_loading_give_no_verdict(gates: CopiedGates) -> None:
    branch, before = gates.copy("branch"), (gates.built / WEIGHTS).read_bytes()
    run = no_verdict(gates, branch, lambda title: title == "reading the checkpoint" and flip(branch / WEIGHTS))
    (branch / WEIGHTS).write_bytes(before)
    with raises(UsageError, "run-changed", run):
        gates.gate(branch, resume=run)
    assert gates.gate(branch).verdict is Verdict.PASS


def test_weights_destroyed_before_they_are_loaded_are_no_fault_of_the_branch(gates: CopiedGates) -> None:
    branch = gates.copy("branch")

    def destroyed(title: str) -> None:
        if title == "reading the checkpoint":
            (branch / WEIGHTS).write_bytes(b"no checkpoint")

    no_verdict(gates, branch, destroyed)


def test_damage_of_a_file_that_is_still_being_written_is_not_judged(
    gates: CopiedGates, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = gates.copy("branch")
    (branch / WEIGHTS).write_bytes((gates.built / WEIGHTS).read_bytes()[:-100])
    opened = q36eval.run.branch._inspect

    def written_on(request: Request) -> Any:
        inspection = opened(request)
        (branch / WEIGHTS).write_bytes((gates.built / WEIGHTS).read_bytes())
        return inspection

    monkeypatch.setattr(q36eval.run.branch, "_inspect", written_on)
    no_verdict(gates, branch, lambda _: None)


@pytest.mark.long
def test_weights_overwritten_while_the_branch_is_measured_give_no_verdict(
    gates: CopiedGates, with_reference: Callable[[Path], Path]
) -> None:
    with_reference(gates.paths.state)
    branch = gates.copy("branch")
    no_verdict(gates, branch, lambda title: title == "measuring the branch" and flip(branch / WEIGHTS), kl=True)


def test_a_reference_that_changes_while_it_is_loaded_answers_nothing(
    gates: CopiedGates, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, loaded = gates.copy("branch"), in_process.load_model

    def changed(folder: Any, **named: Any) -> Any:
        if folder.path == gates.reference:
            flip(gates.reference / WEIGHTS)
        return loaded(folder, **named)

    monkeypatch.setattr(in_process, "load_model", changed)
    with raises(ChangedError, "files-changed", f"reference/{WEIGHTS}"):
        gates.gate(branch, kl=True)
    for pack in gates.paths.captures.glob("*"):
        assert not [manifest for _, _, manifest in captures_in(pack) if manifest is not None]
        assert not [*pack.glob("*/items/*")]


@pytest.mark.long
def test_every_file_is_hashed_once_in_the_whole_gate(
    gates: CopiedGates, with_reference: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_reference(gates.paths.state)
    branch = gates.copy("branch")
    hashed = 0

    class Counting:
        def __init__(self) -> None:
            self._running = hashlib.sha256()

        def update(self, data: memoryview) -> None:
            nonlocal hashed
            hashed += len(data)
            self._running.update(data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._running, name)

    class Module:
        sha256 = Counting

    monkeypatch.setattr(open_files, "hashlib", Module)
    assert gates.gate(branch, kl=True).verdict is Verdict.PASS
    once = sum(len(open_files.HeldFile(file).read()) for place in (branch, gates.reference) for file in place.iterdir())
    assert 0.9 * once < hashed <= once
