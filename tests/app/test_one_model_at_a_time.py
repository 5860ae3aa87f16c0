"""A device that does not hold both models: the reference is asked, and gone, before the branch is loaded."""

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from q36eval.config import Paths
from q36eval.engines import open_engine
from q36eval.engines.base import Scored
from q36eval.evals.probe import EvalsProbe
from q36eval.history import History, RunRecord
from q36eval.kl.probe import KLProbe
from q36eval.probes import Probe
from q36eval.records import ProbeName, Verdict
from q36eval.run import branch as branching
from q36eval.run import preflight
from q36eval.run import reference as referring
from tests.app.sandbox_gates import REPOSITORY, SANDBOX, Gates, copied, two_tokens_swapped
from tests.app.test_reference_packs import DOCUMENTS, POLICY
from tests.evals.small_suite import write_small_suite
from tests.q36eval.checkpoints.inspection.damage import edit

pytestmark = pytest.mark.long


class Opened:
    """Opens engines as ever, and writes down which others were alive then; one text the reference may not score."""

    def __init__(self, unscored: bool = False) -> None:
        self.unscored = unscored
        self.beside: list[tuple[str, list[str]]] = []
        self._alive: dict[str, Any] = {}

    def __call__(self, settings: Any) -> Any:
        gc.collect()
        beside = [name for name, engine in self._alive.items() if engine() is not None]
        self.beside.append((settings.folder.name, beside))
        engine = open_engine(settings)
        if self.unscored and settings.folder.name == "bf16":
            _spoil_one(engine)
        self._alive[settings.folder.name] = weakref.ref(engine)
        return engine


def _spoil_one(engine: Any) -> None:
    """The first text that is scored never fits its context."""
    score, spoiled = engine.score, set[str]()

    def scored(requests: Any, known: Any = ()) -> Iterator[Scored]:
        for each in score(requests, known):
            spoiled.update({each.request.key} if not spoiled else ())
            lost = each.request.key in spoiled
            yield replace(each, hidden_states=None, error="too long", permanent=True) if lost else each

    engine.score = scored


def a_few_documents() -> Probe:
    return KLProbe(DOCUMENTS[::14])


def judged(
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    branch: Path = SANDBOX / "fp8-head",
    probes: tuple[ProbeName, ...] = (ProbeName.WEIGHTS, ProbeName.KL),
    unscored: bool = False,
    asking: Callable[[], Probe] = a_few_documents,
) -> tuple[RunRecord, Opened]:
    opened = Opened(unscored)
    state.mkdir()
    for module in (branching, referring):
        monkeypatch.setattr(module, "open_engine", opened)
    monkeypatch.setattr(preflight, "build_probes", lambda *_: [asking()])
    return Gates(state, POLICY)(branch, probes=probes), opened


@pytest.mark.parametrize(("probe", "turns", "least"), [(ProbeName.KL, 1, 0), (ProbeName.EVALS, 3, 75)])
def test_neither_model_is_loaded_beside_the_other_and_nothing_else_differs(
    probe: ProbeName, turns: int, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six blocks of short answers the reference answers two first, then one and one more, then the last."""
    subjects = ("anatomy", "astronomy", "botany", "geology", "law", "music")
    counts = {f"short_answers/{subject}.jsonl": 15 for subject in subjects}
    counts |= {f"short_answers_dev/{subject}.jsonl": 5 for subject in subjects}
    suite = write_small_suite(tmp_path / "suite", counts, block_items=15)
    runs = {}
    for name, devices in (("both", branching.HOLD_BOTH), ("one", frozenset[str]())):
        monkeypatch.setattr(branching, "HOLD_BOTH", devices)
        asking = (lambda: EvalsProbe(suite)) if probe is ProbeName.EVALS else a_few_documents
        run, opened = judged(tmp_path / name, monkeypatch, probes=(ProbeName.WEIGHTS, probe), asking=asking)
        assert (("bf16", ["fp8-head"]) in opened.beside) == (name == "both"), "a CPU holds both"
        history = History.open(Paths(REPOSITORY, tmp_path / name).history)
        items = {item.item_key: (item.branch.text, item.reference.text) for item in history.items(run.id)}
        runs[name] = (len(items), items, {each.key: each for each in history.measurements(run.id)}, run.verdict)
    assert opened.beside == [("bf16", []), ("fp8-head", [])] * turns
    assert runs["one"] == runs["both"]
    assert runs["one"][0] > least


def test_what_the_reference_cannot_score_is_not_asked_again_beside_the_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branching, "HOLD_BOTH", frozenset())
    run, opened = judged(tmp_path / "state", monkeypatch, unscored=True)
    assert opened.beside == [("bf16", []), ("fp8-head", [])]
    (kl,) = [each for each in run.report.criteria if each.id == "kl"] if run.report is not None else []
    assert kl.counts.errored > 0


def test_a_branch_that_is_known_to_fail_waits_for_no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another tokenizer, and by weights that nobody inspects and that lack a tensor: as where both models fit."""
    verdicts = []
    lost = edit(lambda tensors: tensors.pop(next(name for name in tensors if "norm" in name)))
    for name, spoil in (("tokenizer", two_tokens_swapped), ("weights", lost)):
        folder = copied(SANDBOX / "fp8-head", tmp_path / name / "fp8-head", spoil)
        for devices in (branching.HOLD_BOTH, frozenset[str]()):
            with monkeypatch.context() as patch:
                patch.setattr(branching, "HOLD_BOTH", devices)
                state = tmp_path / f"{name}-{len(devices)}"
                run, opened = judged(state, patch, folder, (ProbeName.KL,))
            verdicts.append((name, run.verdict, run.report.exit_code, "bf16" in dict(opened.beside)))
    other = ("tokenizer", Verdict.INCONCLUSIVE, 3, False)  # what differs is the weights probe's to fail
    lacking = ("weights", Verdict.FAIL, 1, False)
    assert verdicts == [other, other, lacking, lacking]
