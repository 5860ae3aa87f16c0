"""Whole runs into either database, and what all runs of it refer to."""

from pathlib import Path

import pytest

from q36eval.errors import UsageError
from q36eval.history import About, History
from q36eval.history.run_transfer import put_run, whole_run
from tests.app.history.filled import fill
from tests.raising import raises


@pytest.mark.long
def test_a_run_is_the_same_in_another_database(history: History, tmp_path: Path) -> None:
    source, run = fill(tmp_path / "source")
    whole = whole_run(source, run.id)
    broken = whole.model_copy(update={"run": run.model_copy(update={"branch": "a\0b"}), "measurements": ()})
    if not history.name.endswith(".db"):  # SQLite keeps such a name
        with raises(UsageError, "value-not-storable"):
            put_run(history, broken, imported=None)
        assert history.summaries() == []
    put_run(history, whole, imported=None)
    assert whole_run(history, run.id) == whole
    assert all(getattr(whole.about, name) for name in About.model_fields), "of each kind of note there is one"
    with raises(UsageError, "run-exists"):
        put_run(history, whole, imported=None)
    # what people decided stays where they decided it
    assert (history.sign_offs(run.id), history.blessings_of_run(run.id), history.waiver_records()) == ([], [], [])
    assert (source.reviewed_runs(), history.reviewed_runs()) == ({run.id}, set())
    history.bless(run.id, "eva", "here too")
    assert history.reviewed_runs() == {run.id}
    assert history.files_of_runs() == {one.sha256 for one in whole.about.artifacts}
    assert history.files_of_runs(without=[run.id]) == set()
    history.delete_run(run.id)
    history.give_back_room()
    assert (history.reviewed_runs(), history.files_of_runs()) == (set(), set())
