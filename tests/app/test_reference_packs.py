"""Packs that are taken elsewhere: what a gate does with one alone, what it refuses, and captures that are killed."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from q36eval.app.cli.kl_report import check_plot, print_summary
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate import CriterionVerdict
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.kl.corpus import load_corpus
from q36eval.kl.floor_file import load_floor, write_floor
from q36eval.kl.probe import KLProbe
from q36eval.probes import Progress
from q36eval.records import ProbeName, Verdict
from q36eval.references import Pack
from q36eval.run import pack as packing
from q36eval.run import preflight
from q36eval.run.floor import floor_state
from q36eval.run.measure import measure
from q36eval.run.pack import CaptureRequest, Estimate, capture
from q36eval.run.probe_set import Scored
from q36eval.run.request import Request, Target
from tests.branches import folder_of
from tests.commands import q36eval
from tests.kills import KILLS

REPOSITORY = Path(__file__).parents[2]
SANDBOX = REPOSITORY / "data" / "sandbox"
DOCUMENTS = load_corpus(REPOSITORY / "data" / "corpus" / "sandbox")
POLICY = """
name: test
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured], waivable: false}
  - {id: unquantized, probe: weights, metric: unquantized_differences,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured]}
  - {id: kl, probe: kl, metric: kl_divergence,
     margin: {kind: max_value, value: 0.1, source: x}, lanes: [freeform], min_clusters: 8}
"""
TOP_K = 8


class Silent(Progress):
    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourteenth document, and no other probe."""
    for module in (preflight, packing):
        monkeypatch.setattr(module, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::14])])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, with_reference: Callable[[Path], Path]) -> Path:
    return with_reference(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def family(state: Path) -> Family:
    """The sandbox, its reference's weights published somewhere else."""
    body = yaml.safe_load((REPOSITORY / "data" / "families" / "sandbox.yaml").read_text(encoding="utf-8"))
    body["branches"]["bf16"]["source"] = {"repository": "someone/bf16"}
    (state / "family.yaml").write_text(yaml.safe_dump(body))
    return Family.load(state / "family.yaml")


def captured(
    state: Path, name: str, top_k: int | None = None, keep_head: bool = True, step: int = 14
) -> tuple[Path, Estimate]:
    told: list[Estimate] = []
    request = CaptureRequest(
        Target("bf16", SANDBOX / "bf16"),
        Scored("sandbox", 4096),
        (ProbeName.KL,),
        out=state / name,
        keep_head=keep_head,
        top_k=top_k,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::step])])
        capture(request, Paths(REPOSITORY, state), Silent(), told.append)
    return state / name, told[0]


@pytest.fixture(scope="module")
def pack(state: Path) -> Path:
    folder, estimate = captured(state, "pack")
    size = sum(file.stat().st_size for file in folder.glob("*/**/*") if file.is_file())
    assert size <= estimate.total < 1.05 * size, "told before the work, and true"
    return folder


@pytest.fixture(scope="module")
def top_k_pack(state: Path) -> Path:
    folder, estimate = captured(state, "top-k", TOP_K)
    size = sum(file.stat().st_size for file in folder.glob("*/**/*") if file.is_file())
    assert size <= estimate.total < 1.1 * size
    return folder


@pytest.fixture
def gate(state: Path, family: Family) -> Callable[..., RunRecord]:
    (state / "policy.yaml").write_text(POLICY)
    paths = Paths(REPOSITORY, state)
    history = History.open(paths.history)

    def run(branch: Path, pack: Path | None, **changes: object) -> RunRecord:
        request = Request(
            family=family,
            branch=Target(branch.name, branch),
            reference=None,
            suite="sandbox",
            policy=read_policy(state / "policy.yaml"),
            probes=(ProbeName.WEIGHTS, ProbeName.KL),
            reference_pack=pack,
        )
        return measure(replace(request, **changes), paths, history, Silent())  # type: ignore[arg-type]

    run.history = history  # type: ignore[attr-defined]
    return run


def figures(gate: Callable[..., RunRecord], run: RunRecord) -> dict[str, float]:
    return {m.key: m.value for m in gate.history.measurements(run.id)}  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_pack_alone_gives_the_figures_of_its_reference(gate: Callable[..., RunRecord], pack: Path) -> None:
    """The weights that cannot be compared are not measured and say so; the rest is what the reference here gives."""
    alone = gate(folder_of("main"), pack)
    beside = gate(folder_of("main"), None, reference=Target("bf16", SANDBOX / "bf16"))
    kl = "kl.kl_divergence[all]"
    assert figures(gate, alone)[kl] == figures(gate, beside)[kl] > 0
    assert beside.verdict is Verdict.PASS
    assert alone.report is not None
    verdicts = {criterion.id: criterion for criterion in alone.report.criteria}
    assert verdicts["intact"].verdict is CriterionVerdict.PASS
    assert verdicts["kl"].verdict is CriterionVerdict.PASS
    assert verdicts["unquantized"].verdict is CriterionVerdict.NOT_MEASURED
    assert "weights are not on this machine" in verdicts["unquantized"].reason
    assert (alone.verdict, alone.report.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert alone.reference_identity == beside.reference_identity
    whole = gate(folder_of("main"), pack, reference=Target("bf16", SANDBOX / "bf16"))
    assert whole.verdict is Verdict.PASS


def changed(tmp_path: Path, file: str, change: Callable[[str], str]) -> Path:
    copy = tmp_path / "changed"
    shutil.copytree(SANDBOX / "bf16", copy)
    (copy / file).write_text(change((copy / file).read_text(encoding="utf-8")), encoding="utf-8")
    return copy


def swapped(text: str) -> str:
    tokenizer = json.loads(text)
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    return json.dumps(tokenizer)


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "file", "change"),
    [
        ("tokenizer_sha256", "tokenizer.json", swapped),
        ("chat_template_sha256", "chat_template.jinja", lambda text: text + " "),
    ],
)
def test_a_branch_that_is_asked_other_tokens_is_refused_with_the_field(
    gate: Callable[..., RunRecord], pack: Path, tmp_path: Path, field: str, file: str, change: Callable[[str], str]
) -> None:
    runs = len(gate.history.list_runs())  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=rf"another {field}: the pack's is \w{{16}}, the branch's is \w{{16}}"):
        gate(changed(tmp_path, file, change), pack)
    assert len(gate.history.list_runs()) == runs, "no run is begun"  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.parametrize(
    ("probe", "top_k", "difference"),
    [
        (KLProbe(DOCUMENTS[::15]), None, r"corpus \(the pack's: \w{16}, this run's: \w{16}\); pass the same --corpus"),
        (
            KLProbe(DOCUMENTS[::14], context=1024),
            None,
            r"in context \(the pack's: 4096, this run's: 1024\)",
        ),
        (KLProbe(DOCUMENTS[::14]), 5, r"in top_k \(the pack's: none, this run's: 5\); pass the same --top-k\."),
    ],
    ids=["corpus", "context", "top-k"],
)
def test_another_suite_is_refused_with_what_differs(
    gate: Callable[..., RunRecord],
    pack: Path,
    monkeypatch: pytest.MonkeyPatch,
    probe: KLProbe,
    top_k: int | None,
    difference: str,
) -> None:
    monkeypatch.setattr(preflight, "build_probes", lambda *_: [probe])
    with pytest.raises(UsageError, match=difference):
        gate(folder_of("main"), pack, top_k=top_k)


@pytest.mark.long
def test_a_pack_of_before_its_suite_was_described_is_read_as_ever(
    gate: Callable[..., RunRecord], pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    (path,) = copy.glob("*/pack.json")
    header, body = (json.loads(path.with_name(name).read_text()) for name in ("capture.json", "pack.json"))
    del header["suite"], body["suite"], body["manifest_sha256"]
    text = json.dumps(header).encode()
    path.with_name("capture.json").write_bytes(text)
    body["files"]["capture.json"] = {"sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)}
    sealed = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body | {"manifest_sha256": sealed}))
    assert figures(gate, gate(folder_of("main"), copy)) == figures(gate, gate(folder_of("main"), pack))
    monkeypatch.setattr(preflight, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::15])])
    with pytest.raises(UsageError, match=r"another kl suite: its suite_sha256 is \w{16}, this run's is \w{16}"):
        gate(folder_of("main"), copy)


@pytest.mark.long
def test_of_several_captures_that_of_the_suite_asked_is_read(
    gate: Callable[..., RunRecord], pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The full vocabulary of one corpus does not hide the bounds of another, nor the lesser K the greater."""
    both = tmp_path / "both"
    shutil.copytree(pack, both)
    for size in (2, TOP_K):
        captured(tmp_path, "both", size, step=15)
    monkeypatch.setattr(preflight, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::15])])
    bound = "kl.kl_divergence_lower_bound[all]"
    found = figures(gate, gate(folder_of("main"), both))
    assert found[bound] > figures(gate, gate(folder_of("main"), both, top_k=2))[bound] > 0


@pytest.mark.long
def test_a_pack_of_another_checkpoint_is_refused(
    gate: Callable[..., RunRecord], pack: Path, family: Family, tmp_path: Path
) -> None:
    """By the hash in the family file, or by the reference's folder where it is here."""
    branch = family.branches["bf16"].model_copy(update={"checkpoint_sha256": "0" * 64})
    declaring = family.model_copy(update={"branches": family.branches | {"bf16": branch}})
    with pytest.raises(UsageError, match=r"another checkpoint_sha256: .* that of sandbox/bf16 is 0000"):
        gate(folder_of("main"), pack, family=declaring)
    other = changed(tmp_path, "generation_config.json", lambda text: text + " ")
    with pytest.raises(UsageError, match=r"another checkpoint_sha256: .* that of the reference .*changed"):
        gate(folder_of("main"), pack, reference=Target("changed", other))


@pytest.mark.long
@pytest.mark.parametrize("damage", ["truncated", "missing", "unfinished"])
def test_a_damaged_or_unfinished_pack_is_refused_before_anything_runs(
    gate: Callable[..., RunRecord], pack: Path, tmp_path: Path, damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    shard = sorted(copy.glob("*/items/*"))[3]
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-10])
    elif damage == "missing":
        shard.unlink()
    else:
        next(copy.glob("*/pack.json")).unlink()
    with pytest.raises(UsageError, match=shard.name if damage != "unfinished" else r"unfinished.*reference capture"):
        gate(folder_of("main"), copy)


@pytest.mark.long
def test_a_shard_that_turns_out_altered_ends_the_run_and_loses_nothing(
    gate: Callable[..., RunRecord], pack: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    shard = sorted(copy.glob("*/items/*"))[3]
    payload = bytearray(shard.read_bytes())
    payload[-1] ^= 64
    shard.write_bytes(payload)
    with pytest.raises(UsageError, match=f"{shard.name} is damaged"):
        gate(folder_of("main"), copy)
    interrupted = gate.history.list_runs(branch="main", limit=1)[0]  # type: ignore[attr-defined]
    resumed = gate(folder_of("main"), pack, resume=interrupted.id)
    assert figures(gate, resumed) == figures(gate, gate(folder_of("main"), pack))


@pytest.mark.long
def test_a_top_k_pack_bounds_and_never_passes_a_divergence(
    gate: Callable[..., RunRecord], pack: Path, top_k_pack: Path
) -> None:
    run = gate(folder_of("main"), top_k_pack)
    found = figures(gate, run)
    exact = figures(gate, gate(folder_of("main"), pack))["kl.kl_divergence[all]"]
    bound = found["kl.kl_divergence_lower_bound[all]"]
    assert "kl.kl_divergence[all]" not in found
    assert 0.8 * exact < bound < exact
    assert run.report is not None
    assert run.report.exit_code == 3
    verdicts = {criterion.id: criterion.verdict for criterion in run.report.criteria}
    assert verdicts["kl"] is CriterionVerdict.NOT_MEASURED


@pytest.mark.long
def test_the_gap_of_a_bound_is_told_where_the_full_vocabulary_was_captured_too(
    gate: Callable[..., RunRecord], pack: Path, top_k_pack: Path, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    shutil.copytree(pack, both)
    shutil.copytree(top_k_pack, both, dirs_exist_ok=True)
    exact = figures(gate, gate(folder_of("main"), both))["kl.kl_divergence[all]"]
    found = figures(gate, gate(folder_of("main"), both, top_k=TOP_K))
    bound, gap = (found[f"kl.kl_divergence_{name}[all]"] for name in ("lower_bound", "bound_gap"))
    assert bound + gap == pytest.approx(exact, rel=1e-9)
    assert gap > 0


@pytest.mark.long
def test_a_bound_is_printed_by_its_whole_name_and_not_plotted(
    gate: Callable[..., RunRecord],
    pack: Path,
    top_k_pack: Path,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was measured says what is printed: nobody asked this pack for bounds, and it holds no more."""
    both = tmp_path / "both"
    shutil.copytree(pack, both)
    shutil.copytree(top_k_pack, both, dirs_exist_ok=True)
    monkeypatch.setenv("COLUMNS", "80")
    for run in (gate(folder_of("main"), top_k_pack), gate(folder_of("main"), both, top_k=TOP_K)):
        capsys.readouterr()
        print_summary(run, gate.history, Paths(REPOSITORY, state))  # type: ignore[attr-defined]
        printed = capsys.readouterr().out
        assert "No token was scored" not in printed
        assert re.search(r"^ *kl_divergence_lower_bound +\S+ nats", printed, re.MULTILINE)
        assert "Without a finite figure: 0 of" in printed
    assert re.search(r"^ *kl_divergence_bound_gap +\S+ nats", printed, re.MULTILINE)
    check_plot(tmp_path / "plot.html", None, both)
    for top_k, where in ((None, top_k_pack), (TOP_K, both)):
        with pytest.raises(UsageError, match="needs the exact divergence"):
            check_plot(tmp_path / "plot.html", top_k, where)


@pytest.mark.long
def test_a_pack_without_its_head_takes_it_from_the_reference_s_folder(
    gate: Callable[..., RunRecord], pack: Path, state: Path
) -> None:
    headless, _ = captured(state, "headless", keep_head=False)
    assert not list(headless.rglob("shared.safetensors"))
    with pytest.raises(UsageError, match=r"only the hash of the reference's head; .*--reference"):
        gate(folder_of("main"), headless)
    found = gate(folder_of("main"), headless, reference=Target("bf16", SANDBOX / "bf16"))
    assert (
        figures(gate, found)["kl.kl_divergence[all]"]
        == figures(gate, gate(folder_of("main"), pack))["kl.kl_divergence[all]"]
    )


def test_no_room_is_refused_before_the_work() -> None:
    estimate = Estimate(Path("/there"), (), present=0, free=10)
    estimate.check()
    size = packing.Size(ProbeName.KL, "hidden-states", 1, 5, 2, 0, total=11)
    with pytest.raises(UsageError, match=r"/there, where 0\.00 GB are free"):
        replace(estimate, sizes=(size,)).check()
    replace(estimate, sizes=(size,), present=1).check()


@pytest.mark.long
def test_a_pack_goes_on_only_with_its_own_reference(pack: Path, state: Path, tmp_path: Path) -> None:
    other = changed(tmp_path, "generation_config.json", lambda text: text + " ")
    request = CaptureRequest(Target("changed", other), Scored("sandbox", 4096), (ProbeName.KL,), out=pack)
    with pytest.raises(UsageError, match=r"holds the pack of another reference .*checkpoint_sha256"):
        capture(request, Paths(REPOSITORY, state), Silent(), lambda estimate: None)


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.long
@pytest.mark.parametrize(("placement", "files"), [("decoded", 6 + 3 + 3 + 2), ("layers", 6 + 3 + 1)])
def test_a_capture_killed_at_random_moments_resumes_to_the_same_bytes(
    placement: str, files: int, tmp_path: Path
) -> None:
    """The real model, hidden states and, but layer by layer, answers; see kill_captures.py."""
    script = Path(__file__).with_name("kill_captures.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS), "20261", placement],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" of ") == KILLS, done.stdout
    whole = hashes(tmp_path / "whole")
    assert len(whole) == files, "shards; header, head or answers, and manifest of both; their locks"
    for number in range(KILLS):
        assert hashes(tmp_path / str(number)) == whole, done.stdout


@pytest.mark.long
def test_show_and_verify(pack: Path, tmp_path: Path) -> None:
    shown = q36eval("reference", "show", str(pack), "--json", state=tmp_path)
    (row,) = json.loads(shown.stdout)
    assert (row["state"], row["items"], row["kind"], row["vocabulary"]) == ("finished", 10, "hidden-states", 1024)
    whole, quiet = (q36eval("reference", "show", "--verify", str(pack), *q, state=tmp_path) for q in ([], ["-q"]))
    assert (whole.returncode, whole.stdout) == (0, "1 captures are whole\n")
    assert (quiet.returncode, quiet.stdout) == (0, "")
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    shard = sorted(copy.glob("*/items/*"))[0]
    payload = bytearray(shard.read_bytes())
    payload[len(payload) // 2] ^= 1
    shard.write_bytes(payload)
    verified = q36eval("reference", "show", "--verify", str(copy), state=tmp_path)
    assert verified.returncode == 1
    assert verified.stdout.count("damaged") == 2
    assert shard.name in verified.stdout
    next(copy.glob("*/pack.json")).unlink()
    assert "unfinished" in q36eval("reference", "show", str(copy), state=tmp_path).stdout
    assert q36eval("reference", "show", "--verify", str(copy), state=tmp_path).returncode == 2


@pytest.mark.long
def test_verify_reads_the_floor_beside_the_captures(pack: Path, tmp_path: Path) -> None:
    """A figure that was altered is damage, although the file is one of a floor."""
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    (floor,) = copy.glob("floor-*.json")
    body = json.loads(floor.read_text())
    for row in body["perturbations"]:
        for figures_of in row["slices"].values():
            figures_of["kl"] = 1e-12
    floor.write_text(json.dumps(body))
    verified = q36eval("reference", "show", "--verify", str(copy), state=tmp_path)
    assert verified.returncode == 1
    assert floor.name in verified.stdout
    assert "delete" not in verified.stdout


@pytest.mark.long
def test_a_pack_without_its_floor_is_unfinished_and_judges_nothing(
    gate: Callable[..., RunRecord], pack: Path, tmp_path: Path
) -> None:
    """Else a margin below the noise would pass; what is only measured needs no floor."""
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    next(copy.glob("floor-*.json")).unlink()
    sentence = (
        f"floor missing: finish with `q36eval reference capture --out {copy}` and the options it was captured with"
    )
    with pytest.raises(UsageError, match=re.escape(sentence)) as refused:
        gate(folder_of("main"), copy)
    assert refused.value.exit_code == 2
    assert figures(gate, gate(folder_of("main"), copy, policy=None))["kl.kl_divergence[all]"] > 0
    verified = q36eval("reference", "show", "--verify", str(copy), state=tmp_path)
    assert verified.returncode == 2
    assert sentence in verified.stderr
    (row,) = json.loads(q36eval("reference", "show", str(copy), "--json", state=tmp_path).stdout)
    assert (row["state"], row["lacking"]) == ("unfinished", sentence)
    assert "floor missing" in q36eval("reference", "show", str(copy), state=tmp_path).stdout
    captured(copy.parent, copy.name)
    assert q36eval("reference", "show", "--verify", str(copy), state=tmp_path).returncode == 0


@pytest.mark.long
def test_a_floor_that_the_engine_broke_on_in_part_is_kept_with_that_said(pack: Path, tmp_path: Path) -> None:
    """Broken on throughout there is no figure to hold a margin against."""
    copy = tmp_path / "copy"
    shutil.copytree(pack, copy)
    (path,) = copy.glob("floor-*.json")
    (_, header, _), *_ = Pack.open(copy).captures
    floor = load_floor(path)
    assert floor is not None
    broken = [
        row.model_copy(update={"failed": True, "skipped": "the engine failed: x", "slices": {}})
        for row in floor.perturbations
    ]
    write_floor(path, floor.model_copy(update={"perturbations": (*broken[:1], *floor.perturbations[1:])}))
    assert floor_state(copy, header) is None
    write_floor(path, floor.model_copy(update={"perturbations": tuple(broken)}))
    assert "the engine failed: left-padding" in str(floor_state(copy, header))
    captured(copy.parent, copy.name)
    again = load_floor(path)
    assert again is not None
    assert not again.failed


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["reference", "capture", "--probe", "weights"], ["weights", "canaries, kl, evals"]),
        (["reference", "capture", "--reference", "nope"], ["nope", "fp8-head"]),
        (["reference", "show", "--verify", "/no/such/pack"], ["/no/such/pack", "reference capture"]),
        (["gate", "--branch", "main", "--reference-pack", "/no/such/pack"], ["/no/such/pack"]),
        (["kl", "--branch", "main", "--reference-pack", "/etc"], ["/etc", "holds no reference pack"]),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], needles: list[str], tmp_path: Path) -> None:
    done = q36eval(*arguments, state=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for needle in needles:
        assert needle in done.stderr
