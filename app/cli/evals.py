"""`q36eval evals`: the lm-eval suites alone. They measure and do not decide."""

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.one_probe import measure_alone, request_of
from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    MaxItems,
    OneBranch,
    PlanOption,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
)
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

    asked = (branch, family, reference, reference_pack, suite)
    request = request_of(ProbeName.EVALS, *asked, engine=engine, max_items=max_items)
    return measure_alone(request, as_json=as_json, body=evals_body, summary=print_summary, plan=plan)
