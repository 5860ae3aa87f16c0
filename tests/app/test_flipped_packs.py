"""One other byte in what is kept of a reference, judged by whole gates: the file is named, and nothing passes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import q36eval.run.preflight
from q36eval.app.targets import load_family, resolve
from q36eval.canaries.specification import load_specs
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunState
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.probes import Probe
from q36eval.records import ProbeName, Verdict
from q36eval.run.measure import measure
from q36eval.run.request import Request
from tests.app.conftest import Silent, three_documents
from tests.app.kill_captures import FewCanaries

REPOSITORY = Path(__file__).parents[2]
POLICY = """
name: test
criteria:
  - {id: kl, probe: kl, metric: kl_divergence,
     margin: {kind: max_value, value: 0.5, source: x}, lanes: [structured, freeform], min_clusters: 3}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, some_documents: list[CorpusDocument]) -> Iterator[Path]:
    """A state whose reference's states, answers and floor are captured; a gate with them passes."""
    state = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch, three_documents():
        shortest = sorted(some_documents, key=lambda document: len(document.text))[:8]
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: probes(shortest))
        assert gate(state).verdict is Verdict.PASS
        yield state


def probes(documents: list[CorpusDocument]) -> list[Probe]:
    return [KLProbe(documents), FewCanaries(load_specs()[:1])]


def gate(state: Path, resume: str | None = None) -> Any:
    paths = Paths(REPOSITORY, state)
    (state / "policy.yaml").write_text(POLICY)
    family = load_family(None, paths)
    request = Request(
        family=family,
        branch=resolve("bf16", family, paths),
        reference=resolve("bf16", family, paths),
        suite="sandbox",
        policy=read_policy(state / "policy.yaml"),
        probes=(ProbeName.KL, ProbeName.CANARIES),
        exhaustive=True,
        resume=resume,
    )
    return measure(request, paths, History.open(paths.history), Silent())


def flip(file: Path, at: float) -> None:
    """Another letter, digit or bit at that part of the file."""
    content = bytearray(file.read_bytes())
    place = int(at * (len(content) - 1))
    content[place] ^= 1
    file.write_bytes(content)


FILES = {
    "a state": ("kl-*/items/*.safetensors", 0.9),
    "the header of a state": ("kl-*/items/*.safetensors", 0.001),
    "the head": ("kl-*/shared.safetensors", 0.5),
    "an answer": ("canaries-*/answers.jsonl", 0.3),
    "the last answer": ("canaries-*/answers.jsonl", 0.95),
    "the manifest": ("kl-*/pack.json", 0.5),
    "whose it is": ("canaries-*/capture.json", 0.6),
    "the noise floor": ("floor-*.json", 0.5),
}


@pytest.mark.long
@pytest.mark.parametrize("what", FILES)
def test_a_flipped_byte_of_a_pack_is_named_and_passes_nothing(whole: Path, tmp_path: Path, what: str) -> None:
    state = Path(shutil.copytree(whole, tmp_path / "state"))
    pattern, at = FILES[what]
    file = min(Paths(REPOSITORY, state).captures.glob(f"*/{pattern}"))
    kept = file.read_bytes()
    flip(file, at)
    with pytest.raises(UsageError, match=f"{file.name}|{file.parent.name}"):
        gate(state)
    history = History.open(Paths(REPOSITORY, state).history)
    _, *later = reversed(history.list_runs())
    assert all(run.state is not RunState.FINISHED for run in later)
    if later:  # it was under way: once the file is whole again, the run is gone on with
        file.write_bytes(kept)
        assert gate(state, resume=later[0].id).verdict is Verdict.PASS
