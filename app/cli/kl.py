"""`q36eval kl`: the KL probe alone. It measures and does not decide."""

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.one_probe import exit_code, measured, request_of, run_body
from q36eval.app.cli.options import (
    CorpusIfAny,
    FamilyIfAny,
    JsonOption,
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
def kl(
    branch: OneBranch,
    engine: EngineOptions,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyIfAny = None,
    suite: SuiteOption = None,
    plan: PlanOption = False,
    corpus: CorpusIfAny = None,
    as_json: JsonOption = False,
) -> int:
    """Measure the KL divergence from the reference.

    Exit 0 when everything was measured, 4 when not.
    """
    from q36eval.app.cli.kl_report import kl_body, print_summary

    paths, asked = Paths.default(), (branch, family, reference, reference_pack, suite)
    request = request_of(ProbeName.KL, *asked, engine=engine, corpus=corpus)
    if plan:
        from q36eval.app.cli.plan_command import show_runs

        return show_runs([request], paths, as_json=as_json)
    run, history = measured(request, paths)
    if as_json:
        print_json(run_body(run, history) | kl_body(run, paths))
    elif not Quiet.wanted:
        print_summary(run, history, paths)
    return exit_code(run, history)
