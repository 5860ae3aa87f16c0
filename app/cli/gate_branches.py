"""One or several branches through the gate: a branch that cannot be judged does not affect the others."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.app.cli.github_output import announce, announce_unjudged
from q36eval.app.cli.options import Quiet, note, print_json, say, worst
from q36eval.app.cli.report_formats import (
    document_of,
    folder_name,
    make_report_folder,
    print_report,
    report_json,
    write_reports,
)
from q36eval.app.cli.tables import plain_table, print_parts
from q36eval.app.reviewing.waiver_files import read_waivers, strangers
from q36eval.app.targets import name_in_history, resolve
from q36eval.config import Family, Paths
from q36eval.errors import Q36Error
from q36eval.history.decisions import WaiverSource
from q36eval.records import Lane
from q36eval.run.request import Request, Target

if TYPE_CHECKING:
    from q36eval.app.needs import Asked
    from q36eval.gate import Policy
    from q36eval.history import History, RunRecord
    from q36eval.run.preflight import Problem


@dataclass(frozen=True)
class Judged:
    """One branch after the gate; `run` is None if it could not be judged, for the `problem` with that `code`.

    Reports are written to `folder`.
    """

    branch: str
    exit_code: int
    folder: Path | None
    run: "RunRecord | None" = None
    problem: str = ""
    code: str = ""


class Branches:
    """The requested branches, their report folders and waivers."""

    def __init__(
        self,
        named: list[str],
        family: Family,
        paths: Paths,
        waivers_from: Path | None,
        out: Path | None,
    ) -> None:
        """Read the waivers that go with the branches.

        Raises:
            UsageError: the waiver file is missing or malformed.
        """
        self._named, self._family, self._paths = named, family, paths
        self.names = [name_in_history(name, family, paths) for name in named]
        self._waivers_from = waivers_from
        self._waivers = {} if waivers_from is None else read_waivers(waivers_from, datetime.now(UTC).date())
        for sentence in strangers(self._waivers, family, self.names):
            note(sentence)
        self._folders = [out if out is None or self.alone else out / folder_name(name) for name in self.names]
        self._targets: list[Target | Q36Error] = []

    @property
    def alone(self) -> bool:
        """Whether only one branch was named, so that its errors are the command's."""
        return len(self._named) == 1

    @property
    def first(self) -> Target:
        """The first branch, whether or not its checkpoint is here."""
        target = self._targets[0]
        return Target(self.names[0], Path(self._named[0])) if isinstance(target, Q36Error) else target

    @property
    def targets(self) -> list[Target]:
        """The available checkpoints."""
        return [target for target in self._targets if isinstance(target, Target)]

    def resolve(self, *, download: bool = False) -> "list[Problem]":
        """Find the branches' checkpoints before any measurement; a problem for each unavailable one.

        Without `download` those on the Hub may lack weights.
        """
        from q36eval.run.preflight import Problem

        self._targets = []
        for named, name in zip(self._named, self.names, strict=True):
            try:
                target = resolve(named, self._family, self._paths, note, download=download)
                self._targets.append(replace(target, name=name))
            except Q36Error as error:
                self._targets.append(error)
        errors = [target for target in self._targets if isinstance(target, Q36Error)]
        return [Problem(error.code, str(error)) for error in errors if len(errors) == len(self._targets)]

    def measured(self, request: Callable[..., Request], history: "History") -> Generator[Judged, None, None]:
        """Each branch measured and judged, one after the other."""
        for name, target, folder in zip(self.names, self._targets, self._folders, strict=True):
            if isinstance(target, Q36Error):
                yield _not_judged(name, target, folder)
                continue
            try:
                wanted = request(branch=target, waivers_from=self._source(name))
                yield _judged(_measured(wanted, self._paths, history), folder)
            except Q36Error as error:
                # a problem of the whole gate, not of one branch, ends it
                if self.alone or any(not problem.of_branch for problem in getattr(error, "problems", ())):
                    raise
                yield _not_judged(name, error, folder)

    def lack_something(
        self, request: Callable[..., Request], asked: "Asked", history: "History | None", found: "Sequence[Problem]"
    ) -> bool:
        """Whether only weights to download are missing.

        Raises:
            RefusedError: something blocks; it includes all other problems.
        """
        from q36eval.app.needs import look

        lacking = [target for target in self.targets if request(branch=target).lacking]
        if lacking or any(problem.blocks for problem in found):
            looked = look(request(branch=next(iter(lacking), self.first)), asked, self._paths, history, found)
            if looked.refused is not None:
                raise looked.refused
        return bool(lacking)

    def plans(
        self, request: Callable[..., Request], asked: "Asked", found: "Sequence[Problem]", *, as_json: bool
    ) -> int:
        """Print each branch's needs and planned computation.

        Raises:
            UsageError, CorruptCheckpointError: one cannot be measured.
        """
        from q36eval.app.cli.plan_command import show_runs

        wanted = [request(branch=self.first)]
        for target in [] if any(problem.blocks for problem in found) else self._targets[1:]:
            if isinstance(target, Q36Error):
                raise target
            wanted.append(request(branch=target))
        return show_runs(wanted, self._paths, as_json=as_json, asked=asked, found=found)

    def decided_again(
        self, run: "RunRecord", history: "History", policy: "Policy | None", require_sign_off: bool
    ) -> Judged:
        """The one branch's finished run, decided again from history; `policy` is the given one. A required sign-off
        stays required."""
        from q36eval.app.reviewing.redecision import decide_again

        self.make_folders()
        (name,), (folder,) = self.names, self._folders
        today = datetime.now(UTC).date()
        again = decide_again(
            history,
            run,
            family=self._family.name,
            branch=name,
            policy=policy,
            on=today,
            source=self._source(name),
            require_sign_off=require_sign_off or (run.circumstances is not None and run.circumstances.require_sign_off),
        )
        return _judged(again, folder)

    def _source(self, name: str) -> WaiverSource | None:
        if self._waivers_from is None:
            return None
        return self._waivers.get((self._family.name, name), WaiverSource(str(self._waivers_from), ()))

    def make_folders(self) -> None:
        """Make the folders for the reports.

        Raises:
            UsageError: one cannot be made.
        """
        for folder in self._folders:
            make_report_folder(folder, len(set(self._folders)) == len(self._folders))


@dataclass(frozen=True)
class Output:
    """The output settings of reports: annotations of a GitHub job (shared by `branches`), one JSON document."""

    announced: bool = False
    as_json: bool = False
    branches: int = 1


def finish(judged: Iterable[Judged], branches: Branches, history: "History", output: Output) -> int:
    """Report on each branch as it finishes, then on all together; returns the overall exit code."""
    done = []
    for one in judged:
        try:
            _report(one, history, output)
        except KeyboardInterrupt as error:
            if one.run is not None:
                error.add_note(f"Run {one.run.id} had ended, and keeps its verdict: q36eval report {one.run.id}.")
            raise
        except Q36Error as error:  # the verdict stays, but a pipeline that reads the reports must stop
            say(f"{one.branch}: {error} [{error.code}]")
            one = replace(one, exit_code=worst([one.exit_code, int(error.exit_code)]))
        done.append(one)
    code = worst([one.exit_code for one in done])
    if output.as_json:
        print_json(_document(done, code, history, alone=branches.alone))
    elif not branches.alone and not Quiet.wanted:
        _print_lanes(done)
    return code


def _measured(request: Request, paths: Paths, history: "History") -> "RunRecord":
    from q36eval.app.cli.progress import ConsoleProgress

    with ConsoleProgress() as progress:
        from q36eval.run.measure import measure  # imports torch: takes seconds, during which lines are written

        return measure(request, paths, history, progress)


def _judged(run: "RunRecord", folder: Path | None) -> Judged:
    assert run.report is not None, "a gate run has a report"
    return Judged(run.branch, run.report.exit_code, folder, run)


def _not_judged(name: str, error: Q36Error, folder: Path | None) -> Judged:
    problem = " ".join([str(error), *getattr(error, "__notes__", ())])
    return Judged(name, int(error.exit_code), folder, None, problem, error.code)


def _report(one: Judged, history: "History", output: Output) -> None:
    if one.run is None:
        say(f"{one.branch}: {one.problem} [{one.code}]")
        if output.announced:
            announce_unjudged(one.branch, one.problem, sys.stderr if output.as_json else sys.stdout)
        return
    document = document_of(one.run, history)
    if not output.as_json:
        print_report(document, details=False)
    if one.folder is not None:
        write_reports(document, one.folder)
    if output.announced:
        announce(document, sys.stderr if output.as_json else sys.stdout, output.branches)


def _document(done: list[Judged], exit_code: int, history: "History", *, alone: bool) -> object:
    """For one branch its report; for several all of them."""
    reports = [
        {"branch": one.branch, "exit_code": one.exit_code, "problem": one.problem, "code": one.code}
        if one.run is None
        else report_json(document_of(one.run, history))
        for one in done
    ]
    return reports[0] if alone else {"exit_code": exit_code, "reports": reports}


def _print_lanes(done: list[Judged]) -> None:
    """Which branch passes in which lane."""
    reports = {one.branch: one.run.report if one.run else None for one in done}
    verdicts = {
        branch: {lane.lane: lane.headline for lane in report.lanes} if report else {}
        for branch, report in reports.items()
    }
    lanes = [lane for lane in Lane if any(lane in of for of in verdicts.values())]
    rows = [
        [branch, *(verdicts[branch].get(lane, "–") for lane in lanes), report.headline if report else "not judged"]
        for branch, report in reports.items()
    ]
    print_parts([plain_table(["branch", *lanes, "overall"], rows, [], range(1, len(lanes) + 2))])
