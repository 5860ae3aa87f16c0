"""`q36eval kl` on a part of the sandbox corpus: what is kept, printed and shown.

The gate measures its reference's noise floor once, shows it, and refuses a margin below it before it asks.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import q36eval.run.preflight
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import UsageError
from q36eval.history import History, RunRecord
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.floor_file import load_floor, measurements
from q36eval.kl.probe import KLProbe
from q36eval.kl.tokens import read_tokens
from q36eval.records import Measurement, ProbeName, Verdict
from q36eval.run.request import Target
from q36eval.token_files import TOKENS
from tests.app.sandbox_gates import REPOSITORY, Gates, Heard, copied
from tests.app.weights_gates import kl
from tests.branches import folder_of
from tests.q36eval.checkpoints.inspection.damage import edit
from tests.raising import raises

pytestmark = pytest.mark.long

BUILD_PROBES = q36eval.run.preflight.build_probes


@pytest.fixture(scope="module")
def gates(
    tmp_path_factory: pytest.TempPathFactory,
    with_reference: Callable[[Path], Path],
    some_documents: list[CorpusDocument],
) -> Iterator[Gates]:
    """The KL of a few documents of the corpus, sharing one reference capture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(some_documents)])
        yield Gates(with_reference(tmp_path_factory.mktemp("state")), probes=(ProbeName.KL,))


@pytest.fixture(scope="module")
def measured(gates: Gates) -> RunRecord:
    return gates("fp8-head")


def by_key(gates: Gates, run: RunRecord) -> dict[str, Measurement]:
    return {m.key: m for m in gates.history.measurements(run.id)}


@pytest.mark.parametrize("placement", ["decoded", "packed", "layers"])
def test_a_layer_that_cannot_be_decoded_is_the_same_proven_fault_wherever_weights_lie(
    placement: str, gates: Gates, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.3.mlp.experts.2.up_proj.weight_scale"].view(torch.uint8)[0, 0] = 0x7F  # NaN in E4M3

    damaged, engine = copied(folder_of("main"), tmp_path / "damaged", edit(spoil)), EngineOptions(placement=placement)
    run = gates(damaged, engine=engine)
    assert by_key(gates, run)["weights.integrity_faults[all]"].value == 1
    assert any("experts.2.up_proj" in failure.reason for failure in gates.history.failures(run.id))
    with pytest.raises(UsageError, match=r"The reference cannot be used: .*experts\.2\.up_proj"):
        gates("bf16", reference=Target("bf16", damaged), engine=engine)


def test_what_needs_answers_is_refused_of_a_model_that_gives_none(
    gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(q36eval.run.preflight, "build_probes", BUILD_PROBES)
    with raises(UsageError, "weights-too-large", "--skip canaries"):
        gates("fp8-head", probes=(ProbeName.CANARIES,), engine=EngineOptions(placement="layers"))


def test_every_scored_token_is_in_the_file_and_makes_the_mean(gates: Gates, measured: RunRecord) -> None:
    table = read_tokens(gates.paths.tokens(measured.id) / TOKENS)
    kl = by_key(gates, measured)["kl.kl_divergence[all]"]
    assert table.num_rows == kl.counts.scored > 2000
    # float32: each term is off by 6e-8 of itself at most
    assert sum(table["forward_kl"].to_pylist()) / table.num_rows == pytest.approx(kl.value, rel=1e-7)
    keys = {outcome.item_key for outcome in gates.history.items(measured.id, ProbeName.KL)}
    assert set(table["item_key"].to_pylist()) == keys


# -- the noise floor


def gate(paths: Paths, margin: float, progress: Heard) -> RunRecord:
    """One branch on a few documents, under a policy of that margin; a floor of a few tokens."""
    return Gates(paths.state, f"name: test\ncriteria:\n{kl(margin)}")("gptq-int4", progress=progress)


def test_a_margin_below_the_floor_is_refused_at_once_and_the_floor_measured_once(
    tmp_path: Path, some_documents: list[CorpusDocument], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gates are refused, one after the other, and a third runs, in one state."""
    monkeypatch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(some_documents)])
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
    assert run.report.verdict is Verdict.PASS
    (kept,) = paths.captures.rglob("floor-*.json")
    floor = load_floor(kept)
    assert floor.identity == run.reference_identity
    held = run.report.criteria[0].noise_floor
    largest = floor.largest("kl_divergence", "all")
    assert (held.loss, held.source) == (largest.slices["all"].kl, largest.name)
    in_history = {m.key: m.value for m in history.measurements(run.id) if m.metric.endswith("noise_floor")}
    assert in_history == {m.key: m.value for m in measurements(floor)}
