"""`q36eval canaries new`: a production incident becomes a canary."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from q36eval.app.cli.options import JsonOption, print_json
from q36eval.errors import ExitCode, UsageError


def new(
    transcript: Annotated[
        Path,
        typer.Argument(metavar="TRANSCRIPT", help="JSON file with OpenAI chat messages, or .txt file: one prompt."),
    ],
    why: Annotated[str, typer.Option(help="Why this canary exists: what went wrong and where.")],
    right: Annotated[str, typer.Option(help="The right answer.", metavar="TEXT|@FILE")],
    wrong: Annotated[
        list[str] | None,
        typer.Option(help="A wrong answer, in addition to the transcript's own; repeatable.", metavar="TEXT|@FILE"),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="Check that judges the answer, with values that the right answer does not show; guessed by default.",
            metavar="NAME[=JSON]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write, named after the canary; by default the transcript's name.", metavar="FILE"),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Make a canary file from a transcript.

    Works out expected values and checks; never overwrites a file.
    """
    from q36eval.canaries.scaffold import answer_text, read_transcript, scaffold, yaml_text

    if not why.strip():
        raise UsageError(
            "option-empty", "--why is empty; say what went wrong, so that a reviewer knows what the canary guards."
        )
    id = _id(out or transcript)
    file = out or Path(f"{id}.yaml")
    answer, *others = (answer_text(_text(given)) for given in (right, *(wrong or ())))
    if not answer.strip():
        raise UsageError("option-empty", "The right answer is empty; give its text.")
    checks = dict(map(_check, check or ()))
    body = scaffold(read_transcript(transcript), answer, id, " ".join(why.split()), wrong=others, checks=checks)
    remarks = [
        f"Made from {transcript.name}. Check by hand, then delete these remarks: names, addresses or secrets of "
        "customers in the messages;",
        "the checks and their expected values.",
    ]
    _write(file, yaml_text(body, remarks))
    if as_json:
        print_json({"file": str(file), "id": id, "checks": body["checks"]})
        return int(ExitCode.PASS)
    from rich.console import Console
    from rich.text import Text

    from q36eval.inert_text import plain

    console = Console()
    console.print(Text(plain(f"{file}: {id}, judged by {', '.join(body['checks'])}", limit=2_000)))
    console.print(Text("Read the remarks at the top of the file, then check it: q36eval canaries check FILE."))
    console.print(Text("Run it with: q36eval canaries --branch NAME --canaries FOLDER; gate takes --canaries too."))
    return int(ExitCode.PASS)


def _id(file: Path) -> str:
    from q36eval.canaries.specification import SPECS_FOLDER

    name = re.sub(r"[^a-z0-9]+", "-", file.stem.lower()).strip("-")
    if not name:
        raise UsageError(
            "canary-id-invalid", f"{file} does not give an id; name a file of letters and digits with --out."
        )
    if (SPECS_FOLDER / f"{name}.yaml").exists():
        raise UsageError(
            "canary-id-taken", f"The id {name!r} belongs to a shipped canary; name another file with --out."
        )
    return name


def _text(value: str) -> str:
    """An answer, or the text of the file that @ names."""
    if not value.startswith("@"):
        return value
    file = Path(value[1:])
    try:
        return file.read_text(encoding="utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UsageError("file-not-utf8", f"The answer in {file} is not UTF-8; save it as UTF-8 text.") from error
    except OSError as error:
        raise UsageError(
            "file-unreadable", f"The answer in {file} cannot be read ({error.strerror or error}); check the path."
        ) from error


def _check(given: str) -> tuple[str, dict[str, Any]]:
    name, _, values = given.partition("=")
    try:
        expected = json.loads(values or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError("json-malformed", f"--check {name}: its expected values are not JSON.") from error
    if not isinstance(expected, dict):
        raise UsageError("json-malformed", f"--check {name}: its expected values are not a JSON object.")
    return name, expected


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise UsageError(
            "file-exists", f"{file} already exists and was not changed; name another file with --out."
        ) from error
    except OSError as error:
        raise UsageError(
            "file-unwritable", f"{file} cannot be written ({error.strerror or error}); name another with --out."
        ) from error
