"""`q36eval policy`: what decides about a release, checked, explained, and calibrated against measured noise."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli import completing
from q36eval.app.cli.options import JsonOption, OwnCanaries, SuiteOption, print_json
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from q36eval.gate import Policy

app = typer.Typer(no_args_is_help=True, help="List, explain, check and calibrate policies.")

ForFamily = Annotated[
    str | None,
    typer.Option("--family", help="Family name or file; the policy's own by default.", metavar="NAME|FILE"),
]
PolicyArgument = Annotated[
    str,
    typer.Argument(help="A shipped policy, or a .yaml file.", metavar="NAME|FILE", autocompletion=completing.policies),
]


@app.command("list")
def list_policies(as_json: JsonOption = False) -> None:
    """List the shipped policies."""
    from q36eval.app.policies.files import shipped_policies
    from q36eval.gate.policy_file import read_policy

    rows = [_row(read_policy(file)) for file in shipped_policies(Paths.default()).values()]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        made_of = f", extends {row['lineage'][-1]}" if row["lineage"] else ""
        tiers = f"{row['blocking']} blocking, {row['advisory']} advisory"
        print(f"{row['name']}: {row['purpose']}; {', '.join(row['lanes'])}; {tiers}{made_of}")
        print(f"    {row['description']}")


def _row(policy: "Policy") -> dict[str, Any]:
    tiers = [criterion.tier for criterion in policy.criteria]
    return {
        "name": policy.name,
        "lineage": list(policy.lineage),
        "lanes": [lane.value for lane in policy.lanes],
        "blocking": tiers.count("blocking"),
        "advisory": tiers.count("advisory"),
        "purpose": policy.purpose,
        "description": policy.description,
    }


@app.command("show")
def show(policy: PolicyArgument, as_json: JsonOption = False) -> None:
    """Print a policy with all that it inherits.

    As a file that extends no other; with --json as runs store it.
    """
    whole = json.loads(_load(policy).model_dump_json())
    if as_json:
        print_json(whole)
        return
    import yaml

    from q36eval.reports.text import plain

    print(f"# whole; made of {plain(', '.join(whole['lineage'])) or 'no other'}")
    del whole["lineage"]
    print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120), end="")


@app.command("check")
def check(
    policy: PolicyArgument,
    family: ForFamily = None,
    suite: SuiteOption = None,
    canaries: OwnCanaries = None,
    as_json: JsonOption = False,
) -> int:
    """Report everything that is wrong with a policy.

    Exit 2 when it cannot be judged as written.
    """
    from dataclasses import asdict

    from q36eval.app.policies.checking import check_policy
    from q36eval.app.policies.files import policy_file

    paths = Paths.default()
    checked = check_policy(policy_file(policy, paths), paths, family, suite, canaries)
    if as_json:
        print_json({**asdict(checked), "sound": checked.sound})
    else:
        from q36eval.app.cli.policy_report import LONG
        from q36eval.reports.text import plain

        for sentence in checked.problems:
            print(f"wrong: {plain(sentence, LONG)}")
        for sentence in checked.remarks:
            print(f"note: {plain(sentence, LONG)}")
        verdict = "sound" if checked.sound else f"not sound, {len(checked.problems)} to fix"
        print(
            f"{plain(checked.file)}: {verdict}" + (f" (for {checked.checked_for})" if checked.checked_for else "") + "."
        )
        for sentence in checked.unseen:
            print(plain(f"texts: {sentence}"))
        if checked.floor:
            print(f"noise floor: {plain(checked.floor)}.")
    return int(ExitCode.PASS if checked.sound else ExitCode.USAGE)


@app.command("explain")
def explain(
    policy: PolicyArgument,
    family: ForFamily = None,
    suite: SuiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain in words what a policy would block.

    Lane by lane: what blocks a branch, and what only warns.
    """
    from dataclasses import asdict

    from q36eval.app.cli.policy_report import print_words
    from q36eval.app.policies.files import family_of, suite_of
    from q36eval.app.policies.words import explain as in_words
    from q36eval.run.declared_figures import Subject, declared_for

    rules, paths = _load(policy), Paths.default()
    chosen = family_of(rules, family, paths)
    declared = declared_for(Subject(chosen, suite or suite_of(rules, chosen)), paths)
    words = in_words(rules, declared)
    if as_json:
        print_json(asdict(words))
    else:
        print_words(words)


@app.command("schema")
def schema(_as_json: JsonOption = True) -> None:
    """Print the JSON Schema of a policy file, for editors."""
    from q36eval.gate.policy_schema import policy_schema

    print(json.dumps(policy_schema(), indent=1, ensure_ascii=False))


@app.command("calibrate")
def calibrate(
    policy: PolicyArgument,
    family: ForFamily = None,
    run: Annotated[
        list[str] | None, typer.Option("--run", help="Also count this run as accepted, blessed or not.", metavar="RUN")
    ] = None,
    widen: Annotated[bool, typer.Option(help="Also write wider margins, where the measured noise needs them.")] = False,
    scheme: Annotated[
        str | None,
        typer.Option(
            help="Set the figures of this scheme, such as NVFP4 or 'NVFP4 + FP8_BLOCK', from runs of other branches "
            "than the candidate.",
            metavar="NAME",
        ),
    ] = None,
    candidate: Annotated[
        str | None, typer.Option(help="Branch to be judged; its own runs set no figure.", metavar="NAME|PATH")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Who sets the figures of --scheme.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the new policy; the old name with -calibrated by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the changes as a policy that extends this one.", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Propose margins from measured noise.

    The noise is that of the reference against itself, of blessed runs, and the KL's noise floor. With --scheme,
    --candidate and --owner it sets a scheme's own figures from accepted runs of other branches.
    """
    from q36eval.app.cli.policy_report import print_calibration
    from q36eval.app.policies.calibrating import as_policy_file, calibration, write_policy
    from q36eval.app.policies.files import family_of
    from q36eval.app.policies.scheme_calibrating import Wanted, scheme_calibration

    paths = Paths.default()
    rules = _load(policy)
    chosen, named = family_of(rules, family, paths), tuple(run or ())
    if scheme is None and candidate is None and owner is None:
        calibrated = calibration(rules, chosen, paths, named)
    elif scheme is None or candidate is None or owner is None:
        raise UsageError(
            "option-missing", "A scheme's figures are set with --scheme, --candidate and --owner together."
        )
    else:
        wanted = Wanted(scheme, candidate, owner, datetime.now(UTC).date())
        calibrated = scheme_calibration(rules, chosen, paths, wanted, named)
    text = as_policy_file(calibrated, policy, out, name, widen=widen)
    if out is not None:
        write_policy(text, out)
    if as_json:
        print_json({**calibrated.as_json(), "file": None if out is None else str(out), "policy_yaml": text})
    else:
        print_calibration(calibrated, text, out, widen=widen)


def _load(policy: str) -> "Policy":
    from q36eval.app.policies.files import policy_file
    from q36eval.gate.policy_file import read_policy

    return read_policy(policy_file(policy, Paths.default()))
