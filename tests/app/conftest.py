"""What a gate on the sandbox needs of its reference: captured once for all files, with a small noise floor."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from q36eval.config import Paths
from q36eval.history import History
from q36eval.kl.corpus import CorpusDocument, load_corpus
from q36eval.kl.probe import KLProbe
from q36eval.records import ProbeName
from tests.app.judged_runs import open_history
from tests.app.sandbox_gates import POLICY, REPOSITORY, SKIPPING, Gates
from tests.once import built_once


@contextmanager
def three_documents() -> Iterator[None]:
    """Every perturbation of a noise floor scores three documents, not a gate's 12,000 tokens, which take ten seconds.

    tests/kl/test_floor.py shows that the figures of a floor are right.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("q36eval.kl.floor.TOKENS", 1000)
        patch.setattr("q36eval.kl.floor.DOCUMENTS", 3)
        yield


@pytest.fixture(scope="module", autouse=True)
def small_floor() -> Iterator[None]:
    """For one file at a time: a process runs files of other folders in between, and those mean the whole floor."""
    with three_documents():
        yield


@pytest.fixture(scope="session")
def some_documents() -> list[CorpusDocument]:
    """Every fourteenth of the sandbox's corpus: enough for a verdict."""
    return load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")[::14]


@pytest.fixture(scope="session")
def with_reference(
    tmp_path_factory: pytest.TempPathFactory, some_documents: list[CorpusDocument]
) -> Callable[[Path], Path]:
    """Gives a new state what the sandbox's reference said of those documents, and its noise floor; returns the state.

    It is captured once, for all files and all worker processes.
    """

    def build(state: Path) -> None:
        with three_documents(), pytest.MonkeyPatch.context() as patch:
            patch.setattr("q36eval.run.preflight.build_probes", lambda *_: [KLProbe(some_documents)])
            Gates(state, probes=(ProbeName.KL,))("bf16")

    captured = built_once(tmp_path_factory, "reference", build)

    def start(state: Path) -> Path:
        shutil.copytree(Paths(REPOSITORY, captured).captures, Paths(REPOSITORY, state).captures)
        return state

    return start


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, with_reference: Callable[[Path], Path]) -> Path:
    """With that of the reference, for one file; a file that needs another state has its own."""
    return with_reference(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny Llama whose context holds every general text, and it in FP8; only to be read."""
    from tests.q36eval.checkpoints.inspection.test_damage import quantized, written

    def build(place: Path) -> None:
        reference = written("llama", place / "mine-bf16")
        config = json.loads((reference / "config.json").read_text()) | {"max_position_embeddings": 1024}
        (reference / "config.json").write_text(json.dumps(config))
        quantized(reference, place / "mine-fp8")

    place = built_once(tmp_path_factory, "llamas", build)
    return place / "mine-bf16", place / "mine-fp8"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside the checkout, where we are, with a project file of no one above it."""
    (tmp_path / "here" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def history(tmp_path: Path) -> History:
    return open_history(tmp_path)


@pytest.fixture
def weights(tmp_path: Path) -> tuple[str, ...]:
    """Options of a gate that judges the files alone, by a policy under which an intact branch passes."""
    policy = tmp_path / "weights.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    return ("--policy", str(policy), *SKIPPING)
