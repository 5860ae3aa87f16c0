"""`q36eval doctor`: the installation, and the obstacles to a gate."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.engine_options import DeviceOption, fitting
from q36eval.app.cli.options import (
    CHECKPOINT,
    WHAT,
    JsonOption,
    PolicyOption,
    ReferenceOption,
    SuiteOption,
    load_policy,
    note,
    open_history,
    print_json,
    resolve_reference,
)
from q36eval.app.targets import family_of, resolve
from q36eval.config.paths import STATE, Paths
from q36eval.engines import EngineOptions
from q36eval.errors import ExitCode, UsageError
from q36eval.run.request import ALL_PROBES, Request, probes_for

if TYPE_CHECKING:
    from q36eval.app.needs import Asked, Looked


def doctor(
    context: typer.Context,
    branch: Annotated[
        str | None, typer.Option("--branch", help=f"{WHAT}: show what a gate of it needs.", **CHECKPOINT)
    ] = None,
    reference: ReferenceOption = None,
    suite: SuiteOption = None,
    policy: PolicyOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> int:
    """Show versions, devices, folders and problems.

    Reports which folders data and state are in, and why; with --branch also what its gate needs. Exit 2 when something
    stands in a gate's way.
    """
    from q36eval.app.cli.plan_command import print_rows
    from q36eval.app.doctor import diagnosis, lines
    from q36eval.inert_text import SENTENCE, plain

    paths = Paths.default()
    if STATE in context.meta:
        paths = replace(paths, state_because=context.meta[STATE])
    body = diagnosis(paths)
    looked = None
    if branch is not None and body["devices"]:  # PyTorch can be imported
        from q36eval.app.needs import Asked

        looked = _look(branch, Asked(branch, reference, None, suite, policy), device, paths)
        body["rows"] = [asdict(row) for row in looked.rows]
    if as_json:
        print_json(body)
    else:
        for label, text in lines({name: value for name, value in body.items() if name != "rows"}):
            print(f"{label:<12}{plain(text, SENTENCE)}")
        print_rows(looked.rows if looked else ())
    refused = looked is not None and looked.refused is not None
    return int(ExitCode.USAGE if body["problems"] or refused else ExitCode.PASS)


def _look(branch: str, asked: "Asked", device: str, paths: Paths) -> "Looked":
    """Check the needs of a gate with these options, as far as a request can be built; nothing large is downloaded."""
    from q36eval.app.needs import Looked, look, rows_of
    from q36eval.app.policies.files import declared_policy
    from q36eval.run.preflight import Problem, collecting

    found: list[Problem] = []
    engine = fitting(EngineOptions(device=device), found)
    with collecting(found):
        family = family_of(None, paths, branch, asked.reference, notify=note, download=False)
        suite = asked.suite or family.suite
        target = resolve(branch, family, paths, note, download=False)
        against, rules = None, None
        with collecting(found):
            against = resolve_reference(asked.reference, None, family, paths, download=False)
        with collecting(found):
            rules = load_policy(asked.policy, family, paths, suite)
            rules = rules.for_lanes(family.lanes_of(target.name, None))
        declared = None if rules is None else declared_policy(family, paths)
        probes = ALL_PROBES if rules is None else probes_for(rules)
        request = Request(family, target, against, suite, rules, declared, probes, engine)
        return look(request, asked, paths, open_history(paths) if paths.has_history else None, found)
    refused = UsageError(found[0].code, found[0].message)
    return Looked(tuple(rows_of(found, asked)), refused=refused)
