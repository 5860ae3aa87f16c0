"""One table of what a gate needs: `gate`, `gate --plan` and `doctor` show the same rows, all at once."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.app.cli.engine_options import check_device
from q36eval.app.needs import CODES, Asked, rows_of
from q36eval.engines import resident
from q36eval.engines.resident import ResidentEngine
from q36eval.errors import UsageError
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.records import ProbeName
from q36eval.run.memory_report import BATCHES
from q36eval.run.pack import Estimate, Size
from q36eval.run.preflight import Problem
from q36eval.run.workload import planned_run
from tests.app.sandbox_gates import SKIPPING, Gates
from tests.commands import command_tree, q36eval
from tests.loopback_hub import Hub
from tests.raising import failing, raises

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox"
FP8_HEAD, BF16 = SANDBOX / "fp8-head", SANDBOX / "bf16"


def states(document: dict[str, Any]) -> dict[str, str]:
    return {row["what"]: row["state"] for row in document["rows"]}


def row(document: dict[str, Any], what: str) -> dict[str, Any]:
    (found,) = (row for row in document["rows"] if row["what"] == what)
    return found


def doctor(*arguments: str, state: Path) -> tuple[int, dict[str, Any]]:
    done = q36eval("doctor", *arguments, "--json", state=state)
    return done.returncode, json.loads(done.stdout)


def without_tokenizer(folder: Path, of: Path = FP8_HEAD) -> Path:
    shutil.copytree(of, folder)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    return folder


def test_all_is_there_but_a_time_that_nobody_measured(tmp_path: Path) -> None:
    code, body = doctor("--branch", "sandbox/fp8-head", state=tmp_path)
    assert (code, states(body)) == (0, dict.fromkeys(CODES, "ok") | {"time": "unknown"})
    assert "Qwen3_5MoeForCausalLM" in row(body, "architecture")["sentence"]
    assert "decoded weights take 12 MiB" in row(body, "memory")["sentence"]
    assert [row["command"] for row in body["rows"]] == [""] * len(CODES)
    assert list(tmp_path.iterdir()) == []
    plan = q36eval("gate", "--branch", "sandbox/fp8-head", *SKIPPING, "--plan", "--json", state=tmp_path)
    assert states(json.loads(plan.stdout)["plans"][0]) == states(body)


def test_several_things_are_missing_at_once(tmp_path: Path) -> None:
    asked = ("--branch", "sandbox/fp8-head", "--suite", "release", "--device", "gpu")
    done = q36eval("gate", *asked, "--json", state=tmp_path)
    error = json.loads(done.stdout)["error"]
    expected = {"device-unknown", "policy-cannot-pass", "frozen-data-missing"}
    assert (done.returncode, {problem["code"] for problem in error["problems"]}) == (2, expected)
    assert {row["what"] for row in error["rows"] if row["state"] == "missing"} == {"suite data", "device", "policy"}
    assert row(error, "suite data")["command"] == f"q36eval data freeze release --tokenizer {BF16}"
    assert row(error, "policy")["command"] == "q36eval policy check sandbox --family sandbox --suite release"
    assert row(error, "device")["command"].endswith("--suite release --json --device cpu")
    told = [line for line in done.stderr.splitlines() if line.startswith(("missing", "ok", "unknown"))]
    assert [line.split()[0] for line in told] == ["missing"] * 3
    assert all(f"[{code}]" in done.stderr for code in expected)
    tree = command_tree()
    for ours in (row["command"] for row in error["rows"] if row["command"].startswith("q36eval")):
        words = shlex.split(ours)
        name = next(name for n in (3, 2) if (name := " ".join(words[:n])) in tree)
        known = {option for parameter in tree[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, ours
    for command in (("gate", *asked, "--plan"), ("doctor", *asked)):
        again = q36eval(*command, state=tmp_path, code=2)
        assert [line[:22].split() for line in again.stdout.splitlines() if line.startswith("missing")] == [
            ["missing", "suite", "data"], ["missing", "device"], ["missing", "policy"],
        ]  # fmt: skip


def test_what_cannot_even_be_put_together_is_told_with_the_rest(tmp_path: Path) -> None:
    code, body = doctor(
        "--branch", str(tmp_path), "--reference", str(BF16), "--device", "tpu", state=tmp_path / "state"
    )
    expected = dict.fromkeys(CODES, "unknown") | {"files": "missing", "device": "missing"}
    assert (code, states(body)) == (2, expected)
    bare = str(without_tokenizer(tmp_path / "a"))
    done = q36eval("gate", "--branch", bare, "--family", "no", "--device", "tpu", state=tmp_path / "state")
    rows = [line.split()[:2] for line in done.stderr.splitlines() if line.startswith("missing")]
    assert (done.returncode, rows) == (2, [["missing", "files"], ["missing", "device"]])


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    bare, state = without_tokenizer(tmp_path / "it's bare"), tmp_path / "state"
    code, body = doctor("--branch", str(bare), "--reference", str(BF16), state=state)
    assert (code, states(body)["tokenizer"]) == (0, "missing"), "a gate judges that: it is the branch's own fault"
    assert row(body, "tokenizer")["codes"] == ["tokenizer-missing"]
    copied = shlex.split(row(body, "tokenizer")["command"])
    assert copied == ["cp", f"{BF16}/tokenizer*", f"{bare}/"]
    bare = without_tokenizer(tmp_path / "reference", BF16)
    done = q36eval("doctor", "--branch", str(FP8_HEAD), "--reference", str(bare), "--json", state=state)
    assert (done.returncode, states(json.loads(done.stdout))["tokenizer"]) == (2, "missing")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CUDA", "cpu:0", "", "cuda:0\n"])
def test_no_device_of_that_name(name: str) -> None:
    with raises(UsageError, "device-unknown", "cuda:0"):
        check_device(name)


def test_a_torch_without_cuda_and_a_machine_without_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with raises(UsageError, "device-unavailable", f"torch=={torch.__version__.partition('+')[0]}") as refused:
        check_device("cuda")
    problem = Problem(refused.value.code, str(refused.value))
    (found,) = (each for each in rows_of([problem], Asked()) if each.what == "device")
    assert found.command.startswith("pip install ")
    assert "+" not in found.command
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for count, name in ((0, "cuda"), (2, "cuda:2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with raises(UsageError, "device-unavailable", name):
            check_device(name)
    for name in ("cpu", "cuda", "cuda:1"):
        check_device(name)


@pytest.fixture
def hub(hub: Hub) -> Hub:
    hub.publish("org/branch", FP8_HEAD)
    hub.publish("org/reference", BF16)
    return hub


def test_weights_on_the_hub_are_downloaded_by_a_gate_alone_and_for_nothing_by_none(hub: Hub, tmp_path: Path) -> None:
    names, state = ("--branch", "org/branch", "--reference", "org/reference"), tmp_path / "state"
    code, body = doctor(*names, "--suite", "sandbox", "--policy", "sandbox", state=state)
    assert (code, states(body)["files"], states(body)["memory"]) == (0, "missing", "unknown")
    files = row(body, "files")
    assert files["sentence"].count("MiB") == 2
    assert str(hub.home / "hub") in files["sentence"]
    assert files["command"].startswith("q36eval gate --branch org/branch --reference org/reference")
    assert {states(body)[what] for what in ("architecture", "tokenizer", "policy", "suite data")} == {"ok"}
    assert q36eval("gate", *names, "--plan", state=state).returncode == 0
    done = q36eval("gate", *names, "--suite", "release", "--policy", "sandbox", state=state, code=2)
    assert "[policy-cannot-pass]" in done.stderr
    assert hub.sent == 0, "no weights"
    done = q36eval("gate", *names, *SKIPPING, state=state)
    assert hub.sent > BF16.joinpath("model.safetensors").stat().st_size
    assert done.returncode in (1, 3, 4), done.stderr


# -- `--plan` measures nothing; its batches are those of the run that follows


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ("kl", "--branch", "fp8-head"),
        ("gate", "--branch", "fp8-head", "--branch", "bf16", "--skip", "canaries", "--skip", "evals"),
        ("reference", "capture", "--probe", "kl"),
    ],
    ids=lambda command: command[0],
)
def test_a_plan_is_printed_and_nothing_is_measured_or_written(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("q36eval.engines.in_process.load_model", failing(AssertionError("weights were read")))
    done = q36eval(*command, "--plan", state=tmp_path / "state", code=0)
    assert "140 texts of" in done.stdout
    assert "time unknown" in done.stdout
    assert not (tmp_path / "state").exists()
    done = q36eval(*command, "--engine-arg", "placement=packed", "--plan", "--json", state=tmp_path / "state")
    for plan in json.loads(done.stdout)["plans"]:
        assert all(batches["bytes"]["weights"] > 0 for batches in plan["batches"].values())
        assert {stage["seconds"] for stage in plan["stages"]} == {None}
        assert plan["unknown"]


@pytest.mark.long
def test_the_batches_are_those_that_are_computed_and_times_are_known_afterwards(
    some_documents: list[CorpusDocument], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the KL of a part of the corpus, in this process."""
    for module in ("workload", "preflight"):
        monkeypatch.setattr(f"q36eval.run.{module}.build_probes", lambda *_: [KLProbe(some_documents)])
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    gates = Gates(tmp_path, probes=(ProbeName.KL,))
    request, paths, history = gates.request("fp8-head"), gates.paths, gates.history
    plan = planned_run(request, paths, history)
    assert [(stage.deployment, stage.seconds) for stage in plan.stages] == [("reference", None), ("fp8-head", None)]
    counted: list[int] = []
    own = ResidentEngine._score_batch

    def score_batch(self: ResidentEngine, batch: Any) -> Any:
        counted.append(sum(len(request.token_ids) for request in batch))
        return own(self, batch)

    monkeypatch.setattr(ResidentEngine, "_score_batch", score_batch)
    run = gates("fp8-head")
    reference, branch = plan.stages
    # the noise floor comes between, by engines of its own; the first batches are the reference's, the last the branch's
    assert sum(counted[: reference.scoring_batches]) == reference.scored_tokens
    assert counted[-branch.scoring_batches :] == counted[: reference.scoring_batches]
    assert run.provenance[BATCHES] == "2,048 tokens scored, 16,384 read and 192 answers at a time"
    (stage,) = planned_run(request, paths, history).stages
    assert stage.deployment == "fp8-head", "the reference is captured"
    assert stage.seconds == history.get_run(run.id).timings["kl"]


def test_no_room_is_refused_before_the_work() -> None:
    estimate = Estimate(Path("/there"), (), present=0, free=10)
    estimate.check()
    size = Size(ProbeName.KL, "hidden-states", 1, 5, 2, 0, total=11)
    with raises(UsageError, "disk-insufficient", "/there"):
        replace(estimate, sizes=(size,)).check()
    replace(estimate, sizes=(size,), present=1).check()
