"""The gate measures its reference's noise floor once, shows it, and refuses a margin below it before it asks."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import q36eval.run.floor
import q36eval.run.preflight
from q36eval.app.cli import reference
from q36eval.app.targets import load_family, resolve
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.kl import floor as kl_floor
from q36eval.kl.corpus import load_corpus
from q36eval.kl.floor_file import ReferenceFloor, load_floor, measurements, write_floor
from q36eval.kl.probe import KLProbe
from q36eval.probes import Progress
from q36eval.records import Verdict
from q36eval.run.floor import FloorKeeper, floor_file
from q36eval.run.items import Work
from q36eval.run.measure import measure
from q36eval.run.request import ALL_PROBES, Request

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
POLICY = """
name: test
criteria:
  - {id: kl, probe: kl, metric: kl_divergence,
     margin: {kind: max_value, value: MARGIN, source: x}, lanes: [structured, freeform], min_clusters: 8}
"""


class Silent(Progress):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, title: str, total: int) -> None:
        self.stages.append(title)

    def advance(self, count: int = 1) -> None: ...


def gate(paths: Paths, margin: float, progress: Silent) -> RunRecord:
    """One branch on a few documents, under a policy of that margin; a floor of a few tokens."""
    family = load_family(None, paths)
    file = paths.state / "policy.yaml"
    file.write_text(POLICY.replace("MARGIN", f"{margin:f}"))
    request = Request(
        family=family,
        branch=resolve("gptq-int4", family, paths),
        reference=resolve("bf16", family, paths),
        suite="sandbox",
        policy=read_policy(file),
        probes=ALL_PROBES,
    )
    return measure(request, paths, History.open(paths.history), progress)


@pytest.fixture(scope="module", autouse=True)
def few_documents() -> Iterator[None]:
    documents = load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")[::12]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(documents)])
        yield


@dataclass(frozen=True)
class Gated:
    """Two gates that were refused, one after the other, and the run of a third, in one state."""

    paths: Paths
    refused: tuple[Silent, Silent]
    progress: Silent
    run: RunRecord


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    paths = Paths(REPOSITORY, tmp_path_factory.mktemp("state"))
    first, second, third = Silent(), Silent(), Silent()
    for progress in (first, second):
        with pytest.raises(UsageError, match=r"'kl' cannot be judged: its margin of 1e-06 .*noise floor of") as refused:
            gate(paths, 1e-6, progress)
        assert refused.value.exit_code == 2
        history = History.open(paths.history)
        assert not history.items(history.get_run("latest").id)
    return Gated(paths, (first, second), third, gate(paths, 0.1, third))


def test_a_margin_below_the_floor_is_refused_at_once_and_the_floor_measured_once(gated: Gated) -> None:
    paths, run, (first, second) = gated.paths, gated.run, gated.refused
    assert "measuring the noise floor" in first.stages
    assert "measuring the branch" not in first.stages
    assert second.stages == []  # known from the reference alone: nothing was even read
    assert "measuring the noise floor" not in gated.progress.stages
    assert run.report is not None
    assert run.report.verdict is Verdict.PASS
    (kept,) = paths.captures.rglob("floor-*.json")
    floor = load_floor(kept)
    assert floor is not None
    assert floor.identity == run.reference_identity
    held = run.report.criteria[0].noise_floor
    assert held is not None
    largest = floor.largest("kl_divergence", "all")
    assert largest is not None
    assert (held.loss, held.source) == (largest.slices["all"].kl, largest.name)
    history = History.open(paths.history)
    in_history = {m.key: m.value for m in history.measurements(run.id) if m.metric.endswith("noise_floor")}
    assert in_history == {m.key: m.value for m in measurements(floor)}


def test_a_floor_of_another_reference_is_refused(gated: Gated, tmp_path: Path) -> None:
    paths, run = Paths(REPOSITORY, tmp_path / "state"), gated.run
    shutil.copytree(gated.paths.state, paths.state)
    (kept,) = paths.captures.rglob("floor-*.json")
    assert run.reference_identity is not None
    documents = load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")[::12]
    assert kept == floor_file(kept.parent, run.reference_identity, KLProbe(documents))
    floor = load_floor(kept)
    assert floor is not None
    keeper = FloorKeeper(floor.identity, kept.parent, None, Silent())
    assert keeper.floor(Work(KLProbe(documents), []), {}) == floor, "without the reference's weights"
    other = floor.identity.model_copy(update={"checkpoint_sha256": "of another model"})
    write_floor(kept, floor.model_copy(update={"identity": other}))
    with pytest.raises(UsageError, match="checkpoint_sha256 differ"):
        gate(paths, 0.1, Silent())


def test_the_command_shows_what_was_measured_and_what_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")[::20]
    monkeypatch.setattr(q36eval.run.floor, "build_probes", lambda *_: [KLProbe(documents)])
    monkeypatch.setattr(kl_floor, "TOKENS", 500)
    monkeypatch.setattr(kl_floor, "DOCUMENTS", 2)
    monkeypatch.setattr(Paths, "default", classmethod(lambda cls: Paths(REPOSITORY, tmp_path)))
    monkeypatch.setenv("COLUMNS", "140")
    assert reference.floor(as_json=True) == 0
    document = ReferenceFloor.model_validate_json(capsys.readouterr().out)
    measured = {row.name: row.skipped for row in document.perturbations}
    assert measured["decode"] is None
    assert measured["another-engine"] == "no other engine is at hand"
    assert reference.floor() == 0
    text = capsys.readouterr()
    assert "measuring the noise floor" not in text.err
    assert "not measured: another-engine" in text.out
    largest = document.largest("kl_divergence", "all")
    assert largest is not None
    assert f"{largest.slices['all'].kl:.2g}" in text.out
