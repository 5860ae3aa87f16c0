"""One table of what a gate needs: `gate`, `gate --plan` and `doctor` show the same rows, all at once."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.app.cli.engine_options import check_device
from q36eval.app.needs import CODES, Asked, rows_of
from q36eval.errors import UsageError
from q36eval.run.preflight import Problem
from tests.app.weights_gates import SKIPPING
from tests.commands import command_tree, q36eval
from tests.loopback_hub import Hub
from tests.raising import raises

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox"
FP8_HEAD, BF16 = SANDBOX / "fp8-head", SANDBOX / "bf16"


def states(document: dict[str, Any]) -> dict[str, str]:
    return {row["what"]: row["state"] for row in document["rows"]}


def row(document: dict[str, Any], what: str) -> dict[str, Any]:
    (found,) = (row for row in document["rows"] if row["what"] == what)
    assert isinstance(found, dict)
    return found


def doctor(*arguments: str, state: Path) -> tuple[int, dict[str, Any]]:
    done = q36eval("doctor", *arguments, "--json", state=state)
    body = json.loads(done.stdout)
    assert isinstance(body, dict)
    return done.returncode, body


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
        again = q36eval(*command, state=tmp_path)
        assert again.returncode == 2
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
    done = q36eval("gate", *names, "--suite", "release", "--policy", "sandbox", state=state)
    assert done.returncode == 2
    assert "[policy-cannot-pass]" in done.stderr
    assert hub.sent == 0, "no weights"
    done = q36eval("gate", *names, *SKIPPING, state=state)
    assert hub.sent > BF16.joinpath("model.safetensors").stat().st_size
    assert done.returncode in (1, 3, 4), done.stderr
