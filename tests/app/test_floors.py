"""The gate measures its reference's noise floor once, shows it, and refuses a margin below it before it asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import q36eval.run.floor
import q36eval.run.preflight
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.history import History, RunRecord
from q36eval.kl.corpus import load_corpus
from q36eval.kl.floor_file import load_floor, measurements
from q36eval.kl.probe import KLProbe
from q36eval.records import Verdict
from tests.app.sandbox_gates import REPOSITORY, Gates, Heard
from tests.app.weights_gates import kl
from tests.raising import raises

pytestmark = pytest.mark.long


def gate(paths: Paths, margin: float, progress: Heard) -> RunRecord:
    """One branch on a few documents, under a policy of that margin; a floor of a few tokens."""
    return Gates(paths.state, f"name: test\ncriteria:\n{kl(margin)}")("gptq-int4", progress=progress)


@pytest.fixture(scope="module", autouse=True)
def few_documents() -> Iterator[None]:
    documents = load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")[::12]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(documents)])
        yield


def test_a_margin_below_the_floor_is_refused_at_once_and_the_floor_measured_once(tmp_path: Path) -> None:
    """Two gates are refused, one after the other, and a third runs, in one state."""
    paths, first, second, third = Paths(REPOSITORY, tmp_path), Heard(), Heard(), Heard()
    for progress in (first, second):
        with raises(UsageError, "margin-below-floor", "'kl'", "1e-06") as refused:
            gate(paths, 1e-6, progress)
        assert refused.value.exit_code == 2
        history = History.open(paths.history)
        assert not history.items(history.get_run("latest").id)
    run = gate(paths, 0.1, third)
    assert "measuring the noise floor" in first.stages
    assert "measuring the branch" not in first.stages
    assert second.stages == []  # known from the reference alone: nothing was even read
    assert "measuring the noise floor" not in third.stages
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
    in_history = {m.key: m.value for m in history.measurements(run.id) if m.metric.endswith("noise_floor")}
    assert in_history == {m.key: m.value for m in measurements(floor)}
