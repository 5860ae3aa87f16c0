"""The chain of verdicts and decisions: whatever is changed behind the program's back is found, and named."""

import os
import re
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from q36eval.errors import StorageError, UsageError
from q36eval.gate import SignOff
from q36eval.history import History
from q36eval.history._chain import verified
from q36eval.history.deciding import circumstances_then
from q36eval.history.moving import put_run, put_waivers, whole_run
from tests.app.history.filled import fill
from tests.app.judged_runs import judge_run
from tests.q36eval.history.gates import child, gate
from tests.raising import raises
from tests.tampering import of_json, tamper_text


@pytest.fixture
def filled(history: History, tmp_path: Path) -> History:
    """A run with all that one can hold, a waiver, and a second run, on either database."""
    source, run = fill(tmp_path / "source")
    put_run(history, whole_run(source, run.id), imported=None)
    put_waivers(history, source.waiver_records(), imported=None)
    gate(history, "fp8-head", 1)
    assert history.verify().fits
    return history


CHANGES = {
    "a verdict": ("UPDATE runs SET verdict = 'FAIL', exit_code = 1 WHERE branch = 'main'", "exit_code|verdict"),
    "a figure": ("UPDATE measurements SET value = 0.5 WHERE position = 1", "the evidence was changed"),
    "a count": ("UPDATE measurements SET errored = 1 WHERE position = 0", "the evidence was changed"),
    "an item's answer": ("UPDATE items SET answer = question", "the evidence was changed"),
    "an item": ("DELETE FROM items WHERE position = 3", "the evidence was changed"),
    "a crash": ("DELETE FROM probe_failures", "the evidence was changed"),
    "which branch it was": ("UPDATE runs SET branch = 'other' WHERE branch = 'main'", "the evidence was changed"),
    "whose reference": ("UPDATE runs SET reference_identity = NULL", "the evidence was changed"),
    "a report": ("UPDATE runs SET report = circumstances WHERE branch = 'main'", "report was changed"),
    "an earlier decision": ("DELETE FROM earlier_decisions", "earlier was changed"),
    "a blessing's owner": ("UPDATE blessings SET owner = 'mallory'", r"blessing 1 was changed \(owner\)"),
    "a blessing's date": ("UPDATE blessings SET at = '2099-01-01'", r"blessing 1 was changed \(at\)"),
    "a signature": ("UPDATE sign_offs SET report_sha256 = 'ab'", r"sign-off 1 was changed \(report_sha256\)"),
    "a signature that is gone": ("DELETE FROM sign_offs", "sign-off 1 is gone"),
    "a waiver's end": ("UPDATE waivers SET expires = '2099-01-01'", r"waiver 1 was changed \(expires\)"),
    "a waiver that is gone": ("DELETE FROM waivers", "waiver 1 is gone"),
    "a run that is gone": ("DELETE FROM runs WHERE branch = 'main'", "run .* is gone"),
    "an entry": ("UPDATE ledger SET content = replace(content, 'eva', 'eve') WHERE kind = 'blessing'", "was changed"),
    "an entry that is gone": ("DELETE FROM ledger WHERE position = 2", "entry 2 is gone"),
    "the beginning": ("DELETE FROM ledger WHERE position = 0", "the first entry of the chain is gone"),
    "a failure taken out of the lists": (
        "UPDATE runs SET state = 'interrupted' WHERE branch = 'main'",
        "was finished, and is interrupted now",
    ),
    "when a run ended": ("UPDATE runs SET finished = '2020-01-01' WHERE branch = 'main'", "finished was changed"),
    "an entry of nothing": ("UPDATE ledger SET content = '{}' WHERE kind = 'run'", r"entry \d+ \(run\) was changed"),
    "an entry of another kind of thing": (
        "UPDATE ledger SET content = '[1]' WHERE kind = 'blessing'",
        r"\(blessing\) was changed",
    ),
    "an entry that is no JSON": ("UPDATE ledger SET content = 'x' WHERE kind = 'waiver'", r"\(waiver\) was changed"),
    "a waiver slipped in": (
        "INSERT INTO waivers (id, family, branch, owner, reason, criterion, expires, added) "
        "VALUES (9, 'sandbox', 'main', 'm', 'm', 'tools', '2099-01-01', '2026-01-01')",
        "waiver 9 is there, and no entry is of it",
    ),
}


@pytest.mark.long
def test_a_change_behind_its_back_is_found_and_named(filled: History) -> None:
    """Each of them alone, in a transaction that is taken back."""
    for what, (statement, needle) in CHANGES.items():
        with filled._engine.connect() as connection, connection.begin() as changing:
            connection.execute(text(statement))
            found = verified(connection)
            changing.rollback()
        assert any(re.search(needle, misfit.why) for misfit in found.misfits), (what, found.misfits)
    assert filled.verify().fits


def test_a_text_that_no_longer_is_what_its_hash_says_is_of_a_run(tmp_path: Path) -> None:
    """The row's own hash of the text is left as it was."""
    history, run = fill(tmp_path)
    with history._engine.begin() as connection:
        number = "(SELECT answer FROM items LIMIT 1)"
        connection.execute(text(f"UPDATE texts SET data = (SELECT data FROM texts LIMIT 1) WHERE id = {number}"))
    (misfit,) = history.verify().misfits
    assert misfit.why == f"of run {run.id} the evidence was changed"


def test_evidence_that_was_changed_is_neither_signed_nor_blessed_nor_decided_again(tmp_path: Path) -> None:
    history, run = fill(tmp_path)
    tamper_text(tmp_path / "history.sqlite", "items", "answer", of_json(lambda answer: answer.update(score=1.0)))
    assert run.report is not None
    now = SignOff(owner="zoe", reason="read", at=datetime.now(UTC), report_sha256="ab")
    history.add_sign_off(run.id, now)  # of another report: it signs no evidence
    for act in (
        lambda: history.bless(run.id, "eva", "again"),
        lambda: history.decide_again(run.id, run.report, circumstances_then(history, run)),
        lambda: history.check_evidence(run.id),
    ):
        with raises(UsageError, "history-altered"):
            act()


@pytest.mark.long
def test_a_list_looks_at_verdicts_without_reading_evidence(filled: History) -> None:
    runs = [run.id for run in filled.summaries()]
    assert filled.unverified(runs) == frozenset()
    (main,) = (run.id for run in filled.summaries() if run.branch == "main")
    with filled._engine.begin() as connection:
        connection.execute(text("UPDATE runs SET verdict = 'FAIL' WHERE branch = 'main'"))
    assert filled.unverified(runs) == {main}
    assert filled.unverified([]) == frozenset()


@pytest.mark.long
def test_a_rewritten_verdict_is_not_blessed(filled: History) -> None:
    """Its evidence is what it was."""
    (main,) = (run.id for run in filled.summaries() if run.branch == "main")
    with filled._engine.begin() as connection:
        connection.execute(text("UPDATE runs SET verdict = 'FAIL' WHERE branch = 'main'"))
    for act in (lambda: filled.bless(main, "eva", "again"), lambda: filled.check_verdict(main)):
        with raises(UsageError, "history-altered"):
            act()


def test_a_failure_that_was_reopened_behind_its_back_is_not_decided_anew_unseen(tmp_path: Path) -> None:
    """Its items rewritten, it would be measured to the end and pass: two verdicts of one run, and only one shown."""
    history, run = fill(tmp_path)
    assert run.report is not None
    with history._engine.begin() as connection:
        connection.execute(text("UPDATE runs SET state = 'interrupted'"))
    assert history.unverified([run.id]) == {run.id}
    assert history.get_run(run.id).entry is not None, "by which a gate refuses to resume it"
    history.finish_run(run.id, run.report)
    assert [misfit.why for misfit in history.verify().misfits] == [
        f"run {run.id} was decided again, and its earlier decision was not kept"
    ]


def test_what_was_changed_before_it_was_revoked_is_found(tmp_path: Path) -> None:
    history, _ = fill(tmp_path)
    with history._engine.begin() as connection:
        connection.execute(text("UPDATE waivers SET criterion = 'kl'"))
    history.revoke_waiver(1, by="eva")
    assert [misfit.why for misfit in history.verify().misfits] == ["waiver 1 was changed before it was revoked"]


@pytest.mark.long
def test_a_chain_that_ends_elsewhere_takes_no_more_and_says_so(tmp_path: Path) -> None:
    history, run = fill(tmp_path)
    with history._engine.begin() as connection:
        connection.execute(text("UPDATE ledger SET position = 99 WHERE position = 2"))
    with raises(StorageError, "history-altered"):
        history.bless(run.id, "eva", "again")


@pytest.mark.long
def test_what_is_deleted_through_the_program_fits(filled: History) -> None:
    for run in filled.summaries():
        filled.delete_run(run.id)
    assert filled.verify().fits


@pytest.mark.long
def test_processes_that_append_together_make_one_chain(database: str, history: History) -> None:
    def work(branch: str) -> None:
        own = History.open(database)
        for _ in range(3):
            gate(own, branch, 1)
            own.bless(own.list_runs(branch=branch, limit=1)[0].id, branch, "good")
        own.close()

    with ExitStack() as stack:
        started = [stack.enter_context(child(lambda _, n=n: work(f"branch-{n}"))) for n in range(4)]
        assert [os.waitpid(process, 0)[1] for process, _ in started] == [0] * 4
    found = history.verify()
    assert (found.fits, found.entries, found.runs) == (True, 1 + 4 * 3 * 2, 12)


@pytest.mark.long
def test_a_blessing_is_revoked_by_name_and_the_one_before_counts_again(history: History) -> None:
    for _ in range(2):
        gate(history, "main", 1)
    new, old = (run.id for run in history.summaries())
    history.bless(old, "eva", "first")
    history.bless(new, "eva", "second")
    with raises(UsageError, "reason-required"):
        history.revoke_blessing(new, " ", "wrong build")
    (revoked,) = history.revoke_blessing(new, "jan", "wrong build")
    assert (revoked.revoked_by, revoked.revoked_why) == ("jan", "wrong build")
    assert [one.run_id for one in history.blessings("main")] == [old]
    with raises(UsageError, "blessing-missing"):
        history.revoke_blessing(new, "jan", "again")
    assert history.verify().fits


@pytest.mark.long
def test_nothing_is_signed_in_the_future(tmp_path: Path) -> None:
    history, run = fill(tmp_path)
    ahead = datetime.now(UTC) + timedelta(minutes=10)
    with raises(UsageError, "date-in-future"):
        history.add_sign_off(run.id, SignOff(owner="zoe", reason="read", at=ahead, report_sha256="ab"))
    skewed = datetime.now(UTC) + timedelta(minutes=1)
    history.add_sign_off(run.id, SignOff(owner="zoe", reason="read", at=skewed, report_sha256="ab"))
    assert judge_run(history, 0, skewed.date()).report is not None
