"""`q36eval doctor`, `--version`, `--state` and `python -m q36eval`: what the program says of itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands

REPOSITORY = Path(__file__).parents[2]


def test_it_says_where_everything_lies_and_why(tmp_path: Path) -> None:
    done = commands.q36eval("doctor", "--json", "--state", str(tmp_path / "named"), state=tmp_path / "of-environment")
    body = json.loads(done.stdout)
    assert (done.returncode, body["problems"]) == (0, [])
    assert body["data"] == {"folder": str(REPOSITORY / "data"), "because": "it is this checkout's"}
    assert body["state"]["folder"] == str(tmp_path / "named")
    assert body["state"]["because"] == "named by --state"
    assert body["state"]["writable"]
    assert not body["state"]["exists"], "looking makes nothing"
    assert body["devices"][0]["name"] == "cpu"
    assert "ui" in body["extras"]
    told = commands.q36eval("doctor", state=tmp_path / "of-environment")
    assert f"{tmp_path / 'of-environment'}, because named by Q36EVAL_STATE" in told.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", ["a-file", "a-file/below"])
def test_a_state_that_cannot_be_written_is_a_problem(state: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    done = commands.q36eval("doctor", state=tmp_path / state, code=2)
    assert "cannot be written" in done.stdout
    assert "--state" in done.stdout


def test_a_database_url_is_not_printed(tmp_path: Path) -> None:
    done = commands.q36eval("doctor", state=tmp_path, Q36EVAL_HISTORY="postgresql://me:s3cret@db/history", code=0)
    assert "s3cret" not in done.stdout + done.stderr
    assert "the database that Q36EVAL_HISTORY names" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("command", [["-m", "q36eval"], ["-c", "from q36eval.app.cli import main; main()"]])
def test_it_says_its_version(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command, "--version"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("q36eval 0.1.0 (commit ")
    assert f"Python {sys.version.split()[0]})" in done.stdout


def test_a_torch_that_cannot_be_loaded_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = commands.program("doctor", PYTHONPATH=path, Q36EVAL_STATE=str(tmp_path / "state"))
    assert done.returncode == 2
    assert "libcudart" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
