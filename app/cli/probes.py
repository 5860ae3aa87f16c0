"""`q36eval kl|evals|canaries`: one probe alone. They measure and do not decide."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import (
    ContextOption,
    CorpusOption,
    DeviceOption,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    OneBranch,
    ReferenceOption,
    SuiteOption,
    WeightsOnly,
    check_device,
    check_kv_cache_dtype,
    open_history,
    print_json,
)
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode
from q36eval.records import Measurement, ProbeName

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord


def kl(
    branch: OneBranch,
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plots to this HTML file.", metavar="FILE")] = None,
    corpus: CorpusOption = None,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the KL divergence from the reference; exit 0 when all was measured, 4 when not."""
    from app.cli.kl_report import check_plot, kl_body, print_summary, write_plot

    check_plot(plot)
    paths = Paths.default()
    history = open_history(paths)
    run = _run(
        ProbeName.KL,
        branch,
        reference,
        family,
        suite,
        device,
        weights_only,
        kv_cache_dtype,
        paths,
        history,
        corpus=corpus,
        context=context,
    )
    if as_json:
        print_json(_body(run, history) | kl_body(run, paths))
    else:
        print_summary(run, history, paths)
    if plot is not None:
        write_plot(run, history, paths, plot)
    return _exit_code(run, history)


def evals(
    branch: OneBranch,
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the lm-eval suite against the reference; exit 0 when all was measured, 4 when not."""
    return _measure(ProbeName.EVALS, branch, reference, family, suite, device, weights_only, kv_cache_dtype, as_json)


def canaries(
    branch: OneBranch,
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the canaries against the reference; exit 0 when all was measured, 4 when not."""
    return _measure(ProbeName.CANARIES, branch, reference, family, suite, device, weights_only, kv_cache_dtype, as_json)


def _measure(
    probe: ProbeName,
    branch: str,
    reference: str | None,
    family: str | None,
    suite: str | None,
    device: str,
    weights_only: bool,
    kv_cache_dtype: str | None,
    as_json: bool,
) -> int:
    paths = Paths.default()
    history = open_history(paths)
    run = _run(probe, branch, reference, family, suite, device, weights_only, kv_cache_dtype, paths, history)
    if as_json:
        print_json(_body(run, history))
    else:
        failures = [f"{failure.probe}: {failure.reason}" for failure in history.failures(run.id)]
        _print_table(run.id, history.measurements(run.id), failures)
    return _exit_code(run, history)


def _run(
    probe: ProbeName,
    branch: str,
    reference: str | None,
    family: str | None,
    suite: str | None,
    device: str,
    weights_only: bool,
    kv_cache_dtype: str | None,
    paths: Paths,
    history: "History",
    *,
    corpus: Path | None = None,
    context: int | None = None,
) -> "RunRecord":
    from app.console import ConsoleProgress
    from app.measuring import Request, measure
    from app.targets import load_family, resolve

    chosen = load_family(family, paths)
    check_device(device)
    check_kv_cache_dtype(kv_cache_dtype)
    request = Request(
        family=chosen,
        branch=resolve(branch, chosen, paths),
        reference=resolve(reference or chosen.reference, chosen, paths),
        suite=suite or chosen.suite,
        policy=None,
        probes=(probe,),
        device=device,
        emulate_activations=not weights_only,
        kv_cache_dtype=kv_cache_dtype,
        corpus=corpus,
        context=context,
    )
    with ConsoleProgress() as progress:
        return measure(request, paths, history, progress)


def _exit_code(run: "RunRecord", history: "History") -> int:
    measurements, failures = history.measurements(run.id), history.failures(run.id)
    whole = bool(measurements) and not failures and not any(m.counts.errored for m in measurements)
    return int(ExitCode.PASS if whole else ExitCode.NOT_MEASURED)


def _body(run: "RunRecord", history: "History") -> dict[str, Any]:
    return {
        "run": run.id,
        "branch": run.branch,
        "measurements": [_plain(measurement) for measurement in history.measurements(run.id)],
        "failures": [failure.model_dump(mode="json") for failure in history.failures(run.id)],
    }


def _plain(measurement: Measurement) -> dict[str, Any]:
    import json

    body: dict[str, Any] = json.loads(measurement.model_dump_json(exclude={"clusters"}))
    return body


def _print_table(run_id: str, measurements: list[Measurement], failures: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from q36eval.gate.noise import floor_metric, is_floor

    floors = {(m.metric, m.slice): m.value for m in measurements if is_floor(m.metric)}
    shown = [m for m in measurements if not is_floor(m.metric)]
    names = ("metric", "slice", "value", "reference", "effect [95 % interval]", *(["floor"] if floors else []))
    table = Table(*names, "scored", "errored", title=run_id)
    for m in shown:
        interval = f"{m.effect:.4g} [{m.effect_interval.lower:.4g}, {m.effect_interval.upper:.4g}]"
        base = "" if m.reference_value is None else f"{m.reference_value:.4g}"
        floor = floors.get((floor_metric(m.metric), m.slice))
        beside = ["" if floor is None else f"{floor:.2g}"] if floors else []
        counted = (str(m.counts.scored), str(m.counts.errored))
        cells = (m.metric, m.slice, f"{m.value:.4g}", base, interval, *beside, *counted)
        table.add_row(*(Text(cell) for cell in cells))
    console = Console()
    console.print(table)
    for failure in failures:
        console.print(Text(f"not measured: {failure}"))
