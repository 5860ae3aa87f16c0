"""`q36eval doctor`: what this installation is, and what stands in a gate's way."""

from dataclasses import replace

import typer

from q36eval.app.cli.options import JsonOption, print_json
from q36eval.config.paths import STATE, Paths
from q36eval.errors import ExitCode


def doctor(context: typer.Context, as_json: JsonOption = False) -> int:
    """Show versions, devices, folders and problems.

    Reports which folders data and state are in, and why. Exit 2 when something stands in a gate's way; what a gate of
    one branch needs is shown by its --plan.
    """
    from q36eval.app.doctor import diagnosis, lines
    from q36eval.inert_text import SENTENCE, plain

    paths = Paths.default()
    if STATE in context.meta:
        paths = replace(paths, state_because=context.meta[STATE])
    body = diagnosis(paths)
    if as_json:
        print_json(body)
    else:
        for label, text in lines(body):
            print(f"{label:<12}{plain(text, SENTENCE)}")
    return int(ExitCode.USAGE if body["problems"] else ExitCode.PASS)
