"""Options of every command, before and after its name: places of state and history, verbosity, colour."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Annotated, Any

import typer

from q36eval.app.cli.options import Quiet, given_options, remark
from q36eval.config import Paths, Project
from q36eval.config.paths import HISTORY, STATE
from q36eval.config.project import names_a_program
from q36eval.engines import EngineOptions, opens_checkpoints
from q36eval.engines.base import ENGINE_ARG
from q36eval.errors import UsageError

NO_HISTORY = ("branches", "init", "data", "sandbox", "policy list", "policy explain")
"""Commands and groups that do not use history: they do not take `--history`."""

ENGINE = ("device", "kind", "engine_arguments")
MODEL = ("reference", "reference_pack", "suite", "policy", "lane")
"""Settings of the project's family, ignored if the command line names another family."""
OF_PROJECT: dict[str, tuple[str, ...]] = {
    "gate": (*MODEL, *ENGINE, "out"),
    **dict.fromkeys(("kl", "evals", "canaries"), ("reference", "reference_pack", "suite", *ENGINE)),
    "doctor": ("reference", "suite", "policy", "device"),
    "attribute": ("reference", "suite", "device"),
    "inspect": ("reference",),
    "reference capture": ("reference", "suite", *ENGINE),
    "canaries list": ("suite",),
    "policy check": ("suite",),
    "review waive": ("policy",),
}
"""The parameters of each command with defaults in the project file; the family is read where one is chosen."""
PROJECT_KEYS = {"kind": "engine", "lane": "lanes"}
"""Keys of the project file whose name differs from the parameter's."""


def with_everywhere(program: Any) -> Any:
    """The parser's commands, each with the options below, and with plain words for values in its help."""
    state, history, quiet, no_color = _options()
    for name, command in _commands(program, ""):
        reads = not any(name == each or name.startswith(f"{each} ") for each in NO_HISTORY)
        command.params += [state, *([history] if reads else []), quiet, no_color]
        for parameter in command.params:
            _name_value(parameter)
        if name in OF_PROJECT:
            command.invoke = partial(_invoke_with_project, command, command.invoke, OF_PROJECT[name])
        if any(ENGINE_ARG in parameter.opts for parameter in command.params):
            command.format_epilog = MethodType(_format_epilog, command)
    return program


def _invoke_with_project(command: Any, invoke: Callable[[Any], Any], names: tuple[str, ...], context: Any) -> Any:
    """Run the command with the project file's defaults; a resumed run keeps its own options."""
    given, project = given_options(context), Project.here()
    of_another = "family" in given or _names_another_family(context, project)
    held_back = {*given, *(MODEL if of_another else ()), *(ENGINE[2:] if "kind" in given else ())}
    if "resume" in given:
        names = ("out",)
    if not {"reference", "reference_pack"}.isdisjoint(given):
        held_back |= {"reference", "reference_pack"}
    if command.name == "capture" and project.engine is not None:
        held_back |= set() if opens_checkpoints(EngineOptions(kind=project.engine)) else {*ENGINE[1:]}
    used = []
    for parameter in command.params:
        key = PROJECT_KEYS.get(parameter.name, parameter.name)
        if parameter.name in names and parameter.name not in held_back and (value := getattr(project, key)):
            if key == "engine_arguments":
                _check_own(project.file, value)
            context.params[parameter.name] = parameter.process_value(context, value)
            used.append(key)
    if used:
        remark(f"{project.file} gives {', '.join(used)}.")
    return invoke(context)


def _check_own(file: Path | None, arguments: tuple[str, ...]) -> None:
    """Refuse another Python, and vLLM's own arguments, which can name classes and remote code."""
    own = {option.name for option in EngineOptions.described().values()}
    for argument in arguments:
        name = argument.partition("=")[0].strip().replace("-", "_")
        if names_a_program(argument) or name not in own:
            said = f"{name} may not be set there; give it on the command line."
            raise UsageError("file-invalid", f"The project file {file} is wrong at engine_arguments: {said}")


def _names_another_family(context: Any, project: Project) -> bool:
    """Whether a branch is given as one of another family than the project's, to which the settings do not apply."""
    from q36eval.app.names import family_called

    named = context.params.get("branch") or ()
    prefixes = [each.partition("/")[0] for each in ([named] if isinstance(named, str) else named) if "/" in each]
    found = [family_called(prefix, None, Paths.default()) for prefix in prefixes]
    return any(family is not None and family.name != project.family for family in found)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for each, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{name} {each}".strip())


def _option(*names: str, callback: Any, help: str, metavar: str | None = None) -> Any:
    given: dict[str, Any] = {"is_eager": True, "expose_value": False}
    return typer.Option(*names, callback=callback, help=help, metavar=metavar, **given)


def _options() -> list[Any]:
    """Built from a command without other options."""
    state = "Folder of history and captures, instead of the one that q36eval doctor shows."
    history = "History to use instead of the state's own: a file, or a database URL."
    quiet = "Print verdicts and errors alone: no progress, no tables."
    only = typer.Typer(add_completion=False)

    @only.command()
    def _takes_them(
        _state: Annotated[str | None, _option("--state", callback=_use_state, help=state, metavar="DIR")] = None,
        _history: Annotated[
            str | None, _option("--history", callback=_use_history, help=history, metavar="FILE|URL")
        ] = None,
        _quiet: Annotated[bool, _option("--quiet", "-q", callback=_be_quiet, help=quiet)] = False,
        _no_color: Annotated[
            bool, _option("--no-color", callback=_without_colors, help="Print without colours, as with NO_COLOR=1.")
        ] = False,
    ) -> None:
        pass

    return list(typer.main.get_command(only).params)[:4]


def _use_state(context: typer.Context, folder: str | None) -> None:
    if folder is None:
        return
    if not folder:
        raise UsageError("option-empty", "--state names no folder.")
    os.environ[STATE] = folder  # for child processes, too
    context.meta[STATE] = "named by --state"


def _use_history(named: str | None) -> None:
    """Only in the environment: a URL may hold a password, and process arguments are public."""
    if named is None:
        return
    if not named.strip():
        raise UsageError("option-empty", "--history names no file.")
    os.environ[HISTORY] = named


def _be_quiet(context: typer.Context, wanted: bool) -> None:
    if context.parent is None or wanted:  # the program's own option starts each call again
        Quiet.wanted = wanted


def _without_colors(wanted: bool) -> None:
    if wanted:
        os.environ["NO_COLOR"] = "1"


def _name_value(parameter: Any) -> None:
    """A value is shown as N if it is a number, as its choices if it has some, else by its option's name."""
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: ""  # its name is enough
    if parameter.metavar is not None or getattr(parameter, "is_flag", False):
        return
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.name.upper()
        return
    choices, ranged = _values(parameter)
    named = parameter.opts[0].lstrip("-").replace("-", "_").upper()
    parameter.metavar = "N" if ranged else "|".join(map(str, choices)) if choices else named


def _values(parameter: Any) -> tuple[Any, bool]:
    """The choices, None if any value is allowed; and whether it is a number within bounds."""
    told = getattr(parameter, "type_descriptor", None)
    if told is None:  # Typer over click, before it had a parser of its own
        return getattr(parameter.type, "choices", None), hasattr(parameter.type, "clamp")
    return told.choices if told.is_choice else None, told.is_ranged


def _format_epilog(_command: Any, _context: Any, formatter: Any) -> None:
    """The names of an engine's arguments, below its options."""
    with formatter.section(f"NAME of {ENGINE_ARG}; others are vLLM's own"):
        own = [option for option in EngineOptions.described().values() if option.flag is None]
        formatter.write_dl([(f"{option.name}={option.metavar}", option.help) for option in own])
