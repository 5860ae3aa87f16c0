"""`q36eval watch`: a deployment asked a little at a time, for as long as it serves."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from q36eval.app.cli.engine_options import BaseUrl, ServedModel
from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    Quiet,
    load_policy,
    open_history,
    say,
)
from q36eval.app.cli.streams import kept_in_history
from q36eval.app.targets import load_family, resolve
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode
from q36eval.files import real_path

PATIENCE_S = 4.0
"""After SIGTERM so long at most until the process has ended."""


def watch(
    deployment: Annotated[
        str,
        typer.Option(help="Name of the deployment, or a .yaml file that describes it.", metavar="NAME|FILE"),
    ],
    branch: Annotated[
        str | None,
        typer.Option(
            help="Branch that is served, or a folder with its tokenizer and configuration.",
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
    once: Annotated[bool, typer.Option("--once", help="Make one round and leave, for cron and timers.")] = False,
    budget_requests: Annotated[
        int | None, typer.Option(help="HTTP requests a day (UTC) at most; 5000 by default.", min=1, metavar="N")
    ] = None,
    budget_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of prompts and answers a day at most; 2000000 by default.", min=1, metavar="TOKENS"),
    ] = None,
    round_requests: Annotated[
        int | None, typer.Option(help="HTTP requests of one round at most; 60 by default.", min=8, metavar="N")
    ] = None,
    round_tokens: Annotated[
        int | None, typer.Option(help="Tokens of one round at most; 60000 by default.", min=1, metavar="TOKENS")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Serve /metrics, /healthz and /readyz at this port; 0 takes a free one.", min=0, max=65535),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(help="Address that these pages are served at.", metavar="ADDRESS")
    ] = "127.0.0.1",
    webhook: Annotated[
        list[str] | None,
        typer.Option(
            help="Send incidents to this address as JSON, signed with Q36EVAL_WATCH_SECRET; repeat it for several.",
            metavar="URL",
        ),
    ] = None,
    slack: Annotated[
        list[str] | None,
        typer.Option(help="Send incidents to this Slack-compatible address; repeat it for several.", metavar="URL"),
    ] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Begin a new baseline: the deployment changed, and is good.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Watch a served model, and say when it has changed.

    The first rounds are the baseline; required prompts, fresh variants, log-probabilities and repeated requests are
    held against it, within a budget. Each round is kept in history. Exit codes of --once: 0 PASS, 1 FAIL (a confirmed
    incident), 2 usage, 3 INCONCLUSIVE, 4 not measured. SIGTERM ends the service with 0.
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
        requests_per_day=budget_requests,
        tokens_per_day=budget_tokens,
        requests_per_round=round_requests,
        tokens_per_round=round_tokens,
        webhooks=tuple(webhook or ()),
        slack=tuple(slack or ()),
    )
    chosen = load_family(watched.family, paths)
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
            print(f"{outcome.at:%Y-%m-%d %H:%M:%S} {watched.name}: {outcome.result}: {outcome.reason}{ran}")
        sys.stdout.flush()

    stopped = False
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
            with _ended_in_time():
                running.forever(told)
        except Terminated:
            stopped = True
            say(f"{watched.name}: stopped by SIGTERM; what was measured is kept.")
    if stopped:
        _end_at_once()
    return int(ExitCode.PASS)


@contextmanager
def _ended_in_time() -> Iterator[None]:
    """Within, SIGTERM ends the process after some seconds whatever it is at: a name that is looked up, in the system's
    library, hears of no signal. What is on the disk is whole at every moment."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)

    def await_signal() -> None:
        while signal.SIGTERM not in (came := os.read(ours, 64)):
            if not came:
                return
        time.sleep(PATIENCE_S)
        os._exit(ExitCode.PASS)

    threading.Thread(target=await_signal, daemon=True, name="last resort").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(theirs)


def _end_at_once() -> None:
    """End the process: all is kept, and the libraries take seconds to take themselves apart, or wait for a server."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ExitCode.PASS)


def _folder(branch: str, family: Family, paths: Paths) -> Path:
    """The branch's folder. Of one that is no branch's name, tokenizer and configuration are enough."""
    folder = Path(branch)
    if branch not in family.branches and (folder / "config.json").is_file() and (folder / "tokenizer.json").is_file():
        return real_path(folder)
    return resolve(branch, family, paths).folder
