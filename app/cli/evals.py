"""`q36eval evals`: the lm-eval suites alone. They measure and do not decide."""

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.one_probe import exit_code, measured, request_of, run_body
from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    MaxItems,
    OneBranch,
    PlanOption,
    Quiet,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    print_json,
)
from q36eval.config.paths import Paths
from q36eval.engines import EngineOptions
from q36eval.records import ProbeName


@engine_options()
def evals(
    branch: OneBranch,
    engine: EngineOptions,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    max_items: MaxItems = None,
    plan: PlanOption = False,
    as_json: JsonOption = False,
) -> int:
    """Measure the lm-eval suite against the reference.

    Exit 0 when everything was measured, 4 when not.
    """
    from q36eval.app.cli.evals_report import evals_body, print_summary

    paths, asked = Paths.default(), (branch, family, reference, reference_pack, suite)
    request = request_of(ProbeName.EVALS, *asked, engine=engine, max_items=max_items)
    if plan:
        from q36eval.app.cli.plan_command import show_runs

        return show_runs([request], paths, as_json=as_json)
    run, history = measured(request, paths)
    if as_json:
        print_json(run_body(run, history) | evals_body(run, history))
    elif not Quiet.wanted:
        print_summary(run, history)
    return exit_code(run, history)
