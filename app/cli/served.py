"""`q36eval served`: faults that only a served model shows. It needs no reference, and decides."""

import json
from typing import Annotated

import typer

from q36eval.app.cli.engine_options import BaseUrl, ServedModel, check_engine
from q36eval.app.cli.one_probe import run_body
from q36eval.app.cli.options import (
    CHECKPOINT,
    FamilyOption,
    JsonOption,
    Quiet,
    load_policy,
    note,
    open_history,
    print_json,
    show_targets,
)
from q36eval.app.cli.streams import kept_in_history
from q36eval.app.cli.tables import print_plain
from q36eval.app.targets import family_of, resolve
from q36eval.config.paths import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import UsageError
from q36eval.records import ProbeName
from q36eval.run.request import Request

SERVED_POLICY = "served"
"""The shipped policy with criteria of that probe."""


def served(
    branch: Annotated[
        str, typer.Option("--branch", help="Branch name, ./folder or Hub name; for a GGUF its original.", **CHECKPOINT)
    ],
    base_url: BaseUrl = None,
    served_model: ServedModel = None,
    family: FamilyOption = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Policy name or file; only its criteria of the probe served are evaluated.",
            metavar="NAME|FILE",
        ),
    ] = SERVED_POLICY,
    against: Annotated[
        str | None,
        typer.Option(help="Address of a second server of the same weights with other settings.", metavar="URL"),
    ] = None,
    difference: Annotated[
        str, typer.Option(help="What is different about the second server, in your words.", metavar="TEXT")
    ] = "",
    draft_acceptance: Annotated[
        float | None,
        typer.Option(
            help="Least share of draft tokens (MTP) that the server must accept, by its counters.",
            min=0.0,
            max=1.0,
            metavar="SHARE",
        ),
    ] = None,
    items: Annotated[int, typer.Option(help="Prompts of each comparison.", min=1, metavar="N")] = 64,
    concurrency: Annotated[int, typer.Option(help="Concurrent requests under load.", min=2, metavar="N")] = 64,
    pressure_tokens: Annotated[
        int, typer.Option(help="Send at most this many tokens to fill the server's KV cache.", min=0, metavar="TOKENS")
    ] = 2_000_000,
    as_json: JsonOption = False,
) -> int:
    """Find faults that only a served model shows.

    Each comparison changes one thing: prefix cache, concurrency, load, streaming, parsers. The run is kept in history.
    Exit codes: 0 PASS, 1 FAIL, 2 usage, 3 INCONCLUSIVE, 4 not measured.
    """
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.app.cli.report_formats import document_of, print_report
    from q36eval.app.cli.resuming import named_branch
    from q36eval.app.policies.files import declared_policy
    from q36eval.run.measure import measure
    from q36eval.run.served_lane import alone
    from q36eval.served.declared_server import PROMPTS_A_CONVERSATION, Plan

    if difference and against is None:
        raise UsageError("option-missing", "--difference describes a second server; name its address with --against.")
    server = EngineOptions.read({"kind": "openai", "base_url": base_url, "served_model": served_model})
    check_engine(server)
    paths = Paths.default()
    chosen = family_of(family, paths, branch, needs_reference=False, notify=note)
    target = resolve(branch, chosen, paths, note)
    show_targets([target])
    request = Request(
        family=chosen,
        branch=target,
        reference=None,
        suite=chosen.suite,
        policy=alone(
            load_policy(policy, chosen, paths),
            against=against is not None,
            least_acceptance=draft_acceptance,
        ),
        declared=declared_policy(chosen, paths),
        probes=(ProbeName.SERVED,),
        engine=server,
        served=Plan(
            items=items,
            conversations=max(1, items // PROMPTS_A_CONVERSATION),
            concurrency=concurrency,
            load_requests=4 * concurrency,
            pressure_tokens=pressure_tokens,
            difference=difference,
        ),
        second_endpoint=against,
        options=named_branch(family, chosen, target),
    )
    kept_in_history()
    history = open_history(paths, writing=True)
    with ConsoleProgress() as progress:
        run = measure(request, paths, history, progress)
    report = run.report
    assert report is not None, "it was judged by a policy"
    if as_json:
        model = None if run.identity is None else run.identity.settings.get("served_model")
        answered = None if run.identity is None or model is None else f"{model} by {run.identity.engine_version}"
        print_json(run_body(run, history) | {"server": answered, "report": json.loads(report.model_dump_json())})
        return report.exit_code
    print_report(document_of(run, history), details=True)
    failed = {result.key: result.heading for result in report.criteria if result.verdict != "PASS"}
    for measurement in history.measurements(run.id):
        if measurement.key in failed and not Quiet.wanted:
            print_plain(f"{failed[measurement.key]}: {measurement.note}.")
    return report.exit_code
