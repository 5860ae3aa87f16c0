"""The gate on real sandbox checkpoints, with a reduced suite: verdicts, copies, damage, and what was not measured."""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import q36eval.run.branch
import q36eval.run.preflight
from q36eval.app.cli.report_formats import document_of
from q36eval.app.targets import resolve
from q36eval.checkpoints import open_files
from q36eval.config import Paths
from q36eval.engines import EngineOptions, in_process
from q36eval.errors import ChangedError, EngineError, UsageError
from q36eval.history import History, RunRecord, RunState
from q36eval.history.decisions import replayed
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.floor_file import load_floor, measurements
from q36eval.kl.probe import KLProbe
from q36eval.kl.tokens import read_tokens
from q36eval.provenance import STORED
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName, Verdict
from q36eval.references import captures_in
from q36eval.run.request import Request, Target
from q36eval.token_files import TOKENS
from tests.app.sandbox_gates import POLICY as WEIGHTS
from tests.app.sandbox_gates import REPOSITORY, SANDBOX, Gates, Heard, copied, kl, two_tokens_swapped
from tests.branches import folder_of
from tests.q36eval.checkpoints.inspection.damage import edit, flip
from tests.raising import failing, raises

FILE, PACKED = "model.safetensors", "model.layers.2.self_attn.o_proj.weight_packed"
BUILD_PROBES = q36eval.run.preflight.build_probes
POLICY = WEIGHTS.replace("[structured, freeform]", "[structured]") + kl(0.03)


@pytest.fixture(scope="module")
def gate(state: Path, some_documents: list[CorpusDocument]) -> Iterator[Gates]:
    """`gate(branch)` on a few documents of the corpus, sharing one reference capture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(some_documents)])
        yield Gates(state, POLICY)


@pytest.fixture(scope="module")
def served(gate: Gates) -> RunRecord:
    """A whole run of `main`, with which several tests compare theirs."""
    return gate("main")


def kl_of(gate: Gates, run: RunRecord) -> float:
    return gate.figures(run)["kl.kl_divergence[all]"]


def test_the_reference_against_itself_passes_with_a_divergence_of_exactly_zero(gate: Gates) -> None:
    run = gate("bf16")
    assert run.verdict is Verdict.PASS
    assert kl_of(gate, run) == 0.0
    assert run.provenance["packages"]["torch"]
    assert run.provenance[STORED]["bytes"] == 2 * run.provenance[STORED]["values"]


def test_a_ruined_branch_fails_and_names_the_criterion(gate: Gates) -> None:
    report = gate("int2-experts").report
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, ("kl",))


def damaged(tmp_path: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A copy of `main` with other tensors."""
    return copied(folder_of("main"), tmp_path / "damaged", edit(change))


@pytest.mark.parametrize("damage", ["renamed", "added"])
def test_a_checkpoint_with_one_wrong_tensor_fails_with_its_name(gate: Gates, tmp_path: Path, damage: str) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        if damage == "added":
            tensors["model.layers.2.surplus.weight"] = tensors["lm_head.weight"].clone()
            return
        tensors[PACKED.replace("o_proj", "out_proj")] = tensors.pop(PACKED)

    run = gate(damaged(tmp_path, change))
    assert (run.report.verdict, run.report.exit_code) == (Verdict.FAIL, 1)
    note = next(m.note for m in gate.history.measurements(run.id) if m.metric == "integrity_faults")
    faulty = "layers.2.surplus" if damage == "added" else PACKED
    assert faulty in note
    assert any(faulty in entry.text for entry in document_of(run, gate.history).findings.entries)


def test_a_reference_that_cannot_answer_hides_no_fault_of_the_branch(
    gate: Gates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot = failing(EngineError("generation-failed", "The reference could not answer: out of memory."))
    monkeypatch.setattr(q36eval.run.preflight, "build_probes", BUILD_PROBES)
    monkeypatch.setattr(q36eval.run.preflight, "material", cannot)
    for branch, code in ((damaged(tmp_path, lambda tensors: tensors.pop(PACKED)), 1), ("bf16", 4)):
        run = gate(branch, probes=(ProbeName.WEIGHTS, ProbeName.KL))
        assert run.report.exit_code == code
        reasons = {failure.probe: failure.reason for failure in gate.history.failures(run.id)}
        assert "out of memory" in reasons[ProbeName.KL]


def test_damage_that_loads_is_found_before_anything_is_asked(gate: Gates, tmp_path: Path) -> None:
    """Zeroed scales load without a word: the static probe fails the branch, and no item is asked of it."""
    name = "model.layers.3.mlp.experts.4.down_proj.weight_scale"

    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors[name].float().zero_().to(tensors[name].dtype)

    run = gate(damaged(tmp_path, change))
    assert (run.report.verdict, run.report.exit_code) == (Verdict.FAIL, 1)
    # the policy guards one lane only; damage fails the other too
    assert set(run.report.decisive) == {"intact", "checkpoint-intact"}
    assert not gate.history.items(run.id)


def test_another_tokenizer_is_a_fault_and_nothing_is_compared(gate: Gates, tmp_path: Path) -> None:
    copy = copied(SANDBOX / "bf16", tmp_path / "retokenized", two_tokens_swapped)
    run = gate(copy)
    assert run.verdict is Verdict.FAIL
    assert not gate.history.items(run.id)


@pytest.mark.long
def test_an_interrupted_run_resumes_and_a_finished_one_does_not(
    gate: Gates, served: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KLProbe, "summarize", lambda self, outcomes: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            gate("main")
    interrupted = gate.history.list_runs(branch="main", limit=1)[0]
    assert interrupted.state is RunState.INTERRUPTED
    with pytest.raises(UsageError, match=r"settings differ"):
        gate("main", resume=interrupted.id, engine=EngineOptions(batch_rows=4))
    exchanged = copied(folder_of("main"), tmp_path / "main", lambda folder: flip(folder / "model.safetensors"))
    with raises(UsageError, "run-of-another-deployment", "checkpoint_sha256"):
        gate(exchanged, resume=interrupted.id)
    with raises(UsageError, "run-of-another-request"):
        gate("main", resume=interrupted.id, max_items=10)
    criteria = tuple(each.model_copy(update={"title": "worded otherwise since"}) for each in gate.policy.criteria)
    titled = gate.policy.model_copy(update={"criteria": criteria})
    resumed = gate("main", resume=interrupted.id, policy=titled)
    assert kl_of(gate, resumed) == kl_of(gate, served)
    # a title decides nothing, and the run is judged by the policy that it keeps: else nobody could sign its report
    assert resumed.report == replayed(gate.history, resumed)
    with raises(UsageError, "run-finished"):
        gate("main", resume=interrupted.id)


@pytest.mark.long
def test_weights_alone_are_not_what_is_served_and_never_pass(gate: Gates, served: RunRecord) -> None:
    alone = gate("main", engine=EngineOptions(emulate_activations=False))
    assert kl_of(gate, alone) < 0.7 * kl_of(gate, served)
    assert served.report.verdict is Verdict.PASS
    assert alone.report.verdict is not Verdict.PASS
    intact = next(criterion for criterion in alone.report.criteria if criterion.id == "intact")
    assert intact.verdict.value == "NOT_MEASURED"


@pytest.mark.long
def test_a_run_that_is_being_measured_is_not_resumed(gate: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused attempt leaves the run's failures and its verdict alone."""
    history: History = gate.history
    failure = ProbeFailure(probe=ProbeName.EVALS, reason="found before the other came", kind="crashed")
    summarize = KLProbe.summarize

    def resumed_meanwhile(self: KLProbe, outcomes: Sequence[ItemOutcome]) -> Iterable[Measurement]:
        running = history.get_run("latest")
        history.add_failure(running.id, failure)
        with raises(UsageError, "already-running", running.id):
            gate("main", resume=running.id)
        assert history.get_run(running.id).state is RunState.RUNNING
        return summarize(self, outcomes)

    monkeypatch.setattr(KLProbe, "summarize", resumed_meanwhile)
    run = gate("main")
    assert run.state is RunState.FINISHED
    assert history.failures(run.id) == [failure]


# -- `q36eval kl`: what is kept of it; the noise floor, measured once, and margins below it


KL_ALONE: dict[str, Any] = {"policy": None, "probes": (ProbeName.KL,)}


@pytest.mark.long
@pytest.mark.parametrize("placement", ["decoded", "packed", "layers"])
def test_a_layer_that_cannot_be_decoded_is_the_same_proven_fault_wherever_weights_lie(
    placement: str, gate: Gates, tmp_path: Path
) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["model.layers.3.mlp.experts.2.up_proj.weight_scale"].view(torch.uint8)[0, 0] = 0x7F  # NaN in E4M3

    spoilt, engine = damaged(tmp_path, spoil), EngineOptions(placement=placement)
    run = gate(spoilt, engine=engine, **KL_ALONE)
    assert gate.figures(run)["weights.integrity_faults[all]"] == 1
    assert any("experts.2.up_proj" in failure.reason for failure in gate.history.failures(run.id))
    with pytest.raises(UsageError, match=r"The reference cannot be used: .*experts\.2\.up_proj"):
        gate("bf16", reference=Target("bf16", spoilt), engine=engine, **KL_ALONE)


@pytest.mark.long
def test_what_needs_answers_is_refused_of_a_model_that_gives_none(gate: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q36eval.run.preflight, "build_probes", BUILD_PROBES)
    with raises(UsageError, "weights-too-large", "--skip canaries"):
        gate("fp8-head", policy=None, probes=(ProbeName.CANARIES,), engine=EngineOptions(placement="layers"))


@pytest.mark.long
def test_every_scored_token_is_in_the_file_and_makes_the_mean(gate: Gates) -> None:
    run = gate("fp8-head", **KL_ALONE)
    table = read_tokens(gate.paths.tokens(run.id) / TOKENS)
    (kl,) = (each for each in gate.history.measurements(run.id) if each.key == "kl.kl_divergence[all]")
    assert table.num_rows == kl.counts.scored > 2000
    # float32: each term is off by 6e-8 of itself at most
    assert sum(table["forward_kl"].to_pylist()) / table.num_rows == pytest.approx(kl.value, rel=1e-7)
    keys = {outcome.item_key for outcome in gate.history.items(run.id, ProbeName.KL)}
    assert set(table["item_key"].to_pylist()) == keys


# -- the noise floor


def gated_below(paths: Paths, margin: float, progress: Heard) -> RunRecord:
    """One branch on a few documents, under a policy of that margin; a floor of a few tokens."""
    return Gates(paths.state, f"name: test\ncriteria:\n{kl(margin)}")("gptq-int4", progress=progress)


@pytest.mark.long
def test_a_margin_below_the_floor_is_refused_at_once_and_the_floor_measured_once(
    tmp_path: Path, some_documents: list[CorpusDocument], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gates are refused, one after the other, and a third runs, in one state."""
    monkeypatch.setattr(q36eval.run.preflight, "build_probes", lambda *_: [KLProbe(some_documents)])
    paths, first, second, third = Paths(REPOSITORY, tmp_path), Heard(), Heard(), Heard()
    for progress in (first, second):
        with raises(UsageError, "margin-below-floor", "'kl'", "1e-06") as refused:
            gated_below(paths, 1e-6, progress)
        assert refused.value.exit_code == 2
        history = History.open(paths.history)
        assert not history.items(history.get_run("latest").id)
    run = gated_below(paths, 0.1, third)
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


# -- a verdict belongs to the bytes it names: a gate whose checkpoints change under it gives none, and is not resumed


class CopiedGates(Gates):
    """Gates of copied folders against a copy of the sandbox's reference, which calls back when a stage begins."""

    def __init__(self, state: Path) -> None:
        super().__init__(state, WEIGHTS + kl(0.03))
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
    with raises(ChangedError, "files-changed", FILE):
        gates.gate(branch, begun, **named)
    (run,) = gates.history.list_runs()
    assert (run.state, run.report) == (RunState.INTERRUPTED, None)
    return run.id


@pytest.mark.parametrize(
    "change", [pytest.param(flip, marks=pytest.mark.long), lambda file: file.write_bytes(b"no checkpoint")]
)
def test_weights_overwritten_between_inspection_and_loading_give_no_verdict(
    gates: CopiedGates, change: Callable[[Path], object]
) -> None:
    branch, before = gates.copy("branch"), (gates.built / FILE).read_bytes()
    run = no_verdict(gates, branch, lambda title: title == "reading the checkpoint" and change(branch / FILE))
    (branch / FILE).write_bytes(before)
    with raises(UsageError, "run-changed", run):
        gates.gate(branch, resume=run)
    assert gates.gate(branch).verdict is Verdict.PASS


def test_damage_of_a_file_that_is_still_being_written_is_not_judged(
    gates: CopiedGates, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = gates.copy("branch")
    (branch / FILE).write_bytes((gates.built / FILE).read_bytes()[:-100])
    opened = q36eval.run.branch._inspect

    def written_on(request: Request) -> Any:
        inspection = opened(request)
        (branch / FILE).write_bytes((gates.built / FILE).read_bytes())
        return inspection

    monkeypatch.setattr(q36eval.run.branch, "_inspect", written_on)
    no_verdict(gates, branch, lambda _: None)


@pytest.mark.long
def test_weights_overwritten_while_the_branch_is_measured_give_no_verdict(
    gates: CopiedGates, with_reference: Callable[[Path], Path]
) -> None:
    with_reference(gates.paths.state)
    branch = gates.copy("branch")
    no_verdict(gates, branch, lambda title: title == "measuring the branch" and flip(branch / FILE), kl=True)


def test_a_reference_that_changes_while_it_is_loaded_answers_nothing(
    gates: CopiedGates, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, loaded = gates.copy("branch"), in_process.load_model

    def changed(folder: Any, **named: Any) -> Any:
        if folder.path == gates.reference:
            flip(gates.reference / FILE)
        return loaded(folder, **named)

    monkeypatch.setattr(in_process, "load_model", changed)
    with raises(ChangedError, "files-changed", f"reference/{FILE}"):
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
