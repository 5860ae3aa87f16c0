"""Wires the commands by name. Heavy imports happen inside the command that needs them."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import shell_complete

from q36eval.app.cli import (
    attribute,
    branches,
    canaries,
    data,
    doctor,
    drift,
    gate,
    history,
    init,
    inspect,
    one_probe,
    policy,
    reference,
    report,
    review,
    sandbox,
    served,
    ui,
    watch,
)
from q36eval.app.cli.common_options import with_everywhere
from q36eval.app.cli.options import PRECEDENCE, print_json, say, worst
from q36eval.app.cli.streams import tolerant_output
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, Q36Error
from q36eval.interrupts import Terminated, stoppable
from q36eval.redaction import redacted

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
"""The errors of a disk that is full, read-only, inaccessible or broken."""

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Those that more space would fix."""

COMPLETING = "_Q36EVAL_COMPLETE"
"""The environment variable of a shell's completion script for this program."""

app = typer.Typer(
    name="q36eval",
    help="Release gate for quantized LLM branches: PASS, FAIL or INCONCLUSIVE against BF16.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from q36eval.provenance import version_line

        print(version_line())
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What comes before a command's name."""


app.command("gate", cls=gate.GateCommand)(gate.gate)
app.command("branches")(branches.branches)
app.command("init")(init.init)
app.command("inspect")(inspect.inspect)
app.command("attribute")(attribute.attribute)
app.command("kl")(one_probe.kl)
app.command("evals")(one_probe.evals)
app.add_typer(canaries.app, name="canaries")
app.command("served")(served.served)
app.command("watch")(watch.watch)
app.add_typer(reference.app, name="reference")
app.add_typer(history.app, name="history")
app.add_typer(policy.app, name="policy")
app.command("drift")(drift.drift)
app.add_typer(review.app, name="review")
app.command("report")(report.report)
app.add_typer(data.app, name="data")
app.add_typer(sandbox.app, name="sandbox")
app.command("ui")(ui.ui)
app.command("doctor")(doctor.doctor)


def program() -> Any:
    """The command line as the parser has it: every command, each with what all of them take."""
    return with_everywhere(typer.main.get_command(app))


def main() -> None:
    """Run the command; exit with the code of the outcome, one sentence for every error, no traceback."""
    with stoppable(), tolerant_output() as output:
        code = _run()
        output.end()
        lost = output.failure()
        if lost is not None:
            say(f"{lost} [output-lost]")
        if lost is not None and not output.is_kept and code in PRECEDENCE:
            code = worst([code, ExitCode.NOT_MEASURED])
    sys.exit(code)


def _run() -> int:
    command = program()
    if instruction := os.environ.get(COMPLETING):  # a shell requests completions
        return shell_complete(command, {}, "q36eval", COMPLETING, instruction)
    try:
        # not by calling it, which would turn Ctrl-C into an exit code and lose the message
        with command.make_context("q36eval", sys.argv[1:]) as context:
            result = command.invoke(context)
    except Q36Error as error:
        problems = getattr(error, "problems", ())
        rows = getattr(error, "rows", ())
        if len(problems) > 1 or rows:
            return _failed_by([(problem.code, problem.message) for problem in problems], error.exit_code, rows)
        return _failed(error.code, " ".join([str(error), *_notes(error)]), error.exit_code)
    except typer.Exit as leave:
        return leave.exit_code
    except (KeyboardInterrupt, typer.Abort) as error:
        terminated = isinstance(error, Terminated)
        with suppress(KeyboardInterrupt):  # a second Ctrl-C; nobody reads the message
            say(" ".join(["Stopped by SIGTERM." if terminated else "Interrupted.", *_notes(error)]))
        return ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED
    except OSError as error:
        if error.errno not in DISK:
            return _record_crash(error)
        where = "" if error.filename is None else f"{error.filename}: "
        code = "disk-full" if error.errno in FULL else "disk-failed"
        sentence = f"{where}{error.strerror or error}; no verdict; earlier measurements are kept."
        return _failed(code, sentence, ExitCode.NOT_MEASURED)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a package in Rust
            raise
        return _usage_code(error) or _record_crash(error)
    return result if isinstance(result, int) else 0


def _failed(code: str, sentence: str, exit_code: ExitCode) -> ExitCode:
    """Print the error with its code, and as a document if one is expected."""
    return _failed_by([(code, sentence)], exit_code)


def _failed_by(problems: Sequence[tuple[str, str]], exit_code: ExitCode, rows: Sequence[Any] = ()) -> ExitCode:
    """Print every problem on a separate line; the caller has printed the `rows` of the table."""
    for code, sentence in problems:
        say(f"{sentence} [{code}]")
    if "--json" in sys.argv[1:]:
        listed = [{"code": code, "message": sentence} for code, sentence in problems]
        several = {"problems": listed} if len(listed) > 1 else {}
        table = {"rows": [asdict(row) for row in rows]} if rows else {}
        print_json({"error": {**listed[0], "exit_code": int(exit_code), **several, **table}})
    return exit_code


def _notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def _usage_code(error: BaseException) -> int | None:
    """The parser's own errors on wrong options, for any version of click: one sentence, and a pointer to the help."""
    message, context = getattr(error, "format_message", None), getattr(error, "ctx", None)
    if message is None or not hasattr(error, "exit_code"):
        return None
    sentence = message()
    if sentence.startswith("Usage:"):  # a group without a command: its help is the message
        print(sentence, file=sys.stderr)
        return ExitCode.USAGE
    near = getattr(error, "possibilities", None)
    if near:
        sentence = f"No such option: {error.option_name}. Did you mean {' or '.join(near)}?"  # type: ignore[attr-defined]
    end = "" if sentence.endswith((".", "?")) else "."
    help_of = "q36eval" if context is None else context.command_path
    return _failed("usage", f"{sentence}{end} See {help_of} --help.", ExitCode.USAGE)


def _record_crash(error: BaseException) -> int:
    try:
        log = Paths.default().state / "crash.log"
    except Exception:  # it may be the cause of the crash
        log = Path("q36eval-crash.log").absolute()
    details = f"details are in {log}"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            log.chmod(0o600)  # the crash data may contain secrets
            told = [f"--- {datetime.now(UTC).isoformat()} {' '.join(sys.argv)}\n", *traceback.format_exception(error)]
            file.write(redacted("".join(told)))
    except OSError as unwritten:
        details = f"details could not be kept in {log} ({unwritten.strerror})"
    code, what = "internal-error", "q36eval itself failed"
    if not isinstance(error, Exception):  # as tokenizers panics on an expression that never ends
        code, what = "tokenizer-failed", "A Rust package failed, most often on a checkpoint's tokenizer.json"
    sentence = f"{what} ({type(error).__name__}: {error}); nothing was judged, {details}."
    return _failed(code, sentence, ExitCode.NOT_MEASURED)
