"""How history keeps what is long, what it does with what it cannot read, and whole runs from elsewhere."""

import base64
from collections.abc import Sequence

import pytest
from sqlalchemy import delete, func, select, update

from q36eval.errors import StorageError, UsageError
from q36eval.history import History, RunFilter
from q36eval.history import _tables as tables
from q36eval.history._texts import packed, unpacked
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


def test_a_text_that_is_taken_up_again_while_unused_ones_are_looked_for_stays(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is kept waiting for the search: who writes meanwhile may need what it found."""
    first, second = begin(history, "main"), begin(history, "main")
    history.add_items(first.id, [outcome(0, "wanted again"), outcome(1, "not wanted")])
    history.delete_run(first.id)
    remove = History._remove_still_unused

    def written_meanwhile(self: History, numbers: Sequence[int]) -> int:
        history.add_items(second.id, [outcome(0, "wanted again")])
        return remove(self, numbers)

    monkeypatch.setattr(History, "_remove_still_unused", written_meanwhile)
    unused, _ = history.unused_texts()
    assert history.remove_unused_texts() == unused - 2  # what was asked, and the answer
    assert history.items(second.id) == [outcome(0, "wanted again")]
    assert history.unused_texts() == (0, 0)


def test_one_run_that_cannot_be_read_stops_no_list(history: History) -> None:
    for branch in ("main", "fp8-head"):
        gate(history, branch, 1)
    broken = history.summaries(RunFilter(branch="main"))[0]
    with history._write() as connection:
        of_run = select(tables.runs.c.report).where(tables.runs.c.id == broken.id)
        other = connection.execute(
            select(tables.texts.c.id).where(tables.texts.c.id != of_run.scalar_subquery())
        ).first()
        assert other is not None
        connection.execute(update(tables.runs).where(tables.runs.c.id == broken.id).values(report=other.id))
    assert [summary.branch for summary in history.summaries()] == ["fp8-head", "main"]
    assert [branch.judged for branch in history.branches()] == history.summaries()
    assert len(history.metric_series("main")) == 2
    assert {row["verdict"] for row in history.criteria(broken.id)} == {"PASS"}
    with raises(UsageError, "history-unreadable", broken.id):
        history.get_run(broken.id)


def test_a_text_that_is_gone_is_a_sentence(history: History) -> None:
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
    assert history.unused_texts() == (0, 0)
    history.delete_run(gone.id)
    unused, size = history.unused_texts()
    assert unused == 12
    assert size > unused
    assert history.remove_unused_texts() == unused
    assert history.unused_texts() == (0, 0)
    assert (history.items(other.id), history.measurements(other.id), history.get_run(other.id)) == before
    assert (history.items(gone.id), history.events(gone.id), history.criteria(gone.id)) == ([], [], [])


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
