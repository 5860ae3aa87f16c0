"""What the rehearsal at the full shape rests on: answers that end where they are forced to, and what its log tells."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.rehearsal import __main__ as rehearsal
from benchmarks.rehearsal import checkpoints
from benchmarks.rehearsal.engine import EndingBudget, ForcedLengths, ending_budget
from benchmarks.rehearsal.running import _ended, silences, was_stopped
from q36eval.checkpoints import load_model
from q36eval.engines import open_engine
from q36eval.engines.base import EngineSettings, GenerationRequest
from q36eval.engines.opening import KINDS

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"


def requests(count: int, budget: int = 64) -> list[GenerationRequest]:
    return [GenerationRequest(f"request {n}", (5, 6, 7 + n), budget) for n in range(count)]


def test_whoever_plans_with_a_budget_sees_all_of_it_and_answers_end_before() -> None:
    budget = EndingBudget(100)
    budget.ends = 7
    assert (max(3 + budget, 50), budget + 1, repr(budget)) == (103, 101, "100")
    assert [tokens >= budget for tokens in (6, 7, 100)] == [False, True, True]


def test_an_answer_is_as_long_as_its_key_says_and_counts_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_ANSWERS", "0.2")
    engine = ForcedLengths.load(EngineSettings(SANDBOX))
    for answer in engine.generate(requests(6)):
        ends = ending_budget(answer.request, thinking=False).ends
        assert len(answer.token_ids) <= ends < 64
        assert answer.finish_reason == "stop"
    assert "forced_lengths" in engine.identity.settings
    assert "forced_lengths" not in open_engine(SANDBOX).identity.settings, "the product's own engine forces nothing"
    assert all("benchmarks" not in kind.engine for kind in KINDS.values())


def test_the_longest_pause_between_lines_comes_first(tmp_path: Path) -> None:
    log = tmp_path / "gate.log"
    log.write_text("# 100.0 q36eval gate\n101.0 err one\n113.5 out two\n# 114.0 exit 3\n")
    assert [pause["seconds"] for pause in silences(log)] == [12.5, 1.0, 0.5]
    assert silences(log)[0]["after"] == "err one"


def test_a_reference_that_one_place_has_no_room_for_lies_in_two_and_is_read_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, reference = tmp_path / "fp8-head", tmp_path / "memory" / "bf16"
    checkpoints.write_branch(branch, checkpoints.Shape(layers=2, experts=2, hidden=128, vocabulary=512))
    free = 6 * 2**20  # of two layers and the rest it holds one
    usage = type("Usage", (), {"free": checkpoints.SPARE + free, "used": 0})
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda folder: usage)
    checkpoints.write_reference(branch, reference)
    linked = [file for file in reference.glob("*.safetensors") if file.is_symlink()]
    assert 0 < len(linked) < 3
    assert sum(file.stat().st_size for file in reference.glob("*.safetensors") if not file.is_symlink()) <= free
    assert {file.resolve().parent.name for file in linked} == {"bf16-rest"}
    models = (load_model(folder, emulate_activations=False).model for folder in (branch, reference))
    decoded, whole = (dict(model.named_parameters()) for model in models)
    assert decoded.keys() == whole.keys()
    assert all(torch.equal(decoded[name], whole[name]) for name in whole)


def test_stages_may_stand_behind_options_as_its_help_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = (line for line in str(rehearsal.__doc__).splitlines() if "python -m benchmarks.rehearsal" in line)
    monkeypatch.setattr(sys, "argv", line.split()[2:])
    asked = rehearsal._arguments()
    assert asked.stages == ["write", "gate", "report"]
    assert (asked.folder, asked.device, asked.more) == (Path("FOLDER"), "cuda:0", [])
    monkeypatch.setattr(sys, "argv", [*line.split()[2:], "--more", "--placement", "packed"])
    assert rehearsal._arguments().more == ["--placement", "packed"]


def test_a_gate_is_stopped_when_its_time_is_up_even_where_it_ignores_an_interrupt() -> None:
    ignoring = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert was_stopped(_ended(process, 0.1))
    process.stdout.close()
    assert [was_stopped(code) for code in (0, 1, 3, 4, 130, 143, -15)] == [False] * 4 + [True] * 3
