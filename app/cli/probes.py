"""`q36eval kl|evals|canaries`: one probe alone. They measure and do not decide."""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import (
    DeviceOption,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    OneBranch,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    WeightsOnly,
    check_device,
    check_kv_cache_dtype,
    open_history,
    print_json,
    resolve_reference,
)
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode
from q36eval.records import Measurement, ProbeName


def kl(
    branch: OneBranch,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    top_k: Annotated[
        int | None, typer.Option(help="Bound KL from below by the reference's K likeliest tokens.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the KL divergence from the reference; exit 0 when all was measured, 4 when not."""
    return _measure(
        ProbeName.KL,
        branch,
        reference,
        reference_pack,
        family,
        suite,
        device,
        weights_only,
        kv_cache_dtype,
        as_json,
        top_k,
    )


def evals(
    branch: OneBranch,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the lm-eval suite against the reference; exit 0 when all was measured, 4 when not."""
    return _measure(
        ProbeName.EVALS, branch, reference, reference_pack, family, suite, device, weights_only, kv_cache_dtype, as_json
    )


def canaries(
    branch: OneBranch,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the canaries against the reference; exit 0 when all was measured, 4 when not."""
    return _measure(
        ProbeName.CANARIES,
        branch,
        reference,
        reference_pack,
        family,
        suite,
        device,
        weights_only,
        kv_cache_dtype,
        as_json,
    )


def _measure(
    probe: ProbeName,
    branch: str,
    reference: str | None,
    reference_pack: Path | None,
    family: str | None,
    suite: str | None,
    device: str,
    weights_only: bool,
    kv_cache_dtype: str | None,
    as_json: bool,
    top_k: int | None = None,
) -> int:
    from app.console import ConsoleProgress
    from app.measuring import Request, measure
    from app.targets import load_family, resolve

    paths = Paths.default()
    chosen = load_family(family, paths)
    check_device(device)
    check_kv_cache_dtype(kv_cache_dtype)
    request = Request(
        family=chosen,
        branch=resolve(branch, chosen, paths),
        reference=resolve_reference(reference, reference_pack, chosen, paths),
        suite=suite or chosen.suite,
        policy=None,
        probes=(probe,),
        device=device,
        emulate_activations=not weights_only,
        kv_cache_dtype=kv_cache_dtype,
        reference_pack=reference_pack,
        top_k=top_k,
    )
    history = open_history(paths)
    with ConsoleProgress() as progress:
        run = measure(request, paths, history, progress)
    measurements, failures = history.measurements(run.id), history.failures(run.id)
    if as_json:
        print_json(
            {
                "run": run.id,
                "branch": run.branch,
                "measurements": [_plain(measurement) for measurement in measurements],
                "failures": [failure.model_dump(mode="json") for failure in failures],
            }
        )
    else:
        _print_table(run.id, measurements, [f"{failure.probe}: {failure.reason}" for failure in failures])
    whole = bool(measurements) and not failures and not any(m.counts.errored for m in measurements)
    return int(ExitCode.PASS if whole else ExitCode.NOT_MEASURED)


def _plain(measurement: Measurement) -> dict[str, Any]:
    import json

    body: dict[str, Any] = json.loads(measurement.model_dump_json(exclude={"clusters"}))
    return body


def _print_table(run_id: str, measurements: list[Measurement], failures: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("metric", "slice", "value", "reference", "effect [95 % interval]", "scored", "errored", title=run_id)
    for m in measurements:
        interval = f"{m.effect:.4g} [{m.effect_interval.lower:.4g}, {m.effect_interval.upper:.4g}]"
        base = "" if m.reference_value is None else f"{m.reference_value:.4g}"
        cells = (m.metric, m.slice, f"{m.value:.4g}", base, interval, str(m.counts.scored), str(m.counts.errored))
        table.add_row(*(Text(cell) for cell in cells))
    console = Console()
    console.print(table)
    for failure in failures:
        console.print(Text(f"not measured: {failure}"))
