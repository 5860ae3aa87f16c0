"""`q36eval gate`: measure branches and decide."""

import sys
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from q36eval.app.cli import completing
from q36eval.app.cli.options import (
    AllowCodeExecution,
    AsServed,
    BaseUrl,
    BatchSize,
    BranchOption,
    ContextOption,
    ConvState,
    CorpusOption,
    DetailsOption,
    DeviceOption,
    EngineArgument,
    EngineOption,
    EnginePython,
    FamilyOption,
    JsonOption,
    KVCacheDtype,
    KVScales,
    MaxItems,
    OwnCanaries,
    Placement,
    PlanOption,
    RayOption,
    RecurrentState,
    ReferenceOption,
    ReferencePackOption,
    ServedModel,
    SuiteOption,
    TemplateDeclared,
    WeightsOnly,
    WorkersOption,
    engine_options,
    folder_to_write,
    load_policy,
    note,
    open_history,
    resolve_reference,
)
from q36eval.app.cli.report_formats import FORMATS, check_formats, clear_reports
from q36eval.app.cli.streams import kept_in_history
from q36eval.app.targets import load_family
from q36eval.config.paths import Paths
from q36eval.engines import IN_PROCESS
from q36eval.errors import Q36Error, UsageError
from q36eval.interrupts import surviving_hangup
from q36eval.records import ProbeName
from q36eval.run.request import CanaryChoice, Request, probes_for


class GateCommand(TyperCommand):
    """Takes the reports of an earlier gate away even where its own options cannot be read."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As every command, but for what an error leaves behind."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except typer.Exit:
            raise
        except Exception:
            out = _values(given, "--out")
            with suppress(Q36Error):  # what is wrong with the options is said, and of one error alone
                clear_reports(Path(out[-1]) if out and out[-1].strip() else None, _values(given, "--branch"))
            raise


def _values(arguments: list[str], option: str) -> list[str]:
    following = [value for name, value in pairwise(arguments) if name == option]
    return following + [each.partition("=")[2] for each in arguments if each.startswith(f"{option}=")]


def gate(
    branch: BranchOption,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy name or file; the suite's or the family's by default.",
            metavar="NAME|FILE",
            autocompletion=completing.policies,
        ),
    ] = None,
    skip: Annotated[
        list[ProbeName] | None,
        typer.Option(help="Skip this probe (weights, kl, evals, canaries or served); its criteria cannot pass."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this interrupted run.", metavar="RUN", autocompletion=completing.runs)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the reports into this folder.", metavar="PATH", parser=folder_to_write)
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option("--format", help=f"Report format, with --out: {', '.join(FORMATS)}; all by default."),
    ] = None,
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
    at_once: Annotated[
        int,
        typer.Option(
            "--at-once",
            help="Judge so many branches at a time, each on GPUs of its own (or together on the CPU).",
            metavar="N",
            min=1,
        ),
    ] = 1,
    plan: PlanOption = False,
    template_declared: TemplateDeclared = None,
    batch_size: BatchSize = None,
    corpus: CorpusOption = None,
    context: ContextOption = None,
    allow_code_execution: AllowCodeExecution = False,
    canaries: OwnCanaries = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws per canary family, instead of the suite's number.", min=1, max=1_000)
    ] = None,
    exhaustive: Annotated[bool, typer.Option(help="Evaluate everything, even after the verdict is certain.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Do not reuse the answers of an earlier gate of the same deployment.")
    ] = False,
    max_items: MaxItems = None,
    waivers_from: Annotated[
        Path | None,
        typer.Option(help="Count only the waivers in this file (`waive export` writes one).", metavar="FILE"),
    ] = None,
    require_sign_off: Annotated[
        bool, typer.Option("--require-sign-off", help="Pass only after a reviewer has signed the run.")
    ] = False,
    details: DetailsOption = False,
    as_json: JsonOption = False,
) -> int:
    """Judge branches against the reference.

    Exit codes: 0 PASS, 1 FAIL, 2 usage or prerequisite, 3 INCONCLUSIVE, 4 not measured. A pre-check (--suite quick)
    that finds no damage exits 3, since it cannot release a branch.
    """
    from q36eval.app.cli.gate_branches import Branches, Output, finish
    from q36eval.app.cli.github_output import announcing
    from q36eval.app.cli.side_by_side import devices_of
    from q36eval.app.policies.files import declared_policy
    from q36eval.run.preflight import collecting, crowded, problems, refuse
    from q36eval.run.templates import check_hash

    log = sys.stderr if as_json else sys.stdout
    kept_in_history()
    if not plan:
        clear_reports(out, branch)
    with surviving_hangup(), announcing(branch, log if "github" in (format or ()) else None):
        formats = check_formats(format)
        if out is None and set(format or ()) - {"github"}:
            raise UsageError("option-missing", "--format writes files; name a folder for them with --out.")
        output = Output(
            formats, announced="github" in (format or ()), as_json=as_json, branches=len(branch), details=details
        )
        if resume is not None and len(branch) != 1:
            raise UsageError("option-conflict", "--resume continues one run; give exactly one --branch with it.")
        if template_declared is not None and len(branch) != 1:
            raise UsageError(
                "option-conflict", "--template-declared is of one branch; give exactly one --branch with it."
            )
        check_hash(template_declared)
        paths = Paths.default()
        chosen = load_family(family, paths)
        suite_name = suite or chosen.suite
        rules = load_policy(policy, chosen, paths, suite_name)
        chosen_engine = engine_options(
            engine=engine,
            engine_python=engine_python,
            engine_arguments=engine_arg,
            base_url=base_url,
            served_model=served_model,
            device=device,
            weights_only=weights_only,
            kv_cache_dtype=kv_cache_dtype,
            batch_size=batch_size,
            as_served=as_served,
            kv_scales=kv_scales,
            recurrent_state_dtype=recurrent_state_dtype,
            conv_state_dtype=conv_state_dtype,
            placement=placement,
            workers=workers,
            ray=ray,
        )
        branches = Branches(branch, chosen, paths, waivers_from, None if plan else out, formats)
        database = [] if "://" in paths.history_url else [Path(paths.history_url)]
        found = crowded([paths.state, *database, *([] if out is None else [out])])
        refuse(found)  # a full disk takes no history either
        for problem in found:
            note(problem.message)
        history = None if plan else open_history(paths, writing=True)
        # before the reference is asked anything
        resumed = None if resume is None or history is None else history.get_run(resume)
        if resumed is not None and history is not None and require_sign_off and resumed.state.value == "finished":
            judged = branches.decided_again(resumed, history, None if policy is None else rules)
            return finish([judged], branches, history, output)
        probes = tuple(name for name in probes_for(rules) if name not in (skip or []))
        side_by_side = min(at_once, len(branch))
        devices = devices_of(chosen_engine, side_by_side) if side_by_side > 1 else []
        found += branches.resolve()
        against = None
        with collecting(found, "reference-missing"):
            against = resolve_reference(reference, reference_pack, chosen, paths)
        request = partial(
            Request,
            family=chosen,
            reference=against,
            suite=suite_name,
            policy=rules,
            declared=declared_policy(chosen, paths),
            probes=probes,
            engine=chosen_engine,
            resume=resume,
            corpus=corpus,
            context=context,
            allow_code_execution=allow_code_execution,
            reference_pack=reference_pack,
            exhaustive=exhaustive,
            fresh=fresh,
            max_items=max_items,
            canaries=CanaryChoice(own=canaries, draws=draws),
            require_sign_off=require_sign_off,
            template_declared=template_declared,
        )
        if any(problem.blocks for problem in found):  # nothing can be measured: report at once what else is wrong
            refuse(problems(request(branch=branches.first), paths, found))
        branches.make_folders()
        if history is None:
            return branches.plans(request, as_json=as_json)
        with closing(branches.measured(request, history, devices)) as measured:
            return finish(measured, branches, history, output)
