"""`q36eval canaries new`: a production incident becomes a canary."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.engine_options import DeviceOption, check_engine
from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    ReferenceOption,
    print_json,
)
from q36eval.app.targets import load_family, resolve
from q36eval.config.paths import Paths
from q36eval.engines import EngineOptions
from q36eval.errors import ExitCode, UsageError
from q36eval.records import Lane

if TYPE_CHECKING:
    from q36eval.canaries.scaffold import Wanted
    from q36eval.canaries.transcript import Transcript
    from q36eval.run.prompt_comparison import Comparison

ANSWER_BUDGET, REASONING_BUDGET = 512, 2_048
"""Tokens for an answer of which nothing is known yet, and for reasoning before it."""


def new(
    transcript: Annotated[Path, typer.Argument(metavar="TRANSCRIPT", help="JSON file with OpenAI chat messages.")],
    why: Annotated[str, typer.Option(help="Why this canary exists: what went wrong and where.")],
    id: Annotated[str | None, typer.Option(help="Id of the canary; made from the file's name by default.")] = None,
    lane: Annotated[list[Lane] | None, typer.Option(help="Lane it belongs to; guessed by default.")] = None,
    right: Annotated[
        list[str] | None,
        typer.Option(help="The right answer; with --branch the reference's answer by default.", metavar="TEXT|@FILE"),
    ] = None,
    check: Annotated[list[str] | None, typer.Option(help="Check that judges the answer; guessed by default.")] = None,
    expected: Annotated[
        str | None,
        typer.Option(help="Values that the checks need and the right answer does not show.", metavar="JSON|@FILE"),
    ] = None,
    skill: Annotated[str | None, typer.Option(help="Skill that the prompt needs; `incident` by default.")] = None,
    thinking: Annotated[
        bool | None, typer.Option("--thinking/--no-thinking", help="Let the model reason first.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.", min=1, max=32_768)] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; ID.yaml in this folder by default.", metavar="FILE")
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="Compare the answers of this branch and the reference, to find where they part.")
    ] = None,
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> int:
    """Make a canary file from a transcript.

    Works out expected values, checks and decisive places; never overwrites a file.
    """
    from q36eval.canaries.scaffold import SKILL, Wanted
    from q36eval.canaries.transcript import read_transcript

    if not why.strip():
        raise UsageError(
            "option-empty", "--why is empty; say what went wrong, so that a reviewer knows what the canary guards."
        )
    if reference is not None and branch is None:
        raise UsageError("option-missing", "--reference needs --branch: the answers of both are compared.")
    wanted = Wanted(
        id=_id(id, transcript),
        why=" ".join(why.split()),
        lanes=tuple(lane or ()),
        checks=tuple(check or ()),
        expected=_expected(expected),
        skill=skill or SKILL,
        thinking=thinking,
        max_new_tokens=max_new_tokens,
    )
    file = out or Path(f"{wanted.id}.yaml")
    if file.exists():  # said before two models are loaded
        raise UsageError("file-exists", f"{file} already exists and was not changed; name another file with --out.")
    conversation = read_transcript(transcript)
    compared = None
    if branch is not None:
        compared = _compared(conversation, wanted, branch, reference, family, device)
    answer = _right(right or [], conversation, compared)
    _scaffolded(conversation, answer, wanted, compared, file, transcript, given=bool(right), as_json=as_json)
    return int(ExitCode.PASS)


def _scaffolded(
    conversation: "Transcript",
    answer: str,
    wanted: "Wanted",
    compared: "Comparison | None",
    file: Path,
    source: Path,
    *,
    given: bool,
    as_json: bool,
) -> None:
    from q36eval.app.cli.scaffold_report import comparison_json, comparison_lines, remarks
    from q36eval.canaries.scaffold import passes, scaffold, write_new, yaml_text

    others = [compared.branch] if compared is not None and compared.branch_ended else []
    body = scaffold(conversation, answer, wanted, others)
    verdicts = {} if compared is None else {
        "reference": compared.reference_ended and passes(compared.reference, body),
        "branch": compared.branch_ended and passes(compared.branch, body),
    }  # fmt: skip
    compared_lines = comparison_lines(compared, verdicts)
    write_new(file, yaml_text(body, remarks(body, source.name, wanted, compared_lines, right_given=given)))
    if as_json:
        place = body["must_pass"][0].get("decisive", [])
        summary = {"file": str(file), "id": wanted.id, "checks": body["checks"], "decisive": place}
        print_json(summary | {"comparison": comparison_json(compared, verdicts)})
        return
    from rich.console import Console
    from rich.text import Text

    from q36eval.reports.text import plain

    console = Console()
    console.print(Text(plain(f"{file}: {wanted.id}, judged by {', '.join(body['checks'])}", limit=2_000)))
    for place in body["must_pass"][0].get("decisive", ()):
        console.print(Text(plain(f"decisive: {place['right']!r} against {', '.join(map(repr, place['wrong']))}")))
    for line in compared_lines:
        console.print(Text(plain(line)))
    console.print(Text("Read the remarks at the top of the file, then check it: q36eval canaries check FILE."))
    console.print(Text("Run it with: q36eval canaries --branch NAME --canaries FOLDER; gate takes --canaries too."))


def _id(given: str | None, transcript: Path) -> str:
    from q36eval.canaries.specification import SPECS_FOLDER

    name = given if given is not None else re.sub(r"[^a-z0-9]+", "-", transcript.stem.lower()).strip("-")
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise UsageError(
            "canary-id-invalid", f"The id {name!r} is not valid: give --id with lower-case letters, digits and hyphens."
        )
    if (SPECS_FOLDER / f"{name}.yaml").exists():
        raise UsageError("canary-id-taken", f"The id {name!r} belongs to a shipped canary; give another --id.")
    return name


def _text(value: str, what: str) -> str:
    """What was given, or the file that @ names."""
    if not value.startswith("@"):
        return value
    file = Path(value[1:])
    try:
        return file.read_text(encoding="utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UsageError("file-not-utf8", f"{file}, {what}, is not UTF-8; save it as UTF-8 text.") from error
    except OSError as error:
        raise UsageError(
            "file-unreadable", f"{file}, {what}, cannot be read ({error.strerror or error}); check the path."
        ) from error


def _expected(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        body = json.loads(_text(given, "what is expected"))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "json-malformed", "--expected is not JSON; give one JSON object with what the checks need."
        ) from error
    if not isinstance(body, dict):
        raise UsageError("json-malformed", "--expected is not a JSON object; give one with what the checks need.")
    return body


def _right(given: list[str], conversation: "Transcript", compared: "Comparison | None") -> str:
    """The right answer: the one given, else the reference's own.

    Raises:
        UsageError: there is none, or there are several.
    """
    from q36eval.canaries.transcript import answer_text

    if len(given) > 1:
        raise UsageError("answer-ambiguous", f"There are {len(given)} right answers; give --right once.")
    if given:
        answer = answer_text(_text(given[0], "the right answer"))
        if not answer.strip():
            raise UsageError("option-empty", "The right answer is empty; give its text.")
        return answer
    if compared is None:
        ends = "an answer that is wrong" if conversation.answer is not None else "a question"
        raise UsageError(
            "answer-required",
            f"The transcript ends with {ends}, and nothing says what is right: give --right, or --branch to take the "
            f"reference's answer.",
        )
    if not compared.reference_ended:
        raise UsageError(
            "reference-answer-unfinished",
            "The reference's answer did not end within its tokens, so it cannot be the right one: give --right, or "
            "more tokens with --max-new-tokens.",
        )
    if conversation.answer is not None and compared.reference == conversation.answer.strip():
        raise UsageError(
            "reference-answer-wrong", "The reference gives the same wrong answer as the transcript: give --right."
        )
    return compared.reference


def _compared(
    conversation: "Transcript",
    wanted: "Wanted",
    branch: str,
    reference: str | None,
    family: str | None,
    device: str,
) -> "Comparison":
    from q36eval.run.prompt_comparison import Question, compare

    paths = Paths.default()
    chosen = load_family(family, paths)
    engine = EngineOptions(device=device)
    check_engine(engine)
    thinking = bool(conversation.thinking) if wanted.thinking is None else wanted.thinking
    default = ANSWER_BUDGET + (REASONING_BUDGET if thinking else 0)
    budget = wanted.max_new_tokens or min(default, conversation.max_new_tokens or default)
    question = Question(conversation.messages, conversation.tools, thinking, budget)
    targets = (resolve(branch, chosen, paths), resolve(reference or chosen.reference, chosen, paths))
    return compare(question, *targets, engine)
