"""The command line as a person meets it: exit codes, one sentence, lists of valid names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def q36eval(*arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    """Run the real program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from app.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "Q36EVAL_STATE": str(state)},
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "needles"),
    [
        (["gate", "--branch", "nope"], ["nope", "fp8-head", "int2-experts"]),
        (["gate", "--branch", "bf16", "--family", "nope"], ["nope", "sandbox", "qwen3.6-35b-a3b"]),
        (["gate", "--branch", "bf16", "--policy", "nope"], ["nope", "sandbox"]),
        (["gate", "--branch", "bf16", "--policy", "missing.yaml"], ["missing.yaml"]),
        (["gate", "--branch", "bf16", "--suite", "nope"], ["nope", "sandbox"]),
        (["gate", "--branch", "bf16", "--device", "cuda:7"], ["cuda:7"]),
        (["gate", "--branch", "bf16", "--format", "pdf"], ["pdf", "junit"]),
        (["gate", "--branch", "bf16", "--kv-cache-dtype", "fp4"], ["fp4", "fp8_e4m3"]),
        (["canaries", "--branch", "bf16", "--kv-cache-dtype", "fp4"], ["fp4", "fp8_e4m3"]),
        (
            ["gate", "--branch", "main", "--family", "qwen3.6-35b-a3b"],
            ["inferRouter/Qwen3.6-35B-A3B-NVFP4@main", "GiB"],
        ),
        (["gate"], ["--branch"]),
        (["branches", "show", "nope"], ["nope", "gptq-int4"]),
        (["history", "show", "nope"], ["no run", "q36eval gate"]),
        (["report", "latest", "--format", "pdf"], ["pdf", "markdown"]),
        (["inspect", "no/such/folder"], ["no/such/folder"]),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], needles: list[str], tmp_path: Path) -> None:
    done = q36eval(*arguments, state=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for needle in needles:
        assert needle in done.stderr


def test_a_malformed_policy_names_the_key_and_the_valid_ones(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    shipped = Path(__file__).parents[2] / "data" / "policies" / "sandbox.yaml"
    policy.write_text(shipped.read_text(encoding="utf-8") + "\nmargins: 3\n", encoding="utf-8")
    done = q36eval("gate", "--branch", "bf16", "--policy", str(policy), state=tmp_path)
    assert done.returncode == 2
    assert "margins" in done.stderr
    assert "alpha" in done.stderr
    policy.write_text("name: [unclosed\n")
    assert q36eval("gate", "--branch", "bf16", "--policy", str(policy), state=tmp_path).returncode == 2


def test_families_list_and_explain_what_they_need(tmp_path: Path) -> None:
    for family in ("sandbox", "qwen3.6-35b-a3b", "qwen3.5-35b-a3b"):
        assert q36eval("branches", "list", "--family", family, state=tmp_path).returncode == 0
    shown = q36eval("branches", "show", "fp8-head", "--family", "qwen3.6-35b-a3b", state=tmp_path)
    assert "needs" in shown.stdout
    assert "model card" in shown.stdout


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "lm_eval", "streamlit", "sqlalchemy", "scipy", "numpy")
    code = f"import sys, app.cli.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
