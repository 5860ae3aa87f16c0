"""`q36eval kl` and `q36eval evals`, and the parts shared with `q36eval canaries`: one probe measured alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.options import (
    CorpusIfAny,
    FamilyIfAny,
    FamilyOption,
    JsonOption,
    MaxItems,
    OneBranch,
    PlanOption,
    Quiet,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    note,
    open_history,
    print_json,
    resolve_reference,
    show_targets,
    texts_of,
)
from q36eval.app.cli.streams import kept_in_history
from q36eval.app.derived_family import FLOOR_DOCUMENTS
from q36eval.app.targets import DerivedFamily, family_of, project_template, resolve
from q36eval.config.paths import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import ExitCode
from q36eval.records import ProbeName
from q36eval.run.request import Request

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord


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


def request_of(
    probe: ProbeName,
    branch: str,
    family: str | None,
    reference: str | None,
    reference_pack: Path | None,
    suite: str | None,
    **more: Any,
) -> Request:
    """The request of one probe, from its command's options; `more` are fields of a request.

    Raises:
        UsageError: an unknown family, branch or reference.
    """
    paths = Paths.default()
    chosen = family_of(family, paths, branch, reference, needs_reference=reference_pack is None, notify=note)
    suite, corpus = texts_of(chosen, suite, more.pop("corpus", None), paths)
    target = resolve(branch, chosen, paths, note)
    against = resolve_reference(reference, reference_pack, chosen, paths)
    show_targets([target], against)
    return Request(
        family=chosen,
        branch=target,
        reference=against,
        suite=suite,
        policy=None,
        probes=(probe,),
        reference_pack=reference_pack,
        template=project_template(family),
        corpus=corpus,
        floor_documents=FLOOR_DOCUMENTS if isinstance(chosen, DerivedFamily) else None,
        **more,
    )


def measure_alone(
    request: Request,
    *,
    as_json: bool,
    body: "Callable[[RunRecord, History], dict[str, Any]]",
    summary: "Callable[[RunRecord, History], None]",
    plan: bool = False,
) -> int:
    """Measure with progress, then print the summary, or the body as JSON; returns 4 if a measurement is missing."""
    from q36eval.app.cli.plan_command import show_runs
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.run.measure import measure

    paths = Paths.default()
    if plan:
        return show_runs([request], paths, as_json=as_json)
    kept_in_history()
    history = open_history(paths, writing=True)
    with ConsoleProgress() as progress:
        run = measure(request, paths, history, progress)
    if as_json:
        print_json(run_body(run, history) | body(run, history))
    elif not Quiet.wanted:
        summary(run, history)
    measurements, failures = history.measurements(run.id), history.failures(run.id)
    whole = bool(measurements) and not failures and not any(m.counts.errored for m in measurements)
    return int(ExitCode.PASS if whole else ExitCode.NOT_MEASURED)


def run_body(run: "RunRecord", history: "History") -> dict[str, Any]:
    """The `--json` content of every probe's run."""
    return {
        "run": run.id,
        "branch": run.branch,
        "measurements": [
            json.loads(measurement.model_dump_json(exclude={"clusters"}))
            for measurement in history.measurements(run.id)
        ],
        "failures": [failure.model_dump(mode="json") for failure in history.failures(run.id)],
    }
