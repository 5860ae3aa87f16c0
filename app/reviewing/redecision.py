"""Decides a finished run again from history: as of today, with today's waivers, and with the signatures under it."""

from datetime import date

from q36eval.errors import UsageError
from q36eval.gate import Circumstances, Policy
from q36eval.history import History, RunRecord, RunState
from q36eval.history.decisions import (
    WaiverSource,
    circumstances_on,
    decided,
    evidence_of,
    policy_of,
    report_sha256,
)
from q36eval.records import branch_title


def decide_again(
    history: History,
    run: RunRecord,
    *,
    family: str,
    branch: str,
    policy: Policy | None,
    on: date,
    source: WaiverSource | None = None,
    require_sign_off: bool = True,
) -> RunRecord:
    """The run with today's decision, which requires a sign-off by default; nothing is measured.

    `policy` is the requested one, None if none was: a run keeps its own. The earlier decision is kept in history.

    Raises:
        UsageError: the run is of another branch or was judged by another policy, it has no verdict, or it was decided
            by the waivers of a file, and `source` is None.
    """
    if run.state is not RunState.FINISHED:
        raise UsageError("run-unfinished", f"Run {run.id} is {run.state}; finish it first.")
    own = policy_of(run)
    if (run.family, run.branch) != (family, branch):
        raise UsageError(
            "run-of-another-branch",
            f"Run {run.id} is of {branch_title(run.family, run.branch)}, not of {branch_title(family, branch)}.",
        )
    if policy is not None and policy.untitled != own.untitled:
        raise UsageError(
            "run-of-another-policy",
            f"Run {run.id} was judged by another policy ({own.name}) than this {policy.name}; remove --policy, or "
            f"apply this one with `q36eval report {run.id} --policy …`.",
        )
    if source is None and run.circumstances is not None and run.circumstances.waivers_from is not None:
        raise UsageError(
            "waivers-elsewhere",
            f"Run {run.id} was decided by the waivers in {run.circumstances.waivers_from} alone; decide it again with "
            "--waivers-from FILE, or history's own would count now.",
        )
    circumstances = circumstances_on(history, run, on, source=source, require_sign_off=require_sign_off)
    report = decided(own, evidence_of(history, run, circumstances), circumstances)
    same_report = run.report is not None and report_sha256(report) == report_sha256(run.report)
    kept = run.circumstances
    if same_report and kept is not None and _known(kept) == _known(circumstances):
        return run
    return history.decide_again(run.id, report, circumstances)


def _known(circumstances: Circumstances) -> tuple[object, ...]:
    """The inputs except the day: another day alone is not another decision."""
    return circumstances.waivers, circumstances.waivers_from, circumstances.require_sign_off
