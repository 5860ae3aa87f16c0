"""`q36eval canaries` as a person meets it: the group, list, show, check; and one of a person's own on the sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.app.cli.main import app
from q36eval.canaries.specification import SPECS_FOLDER

SHIPPED = SPECS_FOLDER / "enum-select-must-pass.yaml"


def run(*arguments: str | Path) -> Any:
    """What the command returns; errors are raised as they are."""
    return app([str(argument) for argument in arguments], standalone_mode=False)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Q36EVAL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


def own(tmp_path: Path, name: str) -> Path:
    """A folder with a copy of a shipped canary of that name."""
    folder = tmp_path / "mine"
    folder.mkdir()
    text = SHIPPED.read_text(encoding="utf-8").replace(f"id: {SHIPPED.stem}", f"id: {name}")
    (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def test_list_says_where_each_canary_runs(capsys: Any) -> None:
    assert run("canaries", "list", "--suite", "sandbox", "--json") == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == len(list(SPECS_FOLDER.glob("*.yaml")))
    assert rows["discount-compare"]["kind"] == "family"
    assert rows["discount-compare"]["n"] == "20"
    assert rows["discount-compare-must-pass"]["kind"] == "required"
    assert all(row["why"] and row["lanes"] and row["where"] for row in rows.values())
    assert run("canaries", "list", "--suite", "release", "--json") == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["discount-compare"]["n"] == "100"


def test_show_has_the_prompts_and_what_is_decisive(capsys: Any) -> None:
    assert run("canaries", "list", "tool-call", "--draws", "1", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    (prompt,) = body["prompts"]
    tools = [tool["function"]["name"] for tool in prompt["tools"]]
    decided = next(place for place in prompt["decisive"] if place["kind"] == "tool")
    assert decided["right"] == prompt["expected"]["name"]
    assert {decided["right"], *decided["wrong"]} == set(tools)
    assert run("canaries", "list", "tool-call", "--draws", "1") == 0
    assert yaml.safe_load(capsys.readouterr().out) == body


def test_check_names_every_bad_file_in_one_sentence(tmp_path: Path, capsys: Any) -> None:
    folder = own(tmp_path, "good")
    shipped = SHIPPED.read_text(encoding="utf-8")
    (folder / "taken.yaml").write_text(shipped, encoding="utf-8")
    (folder / "unknown.yaml").write_text(shipped + "\ncolour: red\n", encoding="utf-8")
    assert run("canaries", "check", folder, "--json") == 2
    found = {Path(one["file"]).stem: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["ok"] for name, one in found.items()} == {"good": True, "taken": False, "unknown": False}
    assert "'enum-select-must-pass' is that of" in found["taken"]["message"]
    assert "colour" in found["unknown"]["message"]
    assert run("canaries", "check", folder / "good.yaml") == 0


@pytest.mark.long
def test_a_branch_is_measured_by_a_canary_of_ones_own(tmp_path: Path, capsys: Any) -> None:
    folder = own(tmp_path, "team")
    assert run("canaries", "--branch", "sandbox/int2-experts", "--canaries", folder, "--only", "team", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert {"run", "branch", "measurements", "failures", "canaries"} == set(body)
    assert (body["failures"], {each["metric"] for each in body["measurements"]} >= {"must_pass_flips"}) == ([], True)


def test_show_writes_nothing_that_steers_a_terminal(tmp_path: Path, capsys: Any) -> None:
    folder = own(tmp_path, "hostile")
    file = folder / "hostile.yaml"
    hostile = file.read_text(encoding="utf-8").replace("skill: enum_select", 'skill: "s\\e[31m"')
    file.write_text(hostile, encoding="utf-8")
    assert run("canaries", "list", "hostile", "--canaries", folder) == 0
    assert "\x1b" not in capsys.readouterr().out
