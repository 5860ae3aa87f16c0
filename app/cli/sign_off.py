"""`q36eval sign-off`: a reviewer's signature under a run."""

import json
from typing import Annotated

import typer

from q36eval.app.cli.options import JsonOption, RunArgument, open_history, print_json


def sign_off(
    run: RunArgument,
    owner: Annotated[str, typer.Option(help="Who signs.")],
    reason: Annotated[str, typer.Option(help="What was checked, and why it may be released.")],
    as_json: JsonOption = False,
) -> None:
    """Sign a finished run.

    A signature gives `gate --require-sign-off` what it waits for and accepts gains marked as anomalous, of that report
    only. It changes nothing else.
    """
    from q36eval.app.cli.tables import print_plain
    from q36eval.history.deciding import sign
    from q36eval.reports.next_step import branch_option

    history = open_history()
    record = history.get_run(run)
    signature = sign(history, record, owner, reason)
    if as_json:
        print_json({"run": record.id, **json.loads(signature.model_dump_json())})
        return
    print_plain(f"Signed run {record.id} of {record.branch} by {owner}: report {signature.report_sha256[:12]}.")
    again = f"q36eval gate {branch_option(record)} --resume {record.id} --require-sign-off"
    print_plain(f"Decide the run with this signature: {again}")
