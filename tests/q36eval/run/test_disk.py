"""A disk that is nearly full is told before a gate begins, one that is too small refused, both with figures."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.targets import load_family
from q36eval.checkpoints import load_tokenizer
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.kl.corpus import load_corpus
from q36eval.kl.probe import KLProbe
from q36eval.probes import Sink
from q36eval.run.preflight import crowded, problems_of_plan
from q36eval.run.reference import local_reference
from q36eval.run.request import Request, Target
from q36eval.run.rounds import plan_probes
from tests import commands
from tests.evals.small_suite import ROOT

Usage = namedtuple("Usage", "total used free")
GB = 10**9


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the system says of every disk."""

    def set_to(used: int, free: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(used + free + GB, used, free))

    return set_to


def test_figures_of_a_full_one_and_none_of_a_roomy_one(tmp_path: Path, disk: Any) -> None:
    disk(94 * GB, 6 * GB)
    assert crowded([tmp_path]) == []
    disk(95 * GB, 5 * GB)
    (problem,) = crowded([tmp_path / "not" / "there", tmp_path])
    assert "95 % full (5.00 GB are free)" in problem.message
    assert not problem.blocks
    disk(10 * GB, 0)
    (problem,) = crowded([tmp_path])
    assert (problem.code, problem.blocks) == ("disk-full", True)


def test_a_gate_says_so_before_it_begins(tmp_path: Path, disk: Any) -> None:
    disk(99 * GB, GB)
    without = ("--skip", "kl", "--skip", "evals", "--skip", "canaries")
    done = commands.q36eval("gate", "--branch", "bf16", *without, state=tmp_path)
    assert done.returncode == 3
    assert done.stderr.index("99 % full") < done.stderr.index("inspecting")


def test_a_gate_refuses_a_capture_that_has_no_room(tmp_path: Path, disk: Any) -> None:
    disk(99 * GB, 5_000_000)  # the sandbox's states take more
    branch = Target("fp8-head", ROOT / "data" / "sandbox" / "fp8-head")
    reference = local_reference(ROOT / "data" / "sandbox" / "bf16", tmp_path, EngineOptions())
    request = Request(load_family("sandbox", Paths.default()), branch, None, "sandbox", None)
    probe = KLProbe(load_corpus(ROOT / "data" / "corpus" / "sandbox"))
    works = plan_probes([probe], load_tokenizer(branch.folder), Sink())
    (problem,) = problems_of_plan(None, works, request, reference, generates=True)
    assert (problem.code, problem.blocks) == ("disk-room", True)
    assert "5 MB are free" in problem.message
