"""`q36eval canaries`: the probe alone, and what a person does with canaries: list, show, check, new."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.canaries_files import check, list_canaries, show
from q36eval.app.cli.canaries_new import new
from q36eval.app.cli.options import (
    DeviceOption,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    OwnCanaries,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    WeightsOnly,
    open_history,
    print_json,
    worst,
)
from q36eval.app.cli.probes import exit_code, measured, request_of, run_body
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.records import ProbeName

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord
    from q36eval.run.request import Request

app = typer.Typer()
app.command("list")(list_canaries)
app.command("show")(show)
app.command("check")(check)
app.command("new")(new)


@app.callback(invoke_without_command=True)
def canaries(
    context: typer.Context,
    branch: Annotated[
        str | None, typer.Option("--branch", help="Branch alias, or the path of a checkpoint folder.")
    ] = None,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    own: OwnCanaries = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Ask this canary only.", metavar="ID")] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws of every family, instead of the suite's.", min=1, max=100_000)
    ] = None,
    repeat: Annotated[int, typer.Option(help="Measure so many times, and say whether all agree.", min=1)] = 1,
    batch_size: Annotated[
        list[int] | None,
        typer.Option(
            help="Generate at most so many answers together; with --repeat or several sizes, once more at each.", min=1
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int | None:
    """Measure the canaries against the reference: exit 0 when all was measured, 4 when not. Or see the commands."""
    if context.invoked_subcommand is not None:
        if branch is not None:
            raise UsageError(
                f"--branch measures, and {context.invoked_subcommand!r} does not; give the options after the command."
            )
        return None
    if branch is None:
        raise UsageError(
            "Say which branch to measure (q36eval canaries --branch NAME), or use one of list, show, check and new."
        )
    from q36eval.run.request import CanaryChoice

    paths = Paths.default()
    asked = (ProbeName.CANARIES, branch, reference, reference_pack, family, suite, device, weights_only, kv_cache_dtype)
    chosen = CanaryChoice(own=own, only=tuple(only or ()), draws=draws)
    request = replace(request_of(*asked, paths=paths), canaries=chosen)
    sizes = batch_size or []
    if repeat > 1 or len(sizes) > 1:
        return _repeated(request, repeat, sizes, paths, as_json=as_json)
    return _once(replace(request, batch_rows=sizes[0] if sizes else None), paths, as_json=as_json)


def _once(request: "Request", paths: Paths, *, as_json: bool) -> int:
    from q36eval.app.cli.canaries_report import print_summary

    run, history = measured(request, paths)
    if as_json:
        print_json(_body(run, history))
    else:
        print_summary(run, history)
    return exit_code(run, history)


def _repeated(request: "Request", times: int, sizes: list[int], paths: Paths, *, as_json: bool) -> int:
    from q36eval.app.canary_repeating import agreement, measure_repeatedly
    from q36eval.app.cli.canaries_report import print_summary
    from q36eval.app.cli.repeats_report import agreement_json, print_agreement
    from q36eval.app.console import ConsoleProgress

    history = open_history(paths, writing=True)
    with ConsoleProgress() as progress:
        repeats, runs = measure_repeatedly(request, times, sizes, paths, history, progress)
    found = agreement(repeats)
    if as_json:
        bodies = [_body(run, history) for run in runs]
        print_json({"runs": bodies, "agreement": agreement_json(found, repeats)})
    else:
        print_summary(runs[0], history)
        print_agreement(found, repeats)
    return worst([exit_code(run, history) for run in runs])


def _body(run: "RunRecord", history: "History") -> dict[str, Any]:
    from q36eval.app.canary_figures import canaries_json
    from q36eval.app.cli.canaries_report import canary_run

    return run_body(run, history) | {"canaries": canaries_json(canary_run(run, history))}
