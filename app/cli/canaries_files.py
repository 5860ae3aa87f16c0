"""`q36eval canaries list|show|check`: what is asked, and whether a person's own files are sound."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.options import FamilyOption, JsonOption, OwnCanaries, ReferenceOption, SuiteOption, print_json
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from q36eval.canaries.cases import Case
    from q36eval.canaries.specification import CanarySpec
    from q36eval.config import Family

DRAWS_SHOWN = 3


def list_canaries(
    own: OwnCanaries = None, family: FamilyOption = None, suite: SuiteOption = None, as_json: JsonOption = False
) -> int:
    """List the canaries: kind, lanes, number of questions in the suite, where they run, and why they exist."""
    from q36eval.app.targets import load_family
    from q36eval.canaries.specification import draws_per_family, load_specs

    paths = Paths.default()
    chosen = load_family(family, paths)
    draws = draws_per_family(suite or chosen.suite)
    specs = load_specs(own=own, skills=None, n=draws)
    known = [load_family(file.stem, paths) for file in sorted(paths.families.glob("*.yaml"))]
    rows = [_row(spec, chosen, known) for spec in specs]
    if as_json:
        print_json([dict(zip(("id", "kind", "lanes", "n", "where", "why"), row, strict=True)) for row in rows])
        return int(ExitCode.PASS)
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from q36eval.reports._text import plain

    console = Console()
    for name, kind, lanes, count, where, why in rows:
        console.print(Text(plain(f"{name} · {kind} · {lanes} · n = {count} · {where}"), style="bold"), soft_wrap=True)
        console.print(Padding(Text(plain(why)), (0, 0, 0, 4)))
    return int(ExitCode.PASS)


def show(
    canary: Annotated[str, typer.Argument(metavar="ID", help="A canary's id, as `canaries list` shows it.")],
    own: OwnCanaries = None,
    draws: Annotated[int, typer.Option(help="Of a family, the first so many draws.", min=1, max=1_000)] = DRAWS_SHOWN,
    family: FamilyOption = None,
    reference: ReferenceOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one canary: its prompts as the reference's chat template writes them, what is expected, what is decisive."""
    from q36eval.app.targets import load_family
    from q36eval.canaries.cases import cases_of
    from q36eval.canaries.specification import load_specs

    paths = Paths.default()
    chosen = load_family(family, paths)
    (spec,) = load_specs(own=own, only=[canary], n=draws, skills=None)
    tokenizer, why_none = _tokenizer(chosen, reference, paths)
    cases = [_case(case, tokenizer) for case in cases_of(spec)]
    if as_json:
        body = spec.model_dump(mode="json", exclude={"must_pass", "family"})
        print_json(body | {"kind": _kind(spec), "rendered": tokenizer is not None, "prompts": cases})
        return int(ExitCode.PASS)
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in _shown(spec, cases, why_none):
        console.print(Text(line), soft_wrap=True)
    return int(ExitCode.PASS)


def check(
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER|FILE]...", help="Files or folders; the shipped ones if none."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check canary files: each is sound, or says in one sentence what is wrong; exit 2 when one is wrong."""
    from q36eval.canaries.specification import SPECS_FOLDER

    shipped = sorted(SPECS_FOLDER.glob("*.yaml"))
    files = _files(places) if places else shipped
    taken = {} if not places else {file.stem: file for file in shipped if file.resolve() not in _resolved(files)}
    results = [_checked(file, taken) for file in files]
    bad = [found for found in results if not found["ok"]]
    if as_json:
        print_json(results)
    else:
        from rich.console import Console
        from rich.text import Text

        from q36eval.reports._text import plain

        console = Console()
        for found in results:
            word = "ok " if found["ok"] else "BAD"
            console.print(Text(plain(f"{word}  {found['message']}")), soft_wrap=True)
        if bad:
            console.print(Text(f"{len(bad)} of {len(results)} files cannot be asked."))
    return int(ExitCode.USAGE if bad else ExitCode.PASS)


def _row(spec: "CanarySpec", chosen: "Family", known: "list[Family]") -> tuple[str, ...]:
    count = len(spec.must_pass or ()) if spec.family is None else spec.family.n
    lanes = ", ".join(lane.value for lane in spec.lanes)
    return (spec.id, _kind(spec), lanes, str(count), _where(spec, chosen, known), " ".join(spec.why.split()))


def _kind(spec: "CanarySpec") -> str:
    if spec.family is not None:
        return "family"
    return "must pass" if spec.absolute else "fixed prompts"


def _where(spec: "CanarySpec", chosen: "Family", known: "list[Family]") -> str:
    if not spec.only_where_declared:
        return "everywhere"
    named = ", ".join(family.name for family in known if spec.skill in family.skills) or "no family yet"
    here = "" if spec.skill in chosen.skills else f"; not on {chosen.name}"
    return f"where {spec.skill} is declared: {named}{here}"


def _tokenizer(chosen: "Family", reference: str | None, paths: Paths) -> tuple[Any, str]:
    """The reference's tokenizer, or None and why there is none: then messages are shown as they are written."""
    from q36eval.app.targets import resolve

    try:
        target = resolve(reference or chosen.reference, chosen, paths)
    except UsageError as error:
        if reference is not None:
            raise
        return None, str(error)
    from q36eval.engines.in_process import load_tokenizer

    return load_tokenizer(target.folder), ""


def _case(case: "Case", tokenizer: Any) -> dict[str, Any]:
    from q36eval.canaries.checks import decisions
    from q36eval.chat import rendered_chat

    prompt = None
    if tokenizer is not None:
        prompt = rendered_chat(tokenizer, case.messages, case.tools, enable_thinking=case.generation.enable_thinking)
    answer = case.answer
    found = decisions(answer, case.checks, case.expected, case.tools, case.decisive or None)
    places = [{"kind": one.kind, "right": answer[one.start : one.end], "wrong": list(one.wrong)} for one in found]
    places += [{"kind": "place", "right": place.right, "wrong": list(place.wrong)} for place in case.places]
    return {
        "name": case.name,
        "prompt": prompt,
        "messages": list(case.messages),
        "tools": list(case.tools),
        "expected": case.expected,
        "answer": answer,
        "decisive": places,
    }


def _shown(spec: "CanarySpec", cases: list[dict[str, Any]], why_none: str) -> Iterator[str]:
    from q36eval.app.dashboard.inert import block, line

    settings = spec.generation
    yield line(f"{spec.id} ({_kind(spec)}; {', '.join(spec.lanes)}; skill {spec.skill})")
    yield line(spec.why)
    thinking = "on" if settings.enable_thinking else "off"
    yield f"{settings.decoding}, thinking {thinking}, at most {settings.max_new_tokens} tokens"
    yield f"checks: {', '.join(spec.checks)}; decisive: {', '.join(spec.decisive) or 'all that its checks find'}"
    if why_none:
        yield f"The messages are shown as they are written, since there is no chat template here: {line(why_none)}"
    for case in cases:
        asked = case["prompt"] or json.dumps(case["messages"], ensure_ascii=False, indent=1)
        yield f"\n--- {case['name']}"
        yield block(asked).rstrip("\n")
        yield f"--- expected {line(json.dumps(case['expected'], ensure_ascii=False))}"
        yield f"--- a right answer\n{block(case['answer'])}"
        for place in case["decisive"]:
            against = f" against {', '.join(map(repr, place['wrong']))}" if place["wrong"] else ""
            yield line(f"--- decisive ({place['kind']}): {place['right']!r}{against}")


def _files(places: list[Path]) -> list[Path]:
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(place.glob("*.yaml"))
            if not inside:
                raise UsageError(f"There is no canary specification (*.yaml) in {place}; name a folder that has some.")
            found += inside
        elif place.exists():
            found.append(place)
        else:
            raise UsageError(f"There is no file or folder {place}; check the path.")
    return found


def _resolved(files: list[Path]) -> set[Path]:
    return {file.resolve() for file in files}


def _checked(file: Path, taken: dict[str, Path]) -> dict[str, Any]:
    """Read as a run would read it, draws included. `taken` are the ids so far, to which this one's is added."""
    from q36eval.canaries.cases import cases_of
    from q36eval.canaries.specification import read_spec

    try:
        spec = read_spec(file)
        if spec.id in taken:
            raise UsageError(f"{file}: the id {spec.id!r} is that of {taken[spec.id]} too; rename one of them.")
        taken[spec.id] = file
        count = len(cases_of(spec))
    except UsageError as error:
        return {"file": str(file), "ok": False, "message": str(error)}
    return {"file": str(file), "ok": True, "message": f"{file}: {spec.id}, {_kind(spec)}, {count} questions"}
