"""`q36eval gate`: measure branches and decide."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from q36eval.app.cli.engine_options import engine_options, fitting
from q36eval.app.cli.options import (
    BranchOption,
    CorpusOption,
    FamilyOption,
    JsonOption,
    OwnCanaries,
    PlanOption,
    PolicyOption,
    ReferenceOption,
    ReferencePackOption,
    SchemeOption,
    SuiteOption,
    folder_to_write,
    load_policy,
    note,
    open_history,
    resolve_reference,
    show_targets,
)
from q36eval.app.cli.report_formats import clear_reports
from q36eval.app.cli.resuming import (
    continue_with,
    kept_options,
    kept_policy,
    kept_template,
    resumed_names,
)
from q36eval.app.cli.streams import kept_in_history
from q36eval.app.derived_family import FLOOR_DOCUMENTS, DerivedFamily
from q36eval.app.names import meaning
from q36eval.app.targets import chosen_family, family_of, project_template, recorded_family
from q36eval.config import Family, Paths
from q36eval.engines import EngineOptions
from q36eval.errors import Q36Error, UsageError
from q36eval.interrupts import surviving_hangup
from q36eval.records import Lane, ProbeName
from q36eval.run.request import CanaryChoice, Request, Target, probes_for

if TYPE_CHECKING:
    from q36eval.app.needs import Asked
    from q36eval.history import RunRecord
    from q36eval.history.decisions import WaiverSource


WORDS = "q36eval.words"
"""The context's key for the words of the command line."""


class GateCommand(TyperCommand):
    """Removes the reports of an earlier gate first, and annotates an early end in a GitHub job."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the words as typed, for building corrected commands."""
        ctx.meta[WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Remove the reports first, then run."""
        from q36eval.app.cli.github_output import announcing

        branches, as_json = ctx.params["branch"] or [], ctx.params["as_json"]
        kept_in_history()
        if not ctx.params["plan"]:
            several = [*branches, *_names(branches, ctx.params["family"])] if branches[1:] else branches
            clear_reports(ctx.params["out"], several)
        with announcing(branches, sys.stderr if as_json else sys.stdout):
            if ctx.params["resume"] is not None:
                continue_with(ctx)
            return super().invoke(ctx)


def _names(branches: list[str], family: str | None) -> Iterator[str]:
    """The branches' names in history, as far as known before any check."""
    paths = Paths.default()
    for branch in branches:
        with suppress(Q36Error):
            yield meaning(branch, chosen_family(family, paths), paths, everywhere=True).name(None)


def _named(branches: list[str] | None, resume: str | None) -> list[str]:
    """The branches to judge; one, where a run is resumed.

    Raises:
        UsageError: none or too many are named.
    """
    if not branches:
        raise UsageError("branch-required", "Name the branch to judge: q36eval gate --branch NAME.")
    if resume is not None and len(branches) != 1:
        raise UsageError("option-conflict", "--resume continues one run; give at most one --branch with it.")
    return branches


def _family(given: dict[str, Any], begun: "RunRecord | None", paths: Paths) -> Family:
    """The family in which the branches are judged, by the command's parameters.

    Raises:
        UsageError: no family exists, or (checked before any download) a policy or suite does not exist.
    """
    from q36eval.app.policies.files import policy_file
    from q36eval.run.suites import suite_place

    family, branches, reference = given["family"], given["branch"], given["reference"]
    if begun is not None and begun.state == "finished":  # it is decided again without any checkpoint
        return recorded_family(family, branches[0], paths, open_history(paths))[0]
    if chosen_family(family, paths) is None and given["policy"] is not None:
        policy_file(given["policy"], paths)
    if chosen_family(family, paths) is None and given["suite"] is not None:
        suite_place(given["suite"], paths)
    needed = given["reference_pack"] is None and begun is None
    return family_of(family, paths, branches, reference, needs_reference=needed, notify=note, download=False)


@engine_options(checked=False)
def gate(
    context: typer.Context,
    engine: EngineOptions,
    branch: BranchOption = None,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    scheme: SchemeOption = None,
    suite: SuiteOption = None,
    policy: PolicyOption = None,
    lane: Annotated[
        list[Lane] | None,
        typer.Option(help="Judge this lane; repeat it for both. By default what the family's file names."),
    ] = None,
    skip: Annotated[
        list[ProbeName] | None,
        typer.Option(help="Skip this probe; its criteria cannot pass."),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue this interrupted run; no other option is needed.", metavar="RUN")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the reports into this folder.", metavar="PATH", parser=folder_to_write)
    ] = None,
    plan: PlanOption = False,
    corpus: CorpusOption = None,
    canaries: OwnCanaries = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws per canary family, instead of the suite's number.", min=1, max=1_000)
    ] = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Evaluate everything, even after the verdict is certain.")
    ] = False,
    waivers_from: Annotated[
        Path | None,
        typer.Option(help="Count only the waivers in this file (`review list --out` writes one).", metavar="FILE"),
    ] = None,
    require_sign_off: Annotated[
        bool, typer.Option("--require-sign-off", help="Pass only after a reviewer has signed the run.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Judge branches against the reference.

    Exit codes: 0 PASS, 1 FAIL, 2 usage or prerequisite, 3 INCONCLUSIVE, 4 not measured, or a required lane is not
    judged. A pre-check (--suite quick) that finds no damage exits 3, since it cannot release a branch.
    """
    from q36eval.app.cli.data import freeze_first
    from q36eval.app.cli.gate_branches import Branches, Output, finish
    from q36eval.app.cli.github_output import in_workflow
    from q36eval.app.needs import Asked, problems_of
    from q36eval.app.policies.files import declared_policy
    from q36eval.run.preflight import Problem, collecting, crowded, prepare, refuse, refuse_with
    from q36eval.run.suites import suite_place

    asked = Asked(branch[0] if branch else None, reference, family, suite, policy, context.meta.get(WORDS, ()))
    with surviving_hangup(), _tabling(asked, is_plan=plan):
        output = Output(announced=in_workflow(), as_json=as_json, branches=len(branch or ()))
        branch = _named(branch, resume)
        paths = Paths.default()
        begun = None if resume is None else open_history(paths).get_run(resume)
        unfit: list[Problem] = []
        engine = fitting(engine, unfit)
        try:
            chosen = _family(context.params, begun, paths)
        except UsageError as error:
            refuse([*unfit, *problems_of(error)])
            raise
        suite_name = suite or chosen.suite
        branches = Branches(branch, chosen, paths, waivers_from, None if plan else out)
        if begun is not None:
            branches.names = resumed_names(begun, chosen, branches.names)
        unknown: list[Problem] = []
        with collecting(unknown):
            kept = None if policy is not None or begun is None else kept_policy(begun)
            rules = kept or load_policy(policy, chosen, paths, suite_name)
            if unjudged := [each.value for each in lane or () if each not in rules.lanes]:
                raise UsageError("lane-not-judged", f"Policy {rules.name} has no criterion for {', '.join(unjudged)}.")
        with collecting(unknown):
            if policy is not None:  # otherwise the suite was read for it
                suite_place(suite_name, paths)
        if unknown:  # report unknown names at once, without a download
            unknown += [*unfit, *branches.resolve()]
            with collecting(unknown):
                resolve_reference(reference, reference_pack, chosen, paths, download=False)
            refuse(problem for problem in unknown if problem.code != "weights-missing")
        database = [] if "://" in paths.history_url else [Path(paths.history_url)]
        found = crowded([paths.state, *database, *([] if out is None else [out])])
        refuse_with("disk-full", [*unfit, *found])  # which does not open history either
        for problem in found:
            note(problem.message)
        history = None if plan else open_history(paths, writing=True)
        # before the reference is evaluated
        resumed = None if resume is None or history is None else history.get_run(resume)
        if resumed is not None and history is not None and resumed.state.value == "finished":
            # killed before its reports were written, or awaiting a signature
            named = policy is not None or lane
            own = rules.for_lanes(chosen.lanes_of(resumed.branch, lane)) if named else None
            judged = branches.decided_again(resumed, history, own, require_sign_off)
            return finish([judged], branches, history, output)
        found += [*unfit, *branches.resolve()]
        against = None
        with collecting(found):
            against = resolve_reference(reference, reference_pack, chosen, paths, download=False)
        refuse_with("branch-unknown", found)  # nothing else can be checked
        show_targets(branches.targets, against)
        template = project_template(family) if begun is None else kept_template(begun)

        def request(branch: Target, waivers_from: "WaiverSource | None" = None) -> Request:
            own = rules if kept and not lane else rules.for_lanes(chosen.lanes_of(branch.name, lane))
            wanted = Request(
                family=chosen,
                branch=branch,
                reference=against,
                suite=suite_name,
                policy=own,
                declared=declared_policy(chosen, paths),
                probes=tuple(name for name in probes_for(own) if name not in (skip or [])),
                engine=engine,
                scheme=scheme,
                resume=resume,
                corpus=corpus,
                reference_pack=reference_pack,
                exhaustive=exhaustive,
                floor_documents=FLOOR_DOCUMENTS if isinstance(chosen, DerivedFamily) else None,
                canaries=CanaryChoice(own=canaries, draws=draws),
                waivers_from=waivers_from,
                require_sign_off=require_sign_off,
                template=template,
                options=kept_options(context, chosen, branch, against),
            )
            asked.understand(wanted)
            return wanted

        if plan:
            return branches.plans(request, asked, found, as_json=as_json)
        if branches.lack_something(request, asked, history, found):
            branches.resolve(download=True)
            resolve_reference(reference, reference_pack, chosen, paths)
            return int(TyperCommand.invoke(context.command, context))  # with all weights here
        folders = [each.folder for each in (against, *branches.targets) if each is not None and each.folder.is_dir()]
        if folders:
            probes = {*probes_for(rules)} - {*(skip or ())} - ({ProbeName.KL} if corpus else set())
            first = request(branch=branches.first)
            freeze_first(
                suite_name, folders[0], chosen.context_length, probes, paths, lambda: prepare(first, paths).problems
            )
        branches.make_folders()
        assert history is not None, "only a plan has none"
        with closing(branches.measured(request, history)) as measured:
            return finish(measured, branches, history, output)


@contextmanager
def _tabling(asked: "Asked", *, is_plan: bool) -> Iterator[None]:
    """A usage error in the block is raised with the unmet rows of the table; several are printed first, unless a plan
    was.

    Raises:
        RefusedError: the same error, with rows.
    """
    from q36eval.app.cli.plan_command import print_rows
    from q36eval.app.needs import REQUEST, problems_of, rows_of
    from q36eval.run.preflight import RefusedError

    try:
        yield
    except UsageError as error:
        problems = problems_of(error)
        rows = tuple(row for row in rows_of(problems, asked) if row.codes)
        if all(row.what == REQUEST for row in rows):
            raise
        refused = error if isinstance(error, RefusedError) else RefusedError(error.code, str(error))
        refused.problems = problems
        if len(rows) > 1 and not (refused.rows and is_plan):
            print_rows(refused.rows or rows, all_of_it=False, file=sys.stderr)
        refused.rows = refused.rows or rows
        if refused is error:
            raise
        raise refused from error
