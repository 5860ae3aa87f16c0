"""Columns of commands side by side: each sees its GPUs, one that fails or hangs stops no other, and all are told."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarks.side_by_side import Plan, run, table

REPOSITORY = Path(__file__).parents[2]

PLAN = """
columns:
  one:
    gpus: "0,1"
    steps:
      - {name: sees, seconds: 60, command: 'echo "sees $CUDA_VISIBLE_DEVICES"; echo kept > $OUT/file'}
      - {name: hangs, seconds: 0.5, command: 'trap "echo ended; exit 9" TERM; while :; do sleep 0.1; done'}
      - {name: next, seconds: 60, command: echo next}
  two:
    gpus: "2"
    steps:
      - {name: fails, seconds: 60, command: 'echo broken >&2; exit 3'}
  three:
    gpus: "3"
    after: [one, two]
    steps:
      - {name: last, seconds: 60, command: 'ls $OUT/..'}
"""


def test_every_column_runs_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    plan = Plan.read(file)
    assert table(plan, tmp_path)[1] is False
    run(plan, tmp_path)
    text, all_ended = table(plan, tmp_path)
    assert all_ended
    rows = {row.split(" | ")[0].strip("| "): row for row in text.splitlines()[2:]}
    assert "| 0,1 | exit 0 |" in rows["sees"]
    assert rows["sees"].endswith("| sees 0,1 |")
    assert (tmp_path / "sees" / "file").read_text() == "kept\n"
    assert "took too long" in rows["hangs"]
    assert rows["hangs"].endswith("| ended |"), "it was asked to end, and could"
    assert rows["next"].endswith("| next |")
    assert "exit 3" in rows["fails"]
    assert rows["fails"].endswith("| broken |")
    assert {"fails.json", "next.json"} <= set((tmp_path / "last.log").read_text().split())


def test_of_some_columns_none_waits_for_another(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    some = Plan.read(file).only(["three", "two"])
    assert {name: column.after for name, column in some.columns.items()} == {"two": [], "three": ["two"]}
    with pytest.raises(ValueError, match="there is no column four, but one, two, three"):
        Plan.read(file).only(["four"])


def test_what_is_started_goes_on_by_itself(tmp_path: Path) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "out"
    file.write_text("columns: {one: {gpus: '0', steps: [{name: slow, seconds: 60, command: sleep 1}]}}")
    command = [sys.executable, "-m", "benchmarks.side_by_side", str(file), str(out)]
    subprocess.run([*command, "--start"], check=True, cwd=REPOSITORY)
    while not (out / "slow.json").exists():
        time.sleep(0.05)
    waited = subprocess.run([*command, "--wait", "60"], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert waited.returncode == 0
    assert "| slow | 0 | exit 0 |" in waited.stdout
    assert json.loads((out / "slow.json").read_text())["seconds"] >= 1


def test_plans_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    step = "{name: a, seconds: 1, command: 'true'}"
    for columns in (
        f"{{one: {{gpus: '0', steps: [{step}, {step}]}}}}",
        f"{{one: {{gpus: '0', after: [two], steps: [{step}]}}}}",
        "{one: {gpus: '0', steps: []}}",
    ):
        (tmp_path / "plan.yaml").write_text(f"columns: {columns}")
        with pytest.raises(ValidationError):
            Plan.read(tmp_path / "plan.yaml")
    assert Plan.read(REPOSITORY / "benchmarks" / "served_on_gpus.yaml").columns
