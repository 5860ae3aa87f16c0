"""`q36eval canaries` as a person meets it: the group, list, show, check, new; and one real incident on the sandbox."""

import json
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.cli.main import app
from q36eval.canaries.specification import SPECS_FOLDER
from q36eval.errors import UsageError
from tests.raising import raises

REPOSITORY = Path(__file__).parents[2]
ANSWERED = [{"role": "user", "content": "Co je to?"}, {"role": "assistant", "content": "question"}]


def run(*arguments: str | Path) -> Any:
    """What the command returns; errors are raised as they are."""
    return app([str(argument) for argument in arguments], standalone_mode=False)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Q36EVAL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    file = tmp_path / "wrong category.json"
    file.write_text(json.dumps(ANSWERED), encoding="utf-8")
    return file


def test_the_group_without_a_branch_says_what_to_do() -> None:
    with raises(UsageError, "branch-required", "list, check and new"):
        run("canaries")
    with raises(UsageError, "option-conflict"):
        run("canaries", "--branch", "bf16", "list")


def test_list_says_where_each_canary_runs(capsys: Any) -> None:
    assert run("canaries", "list", "--json") == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == len(list(SPECS_FOLDER.glob("*.yaml")))
    assert rows["discount-compare"]["kind"] == "family"
    assert rows["discount-compare"]["n"] == "30"
    assert rows["discount-compare-must-pass"]["kind"] == "must pass"
    assert all(row["why"] and row["lanes"] and row["where"] for row in rows.values())
    assert run("canaries", "list", "--suite", "release", "--json") == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["discount-compare"]["n"] == "100"
    assert run("canaries", "list") == 0
    assert "enum-order · family · structured · n = 60 · everywhere" in capsys.readouterr().out


def test_show_writes_the_prompt_as_it_is_asked_and_what_is_decisive(capsys: Any) -> None:
    assert run("canaries", "list", "tool-call", "--draws", "1", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    (prompt,) = body["prompts"]
    assert prompt["prompt"].startswith("<|im_start|>system\n")
    assert prompt["prompt"].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    tools = [tool["function"]["name"] for tool in prompt["tools"]]
    decided = next(place for place in prompt["decisive"] if place["kind"] == "tool")
    assert decided["right"] == prompt["expected"]["name"]
    assert {decided["right"], *decided["wrong"]} == set(tools)
    with raises(UsageError, "canary-unknown", "nope"):
        run("canaries", "list", "nope")


def test_show_without_the_weights_shows_the_messages(capsys: Any) -> None:
    assert run("canaries", "list", "enum-select", "--draws", "1", "--family", "qwen3.6-35b-a3b") == 0
    shown = capsys.readouterr().out
    assert "there is no chat template here" in shown
    assert '"role": "user"' in shown


def test_check_names_every_bad_file_in_one_sentence(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    shipped = (SPECS_FOLDER / "enum-select-must-pass.yaml").read_text(encoding="utf-8")
    (folder / "good.yaml").write_text(shipped.replace("id: enum-select-must-pass", "id: good"), encoding="utf-8")
    (folder / "taken.yaml").write_text(shipped, encoding="utf-8")
    (folder / "unknown.yaml").write_text(shipped + "\ncolour: red\n", encoding="utf-8")
    assert run("canaries", "check", folder, "--json") == 2
    found = {Path(one["file"]).stem: one for one in json.loads(capsys.readouterr().out)}
    assert {name: one["ok"] for name, one in found.items()} == {"good": True, "taken": False, "unknown": False}
    assert "'enum-select-must-pass' is that of" in found["taken"]["message"]
    assert "colour" in found["unknown"]["message"]
    assert run("canaries", "check", folder / "good.yaml") == 0
    assert "ok " in capsys.readouterr().out
    with raises(UsageError, "path-missing"):
        run("canaries", "check", tmp_path / "none")


def test_an_incident_becomes_a_canary_that_check_accepts(incident: Path, tmp_path: Path, capsys: Any) -> None:
    right = tmp_path / "right.txt"
    right.write_text("bug\n", encoding="utf-8")
    arguments = ("canaries", "new", incident, "--why", "sent to the wrong team", "--right", f"@{right}")
    assert run(*arguments, "--check", 'enum_member={"options": ["bug", "question"]}', "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["file"] == "wrong-category.yaml"
    assert body["checks"] == ["enum_member"]
    written = Path(body["file"]).read_text(encoding="utf-8")
    assert written.startswith("# Made from wrong category.json.")
    assert run("canaries", "check", body["file"]) == 0
    with pytest.raises(UsageError) as refused:
        run(*arguments)
    assert refused.value.code == "file-exists"
    assert Path(body["file"]).read_text(encoding="utf-8") == written


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--right", " "), "option-empty"),
        (("--right", "@none.txt"), "file-unreadable"),
        (("--right", "question"), "canary-shows-nothing"),
        (("--right", "bug", "--wrong", "bug"), "canary-shows-nothing"),
        (("--right", "bug", "--check", "exact_text=[1]"), "json-malformed"),
        (("--right", "bug", "--check", "exact_text={"), "json-malformed"),
        (("--right", "bug", "--out", "none/x.yaml"), "file-unwritable"),
        (("--right", "bug", "--out", "json-flat.yaml"), "canary-id-taken"),
        (("--right", "bug", "--out", "_.yaml"), "canary-id-invalid"),
    ],
)
def test_bad_input_of_new_leaves_no_file(incident: Path, tmp_path: Path, arguments: tuple[str, ...], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        run("canaries", "new", incident, "--why", "x", *arguments)
    assert refused.value.code == code
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.long
def test_a_branch_is_measured_by_the_canary_of_an_incident(incident: Path, tmp_path: Path, capsys: Any) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    assert run("canaries", "new", incident, "--why", "x", "--right", "bug", "--out", mine / "team.yaml") == 0
    capsys.readouterr()
    assert run("canaries", "--branch", "int2-experts", "--canaries", mine, "--only", "team", "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert {"run", "branch", "measurements", "failures", "canaries"} == set(body)
    assert (body["failures"], {each["metric"] for each in body["measurements"]} >= {"must_pass_flips"}) == ([], True)


def test_show_writes_nothing_that_steers_a_terminal(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    text = (SPECS_FOLDER / "enum-select.yaml").read_text(encoding="utf-8")
    hostile = text.replace("id: enum-select", "id: hostile").replace("skill: enum_select", 'skill: "s\\e[31m"')
    (folder / "hostile.yaml").write_text(hostile, encoding="utf-8")
    assert run("canaries", "list", "hostile", "--canaries", folder, "--family", "qwen3.6-35b-a3b") == 0
    assert "\x1b" not in capsys.readouterr().out
