"""The command line as a person meets it: exit codes, one sentence, lists of valid names."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import commands

DATA = Path(__file__).parents[2] / "data"


def test_a_damaged_reference_is_no_fault_of_the_branch(tmp_path: Path) -> None:
    reference, weights = tmp_path / "reference", "model.safetensors"
    shutil.copytree(DATA / "sandbox" / "bf16", reference)
    (reference / weights).write_bytes((reference / weights).read_bytes()[:-1000])
    for command in (["inspect", "fp8-head"], ["attribute", "--branch", "fp8-head"]):
        done = commands.q36eval(*command, "--reference", str(reference), state=tmp_path, code=2)
        assert commands.code_of(done) == "header-malformed"
        assert str(reference) in done.stderr


HEAVY = ("torch", "transformers", "lm_eval", "streamlit", "sqlalchemy", "scipy", "numpy")


def test_an_unsupported_architecture_is_refused_without_heavy_imports(tmp_path: Path) -> None:
    config = {"model_type": "mistral3", "text_config": {"model_type": "rwkv"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"not even a header")
    code = (
        "import atexit, sys; from q36eval.app.cli import main; "
        f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules])); main()"
    )
    command = [sys.executable, "-c", code, "gate", "--branch", str(tmp_path), "--family", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), commands.code_of(done)) == (2, "[]", "architecture-unsupported")
    assert "smollm3" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("gate", "--policy", "nope", "--branch"),
        ("kl", "--branch", "nope", "--reference"),
        ("reference", "capture", "--suite", "nope", "--reference"),
        ("inspect", "--family", "nope"),
    ],
)
def test_an_unsupported_architecture_is_refused_before_anything_else(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModelForCausalLM": "modeling_rwkv.RwkvForCausalLM"}}')
    done = commands.q36eval(*command, str(tmp_path), state=tmp_path / "state")
    assert (done.returncode, commands.code_of(done)) == (2, "architecture-unsupported")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("gate", "--branch", "nope", "--json"), "branch-unknown"),
        (("history", "show", "nope", "--json"), "history-missing"),
        (("doctor", "--json", "--nope"), "usage"),
    ],
)
def test_an_error_has_its_code_on_stderr_and_in_one_json_document(
    arguments: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    ended = commands.program(*arguments, Q36EVAL_STATE=str(tmp_path))
    error = json.loads(ended.stdout)["error"]
    assert (error["code"], error["exit_code"], ended.returncode) == (code, 2, 2)
    assert ended.stderr.splitlines()[-1] == f"q36eval: {error['message']} [{code}]"
