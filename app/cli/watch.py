"""`q36eval watch`: a deployment is evaluated continuously with a few requests at a time."""

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated

import typer

from q36eval.app.cli.engine_options import BaseUrl, ServedModel
from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    Quiet,
    load_policy,
    note,
    open_history,
    say,
    show_targets,
)
from q36eval.app.cli.streams import kept_in_history
from q36eval.app.targets import family_of, resolve
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode
from q36eval.files import real_path


def watch(
    deployment: Annotated[
        str,
        typer.Option(help="Name of the deployment, or a .yaml file that describes it.", metavar="NAME|FILE"),
    ],
    branch: Annotated[
        str | None,
        typer.Option(
            help="Branch that is served, or a folder with its tokenizer and configuration; for a GGUF its original.",
        ),
    ] = None,
    base_url: BaseUrl = None,
    served_model: ServedModel = None,
    family: FamilyOption = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Policy name or file; watch by default.", metavar="NAME|FILE"),
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Time between two rounds: 90s, 15m, 2h; 15m by default.", metavar="TIME")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Run one round and exit, for cron and timers.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve /metrics, /healthz and /readyz at this port; 0 takes a free one.", min=0, max=65535),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Network address on which these pages are served.", metavar="ADDRESS")
    ] = "127.0.0.1",
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Start a new baseline, after a change that you wanted.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Watch a served model, and report when it has changed.

    The first rounds are the baseline; required prompts, fresh variants, log-probabilities and repeated requests are
    compared with it, within a budget. Each round is kept in history. Exit codes of --once: 0 PASS, 1 FAIL (a confirmed
    incident), 2 usage, 3 INCONCLUSIVE, 4 not measured. SIGTERM ends the service with exit code 0.
    """
    from q36eval.interrupts import Terminated
    from q36eval.provenance import provenance
    from q36eval.watch.pages import Pages
    from q36eval.watch.service import Outcome, Setting, Watch
    from q36eval.watch.settings import Deployment
    from q36eval.watch.webhooks import receivers

    paths = Paths.default()
    watched = Deployment.named(
        deployment,
        branch=branch,
        base_url=base_url,
        served_model=served_model,
        family=family,
        policy=policy,
        every=every,
    )
    chosen = family_of(watched.family, paths, watched.branch, needs_reference=False, notify=note)
    made_with = provenance(paths.repository)
    setting = Setting(
        deployment=watched,
        family=chosen,
        policy=load_policy(watched.policy, chosen, paths),
        folder=_folder(watched.branch, chosen, paths),
        state=paths.state / "watch" / watched.name,
        open_history=lambda: open_history(paths, writing=True),
        receivers=tuple(receivers(watched.webhooks, watched.slack)),
        provenance=made_with,
    )

    def told(outcome: Outcome) -> None:
        if as_json:
            sys.stdout.write(json.dumps(outcome.body, sort_keys=True) + "\n")
        elif Quiet.wanted:
            print(outcome.result)
        else:
            ran = "" if outcome.run is None else f"  run {outcome.run}"
            result = outcome.result.replace("_", " ").upper()
            print(f"{outcome.at:%Y-%m-%d %H:%M:%S} {watched.name}: {result}: {outcome.reason}{ran}")
        sys.stdout.flush()

    kept_in_history()
    with Watch(setting, say, recalibrate=recalibrate) as running:
        pages = None
        if metrics_port is not None:
            pages = Pages(running, metrics_host, metrics_port, str(made_with["packages"].get("q36eval")))
            say(f"Metrics are served at {pages.address}/metrics.")
        if once:
            outcome = running.once()
            told(outcome)
            return int(outcome.exit_code)
        try:
            _wait_for(lambda: running.forever(told))
        except Terminated:
            say(f"{watched.name}: stopped by SIGTERM; measurements are kept.")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(ExitCode.PASS)
    return int(ExitCode.PASS)


def _wait_for(loop: Callable[[], None]) -> None:
    """Run the loop in a separate thread, so that a signal ends the process at any time: a library's name lookup blocks
    signals. The data on disk is always consistent.

    Raises:
        KeyboardInterrupt: a signal came.
        Exception: the loop raised it.
    """
    ended = Future[None]()

    def run() -> None:
        try:
            loop()
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True, name="rounds").start()
    ended.result()


def _folder(branch: str, family: Family, paths: Paths) -> Path:
    """The branch's folder. If it is not a branch's name, tokenizer and configuration are enough."""
    folder = Path(branch)
    if branch not in family.branches and (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file():
        return real_path(folder)
    target = resolve(branch, family, paths, note)
    show_targets([target])
    return target.folder
