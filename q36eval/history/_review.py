"""Reviewers' records: blessings, waivers, signatures, and the decisions that replaced others."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import exists, func, insert, select, update

from q36eval.errors import UsageError
from q36eval.gate.report import Circumstances, GateReport, SignOff, Waiver
from q36eval.history import _tables as tables
from q36eval.history._runs import Runs, of_report, set_report
from q36eval.history._tables import timestamp
from q36eval.history._texts import kept, text_value, texts_of
from q36eval.history.records import Archiving, Blessing, BranchKey, Decision, RunRecord, RunState, WaiverRecord
from q36eval.records import branch_title

CLOCKS_APART = timedelta(minutes=5)
"""The allowed difference of two machines' clocks; a later date is in the future."""

WAIVING = 0x71336C67
"""Advisory lock of PostgreSQL: one transaction at a time adds a waiver. SQLite has one writer anyway."""


class Review(Runs):
    """The tables that people write."""

    def bless(self, run_id: str, owner: str, reason: str) -> Blessing:
        """Accept a branch as a finished run found it; the newest blessing of a branch counts.

        Raises:
            UsageError: the run is not finished or judged nothing, or owner or reason is empty.
        """
        run = self.get_run(run_id)
        if run.state is not RunState.FINISHED or run.report is None:
            raise UsageError(
                "run-without-verdict",
                f"run {run.id} cannot be blessed: it is {run.state} and has no verdict to accept.",
            )
        _check_written("a blessing", owner, reason)
        now = datetime.now(UTC)
        row = {"run_id": run.id, "owner": owner, "reason": reason, "at": timestamp(now)}
        with self._write() as connection:
            connection.execute(insert(tables.blessings).values(**row))
        return Blessing(run_id=run.id, family=run.family, branch=run.branch, owner=owner, reason=reason, at=now)

    def revoke_blessing(self, run_id: str, by: str, reason: str) -> list[Blessing]:
        """Revoke all blessings of a run that are in force; they stay on record. Returns their new state.

        Raises:
            UsageError: the run has no blessing in force, or the person or the reason is missing.
        """
        _check_written("A revocation", by, reason)
        columns = tables.blessings.c
        standing = columns.run_id == run_id, columns.revoked.is_(None)
        values = {"revoked": timestamp(datetime.now(UTC)), "revoked_by": by, "revoked_why": reason}
        with self._write() as connection:
            numbers = connection.execute(select(columns.id).where(*standing).order_by(columns.id)).scalars().all()
            if not numbers:
                raise UsageError("blessing-missing", f"Run {run_id} has no blessing in force that could be revoked.")
            connection.execute(update(tables.blessings).where(columns.id.in_(numbers)).values(**values))
        return self._blessings(columns.id.in_(numbers))

    def blessings(self, branch: str, family: str | None = None) -> list[Blessing]:
        """The blessings of a branch that are in force, newest first."""
        columns, runs = tables.blessings.c, tables.runs.c
        wanted = [runs.branch == branch, columns.revoked.is_(None)]
        if family is not None:
            wanted.append(runs.family == family)
        return self._blessings(*wanted)

    def blessings_of_run(self, run_id: str) -> list[Blessing]:
        """Every blessing of a run, including revoked ones, oldest first."""
        return self._blessings(tables.blessings.c.run_id == run_id)[::-1]

    def _blessings(self, *wanted: Any) -> list[Blessing]:
        runs, columns = tables.runs.c, tables.blessings.c
        query = (
            select(tables.blessings, runs.family, runs.branch)
            .join(tables.runs, runs.id == columns.run_id)
            .where(*wanted)
            .order_by(columns.at.desc(), columns.id.desc())
        )
        rows = [dict(row._mapping) for row in self._read(query)]
        return [Blessing.model_validate({name: row[name] for name in Blessing.model_fields}) for row in rows]

    def archive(self, family: str, branch: str, owner: str, reason: str, *, archived: bool = True) -> None:
        """Remove a branch from the list of release candidates, or restore it; verdicts and approvals stay.

        Raises:
            UsageError: it already has that state, or owner or reason is blank.
        """
        _check_written("Archiving a branch", owner, reason)
        if ((family, branch) in self.archived()) is archived:
            state = "archived already" if archived else "not archived"
            raise UsageError("branch-archived", f"{branch_title(family, branch)} is {state}.")
        values = {"family": family, "branch": branch, "owner": owner, "reason": reason, "archived": archived}
        with self._write() as connection:
            connection.execute(insert(tables.archivings).values(**values, at=timestamp(datetime.now(UTC))))

    def archived(self) -> dict[BranchKey, Archiving]:
        """The branches that are archived and were not gated since."""
        columns, runs = tables.archivings.c, tables.runs.c
        gated = exists().where(
            runs.family == columns.family,
            runs.branch == columns.branch,
            runs.policy_name.is_not(None),
            runs.started > columns.at,
        )
        rows = self._read(select(tables.archivings, gated.label("gated")).order_by(columns.id))
        newest = {(row.family, row.branch): row for row in rows}
        return {
            key: Archiving.model_validate({name: getattr(row, name) for name in Archiving.model_fields})
            for key, row in newest.items()
            if row.archived and not row.gated
        }

    def add_waiver(self, family: str, branch: str, waiver: Waiver) -> int:
        """Write a waiver for one branch; returns its number.

        Raises:
            UsageError: owner or reason is blank, or one of the same scope exists until that day or later: a double
                click, or two colleagues, write only one.
        """
        _check_written("a waiver", waiver.owner, waiver.reason)
        now = timestamp(datetime.now(UTC))
        row = {"family": family, "branch": branch, "added": now, **waiver.model_dump(mode="json")}
        columns = tables.waivers.c
        scope = [columns[name].is_not_distinct_from(row[name]) for name in ("criterion", "slice", "canary")]
        of = (columns.family == family, columns.branch == branch, columns.revoked.is_(None))
        same = select(columns.id, columns.owner, columns.expires).where(*of, *scope, columns.expires >= row["expires"])
        with self._write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(WAIVING)))
            standing = connection.execute(same).first()
            if standing is not None:
                raise UsageError(
                    "waiver-exists",
                    f"Waiver {standing.id} of {waiver.scope} by {standing.owner} is in force until {standing.expires}"
                    f"; revoke it, or write one that ends later.",
                )
            number = connection.execute(insert(tables.waivers).values(**row)).inserted_primary_key
            assert number is not None, "a row that was inserted has a key"
        return int(number[0])

    def revoke_waiver(self, number: int, by: str | None = None) -> WaiverRecord:
        """Revoke a waiver; it stays on record, with the person who revoked it.

        Raises:
            UsageError: there is no such waiver in force.
        """
        columns = tables.waivers.c
        statement = update(tables.waivers).where(columns.id == number, columns.revoked.is_(None))
        with self._write() as connection:
            values = {"revoked": timestamp(datetime.now(UTC)), "revoked_by": by}
            if connection.execute(statement.values(**values)).rowcount != 1:
                raise UsageError("waiver-unknown", f"there is no waiver number {number} that could be revoked.")
        return next(record for record in self.waiver_records() if record.number == number)

    def waivers(self, family: str, branch: str) -> dict[int, Waiver]:
        """Waivers of a branch that are not revoked, by number. The gate decides whether one has expired."""
        records = self.waiver_records(family, branch)
        return {record.number: record.waiver for record in records if record.revoked is None}

    def waiver_records(self, family: str | None = None, branch: str | None = None) -> list[WaiverRecord]:
        """Every waiver ever written that matches, oldest first: the expired and revoked ones too."""
        columns = tables.waivers.c
        query = select(tables.waivers).order_by(columns.id)
        if family is not None:
            query = query.where(columns.family == family)
        if branch is not None:
            query = query.where(columns.branch == branch)
        return [_waiver_record(dict(row._mapping)) for row in self._read(query)]

    def add_sign_off(self, run_id: str, sign_off: SignOff) -> None:
        """Write a signature under a run.

        Raises:
            UsageError: owner or reason is blank, it is dated in the future, or this owner has signed this very report
                before.
        """
        _check_written("a sign-off", sign_off.owner, sign_off.reason)
        check_not_future("The sign-off", sign_off.at)
        row = {"run_id": run_id, **sign_off.model_dump(mode="json"), "at": timestamp(sign_off.at)}
        columns = tables.sign_offs.c
        same = select(columns.id).where(
            columns.run_id == run_id,
            columns.owner == sign_off.owner,
            columns.report_sha256 == sign_off.report_sha256,
        )
        with self._write() as connection:
            # concurrent signers of the same run wait here, so that nobody signs twice
            connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == run_id).with_for_update())
            if connection.execute(same).first() is not None:
                raise UsageError("sign-off-exists", f"{sign_off.owner} has already signed this report of run {run_id}.")
            connection.execute(insert(tables.sign_offs).values(**row))

    def sign_offs(self, run_id: str) -> list[SignOff]:
        """The signatures under a run, oldest first, for any of its reports."""
        columns = tables.sign_offs.c
        query = select(tables.sign_offs).where(columns.run_id == run_id).order_by(columns.id)
        rows = [dict(row._mapping) for row in self._read(query)]
        return [SignOff.model_validate({name: row[name] for name in SignOff.model_fields}) for row in rows]

    def decide_again(self, run_id: str, report: GateReport, circumstances: Circumstances) -> RunRecord:
        """Give a finished run a new decision on the same evidence; the earlier decision is kept.

        Raises:
            UsageError: no such run, or it was never decided.
        """
        columns = tables.runs.c
        with self._write() as connection:
            query = select(tables.runs).where(columns.id == run_id).with_for_update()
            before = connection.execute(query).first()
            if before is None or before.state != RunState.FINISHED.value or before.report is None:
                raise UsageError("run-without-verdict", f"run {run_id} has no verdict that could be decided again.")
            earlier = {
                "run_id": run_id,
                "replaced": timestamp(datetime.now(UTC)),
                "report": before.report,
                "circumstances": before.circumstances,
            }
            connection.execute(insert(tables.earlier_decisions).values(**earlier))
            hangs_on = kept(connection, {"circumstances": circumstances.model_dump_json()})
            set_report(connection, before.number, report, {**of_report(report), **hangs_on})
        return self.get_run(run_id)

    def earlier_decisions(self, run_id: str) -> list[Decision]:
        """The decisions that later ones replaced, oldest first."""
        columns = tables.earlier_decisions.c
        query = select(tables.earlier_decisions).where(columns.run_id == run_id).order_by(columns.id)
        what = f"an earlier decision over run {run_id}"
        with self._reading() as connection, self._whole():
            rows = connection.execute(query).all()
            texts = texts_of(connection, (number for row in rows for number in (row.report, row.circumstances)))
            return [
                Decision.model_validate(
                    {
                        "replaced": row.replaced,
                        "report": text_value(texts, row.report, what),
                        "circumstances": text_value(texts, row.circumstances, what),
                    }
                )
                for row in rows
            ]


def _check_written(what: str, owner: str, reason: str) -> None:
    if not owner.strip() or not reason.strip():
        raise UsageError("reason-required", f"{what} needs an owner and a reason.")


def check_not_future(what: str, at: datetime) -> None:
    """Refuse a future date, allowing for clock differences.

    Raises:
        UsageError: it is in the future.
    """
    now = datetime.now(UTC)
    if at > now + CLOCKS_APART:
        raise UsageError(
            "date-in-future",
            f"{what} is dated {at:%Y-%m-%d %H:%M}, which is in the future: it is {now:%Y-%m-%d %H:%M} UTC here.",
        )


def _waiver_record(row: dict[str, Any]) -> WaiverRecord:
    waiver = Waiver.model_validate({name: row[name] for name in Waiver.model_fields})
    about = {name: row[name] for name in ("family", "branch", "added", "revoked", "revoked_by")}
    return WaiverRecord.model_validate({"number": row["id"], "waiver": waiver, **about})
