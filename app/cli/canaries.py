"""`q36eval canaries`: the probe alone, and work with canaries: list and check."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.one_probe import measure_alone, request_of
from q36eval.app.cli.options import (
    BRANCH_HELP,
    CHECKPOINT,
    FamilyOption,
    JsonOption,
    OwnCanaries,
    ReferenceOption,
    ReferencePackOption,
    SuiteOption,
    print_json,
)
from q36eval.app.cli.tables import print_parts
from q36eval.app.targets import chosen_family
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import ExitCode, UsageError
from q36eval.records import ProbeName
from q36eval.run.request import CanaryChoice

if TYPE_CHECKING:
    from q36eval.canaries.cases import Case
    from q36eval.canaries.specification import CanarySpec
    from q36eval.history import History, RunRecord

app = typer.Typer()

DRAWS_SHOWN = 3


@app.callback(invoke_without_command=True)
@engine_options()
def canaries(
    context: typer.Context,
    engine: EngineOptions,
    branch: Annotated[str | None, typer.Option("--branch", help=BRANCH_HELP, **CHECKPOINT)] = None,
    reference: ReferenceOption = None,
    reference_pack: ReferencePackOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    own: OwnCanaries = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Evaluate only this canary; repeat it for several.", metavar="ID")
    ] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws per family, instead of the suite's number.", min=1, max=100_000)
    ] = None,
    as_json: JsonOption = False,
) -> int | None:
    """Measure the canaries, or work with canary files.

    With --branch the canaries are measured against the reference: exit 0 when everything was measured, 4 when not.
    """
    if context.invoked_subcommand is not None:
        if branch is not None:
            raise UsageError(
                "option-conflict",
                f"--branch measures, and {context.invoked_subcommand!r} does not; give the options after the command.",
            )
        return None
    if branch is None:
        raise UsageError(
            "branch-required",
            "Name the branch to measure (q36eval canaries --branch NAME), or use list or check.",
        )

    from q36eval.app.cli.canaries_report import print_summary

    asked = (branch, family, reference, reference_pack, suite)
    chosen = CanaryChoice(own=own, only=tuple(only or ()), draws=draws)
    request = request_of(ProbeName.CANARIES, *asked, engine=engine, canaries=chosen)
    return measure_alone(request, as_json=as_json, body=_body, summary=print_summary)


def _body(run: "RunRecord", history: "History") -> dict[str, Any]:
    from q36eval.app.cli.canaries_report import canary_run
    from q36eval.app.figures.canaries import canaries_json

    return {"canaries": canaries_json(canary_run(run, history))}


@app.command("list")
def list_canaries(
    canary: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Show this canary: prompts, expected values, decisions.")
    ] = None,
    own: OwnCanaries = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    draws: Annotated[
        int, typer.Option(help="With ID: show this many draws of a family.", min=1, max=1_000)
    ] = DRAWS_SHOWN,
    as_json: JsonOption = False,
) -> int:
    """List the canaries and why each exists, or show one.

    The list has kind, lanes, the number of prompts in the suite, and where each canary runs.
    """
    if canary is not None:
        return _show(canary, own, draws, as_json)
    from q36eval.canaries.specification import STANDARD, draws_per_family, load_specs
    from q36eval.run.suites import named_canaries

    paths = Paths.default()
    chosen = chosen_family(family, paths)
    asked = suite or (STANDARD if chosen is None else chosen.suite)
    named = named_canaries(asked, paths)
    specs = load_specs(own=own, skills=None, n=draws_per_family(asked, named), named=named)
    rows = [_row(spec, chosen) for spec in specs]
    if as_json:
        print_json([dict(zip(("id", "kind", "lanes", "n", "where", "why"), row, strict=True)) for row in rows])
        return int(ExitCode.PASS)
    from rich.padding import Padding
    from rich.text import Text

    from q36eval.inert_text import plain

    for name, kind, lanes, count, where, why in rows:
        heading = Text(plain(f"{name} · {kind} · {lanes} · n = {count} · {where}"), style="bold")
        print_parts([heading, Padding(Text(plain(why)), (0, 0, 0, 4))])
    return int(ExitCode.PASS)


def _show(canary: str, own: Path | None, draws: int, as_json: bool) -> int:
    """One canary with its prompts; for people as YAML, the form of its file."""
    from q36eval.canaries.cases import cases_of
    from q36eval.canaries.specification import STANDARD, load_specs
    from q36eval.inert_text import block

    of_standard = any(spec.id == canary for spec in load_specs(skills=None, named=STANDARD))
    named = STANDARD if of_standard else None
    (spec,) = load_specs(own=own, only=[canary], n=draws, skills=None, named=named)
    body = spec.model_dump(mode="json", exclude={"must_pass", "family"})
    body |= {"kind": _kind(spec), "prompts": [_case(case) for case in cases_of(spec)]}
    if as_json:
        print_json(body)
    else:
        import yaml

        print(block(yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)), end="")
    return int(ExitCode.PASS)


@app.command("check")
def check(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER|FILE]...", help="Files or folders; the shipped canaries by default."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check canary files before they are used.

    Each file is sound, or one sentence says what is wrong with it; exit 2 when any is wrong.
    """
    from q36eval.canaries.specification import SPECS_FOLDER

    shipped = sorted(SPECS_FOLDER.rglob("*.yaml"))
    files = _files(places) if places else shipped
    checked = {file.resolve() for file in files}
    taken = {file.stem: file for file in shipped if places and file.resolve() not in checked}
    results = [_checked(file, taken) for file in files]
    bad = [result for result in results if not result["ok"]]
    if as_json:
        print_json(results)
    else:
        from q36eval.inert_text import plain

        print_parts(plain(f"{'ok ' if result['ok'] else 'BAD'}  {result['message']}") for result in results)
        print_parts([f"{len(bad)} of {len(results)} files cannot be used."] if bad else [])
    return int(ExitCode.USAGE if bad else ExitCode.PASS)


def _row(spec: "CanarySpec", chosen: Family | None) -> tuple[str, ...]:
    count = len(spec.must_pass or ()) if spec.family is None else spec.family.n
    lanes = ", ".join(lane.value for lane in spec.lanes)
    where = "everywhere"
    if spec.only_where_declared:
        missing = "" if chosen is None or spec.skill in chosen.skills else f"; not on {chosen.name}"
        where = f"where {spec.skill} is declared{missing}"
    return (spec.id, _kind(spec), lanes, str(count), where, " ".join(spec.why.split()))


def _kind(spec: "CanarySpec") -> str:
    if spec.family is not None:
        return "family"
    return "required" if spec.absolute else "fixed"


def _case(case: "Case") -> dict[str, Any]:
    from q36eval.canaries.checks import decisions

    answer = case.answer
    parts = decisions(answer, case.checks, case.expected, case.tools)
    return {
        "name": case.name,
        "messages": list(case.messages),
        "tools": list(case.tools),
        "expected": case.expected,
        "answer": answer,
        "decisive": [
            {"kind": one.kind, "right": answer[one.start : one.end], "wrong": list(one.wrong)} for one in parts
        ],
    }


def _files(places: list[Path]) -> list[Path]:
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(place.glob("*.yaml"))
            if not inside:
                raise UsageError(
                    "canaries-missing",
                    f"There is no canary specification (*.yaml) in {place}; name a folder that has some.",
                )
            files += inside
        elif place.exists():
            files.append(place)
        else:
            raise UsageError("path-missing", f"There is no file or folder {place}; check the path.")
    return files


def _checked(file: Path, taken: dict[str, Path]) -> dict[str, Any]:
    """Read a canary file like a run, draws included. `taken` are the ids so far; its id is added."""
    from q36eval.canaries.cases import cases_of
    from q36eval.canaries.specification import read_spec

    try:
        spec = read_spec(file)
        if spec.id in taken:
            raise UsageError(
                "canary-duplicate", f"{file}: the id {spec.id!r} is that of {taken[spec.id]} too; rename one of them."
            )
        taken[spec.id] = file
        count = len(cases_of(spec))
    except UsageError as error:
        return {"file": str(file), "ok": False, "message": str(error)}
    return {"file": str(file), "ok": True, "message": f"{file}: {spec.id}, {_kind(spec)}; prompts: {count}"}
