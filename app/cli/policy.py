"""`q36eval policy`: the rules for a release, explained and checked."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.options import JsonOption, OwnCanaries, SuiteOption, print_json
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode

if TYPE_CHECKING:
    from q36eval.gate import Policy

app = typer.Typer(no_args_is_help=True, help="List, explain and check policies.")

ForFamily = Annotated[
    str | None,
    typer.Option("--family", help="Family name or file; the policy's own by default.", metavar="NAME|FILE"),
]
PolicyArgument = Annotated[
    str,
    typer.Argument(help="A shipped policy, or a .yaml file.", metavar="NAME|FILE"),
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

    from q36eval.app.policies.files import policy_file
    from q36eval.app.policies.policy_check import check_policy

    paths = Paths.default()
    checked = check_policy(policy_file(policy, paths), paths, family, suite, canaries)
    if as_json:
        print_json({**asdict(checked), "sound": checked.sound})
    else:
        from q36eval.app.cli.policy_report import LONG
        from q36eval.inert_text import plain

        for sentence in checked.problems:
            print(f"wrong: {plain(sentence, LONG)}")
        for sentence in checked.remarks:
            print(f"note: {plain(sentence, LONG)}")
        verdict = "sound" if checked.sound else f"not sound, {len(checked.problems)} to fix"
        print(
            f"{plain(checked.file)}: {verdict}" + (f" (for {checked.checked_for})" if checked.checked_for else "") + "."
        )
    return int(ExitCode.PASS if checked.sound else ExitCode.USAGE)


@app.command("explain")
def explain(
    policy: PolicyArgument,
    full: Annotated[
        bool, typer.Option("--full", help="Print the policy itself, with all that it inherits, as a file.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Explain in words what a policy would block.

    What blocks a branch, and what is only shown. With --json the whole policy as runs store it.
    """
    rules = _load(policy)
    whole = json.loads(rules.model_dump_json())
    if as_json:
        print_json(whole)
    elif full:
        import yaml

        from q36eval.inert_text import plain

        print(f"# whole; made of {plain(', '.join(whole.pop('lineage'))) or 'no other'}")
        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120), end="")
    else:
        from rich.console import Console

        from q36eval.app.cli.policy_report import policy_parts

        for part in policy_parts(rules):
            Console(markup=False, highlight=False).print(part)


def _load(policy: str) -> "Policy":
    from q36eval.app.policies.files import policy_file
    from q36eval.gate.policy_file import read_policy

    return read_policy(policy_file(policy, Paths.default()))
