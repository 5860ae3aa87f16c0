"""The loop: a round, its evaluation, storage and reports, and a wait. One process per deployment.

Everything that must not be lost is in the store first: the charge before the request, the round's id before its first
query, and state, run and events in one transaction at its end.
"""

import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from q36eval.checkpoints import chat_template_sha256, tokenizer_sha256
from q36eval.config import Family
from q36eval.errors import EngineError, ExitCode, Q36Error, StorageError, UsageError
from q36eval.gate import Policy
from q36eval.history import History, RunRecord, WholeRun
from q36eval.history.run_transfer import put_run
from q36eval.interrupts import closing
from q36eval.locks import exclusive
from q36eval.records import ProbeFailure, ProbeName
from q36eval.watch import verdicts
from q36eval.watch.budget import Gauge, PutOffError, Reason
from q36eval.watch.endpoint_sampling import Asker
from q36eval.watch.incidents import (
    SLICES,
    Event,
    Item,
    Phase,
    State,
    abandoned,
    advance,
    evidence,
    remaining_rounds,
    tolerance,
)
from q36eval.watch.rounds import Round, Rounds
from q36eval.watch.settings import Deployment
from q36eval.watch.store import Store
from q36eval.watch.webhooks import Courier, Receiver, payload, post

TICK_S = 2.0
"""The interval at which courier and spool check for waiting work."""
FIRST_PAUSE_S = 30.0
"""After a round put off by the server's state; it doubles with each further one."""
DELIVERING_S = 30.0
"""The time that a single round waits for history and receivers; the next one continues with the rest."""


@dataclass(frozen=True)
class Outcome:
    """The result of one round. `result` is a label of `q36eval_rounds_total`; `run` is None if it was put off."""

    at: datetime
    result: str
    exit_code: ExitCode
    reason: str
    run: str | None = None
    events: tuple[Event, ...] = ()
    items: tuple[Item, ...] = ()
    put_off: Reason | None = None

    @property
    def body(self) -> dict[str, Any]:
        """As JSON."""
        lost = [{"slice": item.slice, "item": item.name, "why": item.reason} for item in self.items if item.lost]
        scored = [item for item in self.items if item.lost is not None]
        return {
            "at": self.at.isoformat(),
            "result": self.result,
            "exit_code": int(self.exit_code),
            "reason": self.reason,
            "run": self.run,
            "put_off": self.put_off,
            "items": len(self.items),
            "scored": len(scored),
            "lost": lost,
            "events": [event.model_dump(mode="json") for event in self.events],
        }


@dataclass(frozen=True)
class Setting:
    """The parts of a watch. `folder` is the branch's: tokenizer, template, configuration."""

    deployment: Deployment
    family: Family
    policy: Policy
    folder: Path
    state: Path
    open_history: Callable[[], History]
    receivers: tuple[Receiver, ...] = ()
    provenance: Mapping[str, Any] | None = None


class Spool:
    """Delivers finished rounds to a history that may be unavailable: from the disk, the oldest first, each once.

    A round is in the spool before it is anywhere else. Its id was created before it began, and history accepts no id
    twice: a round written just before a kill is found there, and leaves the spool without being written again.
    `open_history` is called again after every failure.
    """

    def __init__(self, store: Store, open_history: Callable[[], History], log: Callable[[str], None]) -> None:
        self._store, self._open, self._log = store, open_history, log
        self._history: History | None = None
        self.reachable = True
        """Whether the newest attempt succeeded."""

    def deliver(self) -> int:
        """Write waiting rounds until history fails; returns the number written.

        Raises:
            StorageError: the spool itself cannot be read or written.
        """
        written = 0
        while (waiting := self._store.next_spooled()) is not None:
            run_id, body = waiting
            try:
                whole = WholeRun.model_validate_json(body)
                if self._history is None:
                    self._history = self._open()
                if not self._history.holds(run_id):
                    put_run(self._history, whole, imported=None)
            except Exception as error:  # any driver error of an unavailable server
                name = "" if isinstance(error, Q36Error) else f"{type(error).__name__}: "
                self._refuse(f"round {run_id}: {name}{' '.join(str(error).split())}")
                return written
            with self._store.transaction():
                self._store.unspool(run_id)
            self.reachable = True
            written += 1
        return written

    def close(self) -> None:
        """Give the history back."""
        if self._history is not None:
            self._history.close()
            self._history = None

    def _refuse(self, why: str) -> None:
        if self.reachable:
            self._log(f"History takes no round ({why}); finished rounds wait on disk.")
        self.reachable = False
        self.close()


class Watch:
    """One deployment, watched by this process alone. A context: it opens and closes what it keeps.

    Raises:
        UsageError: another process watches it, or its baseline is of another branch or of other prompts.
        StorageError: its folder cannot be written.
    """

    def __init__(
        self,
        setting: Setting,
        log: Callable[[str], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        *,
        recalibrate: bool = False,
    ) -> None:
        self.deployment, self.setting, self._log = setting.deployment, setting, log
        self.now = now
        self._recalibrate = recalibrate
        self._stack = ExitStack()
        self._stop = threading.Event()
        self.rounded = time.monotonic()
        """When a round last ended."""
        self.newest: dict[str, Any] = {}
        """The newest round's figures, for readers."""
        self.unkept: dict[str, int] = {}
        """Rounds put off because the disk could not even count them."""
        self.disk_full = False
        self.endpoint_up = False
        self.not_before: datetime | None = None

    def __enter__(self) -> "Watch":
        name = self.deployment.name
        with self._stack:
            self.setting.state.mkdir(parents=True, exist_ok=True)
            try:
                self._stack.enter_context(exclusive(self.setting.state / "lock"))
            except BlockingIOError as error:
                raise UsageError(
                    "already-running", f"Another process watches {name}; end that one, or give this one another name."
                ) from error
            self.store = Store(self.setting.state)
            self._stack.callback(self.store.close)
            self._begin()
            if self._recalibrate:
                with self.store.transaction():
                    self._let_alone_no_more()
            self.gauge = Gauge(self.store, self.deployment.budget, self.deployment.back_off, self.now)
            self.asker = Asker(
                self.setting.folder, self.deployment.base_url, self.deployment.served_model, self.gauge, self._log
            )
            self._stack.callback(self.asker.close)
            self.spool = Spool(self.store, self.setting.open_history, self._log)
            self.courier = Courier(self.store, self.setting.receivers, self._log)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with closing():
            self._stack.close()

    def _begin(self) -> None:
        """Load the existing state, or create one."""
        seed = self.store.kept("seed")
        self.rounds = Rounds(self.deployment, self.setting.family, self.store, seed or "")
        baseline = json.dumps(
            [self.rounds.suite_sha256, *(of(self.setting.folder) for of in (tokenizer_sha256, chat_template_sha256))]
        )
        if seed is not None and not self._recalibrate and self.store.kept("baseline") != baseline:
            raise UsageError(
                "baseline-mismatch",
                f"The baseline of {self.deployment.name} is of another branch, or of prompts of another version; "
                f"begin a new one with --recalibrate once the deployment is known to be good.",
            )
        if seed is None or self._recalibrate:
            seed = secrets.token_hex(8)
            before = State.model_validate_json(self.store.kept("state") or "{}")
            with self.store.transaction():
                _, ended = abandoned(before, self.now())
                self._tell(ended)
                for event in ended:
                    self._log(verdicts.sentence(self.deployment.name, event))
                self.store.forget_all("anchor/")  # texts of the previous seed
                for key, value in {"seed": seed, "baseline": baseline, "begun": seed, "latencies": "[]"}.items():
                    self.store.keep(key, value)
                self.store.keep("state", State().model_dump_json())
            self.rounds = Rounds(self.deployment, self.setting.family, self.store, seed)
        self.state = State.model_validate_json(self.store.kept("state") or "{}")
        self.newest = json.loads(self.store.kept("newest") or "{}")
        until = self.store.kept("not_before")
        self.not_before = None if until is None else datetime.fromisoformat(until)
        self._leave_interrupted("the process that watched ended")

    def _let_alone_no_more(self) -> None:
        """Within a transaction of the store."""
        self.store.forget("not_before")
        self.store.forget("pauses")
        self.not_before = None

    def _tell(self, events: Sequence[Event], run: str = "") -> None:
        """Store events for the receivers, within the transaction of their cause."""
        deployment, begun = self.deployment, self.store.kept("begun") or ""
        for event in events:
            said = payload(deployment.name, deployment.branch, begun, run, event)
            post(self.store, self.setting.receivers, said, time.time())
            kind, _, transition = event.kind.value.partition(".")
            if kind == "incident":
                self.store.count("incidents", transition)

    @property
    def backoff_s(self) -> float:
        """The remaining pause for the server."""
        return 0.0 if self.not_before is None else max(0.0, (self.not_before - self.now()).total_seconds())

    # -- rounds

    def once(self) -> Outcome:
        """One round; then history and receivers are served."""
        outcome = self.round()
        until = time.monotonic() + DELIVERING_S
        for worker in self._serving(once=True):
            worker.join(max(0.0, until - time.monotonic()))
        return outcome

    def forever(self, told: Callable[[Outcome], None]) -> None:
        """Rounds until the process ends. History and receivers are served meanwhile."""
        self._serving()
        every = timedelta(seconds=self.deployment.every_s)
        planned = self.now()
        try:
            while True:
                told(self.round())
                missed = max(0, int((self.now() - planned) / every))
                planned = min(planned + every * (missed + 1), self.now() + every)  # the clock may be set back
                self._stop.wait((planned - self.now()).total_seconds())
        finally:
            self._stop.set()

    def round(self) -> Outcome:
        """One round; does not raise for failures of the server, the disk or the history.

        Raises:
            UsageError: the server cannot be used, and never could.
        """
        at = self.now()
        try:
            self.store.check_writable()
            self.disk_full = False
            self._refuse_beforehand(at)
            number = int(self.store.kept("number") or 0) + 1
            run = self._begun(at, number)
            try:
                result = self.rounds.ask(self.asker, self.state, number)
            except (EngineError, UsageError) as error:
                if isinstance(error, UsageError) and self.state.rounds == 0:
                    raise
                return self._unmeasured(run, str(error))
            self.endpoint_up = True
            return self._measured(run, result)
        except PutOffError as error:
            if error.reason in ("throttled", "latency") and error.wait >= 0:  # it was asked, and answered so
                self.endpoint_up = True
            return self._put_off(at, error.reason, str(error), error.wait)
        except StorageError as error:
            self.disk_full = True
            return self._put_off(at, "disk", str(error), 0.0)
        finally:
            self.rounded = time.monotonic()

    def _refuse_beforehand(self, at: datetime) -> None:
        """Raise PutOffError if nothing may be sent now."""
        if self.store.spooled() >= self.deployment.spool_rounds:
            raise PutOffError(
                "spool", f"{self.deployment.spool_rounds} finished rounds wait for a history that takes none"
            )
        longest = timedelta(seconds=self.deployment.back_off.longest_s)
        if self.not_before is not None and self.not_before > at + longest:
            self.not_before = at + longest  # the clock was set back since
        if self.not_before is not None and at < self.not_before:
            raise PutOffError(
                "throttled", f"the server is let alone until {self.not_before:%Y-%m-%d %H:%M:%S} UTC", -1.0
            )
        self.gauge.begin(self.rounds.worst())

    def _begun(self, at: datetime, number: int) -> RunRecord:
        self._leave_interrupted("the round could not be kept")
        deployment = self.deployment
        watched = {
            "deployment": deployment.name,
            "branch": deployment.branch,
            "round": number,
            "phase": self.state.phase.value,
            "alarm": deployment.alarm.model_dump(),
            "every_s": deployment.every_s,
        }
        run = verdicts.begun(
            deployment.name,
            self.setting.family.name,
            at,
            self.setting.policy,
            self.rounds.suite_sha256,
            {**(self.setting.provenance or {}), "watched": watched},
        )
        with self.store.transaction():
            self.store.keep("number", str(number))
            self.store.keep("round", run.model_dump_json())
        return run

    def _measured(self, run: RunRecord, result: Round) -> Outcome:
        at = self.now()
        deployment, alarm = self.deployment, self.deployment.alarm
        threshold = deployment.alarm_rounds
        seen = {**self.state.prompts, **{item.name: True for item in result.items if item.lost is not None}}
        state, events = advance(
            self.state,
            result.items,
            alarm,
            threshold,
            at,
            all_seen=all(name in seen for name in self.rounds.required) or deployment.amounts.required == 0,
        )
        remaining = remaining_rounds(state, alarm)
        words = None
        if self.state.phase is Phase.CALIBRATING:
            words = f"the baseline is being made; {remaining} rounds of calibration remain"
        measured, failures = verdicts.figures(state, result.items, result.unmeasured, words)
        run = run.model_copy(update={"provenance": run.provenance | {"server": result.server}})
        lines = [verdicts.sentence(deployment.name, event) for event in events]
        whole = verdicts.finished(run, self.setting.policy, measured, failures, result.outcomes, lines, at)
        newest = {
            "evidence": evidence(state, threshold),
            "quiet": state.quiet,
            "tolerance": tolerance(state, alarm),
            "lost": {
                name: share
                for name in SLICES
                if (share := _mean([item.lost for item in result.items if item.slice == name])) is not None
            },
            "divergence": _mean([item.divergence for item in result.items]),
            "success_at": self.newest.get("success_at"),
        }
        assert whole.run.report is not None, "it was decided"
        decided = whole.run.report.exit_code in (ExitCode.PASS, ExitCode.FAIL)
        # a quiet round without a verdict measured too little to detect a change
        if decided or state.phase is not Phase.QUIET or self.state.phase is not Phase.QUIET:
            newest["success_at"] = at.timestamp()
        with self.store.transaction():
            self.store.keep("state", state.model_dump_json())
            for name, rows in result.anchors.items():
                self.store.keep(f"anchor/{name}", rows)
            self._tell(events, run.id)
            self.gauge.end()
            self.gauge.measured()
            self._let_alone_no_more()
            outcome = self._finish(whole, newest, at, reason=words, events=tuple(events), items=tuple(result.items))
        self.state, self.newest = state, newest | {"at": at.timestamp()}
        self.newest["verdict"] = outcome.exit_code.name
        for line in lines:
            self._log(line)
        return outcome

    def _unmeasured(self, run: RunRecord, reason: str) -> Outcome:
        """The endpoint does not answer: a run that reports it; the state stays unchanged."""
        self.endpoint_up = False
        self.asker.close()
        at = self.now()
        failure = ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="crashed")
        whole = verdicts.finished(run, self.setting.policy, (), (failure,), (), (), at)
        with self.store.transaction():
            self.gauge.end()
            outcome = self._finish(whole, self.newest, at, reason=reason)
        self.newest = self.newest | {"at": at.timestamp(), "verdict": outcome.exit_code.name}
        return outcome

    def _finish(
        self,
        whole: WholeRun,
        newest: dict[str, Any],
        at: datetime,
        *,
        reason: str | None = None,
        events: tuple[Event, ...] = (),
        items: tuple[Item, ...] = (),
    ) -> Outcome:
        """Keep a run that ended, within the transaction of its round."""
        report = whole.run.report
        assert report is not None, "it was decided"
        code = ExitCode(report.exit_code)
        result = code.name.lower()
        self.store.spool(whole.run.id, whole.model_dump_json())
        self.store.forget("round")
        self.store.count("rounds", result)
        self.store.keep("newest", json.dumps(newest | {"at": at.timestamp(), "verdict": code.name}))
        return Outcome(at, result, code, reason or _why(whole) or _summary(items), whole.run.id, events, items)

    def _put_off(self, at: datetime, reason: Reason, words: str, wait: float) -> Outcome:
        """Nothing was measured or concluded; the server is left alone for at least its requested time, and never longer
        than the deployment allows."""
        longest = self.deployment.back_off.longest_s
        wait = min(wait, longest) if math.isfinite(wait) else longest
        if reason in ("throttled", "latency") and wait >= 0:
            self.asker.close()
            try:
                with self.store.transaction():
                    pauses = int(self.store.kept("pauses") or 0)
                    own = min(longest, FIRST_PAUSE_S * 2.0 ** min(pauses, 30))
                    until = self.now() + timedelta(seconds=max(wait, own))
                    self.store.keep("pauses", str(pauses + 1))
                    self.store.keep("not_before", until.isoformat())
                self.not_before = until
            except StorageError:
                self.not_before = self.now() + timedelta(seconds=max(wait, FIRST_PAUSE_S))
        try:
            with self.store.transaction():
                self.gauge.end()
                self.store.forget("round")
                self.store.count("rounds", "put_off")
                self.store.count("put_off", reason)
        except StorageError:
            self.unkept[reason] = self.unkept.get(reason, 0) + 1
        self.newest = self.newest | {"at": at.timestamp()}
        self._log(f"{self.deployment.name}: the round is put off ({reason}): {words}.")
        return Outcome(at, "put_off", ExitCode.NOT_MEASURED, words, put_off=reason)

    def _leave_interrupted(self, why: str) -> None:
        """A round without an end stays as an interrupted one."""
        begun = self.store.kept("round")
        if begun is None:
            return
        run = RunRecord.model_validate_json(begun)
        with self.store.transaction():
            self.store.spool(run.id, verdicts.interrupted(run, self.now(), why).model_dump_json())
            self.store.forget("round")
            self.store.count("rounds", "not_measured")

    # -- history and receivers

    def _serving(self, *, once: bool = False) -> list[threading.Thread]:
        """Threads for receivers and history: neither waits for the other."""

        def serve(deliver: Callable[[], int]) -> None:
            while True:
                with suppress(StorageError):
                    deliver()
                if once or self._stop.wait(TICK_S):
                    return

        each = (self.courier.deliver, self.spool.deliver)
        threads = [threading.Thread(target=serve, args=(deliver,), daemon=True) for deliver in each]
        for thread in threads:
            thread.start()
        return threads


def _why(whole: WholeRun) -> str:
    """The reasons that kept a round from PASS, each once; empty without any."""
    report = whole.run.report
    assert report is not None, "it was decided"
    measured = {measurement.slice for measurement in whole.measurements if measurement.metric == "watch_incidents"}
    told = [failure.reason for failure in whole.about.failures]
    told += [
        f"{one.heading}: {one.reason}" for one in report.criteria if one.id in report.decisive and one.slice in measured
    ]
    return "; ".join(told)


def _summary(items: tuple[Item, ...]) -> str:
    scored = [item for item in items if item.lost is not None]
    lost = sum(bool(item.lost) for item in scored)
    return f"{len(scored)} items, {lost} lost" if lost else f"{len(scored)} items, none lost"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
