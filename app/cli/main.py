"""Wires the commands by name. Heavy imports happen inside the command that needs them."""

import sys
import traceback
from datetime import UTC, datetime

import typer

from app.cli import (
    attribute,
    branches,
    canaries,
    checkpoint,
    data,
    drift,
    gate,
    history,
    policy,
    probes,
    reference,
    reference_floor,
    report,
    sandbox,
    ui,
)
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, Q36Error

app = typer.Typer(
    name="q36eval",
    help="Release gate for quantized LLM branches: PASS, FAIL or INCONCLUSIVE against BF16.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("gate")(gate.gate)
app.add_typer(branches.app, name="branches")
app.command("inspect")(checkpoint.inspect)
app.command("attribute")(attribute.attribute)
app.command("kl")(probes.kl)
app.command("evals")(probes.evals)
app.add_typer(canaries.app, name="canaries")
reference.app.command("floor")(reference_floor.floor)
app.add_typer(reference.app, name="reference")
app.add_typer(history.app, name="history")
app.add_typer(policy.app, name="policy")
app.command("drift")(drift.drift)
app.command("report")(report.report)
app.add_typer(data.app, name="data")
app.add_typer(sandbox.app, name="sandbox")
app.command("ui")(ui.ui)


def main() -> None:
    """Run the command; exit with DESIGN's codes, one sentence for every error, no traceback."""
    try:
        result = app(standalone_mode=False)
    except Q36Error as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _say("Interrupted; continue an interrupted gate with --resume.")
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        _exit_on_usage(error)
        sys.exit(_record_crash(error))
    sys.exit(result if isinstance(result, int) else 0)


def _exit_on_usage(error: Exception) -> None:
    """Wrong options are the parser's own errors, whichever click it is built on."""
    show = getattr(error, "show", None)
    if show is not None and hasattr(error, "exit_code"):
        show()
        sys.exit(ExitCode.USAGE)


def _record_crash(error: Exception) -> int:
    log = Paths.default().state / "crash.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"--- {datetime.now(UTC).isoformat()} {' '.join(sys.argv)}\n")
        file.write("".join(traceback.format_exception(error)))
    _say(f"q36eval itself failed ({type(error).__name__}: {error}); nothing was judged, details are in {log}.")
    return ExitCode.NOT_MEASURED


def _say(sentence: str) -> None:
    print(f"q36eval: {sentence}", file=sys.stderr)
