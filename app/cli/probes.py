"""`q36eval kl|evals`: one probe alone, and what every probe alone shares. They measure and do not decide."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.options import (
    AllowCodeExecution,
    ContextOption,
    CorpusOption,
    DeviceOption,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    MaxItems,
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
from q36eval.errors import ExitCode, UsageError
from q36eval.records import Measurement, ProbeName

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord
    from q36eval.run.request import Request

FLIPS_SHOWN = 5
EFFECTIVE_RECOVERY = 0.97
"""The RULER recovery that the cards ask for (here too, since a command's defaults must not import numpy)."""


def kl(
    branch: OneBranch,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    plot: Annotated[Path | None, typer.Option(help="Write the plots to this HTML file.", metavar="FILE")] = None,
    corpus: CorpusOption = None,
    context: ContextOption = None,
    top_k: Annotated[
        int | None, typer.Option(help="Bound KL from below by the reference's K likeliest tokens.", min=1)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the KL divergence from the reference; exit 0 when all was measured, 4 when not."""
    from q36eval.app.cli.kl_report import check_plot, kl_body, print_summary, write_plot

    check_plot(plot, top_k, reference_pack)
    asked = (ProbeName.KL, branch, reference, reference_pack, family, suite, device, weights_only, kv_cache_dtype)
    paths = Paths.default()
    request = replace(request_of(*asked, paths=paths), corpus=corpus, context=context, top_k=top_k)
    run, history = measured(request, paths)
    if as_json:
        print_json(run_body(run, history) | kl_body(run, history, paths))
    else:
        print_summary(run, history, paths)
    if plot is not None:
        write_plot(run, history, paths, plot)
    return exit_code(run, history)


def evals(
    branch: OneBranch,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    max_items: MaxItems = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what the suite can show, and how long it takes.")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(help="Policy that --plan holds the suite against.", metavar="NAME|FILE")
    ] = None,
    flips: Annotated[
        int | None, typer.Option(help="How many flips to show each way; 5 when printed, all in --json.", min=0)
    ] = None,
    by_task: Annotated[bool, typer.Option("--by-task", help="Also a row for every task.")] = False,
    effective_recovery: Annotated[
        float, typer.Option(help="What a length must recover to count as effective.", min=0.0, max=1.0)
    ] = EFFECTIVE_RECOVERY,
    allow_code_execution: AllowCodeExecution = False,
    as_json: JsonOption = False,
) -> int:
    """Measure the lm-eval suite against the reference; exit 0 when all was measured, 4 when not."""
    from q36eval.app.cli.evals_report import evals_body, print_summary

    asked = (ProbeName.EVALS, branch, reference, reference_pack, family, suite, device, weights_only, kv_cache_dtype)
    paths = Paths.default()
    request = replace(request_of(*asked, paths=paths), max_items=max_items, allow_code_execution=allow_code_execution)
    if plan:
        return _plan(request, policy, paths, as_json=as_json)
    if policy is not None:
        raise UsageError("--policy goes with --plan: without it evals are measured and nothing is judged.")
    run, history = measured(request, paths)
    if as_json:
        print_json(run_body(run, history) | evals_body(run, history, flips=flips, recovery_at_least=effective_recovery))
    else:
        shown = FLIPS_SHOWN if flips is None else flips
        print_summary(run, history, flips=shown, recovery_at_least=effective_recovery, by_task=by_task)
    return exit_code(run, history)


def _plan(request: "Request", policy: str | None, paths: Paths, *, as_json: bool) -> int:
    from q36eval.app.cli.eval_plan_report import print_plan
    from q36eval.app.cli.gate import load_policy
    from q36eval.run.eval_plan import plan_of

    found = plan_of(request, load_policy(policy, request.family, paths), paths)
    if as_json:
        print_json(found.as_json())
    else:
        print_plan(found)
    return int(ExitCode.PASS)


def request_of(
    probe: ProbeName,
    branch: str,
    reference: str | None,
    reference_pack: Path | None,
    family: str | None,
    suite: str | None,
    device: str,
    weights_only: bool,
    kv_cache_dtype: str | None,
    *,
    paths: Paths,
) -> "Request":
    """What is asked of one probe.

    Raises:
        UsageError: an unknown family, branch, reference, device or KV cache.
    """
    from q36eval.app.targets import load_family, resolve
    from q36eval.run.request import Request

    chosen = load_family(family, paths)
    check_device(device)
    check_kv_cache_dtype(kv_cache_dtype)
    return Request(
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
    )


def measured(request: "Request", paths: Paths) -> "tuple[RunRecord, History]":
    """Measure it, with the progress shown."""
    from q36eval.app.console import ConsoleProgress
    from q36eval.run.measure import measure

    history = open_history(paths, writing=True)
    with ConsoleProgress() as progress:
        return measure(request, paths, history, progress), history


def exit_code(run: "RunRecord", history: "History") -> int:
    """0 where everything that was asked was measured, 4 where not."""
    measurements, failures = history.measurements(run.id), history.failures(run.id)
    whole = bool(measurements) and not failures and not any(m.counts.errored for m in measurements)
    return int(ExitCode.PASS if whole else ExitCode.NOT_MEASURED)


def run_body(run: "RunRecord", history: "History") -> dict[str, Any]:
    """What `--json` holds of every probe's run."""
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
