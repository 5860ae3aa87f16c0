"""`q36eval evals`: the lm-eval suites alone. They measure and do not decide."""

from dataclasses import replace
from typing import Annotated

import typer

from q36eval.app.cli import completing
from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.one_probe import exit_code, measured, request_of, run_body
from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    MaxItems,
    OneBranch,
    Quiet,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    load_policy,
    print_json,
)
from q36eval.config.paths import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import ExitCode, UsageError
from q36eval.records import ProbeName
from q36eval.run.request import Request

FLIPS_SHOWN = 5
EFFECTIVE_RECOVERY = 0.97
"""The RULER recovery that the cards ask for (here too, since a command's defaults must not import numpy)."""


@engine_options()
def evals(
    branch: OneBranch,
    engine: EngineOptions,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    max_items: MaxItems = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only report what the suite can show, and how long it takes.")
    ] = False,
    policy: Annotated[
        str | None,
        typer.Option(help="Policy to plan for, with --plan.", metavar="NAME|FILE", autocompletion=completing.policies),
    ] = None,
    flips: Annotated[
        int | None, typer.Option(help="Show this many flips each way; 5 by default, all in --json.", min=0)
    ] = None,
    by_task: Annotated[bool, typer.Option("--by-task", help="Also print a row for every task.")] = False,
    effective_recovery: Annotated[
        float, typer.Option(help="Recovery from which a RULER length counts as effective.", min=0.0, max=1.0)
    ] = EFFECTIVE_RECOVERY,
    as_json: JsonOption = False,
) -> int:
    """Measure the lm-eval suite against the reference.

    Exit 0 when everything was measured, 4 when not.
    """
    from q36eval.app.cli.evals_report import evals_body, print_summary

    paths = Paths.default()
    request = replace(
        request_of(
            ProbeName.EVALS,
            branch,
            family,
            reference=reference,
            reference_pack=reference_pack,
            suite=suite,
            engine=engine,
            paths=paths,
        ),
        max_items=max_items,
    )
    if plan:
        return _plan(request, policy, paths, as_json=as_json)
    if policy is not None:
        raise UsageError(
            "option-missing", "--policy needs --plan: without it evals are measured and nothing is judged."
        )
    run, history = measured(request, paths)
    if as_json:
        print_json(run_body(run, history) | evals_body(run, history, flips=flips, recovery_at_least=effective_recovery))
    elif not Quiet.wanted:
        shown = FLIPS_SHOWN if flips is None else flips
        print_summary(run, history, flips=shown, recovery_at_least=effective_recovery, by_task=by_task)
    return exit_code(run, history)


def _plan(request: Request, policy: str | None, paths: Paths, *, as_json: bool) -> int:
    from q36eval.app.cli.evals_report import print_plan
    from q36eval.run.eval_plan import plan_of

    planned = plan_of(request, load_policy(policy, request.family, paths), paths)
    if as_json:
        print_json(planned.as_json())
    else:
        print_plan(planned)
    return int(ExitCode.PASS)
