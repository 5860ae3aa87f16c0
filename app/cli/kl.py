"""`q36eval kl`: the KL probe alone. It measures and does not decide."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from q36eval.app.cli.one_probe import exit_code, measured, request_of, run_body
from q36eval.app.cli.options import (
    AsServed,
    BaseUrl,
    ContextOption,
    ConvState,
    CorpusOption,
    DeviceOption,
    EngineArgument,
    EngineOption,
    EnginePython,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    KVScales,
    OneBranch,
    Placement,
    PlanOption,
    Quiet,
    RayOption,
    RecurrentState,
    ReferenceOption,
    ReferencePackOption,
    ServedModel,
    SuiteOption,
    WeightsOnly,
    WorkersOption,
    engine_options,
    print_json,
)
from q36eval.config.paths import Paths
from q36eval.engines import IN_PROCESS
from q36eval.records import ProbeName


def kl(
    branch: OneBranch,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    engine: EngineOption = IN_PROCESS,
    engine_python: EnginePython = None,
    engine_arg: EngineArgument = None,
    base_url: BaseUrl = None,
    served_model: ServedModel = None,
    device: DeviceOption = "cpu",
    weights_only: WeightsOnly = False,
    kv_cache_dtype: KVCacheDtype = None,
    kv_scales: KVScales = None,
    recurrent_state_dtype: RecurrentState = None,
    conv_state_dtype: ConvState = None,
    as_served: AsServed = None,
    placement: Placement = None,
    workers: WorkersOption = None,
    ray: RayOption = None,
    plan: PlanOption = False,
    plot: Annotated[Path | None, typer.Option(help="Write the plots to this HTML file.", metavar="FILE")] = None,
    corpus: CorpusOption = None,
    context: ContextOption = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="Measure a lower bound of the KL, from the reference's K likeliest tokens.", min=1),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the KL divergence from the reference.

    Exit 0 when everything was measured, 4 when not.
    """
    from q36eval.app.cli.kl_report import check_plot, kl_body, print_summary, write_plot

    check_plot(plot, top_k, reference_pack)
    paths = Paths.default()
    request = replace(
        request_of(
            ProbeName.KL,
            branch,
            family,
            reference=reference,
            reference_pack=reference_pack,
            suite=suite,
            engine=engine_options(
                engine=engine,
                engine_python=engine_python,
                engine_arguments=engine_arg,
                base_url=base_url,
                served_model=served_model,
                device=device,
                weights_only=weights_only,
                kv_cache_dtype=kv_cache_dtype,
                as_served=as_served,
                kv_scales=kv_scales,
                recurrent_state_dtype=recurrent_state_dtype,
                conv_state_dtype=conv_state_dtype,
                placement=placement,
                workers=workers,
                ray=ray,
            ),
            paths=paths,
        ),
        corpus=corpus,
        context=context,
        top_k=top_k,
    )
    if plan:
        from q36eval.app.cli.planning import show_runs

        return show_runs([request], paths, as_json=as_json)
    run, history = measured(request, paths)
    if as_json:
        print_json(run_body(run, history) | kl_body(run, history, paths))
    elif not Quiet.wanted:
        print_summary(run, history, paths)
    if plot is not None:
        write_plot(run, history, paths, plot)
    return exit_code(run, history)
