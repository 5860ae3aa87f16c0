"""History on real databases: round trips, commits, concurrency, refusals."""

import json
import math
import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from q36eval.errors import UsageError
from q36eval.gate import Circumstances, Policy, SignOff, Waiver, decide
from q36eval.history import History, RunFilter, RunState
from q36eval.history import _tables as tables
from q36eval.history._texts import unpacked
from q36eval.history.decisions import circumstances_on, decided, evidence_of
from q36eval.records import Answer, Clusters, Interval, ItemOutcome, Measurement, ProbeFailure, ProbeName, Verdict
from tests import outcomes
from tests.app.judged_runs import IDENTITY, STAGES, judge_run
from tests.q36eval.gate.evidence import census, small_policy
from tests.q36eval.history.gates import POLICY, begin
from tests.raising import raises


def faults(count: float) -> Measurement:
    return census(ProbeName.WEIGHTS, "integrity_faults", count)


def outcome(key: str, branch: float | None, reference: float = 1.0, text: str = "příliš\x00 [red]</b>") -> ItemOutcome:
    answer = Answer(score=branch, text=text, error=None if branch is not None else "timeout")
    theirs = Answer(score=reference, text="150", detail={"margin": 0.5})
    asked = {"group": "discount", "prompt": "Kolik?", "must_pass": True}
    return outcomes.outcome(ProbeName.CANARIES, key, answer, theirs, **asked)


def test_an_answer_with_lone_surrogates_is_written(history: History) -> None:
    """UTF-8 holds none, and a server's JSON may: no row could be written, and the gate would end there."""
    run = begin(history)
    answer = Answer(score=0.0, text="a\ud800b", error="\udfff", detail={"choices\ud83d": ["x\udc00", ("y", 1)]})
    history.add_items(run.id, [outcome("k", 1.0).model_copy(update={"branch": answer})])
    (kept,) = history.items(run.id)
    assert (kept.branch.text, kept.branch.error) == ("a\ufffdb", "\ufffd")
    assert kept.branch.detail == {"choices\ufffd": ["x\ufffd", ["y", 1]]}


def test_a_run_comes_back_as_it_went_in_and_its_verdict_is_never_overwritten(history: History) -> None:
    run = begin(history)
    assert history.get_run(run.id) == run
    report = decide(POLICY, [faults(1)])
    finished = history.finish_run(run.id, report)
    assert (finished.state, finished.verdict, finished.report) == (RunState.FINISHED, Verdict.FAIL, report)
    assert Policy.model_validate(finished.policy) == POLICY
    # not by an interruption that came too late, and not by another verdict
    run = begin(history)
    interrupted = history.finish_run(run.id, state=RunState.INTERRUPTED)
    assert interrupted.state is RunState.INTERRUPTED
    finished = history.finish_run(run.id, decide(POLICY, [faults(1)]))
    assert finished.verdict is Verdict.FAIL
    assert history.finish_run(run.id, state=RunState.INTERRUPTED) == finished
    with raises(UsageError, "run-finished"):
        history.finish_run(run.id, decide(POLICY, [faults(0)]))
    assert history.get_run(run.id) == finished


def test_non_finite_numbers_survive_and_no_report_holds_a_bare_nan(history: History) -> None:
    run = begin(history)
    for slice_name, value in (("a", math.nan), ("b", math.inf), ("c", -math.inf), ("d", 0.1 + 0.2)):
        clusters = Clusters(units=(1,), branch=(value,), errored=(0,))
        history.add_measurement(
            run.id,
            faults(value).model_copy(update={"slice": slice_name, "clusters": clusters, "reference_value": value}),
        )
    values = {m.slice: (m.value, m.reference_value, m.clusters.branch[0]) for m in history.measurements(run.id)}
    assert all(map(math.isnan, values["a"]))
    assert values["b"] == (math.inf,) * 3
    assert values["c"] == (-math.inf,) * 3
    assert values["d"] == (0.1 + 0.2,) * 3
    run = begin(history)
    history.finish_run(run.id, decide(POLICY, [faults(math.nan)]))
    texts = history._read(select(tables.texts.c.data).join(tables.runs, tables.runs.c.report == tables.texts.c.id))
    json.loads(unpacked(texts[0].data), parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert history.get_run(run.id).verdict is Verdict.INCONCLUSIVE


def test_what_is_written_again_replaces_and_keeps_its_place(history: History) -> None:
    run = begin(history)
    interval = Interval(lower=0.0, upper=0.0183, level=0.95, method="Clopper-Pearson")
    first, second = (faults(0).model_copy(update={"slice": name}) for name in ("z", "a"))
    history.add_measurements(run.id, [first, second])
    again = first.model_copy(update={"value_interval": interval, "note": "one\0two", "unit": "tensors"})
    history.add_measurement(run.id, again)
    assert history.measurements(run.id) == [again.model_copy(update={"note": "one\N{SYMBOL FOR NULL}two"}), second]
    run = begin(history)
    history.add_items(run.id, [outcome("k1", None), outcome("k2", 0.0), outcome("k3", 1.0)])
    history.add_items(run.id, (o for o in [outcome("k1", 1.0)]))
    assert history.items(run.id) == [outcome("k1", 1.0), outcome("k2", 0.0), outcome("k3", 1.0)]
    assert [o.item_key for o in history.items(run.id, ProbeName.CANARIES, "discount", flips_only=True)] == ["k2"]
    assert history.items(run.id, ProbeName.EVALS) == []


def test_each_item_is_committed_as_it_comes(history: History, database: str) -> None:
    run, other = begin(history), History.open(database)

    def dies_half_way():
        yield outcome("k1", 1.0)
        assert len(other.items(run.id)) == 1
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        history.add_items(run.id, dies_half_way())
    assert [o.item_key for o in other.items(run.id)] == ["k1"]
    other.close()


def test_what_belongs_to_no_run_is_refused(history: History) -> None:
    for write in (
        lambda: history.add_measurement("nowhere", faults(0)),
        lambda: history.add_items("nowhere", [outcome("k1", 1.0)]),
        lambda: history.finish_run("nowhere"),
        lambda: history.delete_run("nowhere"),
    ):
        with raises(UsageError, "run-unknown", "'nowhere'"):
            write()
    with pytest.raises(IntegrityError):
        history.add_failure("nowhere", ProbeFailure(probe=ProbeName.KL, reason="x", kind="crashed"))


def test_runs_are_found_by_prefix_and_latest(history: History) -> None:
    with raises(UsageError, "history-empty"):
        history.get_run("latest")
    first, second = begin(history, "main"), begin(history)
    assert history.get_run("latest").id == second.id
    assert history.get_run(second.id[:-1]).id in {first.id, second.id}
    with raises(UsageError, "run-ambiguous", "2 runs", "'2'", second.id):
        history.get_run("2")
    for unknown in ("zzz", "%", "_"):
        with raises(UsageError, "run-unknown"):
            history.get_run(unknown)
    history.finish_run(first.id, decide(POLICY, [faults(0)]))
    assert [r.id for r in history.list_runs()] == [second.id, first.id]
    assert [r.id for r in history.list_runs(branch="main", state=RunState.FINISHED)] == [first.id]
    assert history.list_runs(family="other") == []


def test_blessing_needs_a_verdict_and_the_newest_counts(history: History) -> None:
    run = begin(history)
    with raises(UsageError, "run-without-verdict", "running"):
        history.bless(run.id, "eva", "looks fine")
    history.finish_run(run.id, decide(POLICY, [faults(0)]))
    later = begin(history)
    history.finish_run(later.id, decide(POLICY, [faults(0)]))
    with raises(UsageError, "reason-required"):
        history.bless(run.id, "eva", " ")
    history.bless(later.id, "eva", "release 2")
    blessing = history.bless(run.id, "jan", "rolled back")
    assert history.blessings("fp8-head", "sandbox")[0] == blessing
    assert history.blessings("main") == []
    # one is revoked by name, and the one before counts again
    with raises(UsageError, "reason-required"):
        history.revoke_blessing(run.id, " ", "wrong build")
    (revoked,) = history.revoke_blessing(run.id, "jan", "wrong build")
    assert (revoked.revoked_by, revoked.revoked_why) == ("jan", "wrong build")
    assert [one.run_id for one in history.blessings("fp8-head")] == [later.id]
    with raises(UsageError, "blessing-missing"):
        history.revoke_blessing(run.id, "jan", "again")
    assert history.blessings_of_run(run.id) == [revoked]


def test_waivers_and_failures(history: History) -> None:
    waiver = Waiver(owner="eva", reason="known", criterion="kl", expires=date(2026, 5, 1))
    number = history.add_waiver("sandbox", "main", waiver)
    assert history.waivers("sandbox", "main") == {number: waiver}
    assert history.waivers("sandbox", "fp8-head") == {}
    history.revoke_waiver(number)
    assert history.waivers("sandbox", "main") == {}
    with raises(UsageError, "waiver-unknown"):
        history.revoke_waiver(number)
    run = begin(history)
    failure = ProbeFailure(probe=ProbeName.KL, reason="out of memory", kind="crashed")
    history.add_failure(run.id, failure)
    history.add_failure(run.id, failure)
    assert history.failures(run.id) == [failure]
    history.clear_failures(run.id)
    assert history.failures(run.id) == []


def test_a_decision_made_again_keeps_the_one_before(history: History) -> None:
    run = begin(history)
    day = Circumstances(on=date(2026, 5, 1))
    with raises(UsageError, "run-without-verdict"):
        history.decide_again(run.id, decide(POLICY, [faults(0)]), day)
    first = history.finish_run(run.id, decide(POLICY, [faults(math.nan)]))
    again = history.decide_again(run.id, decide(POLICY, [faults(0)]), day)
    assert (again.verdict, again.circumstances, again.finished) == (Verdict.PASS, day, first.finished)
    (earlier,) = history.earlier_decisions(run.id)
    assert (earlier.report.verdict, earlier.circumstances) == (Verdict.INCONCLUSIVE, None)


def test_signatures_keep_their_report_and_are_given_once_and_not_in_the_future(history: History) -> None:
    run = begin(history)
    signature = SignOff(owner="eva", reason="read", at=datetime(2026, 5, 1, 12, tzinfo=UTC), report_sha256="ab")
    history.add_sign_off(run.id, signature)
    with raises(UsageError, "sign-off-exists", "eva"):
        history.add_sign_off(run.id, signature)
    other = signature.model_copy(update={"report_sha256": "cd"})
    history.add_sign_off(run.id, other)
    assert history.sign_offs(run.id) == [signature, other]
    for blank in ({"owner": " "}, {"reason": " "}):
        with raises(UsageError, "reason-required"):
            history.add_sign_off(run.id, signature.model_copy(update=blank))
    run, now = begin(history), datetime.now(UTC)
    ahead = SignOff(owner="zoe", reason="read", at=now + timedelta(minutes=10), report_sha256="ab")
    with raises(UsageError, "date-in-future"):
        history.add_sign_off(run.id, ahead)
    skewed = ahead.model_copy(update={"at": now + timedelta(minutes=1)})
    history.add_sign_off(run.id, skewed)
    assert history.sign_offs(run.id) == [skewed]


def test_series_holds_finished_runs_only(history: History) -> None:
    done, open_ = begin(history), begin(history)
    for run in (done, open_):
        history.add_measurement(run.id, faults(0))
    history.finish_run(done.id, decide(POLICY, [faults(0)]))
    series = history.metric_series("fp8-head")
    found = faults(0)
    assert [(p.run.id, p.key, p.effect, p.run.identity) for p in series] == [(done.id, found.key, 0.0, IDENTITY)]
    assert history.metric_series("fp8-head", keys=["kl.other[all]"]) == []
    assert history.metric_keys("fp8-head") == [found.key]


def test_foreign_databases_are_refused_untouched(tmp_path: Path) -> None:
    foreign, text = tmp_path / "foreign.db", tmp_path / "text.db"
    with sqlite3.connect(foreign) as raw:
        raw.execute("CREATE TABLE songs (title TEXT)")
    text.write_text("not a database at all, just words " * 50)
    with raises(UsageError, "history-not-ours"):
        History.open(foreign)
    with sqlite3.connect(foreign) as raw:
        assert [row[0] for row in raw.execute("SELECT name FROM sqlite_master")] == ["songs"]
    with raises(UsageError, "history-unusable"):
        History.open(text)


def test_runs_are_listed_without_their_reports_and_by_branch(history: History) -> None:
    judged, open_ = begin(history), begin(history)
    history.finish_run(judged.id, decide(POLICY, [faults(0)]))
    newest, oldest = history.summaries()
    assert (newest.id, newest.state, newest.verdict, newest.lanes) == (open_.id, RunState.RUNNING, None, {})
    report = history.get_run(judged.id).report
    assert oldest.lanes == {lane.lane: lane.verdict for lane in report.lanes}
    assert (oldest.verdict, oldest.exit_code, oldest.policy) == (report.verdict, report.exit_code, POLICY.name)
    assert history.summaries(limit=1, offset=1) == [oldest]
    finished = RunFilter(state=RunState.FINISHED, since=oldest.started, until=oldest.started)
    assert history.summaries(finished) == [oldest]
    assert (history.count_runs(), history.count_runs(finished)) == (2, 1)
    (branch,) = history.branches()
    assert (branch.runs, branch.newest, branch.judged) == (2, newest, oldest)


# -- what a page remembers of a branch is known by the branch's fingerprint

DAY = date(2026, 3, 1)
MAIN = ("sandbox", "main")


@pytest.mark.long
def test_a_fingerprint_is_another_one_with_every_run_verdict_and_blessing(history: History) -> None:
    assert history.fingerprints() == {}
    seen = []

    def look() -> None:
        found = history.fingerprints()
        assert {MAIN: found[MAIN]} == history.fingerprints(*MAIN)
        seen.append(found[MAIN])

    run = judge_run(history, 2, DAY)
    look()
    unfinished = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    judge_run(history, 2, DAY, branch="other")
    assert history.fingerprints()[MAIN] == seen[0], "what changes nothing of the branch's finished runs"
    history.finish_run(unfinished.id)
    look()
    circumstances = circumstances_on(history, run, DAY, require_sign_off=True)
    report = decided(small_policy(), evidence_of(history, run, circumstances, STAGES), circumstances)
    history.decide_again(run.id, report, circumstances)
    look()
    for reason in ("good", "still good"):
        history.bless(run.id, "eva", reason)
    look()
    other = judge_run(history, 2, DAY)
    history.bless(other.id, "eva", "better")
    look()
    history.revoke_blessing(other.id, "eva", "wrong build")
    look()
    history.bless(judge_run(history, 2, DAY, branch="other").id, "eva", "another branch's")
    assert history.fingerprints()[MAIN] == seen[-1]
    history.delete_run(unfinished.id)
    look()
    assert len(set(seen)) == len(seen)
