"""The engine options of every command that opens one, built only from `EngineOptions`."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from q36eval.engines import EngineOptions, check_options, opens_checkpoints
from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.run.preflight import Problem

DEVICES = re.compile(r"cpu|cuda(:\d{1,3})?", re.ASCII)
WORKERS_OWN = ("cuda", "cuda:0")
"""Devices that each worker owns."""

NO_REFERENCE = (
    "The engine {engine} cannot capture a reference: a server gives no hidden states. Capture in-process (without "
    "--engine) or with --engine vllm."
)

Command = Callable[..., Any]


def engine_options(*, of_reference: bool = False, checked: bool = True) -> Callable[[Command], Command]:
    """A decorator: the command's parameter of type `EngineOptions` becomes the options of the command line.

    `of_reference` leaves out, and refuses, what only a branch has. A command that is not `checked` calls
    `fitting` itself, and reports what else is missing too.
    """

    def decorate(command: Command) -> Command:
        signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
        (place,) = [name for name, hint in hints.items() if hint is EngineOptions]
        shown = {
            name: option
            for name, option in EngineOptions.described().items()
            if option.flag is not None and not (of_reference and option.of_branch)
        }

        @wraps(command)
        def with_options(**values: Any) -> Any:
            given = {name: values.pop(name) for name in shown}
            arguments = given.pop("engine_arguments") or ()
            options = EngineOptions.read(given, arguments)
            if of_reference:
                _check_of_reference(options)
            if checked:
                check_engine(options)
            return command(**values, **{place: options})

        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == place:
                parameters += [_parameter(name) for name in shown]
            else:
                parameters.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))
        with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_options

    return decorate


def option_of(name: str) -> Any:
    """The option of one field, for a command that has no engine to choose: `--served-model`, say."""
    option = EngineOptions.described()[name]
    return typer.Option(
        option.flag or f"--{option.name.replace('_', '-')}",
        help=option.help,
        metavar=option.metavar,
        min=1 if EngineOptions.__dataclass_fields__[name].type == int | None else None,
    )


BaseUrl = Annotated[str | None, option_of("base_url")]
ServedModel = Annotated[str | None, option_of("served_model")]
DeviceOption = Annotated[str, option_of("device")]


def check_engine(options: EngineOptions) -> None:
    """Refuse an unavailable engine or device, and an option that the engine does not support.

    Raises:
        UsageError: names it.
    """
    if options.workers is None or options.device in WORKERS_OWN:
        check_device(options.device)
    if options != EngineOptions(device=options.device):  # the engine's import takes seconds
        check_options(options)


def fitting(options: EngineOptions, problems: "list[Problem]") -> EngineOptions:
    """These options, with the CPU in place of an unavailable device, which is added to `problems`.

    Raises:
        UsageError: as `check_engine`, for everything else.
    """
    from q36eval.run.preflight import Problem

    try:
        check_engine(options)
    except UsageError as error:
        if not error.code.startswith("device-"):
            raise
        problems.append(Problem(error.code, str(error)))
        return fitting(replace(options, device="cpu"), problems)
    return options


def check_device(device: str) -> None:
    """Refuse an unavailable device.

    Raises:
        UsageError: no such device.
    """
    if device == "cpu":
        return
    import torch

    if not DEVICES.fullmatch(device):
        raise UsageError(
            "device-unknown", f"There is no device {device!r}; valid names are cpu, cuda, cuda:0, cuda:1 …"
        )
    if torch.version.cuda is None and torch.version.hip is None:
        release = torch.__version__.partition("+")[0]
        raise UsageError(
            "device-unavailable",
            f"The installed torch {torch.__version__} has no CUDA, so there is no {device!r}; use cpu, or run: pip "
            f"install --force-reinstall --index-url https://pypi.org/simple torch=={release}",
        )
    number = int(device.partition(":")[2] or 0)
    if number >= (count := torch.cuda.device_count()):
        has = f"here are {count} GPUs, cuda:0 to cuda:{count - 1}" if count else "torch finds no GPU here"
        raise UsageError(
            "device-unavailable", f"The device {device!r} is not available: {has}; use cpu, or one of them."
        )


def _check_of_reference(options: EngineOptions) -> None:
    if not opens_checkpoints(EngineOptions(kind=options.kind)):
        raise UsageError("engine-gives-no-reference", NO_REFERENCE.format(engine=options.kind))
    described = EngineOptions.described()
    for each in fields(EngineOptions):
        if described[each.name].of_branch and getattr(options, each.name) != each.default:
            raise UsageError(
                "option-conflict", f"{described[each.name].written} does not apply to the reference; remove it."
            )


def _parameter(name: str) -> inspect.Parameter:
    field = EngineOptions.__dataclass_fields__[name]
    repeated = field.default == ()
    kind: Any = list[str] | None if repeated else field.type
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if repeated else field.default,
        annotation=Annotated[kind, option_of(name)],
    )
