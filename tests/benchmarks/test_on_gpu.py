"""What is run on a GPU in calls of a few minutes: it stops in time, goes on, and keeps what a part said."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import on_gpu
from benchmarks.on_gpu import NOT_DONE, Part


def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parts: list[Part], *more: str) -> int:
    given = ["on_gpu", str(tmp_path / "work"), str(tmp_path / "results"), *more]
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.setattr(on_gpu, "parts_of", lambda *_: parts)
    return on_gpu.main()


def part(name: str, code: str, seconds: int = 1, *, goes_on: bool = False) -> Part:
    return Part(name, seconds, [sys.executable, "-c", code, "{out}"], lambda figures: str(figures), goes_on)


WRITES = "import sys, json, pathlib; pathlib.Path(sys.argv[1]).write_text(json.dumps({'seen': 3})); print('said')"


def test_each_part_is_run_once_and_what_failed_is_told_and_run_again_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    counted = f"open({str(runs)!r}, 'a').write('x');"
    parts = [part("write", counted + WRITES), part("decoded", counted + "raise SystemExit('no such kernel')")]
    assert call(monkeypatch, tmp_path, parts) == 1
    said = capsys.readouterr().out
    assert "no such kernel" in said
    assert "| write | " in said
    assert "{'seen': 3}" in said
    assert "FAILED" in said
    assert json.loads((tmp_path / "results" / "write.json").read_text()) == {"seen": 3}
    assert "said" in (tmp_path / "results" / "write.log").read_text()
    assert call(monkeypatch, tmp_path, parts) == 1
    assert runs.read_text() == "xx", "a part that ended was run again"
    assert call(monkeypatch, tmp_path, parts, "decoded") == 1
    assert runs.read_text() == "xxx"


def test_what_would_not_end_in_time_waits_for_the_next_call_and_what_does_not_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    minutes = str((on_gpu.RESERVE_S + 20) / 60)
    mark = tmp_path / "mark"
    goes_on = f"import time, pathlib; p = pathlib.Path({str(mark)!r}); e = p.exists(); p.touch(); e or time.sleep(900)"
    parts = [part("write", WRITES), part("decoded", WRITES, 500), part("gate", goes_on, 1, goes_on=True)]
    assert call(monkeypatch, tmp_path, parts, "--minutes", minutes) == NOT_DONE
    said = capsys.readouterr().out
    assert "Not done: decoded, gate." in said
    assert "| decoded |  | not done" in said
    assert call(monkeypatch, tmp_path, parts, "--minutes", minutes) == 0, "the first part of a call always runs"
    assert "not done" not in capsys.readouterr().out


def test_the_commands_name_scripts_and_options_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each answers to its options up to the missing GPU: an option that is none would cost the machine's minutes."""
    monkeypatch.setattr(sys, "argv", ["on_gpu", str(tmp_path), str(tmp_path / "results"), "--device", "cuda:0"])
    asked = on_gpu._arguments()
    parts = on_gpu.parts_of(tmp_path, tmp_path / "bf16", asked)
    assert {each.name for each in parts} >= set(on_gpu.NEEDS_GPU)
    for each in parts:
        where = each.command[1] if each.command[1] != "-m" else each.command[2].replace(".", "/") + ".py"
        source = Path(where)
        if not source.is_file():
            source = Path(where.removesuffix(".py")) / "__main__.py"
        text = source.read_text()
        for option in (word for word in each.command[3:] if word.startswith("--")):
            assert f'"{option}"' in text or option == "--reference", (each.name, option)
