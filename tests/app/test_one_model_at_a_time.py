"""A device that does not hold both models: the reference is asked, and gone, before the branch is loaded."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Family, Paths
from q36eval.engines import open_engine
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.kl.probe import KLProbe
from q36eval.records import ProbeName
from q36eval.run import branch as branching
from q36eval.run import measure as measuring
from q36eval.run import reference as referring
from q36eval.run.request import Request, Target
from tests.app.test_reference_packs import DOCUMENTS, POLICY, REPOSITORY, SANDBOX, Silent


class Opened:
    """Opens engines as ever, and writes down which others were alive then."""

    def __init__(self) -> None:
        self.beside: list[tuple[str, list[str]]] = []
        self._alive: dict[str, Any] = {}

    def __call__(self, settings: Any) -> Any:
        gc.collect()
        beside = [name for name, engine in self._alive.items() if engine() is not None]
        self.beside.append((settings.folder.name, beside))
        engine = open_engine(settings)
        self._alive[settings.folder.name] = weakref.ref(engine)
        return engine


def judged(state: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunRecord, Opened]:
    opened = Opened()
    state.mkdir()
    for module in (branching, referring):
        monkeypatch.setattr(module, "open_engine", opened)
    monkeypatch.setattr(measuring, "build_probes", lambda *_: [KLProbe(DOCUMENTS[::14])])
    (state / "policy.yaml").write_text(POLICY)
    paths = Paths(REPOSITORY, state)
    request = Request(
        family=Family.load(REPOSITORY / "data" / "families" / "sandbox.yaml"),
        branch=Target("fp8-head", SANDBOX / "fp8-head"),
        reference=Target("bf16", SANDBOX / "bf16"),
        suite="sandbox",
        policy=read_policy(state / "policy.yaml"),
        probes=(ProbeName.WEIGHTS, ProbeName.KL),
    )
    return measuring.measure(request, paths, History.open(paths.history), Silent()), opened


def test_neither_model_is_loaded_beside_the_other_and_nothing_else_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, opened = judged(tmp_path / "both", monkeypatch)
    assert ("bf16", ["fp8-head"]) in opened.beside, "a CPU holds both"
    monkeypatch.setattr(branching, "HOLD_BOTH", frozenset())
    one, opened = judged(tmp_path / "one", monkeypatch)
    assert opened.beside == [("bf16", []), ("fp8-head", [])]
    assert one.verdict == both.verdict is not None
    paths = [Paths(REPOSITORY, tmp_path / name) for name in ("both", "one")]
    figures = [
        {each.slice: each for each in History.open(path.history).measurements(run.id)}
        for path, run in zip(paths, (both, one), strict=True)
    ]
    assert figures[0] == figures[1]
