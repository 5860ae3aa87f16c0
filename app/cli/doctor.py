"""`q36eval doctor`: what this installation is, and what stands in a gate's way."""

from typing import Annotated, Any

import typer

from q36eval.app.cli.options import JsonOption, print_json
from q36eval.config.paths import STATE, Paths
from q36eval.errors import ExitCode


def doctor(
    context: typer.Context,
    ask_hub: Annotated[
        bool, typer.Option("--hub", help="Also show whether the Hugging Face hub answers; waits at most 4 s.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show versions, devices, folders and problems.

    Says where data and state lie and why. Exit 2 when something stands in a gate's way.
    """
    from dataclasses import replace

    from q36eval.app.doctor import diagnosis

    paths = Paths.default()
    if STATE in context.meta:
        paths = replace(paths, state_because=context.meta[STATE])
    body = diagnosis(paths, ask_hub=ask_hub)
    if as_json:
        print_json(body)
    else:
        _print(body)
    return int(ExitCode.USAGE if body["problems"] else ExitCode.PASS)


def _print(body: dict[str, Any]) -> None:
    from q36eval.app.doctor import lines
    from q36eval.reports.text import SENTENCE, plain

    for label, text in lines(body):
        print(f"{label:<10}{plain(text, SENTENCE)}")
