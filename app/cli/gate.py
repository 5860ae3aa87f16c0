"""`q36eval gate`: measure branches and decide."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import (
    AllowCodeExecution,
    BatchSize,
    BranchOption,
    ContextOption,
    CorpusOption,
    DeviceOption,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    MaxItems,
    OwnCanaries,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    WeightsOnly,
    check_device,
    check_kv_cache_dtype,
    open_history,
    print_json,
    resolve_reference,
    worst,
)
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.records import ProbeName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from q36eval.config import Family
    from q36eval.gate import Policy
    from q36eval.history import RunRecord
    from q36eval.records import Measurement

FORMATS = {"json": "report.json", "markdown": "report.md", "junit": "junit.xml"}


def gate(
    branch: BranchOption,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    policy: Annotated[str | None, typer.Option(help="Policy name or file.", metavar="NAME|FILE")] = None,
    skip: Annotated[list[ProbeName] | None, typer.Option(help="Leave a probe out; its criteria cannot pass.")] = None,
    resume: Annotated[str | None, typer.Option(help="Continue an interrupted run.", metavar="RUN")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the reports into this folder.")] = None,
    format: Annotated[list[str] | None, typer.Option("--format", help=f"Of {', '.join(FORMATS)}; all.")] = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    batch_size: BatchSize = None,
    corpus: CorpusOption = None,
    context: ContextOption = None,
    allow_code_execution: AllowCodeExecution = False,
    canaries: OwnCanaries = None,
    exhaustive: Annotated[
        bool, typer.Option(help="Ask every item, also where what the policy asks of a task is settled.")
    ] = False,
    max_items: MaxItems = None,
    as_json: JsonOption = False,
) -> int:
    """Judge branches against the reference: exit 0 PASS, 1 FAIL, 2 usage, 3 INCONCLUSIVE, 4 not measured."""
    from app.console import ConsoleProgress
    from app.measuring import measure
    from app.probing import CanaryChoice
    from app.request import ALL_PROBES, Request
    from app.targets import load_family, resolve

    formats = _formats(format)
    if resume is not None and len(branch) != 1:
        raise UsageError("--resume continues one run; give exactly one --branch with it.")
    paths = Paths.default()
    chosen = load_family(family, paths)
    rules = load_policy(policy, chosen, paths)
    check_device(device)
    check_kv_cache_dtype(kv_cache_dtype)
    targets = [resolve(name, chosen, paths) for name in branch]
    baseline = resolve_reference(reference, reference_pack, chosen, paths)
    folders = [out if out is None or len(targets) == 1 else out / Path(target.name).name for target in targets]
    for folder in folders:
        make_report_folder(folder, len(set(folders)) == len(folders))
    history = open_history(paths)
    runs = []
    for target, folder in zip(targets, folders, strict=True):
        request = Request(
            family=chosen,
            branch=target,
            reference=baseline,
            suite=suite or chosen.suite,
            policy=rules,
            probes=tuple(name for name in ALL_PROBES if name not in (skip or [])),
            device=device,
            emulate_activations=not weights_only,
            kv_cache_dtype=kv_cache_dtype,
            batch_rows=batch_size,
            resume=resume,
            corpus=corpus,
            context=context,
            allow_code_execution=allow_code_execution,
            reference_pack=reference_pack,
            exhaustive=exhaustive,
            max_items=max_items,
            canaries=CanaryChoice(own=canaries),
        )
        with ConsoleProgress() as progress:
            run = measure(request, paths, history, progress)
        runs.append(run)
        if not as_json:
            _print_report(run)
        if folder is not None:
            write_reports(run, folder, formats, history.measurements(run.id))
    if as_json:
        documents = [report_json(run, history.measurements(run.id)) for run in runs]
        print_json(documents[0] if len(documents) == 1 else documents)
    elif len(runs) > 1:
        _print_lanes(runs)
    return worst([run.report.exit_code for run in runs if run.report is not None])


def load_policy(name_or_path: str | None, family: "Family", paths: Paths) -> "Policy":
    """The policy of that name or file; the family's own when None.

    Raises:
        UsageError: an unknown name, or a policy that is malformed.
    """
    from app.policies import policy_file
    from q36eval.gate import Policy

    return Policy.load(policy_file(name_or_path or family.policy, paths))


def make_report_folder(folder: Path | None, distinct: bool) -> None:
    """Make the folder before anything is measured.

    Raises:
        UsageError: it cannot be made, or two branches would write into the same one.
    """
    if folder is None:
        return
    if not distinct:
        raise UsageError("Two branches would write their reports into one folder; gate them one at a time with --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The report folder {folder} cannot be made: {error.strerror}.") from error


def report_json(run: "RunRecord", measurements: "Sequence[Measurement]") -> object:
    """The run's JSON report as a document."""
    from q36eval.reports import to_json

    assert run.report is not None, "a gate run has a report"
    return json.loads(to_json(run.report, run, measurements))


def write_reports(run: "RunRecord", folder: Path, formats: list[str], measurements: "Sequence[Measurement]") -> None:
    """Write the report in each format into `folder`."""
    from q36eval.reports import to_json, to_junit, to_markdown

    if run.report is None:
        raise UsageError(f"Run {run.id} has no verdict to report; it only measured.")
    writers: dict[str, Callable[..., str]] = {
        "json": partial(to_json, measurements=measurements),
        "markdown": partial(to_markdown, measurements=measurements),
        "junit": to_junit,
    }
    for name in formats:
        (folder / FORMATS[name]).write_text(writers[name](run.report, run), encoding="utf-8")


def _formats(asked: list[str] | None) -> list[str]:
    unknown = [name for name in asked or [] if name not in FORMATS]
    if unknown:
        raise UsageError(f"There is no report format {unknown[0]!r}; formats are: {', '.join(FORMATS)}.")
    return asked or list(FORMATS)


def _print_report(run: "RunRecord") -> None:
    from rich.console import Console

    from q36eval.reports import to_console

    if run.report is not None:
        Console().print(to_console(run.report, run))


def _print_lanes(runs: list["RunRecord"]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    reports = [(run.branch, run.report) for run in runs if run.report is not None]
    table = Table("branch", *(lane.lane.value for lane in reports[0][1].lanes), "overall")
    for branch, report in reports:
        cells = [lane.verdict.value for lane in report.lanes]
        table.add_row(Text(branch), *cells, report.verdict.value)
    Console().print(table)
