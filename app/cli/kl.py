"""`q36eval kl`: the KL probe alone. It measures and does not decide."""

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.one_probe import measure_alone, request_of
from q36eval.app.cli.options import (
    CorpusIfAny,
    FamilyIfAny,
    JsonOption,
    OneBranch,
    PlanOption,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
)
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

    asked = (branch, family, reference, reference_pack, suite)
    request = request_of(ProbeName.KL, *asked, engine=engine, corpus=corpus)
    return measure_alone(request, as_json=as_json, body=kl_body, summary=print_summary, plan=plan)
