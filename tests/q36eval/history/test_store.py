"""How history keeps what is long, what it does with what it cannot read, and whole runs from elsewhere."""

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import delete, func, select, update

from q36eval.errors import StorageError, UsageError
from q36eval.history import About, EventKind, History, RunFilter, RunProgress
from q36eval.history import _tables as tables
from q36eval.history._texts import packed, unpacked
from q36eval.history.run_transfer import put_run, whole_run
from tests.app.history.filled import fill
from tests.q36eval.history.gates import begin, figure, gate, outcome
from tests.raising import raises


def texts(history: History) -> int:
    return int(history._read(select(func.count()).select_from(tables.texts))[0][0])


def test_what_was_asked_and_answered_alike_is_kept_once(history: History) -> None:
    first, second = begin(history, "main"), begin(history, "main")
    items = [outcome(number, "the same") for number in range(50)]
    history.add_items(first.id, items)
    once = texts(history)
    history.add_items(second.id, items)
    assert texts(history) == once
    assert history.items(first.id) == history.items(second.id) == items


@pytest.mark.parametrize("text", ["", "příliš\0 <script>", '{"cluster":"","stratum":"all"}', "x" * 1_000_000])
def test_texts_come_back_and_take_no_more_than_they_are(text: str) -> None:
    assert unpacked(packed(text)) == text
    assert len(packed(text)) <= len(text.encode()) + 1


def test_texts_written_once_are_read_for_ever() -> None:
    kept = "AXj5UkH1LENyhSnc0OKc1LJEBWMDBVU87gEACk0SYA=="
    assert unpacked(base64.b64decode(kept)) == '{"score":0.5,"text":"sleva 30 %","error":null,"detail":{}}'
    with raises(UsageError, "history-unreadable", "cannot read: upgrade"):
        unpacked(b"\x07new")
    with raises(UsageError, "history-damaged"):
        unpacked(b"\x01broken")


def test_a_figure_keeps_the_sign_of_a_zero_as_its_report_does(history: History) -> None:
    """SQLite writes -0.0 as 0: a replay would no longer be the same to the byte."""
    run = begin(history, "main")
    written = figure("x", 0.5).model_copy(update={"value": -0.0, "effect": -0.0})
    history.add_measurement(run.id, written)
    history.finish_run(run.id)
    (kept,) = history.measurements(run.id)
    assert kept.model_dump_json() == written.model_dump_json()
    (drawn,) = history.metric_series("main")
    assert str(drawn.effect) == "-0.0"


def test_what_no_database_stores_is_a_sentence(history: History) -> None:
    """An argument of a command line may hold such bytes, and a link of the review UI a NUL, which SQLite stores."""
    run = history.finish_run(begin(history, "main").id, gate(history, "other", 1))
    with raises(UsageError, "value-not-storable"):
        history.bless(run.id, "e\udcff", "why")
    for name in ("\udcff", *(() if history.name.endswith(".db") else ("a\0",))):
        with raises(UsageError, "value-not-storable"):
            history.get_run(name)
        with raises(UsageError, "value-not-storable"):
            history.summaries(RunFilter(branch=name))
    assert history.blessings("main") == []


def test_one_run_that_cannot_be_read_stops_no_list_and_a_lost_text_is_a_sentence(history: History) -> None:
    for branch in ("main", "fp8-head"):
        gate(history, branch, 1)
    broken = history.summaries(RunFilter(branch="main"))[0]
    with history._write() as connection:
        of_run = select(tables.runs.c.report).where(tables.runs.c.id == broken.id)
        other = connection.execute(
            select(tables.texts.c.id).where(tables.texts.c.id != of_run.scalar_subquery())
        ).first()
        connection.execute(update(tables.runs).where(tables.runs.c.id == broken.id).values(report=other.id))
    assert [summary.branch for summary in history.summaries()] == ["fp8-head", "main"]
    assert [branch.judged for branch in history.branches()] == history.summaries()
    assert len(history.metric_series("main")) == 2
    with raises(UsageError, "history-unreadable", broken.id):
        history.get_run(broken.id)
    run = begin(history, "main")
    history.add_items(run.id, [outcome(1, "gone")])
    with history._write() as connection:
        connection.execute(delete(tables.texts).where(tables.texts.c.id.in_(select(tables.items.c.answer))))
    with raises(UsageError, "history-damaged", "1, of"):
        history.items(run.id)


def test_a_deleted_run_takes_all_of_its_own_and_nothing_of_others(history: History) -> None:
    for branch in ("main", "fp8-head"):
        gate(history, branch, 2)
    other, gone = history.list_runs()
    before = (history.items(other.id), history.measurements(other.id), history.get_run(other.id))
    kept = texts(history)
    history.remove_unused_texts()
    assert texts(history) == kept
    history.delete_run(gone.id)
    history.remove_unused_texts()
    assert texts(history) == kept - 12
    assert (history.items(other.id), history.measurements(other.id), history.get_run(other.id)) == before
    assert (history.items(gone.id), history.events(gone.id)) == ([], [])
    history.give_back_room()


def test_a_server_s_refusal_is_one_sentence_without_the_password(postgresql: str) -> None:
    folder = postgresql.partition("host=")[2]
    for url, words in (
        (f"postgresql://eva:s3cret@/postgres?host={folder}", 'role "eva" does not exist'),
        (f"postgresql://q36:s3cret@/nowhere?host={folder}", "Q36EVAL_HISTORY"),
        (f"postgresql+psycopg://q36:s3cret@/x?host={folder}/none&password=s3cret", f"{folder}/none"),
    ):
        with raises(UsageError, "history-unusable", words) as refused:
            History.open(url)
        assert "s3cret" not in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_history_that_may_only_be_read_says_so(database: str, history: History) -> None:
    reading = History.open(f"{database}&options=-c%20default_transaction_read_only%3Don")
    assert reading.summaries() == []
    with raises(UsageError, "history-unusable"):
        reading.check_writable()
    with raises(StorageError, "history-unusable"):
        begin(reading, "main")
    reading.close()


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


def test_progress_is_what_was_said_last_and_events_keep_their_order(history: History) -> None:
    run, other = begin(history, "main"), begin(history, "main")
    for done in (1, 7):
        said = RunProgress(run_id=run.id, stage="KL", done=done, total=9, at=datetime(2026, 5, done, tzinfo=UTC))
        history.set_progress(said)
    assert (history.progress(run.id), history.progress(other.id)) == (said, None)
    then = datetime(2020, 1, 1, tzinfo=UTC)
    history.add_event(run.id, EventKind.BEGUN, "by hand")
    history.add_event(run.id, "retry", "timeout", at=then)
    history.add_event(other.id, "finished", "")
    assert [(e.kind, e.message) for e in history.events(run.id)] == [("begun", "by hand"), ("retry", "timeout")]
    assert history.events(run.id)[1].at == then
    with pytest.raises(ValueError, match="exploded"):
        history.add_event(run.id, "exploded", "")
