"""How far a run is, what happened to it, which files it wrote."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from q36eval.config import Paths
from q36eval.history import Artifact, EventKind, History, RunProgress, RunRecord


def begun(history: History) -> RunRecord:
    return history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)


def test_progress_is_what_was_said_last(history: History) -> None:
    run, other = begun(history), begun(history)
    for done in (1, 7):
        said = RunProgress(run_id=run.id, stage="KL", done=done, total=9, at=datetime(2026, 5, done, tzinfo=UTC))
        history.set_progress(said)
    assert history.progress(run.id) == said
    assert history.progress(other.id) is None


def test_events_keep_their_order_and_kind(history: History) -> None:
    run, other = begun(history), begun(history)
    then = datetime(2020, 1, 1, tzinfo=UTC)
    history.add_event(run.id, EventKind.BEGUN, "by hand")
    history.add_event(run.id, "retry", "timeout", at=then)
    history.add_event(other.id, "finished", "")
    assert [(e.kind, e.message) for e in history.events(run.id)] == [
        (EventKind.BEGUN, "by hand"),
        (EventKind.RETRY, "timeout"),
    ]
    assert history.events(run.id)[1].at == then
    with pytest.raises(ValueError, match="exploded"):
        history.add_event(run.id, "exploded", "")


def test_artifacts_are_one_a_name_and_known_by_content(history: History) -> None:
    run, other = begun(history), begun(history)
    first, second = (Artifact(run_id=run.id, name="tokens.parquet", sha256=c * 64, size_bytes=5) for c in "ab")
    history.add_artifact(first)
    history.add_artifact(second)
    history.add_artifact(first.model_copy(update={"run_id": other.id, "name": "copy"}))
    history.add_artifact(second.model_copy(update={"name": "a"}))
    assert [found.name for found in history.artifacts(run.id)] == ["a", "tokens.parquet"]
    assert history.artifacts(run.id)[1] == second
    assert history.files_of_runs() == {"a" * 64, "b" * 64}


def test_another_history_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("Q36EVAL_STATE", str(tmp_path))
    monkeypatch.delenv("Q36EVAL_HISTORY", raising=False)
    own = Paths.default()
    assert (own.history_url, own.has_history) == (str(tmp_path / "history.sqlite"), False)
    monkeypatch.setenv("Q36EVAL_HISTORY", "postgresql://team/history")
    assert (Paths.default().history_url, Paths.default().has_history) == ("postgresql://team/history", True)
    assert Paths.default().history == tmp_path / "history.sqlite"
