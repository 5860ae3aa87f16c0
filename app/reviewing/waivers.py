"""The scope of a waiver: whether it names a judged figure, and which runs it would change."""

from collections.abc import Iterable, Sequence

from q36eval.app.names import closest
from q36eval.config import Family
from q36eval.errors import UsageError
from q36eval.gate import Policy, Waiver, with_integrity
from q36eval.history import History, RunFilter, RunRecord, RunState
from q36eval.records import ProbeName

RUNS_LOOKED_AT = 5


def check_names(
    waiver: Waiver, branch: str, family: Family, policies: Sequence[Policy], runs: Sequence[RunRecord], history: History
) -> None:
    """Refuse unknown names: a waiver with a typo has no effect.

    `policies` are those that judge the branch, `runs` its judged ones.

    Raises:
        UsageError: no such branch, criterion, slice or canary; or a criterion that no policy allows to waive.
    """
    check_branch(branch, family, history)
    criteria = [criterion for policy in policies for criterion in with_integrity(policy).criteria]
    if waiver.criterion is not None:
        _known("criterion", waiver.criterion, [criterion.id for criterion in criteria])
        if not any(criterion.waivable for criterion in criteria if criterion.id == waiver.criterion):
            raise UsageError(
                "criterion-not-waivable", f"The policy lets nobody waive the criterion {waiver.criterion!r}."
            )
    if waiver.slice is not None:
        _known("slice", waiver.slice, [criterion.slice for criterion in criteria])
    if waiver.canary is not None:
        from q36eval.canaries.specification import STANDARD, load_specs

        evaluated = (group for run in runs for group in history.groups(run.id, ProbeName.CANARIES))
        shipped = (spec.id for named in (None, STANDARD) for spec in load_specs(skills=None, named=named))
        _known("canary", waiver.canary, [*evaluated, *shipped])


def check_branch(branch: str, family: Family, history: History) -> None:
    """Refuse a branch that the family does not publish and that was never measured.

    Raises:
        UsageError: it is unknown; lists similar names.
    """
    measured = (each.branch for each in history.branches() if each.family == family.name)
    _known("branch", branch, [*family.branches, *measured])


def _known(what: str, name: str, names: Iterable[str]) -> None:
    known = set(names)
    if name not in known:
        raise UsageError("waiver-scope-unknown", f"Nothing here knows a {what} {name!r}; {closest(name, known)}.")


def judged_runs(history: History, family: str, branch: str) -> list[RunRecord]:
    """The newest judged runs of a branch, newest first, at most `RUNS_LOOKED_AT`."""
    finished = history.summaries(RunFilter(family=family, branch=branch, state=RunState.FINISHED))
    judged = [run.id for run in finished if run.verdict is not None and run.policy is not None]
    return [history.get_run(run_id) for run_id in judged[:RUNS_LOOKED_AT]]
