"""`q36eval history list`: the matching runs, newest first, a page at a time."""

import json
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.app.cli.tables import print_columns
from q36eval.app.targets import kept_name
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.locks import is_held
from q36eval.records import Verdict, branch_title

if TYPE_CHECKING:
    from q36eval.history import History, RunFilter, RunSummary

MOST = 1_000_000

StateOption = Annotated[
    Literal["running", "finished", "interrupted"] | None, typer.Option("--run-state", help="Only runs in this state.")
]
VerdictOption = Annotated[
    Verdict | None, typer.Option("--verdict", help="Only runs with this verdict.", case_sensitive=False)
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", help="Only runs started on this day or later (UTC).", metavar="YYYY-MM-DD[THH:MM]"),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", help="Only runs started on this day or earlier (UTC).", metavar="YYYY-MM-DD[THH:MM]"),
]
RunsOfFamily = Annotated[str | None, typer.Option("--family", help="Only runs of this family.")]
RunsOfBranch = Annotated[
    str | None,
    typer.Option("--branch", help="Only runs of this branch or checkpoint folder."),
]


def list_runs(
    family: RunsOfFamily = None,
    branch: RunsOfBranch = None,
    state: StateOption = None,
    verdict: VerdictOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Runs per page.")] = 20,
    page: Annotated[int, typer.Option(min=1, max=MOST, help="Page to show.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first."""
    wanted = run_filter(family, branch, state, verdict, since, until)
    history = open_history()
    total = history.count_runs(wanted)
    if total == 0:
        check_known(history, wanted)
    runs = history.summaries(wanted, limit=limit, offset=(page - 1) * limit)
    more = max(0, total - page * limit)
    if as_json:
        body = [json.loads(run.model_dump_json()) for run in runs]
        print_json({"runs": body, "total": total, "page": page, "more": more})
        return
    if not runs:
        print(f"There are {total} such runs; page {page} is empty." if total else _nothing(history))
        return
    _print(runs)
    if more:
        print(f"{total:,} runs match, {more:,} of them older: --page {page + 1} shows the next.")


def run_filter(
    family: str | None,
    branch: str | None,
    state: str | None = None,
    verdict: Verdict | None = None,
    since: str | None = None,
    until: str | None = None,
) -> "RunFilter":
    """The options as a filter; a day without an hour is a whole day.

    Raises:
        UsageError: not a date, or an end before the beginning.
    """
    from q36eval.history import RunFilter, RunState

    wanted = RunFilter(
        family=family,
        branch=None if branch is None else kept_name(branch),
        state=None if state is None else RunState(state),
        verdict=verdict,
        since=None if since is None else _moment(since, time.min),
        until=None if until is None else _moment(until, time.max),
    )
    if wanted.since is not None and wanted.until is not None and wanted.until < wanted.since:
        raise UsageError("option-value", f"--until {until} is earlier than --since {since}; swap them.")
    return wanted


def check_known(history: "History", wanted: "RunFilter") -> None:
    """Refuse a filter by an unknown name, if history has any run.

    Raises:
        UsageError: the name is unknown; lists similar names.
    """
    from q36eval.app.names import closest

    branches = history.branches()
    named = (
        ("family", wanted.family, [one.family for one in branches]),
        ("branch", wanted.branch, [one.branch for one in branches]),
    )
    for what, name, known in named:
        if known and name is not None and name not in known:
            raise UsageError("run-unmatched", f"No run has the {what} {name!r}; {closest(name, known)}.")


def _moment(text: str, of_day: time) -> datetime:
    try:
        if len(text) <= len("YYYY-MM-DD"):
            return datetime.combine(date.fromisoformat(text), of_day, UTC)
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            "date-malformed", f"{text!r} is not a date; write it as YYYY-MM-DD, or YYYY-MM-DDTHH:MM (UTC)."
        ) from error


def _nothing(history: "History") -> str:
    if history.count_runs() == 0:
        return "No runs yet. Start one with q36eval gate --branch NAME."
    return "No run matches. Remove a filter."


def _print(runs: "list[RunSummary]") -> None:
    rows = [("run", "started", "took", "verdict", "branch")]
    rows += [(run.id, f"{run.started:%Y-%m-%d %H:%M}", _took(run), _verdict(run), _of(run)) for run in runs]
    print_columns(rows)


def _took(run: "RunSummary") -> str:
    from q36eval.reports.text import duration

    return "–" if run.finished is None else duration((run.finished - run.started).total_seconds())


def _verdict(run: "RunSummary") -> str:
    """The state or result of a run in one word."""
    if run.verdict is None:
        lock = Paths.default().run_lock(run.id)
        killed = run.state.value == "running" and lock.exists() and not is_held(lock)
        done = run.state.value == "finished" and run.policy is None
        return "killed" if killed else "measured" if done else run.state.value
    verdict = "NOT MEASURED" if run.exit_code == ExitCode.NOT_MEASURED else run.verdict
    more = " waived" if run.waived else ""
    more += " unsigned" if run.awaiting_sign_off else ""
    return f"{verdict}{more}{' imported' if run.imported is not None else ''}"


def _of(run: "RunSummary") -> str:
    """The branch, and each lane's verdict if they differ."""
    differ = len(set(run.lanes.values())) > 1
    lanes = ", ".join(f"{lane} {verdict}" for lane, verdict in run.lanes.items())
    return branch_title(run.family, run.branch) + f" ({lanes})" * differ
