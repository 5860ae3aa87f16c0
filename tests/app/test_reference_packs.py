"""Packs that are taken elsewhere: what a gate does with one alone, what it refuses, and unfinished captures."""

import gc
import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.config import Family, Paths
from q36eval.engines import base, open_engine
from q36eval.errors import UsageError
from q36eval.evals.probe import EvalsProbe
from q36eval.gate import CriterionVerdict
from q36eval.history import History, RunRecord
from q36eval.kl.corpus import load_corpus
from q36eval.kl.floor_file import load_floor, write_floor
from q36eval.kl.probe import KLProbe
from q36eval.probes import Probe, Progress
from q36eval.records import ProbeName, Verdict
from q36eval.references import Pack
from q36eval.run import branch as branching
from q36eval.run import pack as packing
from q36eval.run import preflight
from q36eval.run import reference as referring
from q36eval.run.floor import floor_state
from q36eval.run.pack import CaptureRequest, Estimate, capture
from q36eval.run.probe_set import Scored
from q36eval.run.request import Target
from tests.app.sandbox_gates import REPOSITORY, SANDBOX, Gates, copied, two_tokens_swapped
from tests.branches import folder_of
from tests.commands import q36eval
from tests.evals.small_suite import write_small_suite
from tests.q36eval.checkpoints.inspection.damage import Damage, edit, flip
from tests.raising import raises

pytestmark = pytest.mark.long

DOCUMENTS = load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")
POLICY = """
name: test
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured], waivable: false}
  - {id: weights, probe: weights, metric: errors_beyond_scheme,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured]}
  - {id: kl, probe: kl, metric: kl_divergence,
     margin: {kind: max_value, value: 0.1, source: x}, lanes: [freeform], min_clusters: 8}
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourteenth document, and no other probe."""
    for module in (preflight, packing):
        monkeypatch.setattr(module, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::14])])


@pytest.fixture(scope="module")
def family(state: Path) -> Family:
    """The sandbox, its reference's weights published somewhere else."""
    body = yaml.safe_load((REPOSITORY / "data" / "families" / "sandbox.yaml").read_text(encoding="utf-8"))
    body["branches"]["bf16"]["source"] = {"repository": "someone/bf16"}
    (state / "family.yaml").write_text(yaml.safe_dump(body))
    return Family.load(state / "family.yaml")


def captured(state: Path, name: str, step: int = 14) -> tuple[Path, Estimate]:
    told: list[Estimate] = []
    request = CaptureRequest(
        Target("bf16", SANDBOX / "bf16"),
        Scored("sandbox", 4096),
        (ProbeName.KL,),
        out=state / name,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::step])])
        capture(request, Paths(REPOSITORY, state), Progress(), told.append)
    return state / name, told[0]


@pytest.fixture(scope="module")
def pack(state: Path) -> Path:
    folder, estimate = captured(state, "pack")
    size = sum(file.stat().st_size for file in folder.glob("*/**/*") if file.is_file())
    assert size <= estimate.total < 1.05 * size, "told before the work, and true"
    return folder


@pytest.fixture
def copy(pack: Path, tmp_path: Path) -> Path:
    """The pack, to be changed."""
    return Path(shutil.copytree(pack, tmp_path / "copy"))


class PackGates(Gates):
    """Gates of folders against a pack."""

    def __call__(self, branch: str | Path, pack: Path | None = None, **fields: Any) -> RunRecord:
        return super().__call__(branch, reference_pack=pack, **fields)


@pytest.fixture
def gate(state: Path, family: Family) -> PackGates:
    return PackGates(state, POLICY, family=family, reference=None, probes=(ProbeName.WEIGHTS, ProbeName.KL))


def test_a_pack_alone_gives_the_figures_of_its_reference(gate: PackGates, pack: Path) -> None:
    """The weights that cannot be compared are not measured and say so; the rest is what the reference here gives."""
    alone = gate(folder_of("main"), pack)
    beside = gate(folder_of("main"), None, reference=Target("bf16", SANDBOX / "bf16"))
    kl = "kl.kl_divergence[all]"
    assert gate.figures(alone)[kl] == gate.figures(beside)[kl] > 0
    assert beside.verdict is Verdict.PASS
    verdicts = {criterion.id: criterion for criterion in alone.report.criteria}
    assert verdicts["intact"].verdict is CriterionVerdict.PASS
    assert verdicts["kl"].verdict is CriterionVerdict.PASS
    assert verdicts["weights"].verdict is CriterionVerdict.NOT_MEASURED
    assert "weights are not on this machine" in verdicts["weights"].reason
    assert (alone.verdict, alone.report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert alone.reference_identity == beside.reference_identity
    whole = gate(folder_of("main"), pack, reference=Target("bf16", SANDBOX / "bf16"))
    assert whole.verdict is Verdict.PASS


def spaced(file: str) -> Damage:
    """A space at the end of a file."""

    def append(folder: Path) -> None:
        with (folder / file).open("a", encoding="utf-8") as stream:
            stream.write(" ")

    return append


@pytest.mark.parametrize(
    ("field", "damage"),
    [("tokenizer_sha256", two_tokens_swapped), ("chat_template_sha256", spaced("chat_template.jinja"))],
)
def test_a_branch_that_is_asked_other_tokens_is_refused_with_the_field(
    gate: PackGates, pack: Path, tmp_path: Path, field: str, damage: Damage
) -> None:
    runs = len(gate.history.list_runs())
    with raises(UsageError, "pack-identity", field):
        gate(copied(SANDBOX / "bf16", tmp_path / "changed", damage), pack)
    assert len(gate.history.list_runs()) == runs, "no run is begun"


@pytest.mark.parametrize(
    ("probe", "difference"),
    [
        (KLProbe(DOCUMENTS[::15]), r"corpus \(the pack's: \w{16}, this run's: \w{16}\); pass the same --corpus"),
        (
            KLProbe(DOCUMENTS[::14], context=1024),
            r"in context \(the pack's: 4096, this run's: 1024\)",
        ),
    ],
    ids=["corpus", "context"],
)
def test_another_suite_is_refused_with_what_differs(
    gate: PackGates,
    pack: Path,
    monkeypatch: pytest.MonkeyPatch,
    probe: KLProbe,
    difference: str,
) -> None:
    monkeypatch.setattr(preflight, "build_probes", lambda *_: [probe])
    with pytest.raises(UsageError, match=difference):
        gate(folder_of("main"), pack)


def test_of_several_captures_that_of_the_suite_asked_is_read(
    gate: PackGates, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = tmp_path / "both"
    shutil.copytree(pack, both)
    captured(tmp_path, "both", step=15)
    for step in (14, 15):
        probe = KLProbe(DOCUMENTS[::step])
        monkeypatch.setattr(preflight, "build_probes", lambda *_, probe=probe: [probe])
        run = gate(folder_of("main"), both)
        (kl,) = (m for m in gate.history.measurements(run.id) if m.key == "kl.kl_divergence[all]")
        assert kl.note.startswith(f"{len(DOCUMENTS[::step])} documents")


def test_a_pack_of_another_checkpoint_is_refused(gate: PackGates, pack: Path, family: Family, tmp_path: Path) -> None:
    """By the hash in the family file, or by the reference's folder where it is here."""
    branch = family.branches["bf16"].model_copy(update={"checkpoint_sha256": "0" * 64})
    declaring = family.model_copy(update={"branches": family.branches | {"bf16": branch}})
    with raises(UsageError, "pack-identity", "checkpoint_sha256", "sandbox/bf16", "0000"):
        gate(folder_of("main"), pack, family=declaring)
    other = copied(SANDBOX / "bf16", tmp_path / "changed", spaced("generation_config.json"))
    with raises(UsageError, "pack-identity", "checkpoint_sha256", "changed"):
        gate(folder_of("main"), pack, reference=Target("changed", other))


def test_a_shard_that_turns_out_altered_ends_the_run_and_loses_nothing(gate: PackGates, pack: Path, copy: Path) -> None:
    shard = sorted(copy.glob("*/items/*"))[3]
    flip(shard)
    with raises(UsageError, "pack-damaged", shard.name):
        gate(folder_of("main"), copy)
    interrupted = gate.history.list_runs(branch="main", limit=1)[0]
    resumed = gate(folder_of("main"), pack, resume=interrupted.id)
    assert gate.figures(resumed) == gate.figures(gate(folder_of("main"), pack))


def test_show_and_verify(pack: Path, copy: Path, tmp_path: Path) -> None:
    shown = q36eval("reference", "show", str(pack), "--json", state=tmp_path)
    (row,) = json.loads(shown.stdout)["captures"]
    assert (row["state"], row["items"], row["kind"], row["vocabulary"]) == ("finished", 10, "hidden-states", 1024)
    for quiet, said in ((), "1 captures are whole\n"), (("-q",), ""):
        whole = q36eval("reference", "show", "--verify", str(pack), *quiet, state=tmp_path)
        assert (whole.returncode, whole.stdout) == (0, said)
    shard, floor = sorted(copy.glob("*/items/*"))[0], next(copy.glob("floor-*.json"))
    body = json.loads(floor.read_text())
    body["perturbations"][0]["slices"]["all"]["kl"] = 1e-12  # a figure that was altered is damage too
    floor.write_text(json.dumps(body))
    flip(shard)
    verified = q36eval("reference", "show", "--verify", str(copy), state=tmp_path, code=1)
    assert [line.partition(":")[0] for line in verified.stdout.splitlines()] == ["damaged"] * 2
    assert [name for name in (shard.name, floor.name) if name not in verified.stdout] == []
    next(copy.glob("*/pack.json")).unlink()
    assert "unfinished" in q36eval("reference", "show", str(copy), state=tmp_path).stdout


def test_a_pack_without_its_floor_is_unfinished_and_judges_nothing(gate: PackGates, copy: Path, tmp_path: Path) -> None:
    """Else a margin below the noise would pass; what is only measured needs no floor."""
    next(copy.glob("floor-*.json")).unlink()
    sentence = (
        f"floor missing: finish with `q36eval reference capture --out {copy}` and the options it was captured with"
    )
    with raises(UsageError, "floor-missing", sentence) as refused:
        gate(folder_of("main"), copy)
    assert refused.value.exit_code == 2
    assert gate.figures(gate(folder_of("main"), copy, policy=None))["kl.kl_divergence[all]"] > 0
    verified = q36eval("reference", "show", "--verify", str(copy), state=tmp_path, code=2)
    assert sentence in verified.stderr
    (row,) = json.loads(q36eval("reference", "show", str(copy), "--json", state=tmp_path).stdout)["captures"]
    assert (row["state"], row["lacking"]) == ("unfinished", sentence)
    assert "floor missing" in q36eval("reference", "show", str(copy), state=tmp_path).stdout
    captured(copy.parent, copy.name)
    assert q36eval("reference", "show", "--verify", str(copy), state=tmp_path).returncode == 0


def test_a_floor_that_the_engine_broke_on_in_part_is_kept_with_that_said(copy: Path) -> None:
    """Broken on throughout there is no figure to hold a margin against."""
    (path,) = copy.glob("floor-*.json")
    (_, header, _), *_ = Pack.open(copy).captures
    floor = load_floor(path)
    broken = [
        row.model_copy(update={"failed": True, "skipped": "the engine failed: x", "slices": {}})
        for row in floor.perturbations
    ]
    write_floor(path, floor.model_copy(update={"perturbations": (*broken[:1], *floor.perturbations[1:])}))
    assert floor_state(copy, header) is None
    write_floor(path, floor.model_copy(update={"perturbations": tuple(broken)}))
    assert "the engine failed: left-padding" in str(floor_state(copy, header))
    captured(copy.parent, copy.name)
    assert not load_floor(path).failed


# -- a device that does not hold both models: the reference is asked, and gone, before the branch is loaded


class Opened:
    """Opens engines as ever, and writes down which others were alive then; one text the reference may not score."""

    def __init__(self, unscored: bool = False) -> None:
        self.unscored = unscored
        self.beside: list[tuple[str, list[str]]] = []
        self._alive: dict[str, Any] = {}

    def __call__(self, settings: Any) -> Any:
        gc.collect()
        beside = [name for name, engine in self._alive.items() if engine() is not None]
        self.beside.append((settings.folder.name, beside))
        engine = open_engine(settings)
        if self.unscored and settings.folder.name == "bf16":
            _spoil_one(engine)
        self._alive[settings.folder.name] = weakref.ref(engine)
        return engine


def _spoil_one(engine: Any) -> None:
    """The first text that is scored never fits its context."""
    score, spoiled = engine.score, set[str]()

    def scored(requests: Any, known: Any = ()) -> Iterator[base.Scored]:
        for each in score(requests, known):
            spoiled.update({each.request.key} if not spoiled else ())
            lost = each.request.key in spoiled
            yield replace(each, hidden_states=None, error="too long", permanent=True) if lost else each

    engine.score = scored


def a_few_documents() -> Probe:
    return KLProbe(DOCUMENTS[::14])


def judged(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    branch: Path = SANDBOX / "fp8-head",
    probes: tuple[ProbeName, ...] = (ProbeName.WEIGHTS, ProbeName.KL),
    unscored: bool = False,
    asking: Callable[[], Probe] = a_few_documents,
) -> tuple[RunRecord, Opened]:
    opened = Opened(unscored)
    state.mkdir()
    for module in (branching, referring):
        monkeypatch.setattr(module, "open_engine", opened)
    monkeypatch.setattr(preflight, "build_probes", lambda *_: [asking()])
    return Gates(state, POLICY)(branch, probes=probes), opened


@pytest.mark.parametrize(("probe", "turns", "least"), [(ProbeName.KL, 1, 0), (ProbeName.EVALS, 3, 75)])
def test_neither_model_is_loaded_beside_the_other_and_nothing_else_differs(
    probe: ProbeName, turns: int, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six blocks of short answers the reference answers two first, then one and one more, then the last."""
    subjects = ("anatomy", "astronomy", "botany", "geology", "law", "music")
    counts = {f"short_answers/{subject}.jsonl": 15 for subject in subjects}
    counts |= {f"short_answers_dev/{subject}.jsonl": 5 for subject in subjects}
    suite = write_small_suite(tmp_path / "suite", counts, block_items=15)
    runs = {}
    for name, devices in (("both", branching.HOLD_BOTH), ("one", frozenset[str]())):
        monkeypatch.setattr(branching, "HOLD_BOTH", devices)
        asking = (lambda: EvalsProbe(suite)) if probe is ProbeName.EVALS else a_few_documents
        run, opened = judged(tmp_path / name, monkeypatch, probes=(ProbeName.WEIGHTS, probe), asking=asking)
        assert (("bf16", ["fp8-head"]) in opened.beside) == (name == "both"), "a CPU holds both"
        history = History.open(Paths(REPOSITORY, tmp_path / name).history)
        items = {item.item_key: (item.branch.text, item.reference.text) for item in history.items(run.id)}
        runs[name] = (len(items), items, {each.key: each for each in history.measurements(run.id)}, run.verdict)
    assert opened.beside == [("bf16", []), ("fp8-head", [])] * turns
    assert runs["one"] == runs["both"]
    assert runs["one"][0] > least


def test_what_the_reference_cannot_score_is_not_asked_again_beside_the_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "HOLD_BOTH", frozenset())
    run, opened = judged(tmp_path / "state", monkeypatch, unscored=True)
    assert opened.beside == [("bf16", []), ("fp8-head", [])]
    (kl,) = [each for each in run.report.criteria if each.id == "kl"] if run.report is not None else []
    assert kl.counts.errored > 0


def test_a_branch_that_is_known_to_fail_waits_for_no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another tokenizer, and by weights that nobody inspects and that lack a tensor: as where both models fit."""
    verdicts = []
    lost = edit(lambda tensors: tensors.pop(next(name for name in tensors if "norm" in name)))
    for name, spoil in (("tokenizer", two_tokens_swapped), ("weights", lost)):
        folder = copied(SANDBOX / "fp8-head", tmp_path / name / "fp8-head", spoil)
        for devices in (branching.HOLD_BOTH, frozenset[str]()):
            with monkeypatch.context() as patch:
                patch.setattr(branching, "HOLD_BOTH", devices)
                state = tmp_path / f"{name}-{len(devices)}"
                run, opened = judged(state, patch, folder, (ProbeName.KL,))
            verdicts.append((name, run.verdict, run.report.exit_code, "bf16" in dict(opened.beside)))
    other = ("tokenizer", Verdict.INCONCLUSIVE, 3, False)  # what differs is the weights probe's to fail
    lacking = ("weights", Verdict.FAIL, 1, False)
    assert verdicts == [other, other, lacking, lacking]
