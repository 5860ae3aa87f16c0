"""`q36eval doctor`: what this installation is, what a server can do, and what stands in a gate's way."""

from typing import Annotated, Any

import typer

from q36eval.app.cli import completion
from q36eval.app.cli.engine_options import BaseUrl, ServedModel
from q36eval.app.cli.options import FamilyOption, JsonOption, print_json
from q36eval.config.paths import STATE, Paths
from q36eval.errors import ExitCode, UsageError


def doctor(
    context: typer.Context,
    ask_hub: Annotated[bool, typer.Option("--hub", help="Also show whether the Hugging Face hub answers.")] = False,
    base_url: BaseUrl = None,
    served_model: ServedModel = None,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            help="With --base-url: the branch that is served, by name or folder; shows what a gate could measure.",
            metavar="BRANCH|DIR",
            autocompletion=completion.branches,
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="With --branch: this many requests at once.", min=1)
    ] = None,
    family: FamilyOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show versions, devices, folders and problems.

    Says where data and state lie and why; with --base-url also what a server can do and what a gate could measure
    through it. Exit 2 when something stands in a gate's way.
    """
    from dataclasses import replace

    from q36eval.app.doctor import diagnosis

    paths = Paths.default()
    if STATE in context.meta:
        paths = replace(paths, state_because=context.meta[STATE])
    if base_url is None and (branch, served_model, batch_size, family) != (None,) * 4:
        raise UsageError(
            "option-missing",
            "--branch, --served-model, --batch-size and --family are about a server: name it with --base-url.",
        )

    def look() -> dict[str, Any]:
        from q36eval.app.targets import load_family, resolve
        from q36eval.engines import EngineOptions
        from q36eval.engines.openai.examination import examined

        options = EngineOptions(kind="openai", base_url=base_url, served_model=served_model, batch_rows=batch_size)
        if branch is None:
            return examined(options, None)
        return examined(options, options.of(resolve(branch, load_family(family, paths), paths).folder))

    body = diagnosis(paths, ask_hub=ask_hub, endpoint=None if base_url is None else look)
    if as_json:
        print_json(body)
    else:
        _print(body)
    return int(ExitCode.USAGE if body["problems"] else ExitCode.PASS)


def _print(body: dict[str, Any]) -> None:
    from q36eval.app.doctor import lines
    from q36eval.inert_text import SENTENCE, plain

    for label, text in lines(body):
        print(f"{label:<10}{plain(text, SENTENCE)}")
