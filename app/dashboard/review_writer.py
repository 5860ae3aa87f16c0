"""The review page's writes, under a name and only where writing is allowed: by the same functions as the commands."""

from datetime import UTC, date, datetime

from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.review import asks_for_signature, effect_of, without_effect
from q36eval.app.dashboard.reviewer import writer
from q36eval.app.reviewing.effects import check_expiry
from q36eval.app.reviewing.redecision import decide_again
from q36eval.errors import Q36Error, UsageError
from q36eval.gate import Waiver
from q36eval.history import RunRecord
from q36eval.history.decisions import sign


def today() -> date:
    """The day that decisions are of (UTC)."""
    return datetime.now(UTC).date()


def waive(reader: Reader, run: RunRecord, waiver: Waiver, typed: str, reason: str) -> str:
    """Write the waiver under the reviewer's name, and decide the run again with it; says what came of it.

    Raises:
        UsageError: nobody may write here, no name or reason is given, the expiry is none, or the waiver would change
            nothing.
    """
    owner = writer(typed)
    if not reason.strip():
        raise UsageError("reason-required", "A waiver needs a reason for later readers.")
    check_expiry(waiver.expires, today())
    written = waiver.model_copy(update={"owner": owner, "reason": reason.strip()})
    nothing = without_effect(effect_of(reader.history, run, written, today()))
    if nothing is not None:
        raise UsageError("waiver-without-effect", nothing)
    number = reader.history.add_waiver(run.family, run.branch, written)
    return f"Waiver {number} of {waiver.scope} is written. {_again(reader, run)}"


def revoke(reader: Reader, run: RunRecord, number: int, typed: str) -> str:
    """Take a waiver back, and decide the run again without it.

    Raises:
        UsageError: nobody may write here, no name is given, or the waiver is revoked already.
    """
    reader.history.revoke_waiver(number, writer(typed))
    return f"Waiver {number} is revoked. {_again(reader, run)}"


def sign_off(reader: Reader, run: RunRecord, typed: str, reason: str) -> str:
    """Sign the run as it was found and shown, and decide it again with the signature.

    Raises:
        UsageError: nobody may write here; name or reason is missing; it was signed, or decided by another version.
    """
    owner = writer(typed)
    signature = sign(reader.history, run, owner, reason.strip())
    return f"{signature.owner} signed report {signature.report_sha256[:12]}. {_again(reader, run)}"


def bless(reader: Reader, run: RunRecord, typed: str, reason: str) -> str:
    """Accept the branch as the run found it.

    Raises:
        UsageError: nobody may write here, or name or reason is missing.
    """
    owner = writer(typed)
    blessing = reader.history.bless(run.id, owner, reason.strip())
    return f"Blessed by {blessing.owner}: drift is measured against this run from now on."


def archive(reader: Reader, run: RunRecord, typed: str, reason: str, *, archived: bool) -> str:
    """Take the run's branch off the list of release candidates, or put it back.

    Raises:
        UsageError: nobody may write here, name or reason is missing, or it is so already.
    """
    owner = writer(typed)
    reader.history.archive(run.family, run.branch, owner, reason.strip(), archived=archived)
    return (
        f"{run.branch} is archived by {owner}, until its next gate." if archived else f"{run.branch} is listed again."
    )


def decide_today(reader: Reader, run: RunRecord, typed: str) -> str:
    """Decide the run again as of today, with the waivers and signatures there are.

    Raises:
        UsageError: nobody may write here, or no name is given.
    """
    writer(typed)
    return _again(reader, run)


def _again(reader: Reader, run: RunRecord) -> str:
    """What the run says now; what was written stays written where it cannot be decided again."""
    before = "no verdict" if run.report is None else run.report.headline
    try:
        newest = reader.history.get_run(run.id)
        now = decide_again(
            reader.history,
            newest,
            family=run.family,
            branch=run.branch,
            policy=None,
            on=today(),
            require_sign_off=asks_for_signature(newest),
        )
    except Q36Error as error:
        return f"The verdict stays {before}: {error}"
    after = "no verdict" if now.report is None else now.report.headline
    return f"The verdict stays {after}." if after == before else f"The verdict was {before} and is {after}."
