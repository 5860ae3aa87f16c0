"""Options and small steps that several commands share."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.streams import write_document
from q36eval.app.targets import DerivedFamily, reference_of_family, resolve
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.files import printable_json
from q36eval.redaction import redacted
from q36eval.run.request import Target

if TYPE_CHECKING:
    from q36eval.gate import Policy
    from q36eval.history import History

WHAT = "Branch name, FAMILY/BRANCH, ./folder, file.gguf, or ORG/NAME[@REVISION] on the Hub"
BRANCH_HELP = f"{WHAT}."


def _supported(named: Any) -> Any:
    """The value of an option: a checkpoint of an unsupported architecture is refused before any other check.

    Raises:
        UsageError: lists the supported ones.
    """
    for each in [named] if isinstance(named, str) else named or ():
        if each.strip() and os.path.exists(each):  # unlike Path.exists it takes any text
            from q36eval.checkpoints.supported_architectures import check_named

            check_named(Path(each))
    return named


CHECKPOINT: dict[str, Any] = {"callback": _supported, "is_eager": True}
"""The settings of every option and argument that may name a checkpoint."""

BranchOption = Annotated[
    list[str] | None,
    typer.Option("--branch", help=f"{WHAT}; repeat it for several.", **CHECKPOINT),
]
OneBranch = Annotated[str, typer.Option("--branch", help=BRANCH_HELP, **CHECKPOINT)]
ReferenceOption = Annotated[
    str | None,
    typer.Option("--reference", help="Reference, named as a branch is; the family's by default.", **CHECKPOINT),
]
FamilyIfAny = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="Family name or file; the project file's by default, and folders and Hub names need none.",
        metavar="NAME|FILE",
    ),
]
FamilyOption = Annotated[
    str | None,
    typer.Option("--family", help="Family name or file; the project file's by default.", metavar="NAME|FILE"),
]
RunArgument = Annotated[str, typer.Argument(help="Run id, unique prefix, or latest.", metavar="RUN")]
SuiteOption = Annotated[
    str | None,
    typer.Option(
        "--suite",
        help="A shipped suite or a .yaml file, with =DIR for data of `data freeze --out DIR`; the family's by default.",
        metavar="NAME|FILE[=DIR]",
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(help="Policy name or file; the suite's or the family's by default.", metavar="NAME|FILE"),
]


def _scheme(named: str) -> str:
    from q36eval.schemes import mixture_name, parts_of

    try:
        return mixture_name(parts_of(named))
    except ValueError as error:
        raise UsageError("scheme-unknown", f"--scheme {named}: {error}.") from error


SchemeOption = Annotated[
    str | None,
    typer.Option(
        "--scheme",
        help="Quantization that the branch is to have, such as NVFP4 or FP8 + W4A16; weights without it are a fault.",
        metavar="NAME",
        parser=_scheme,
    ),
]


def _pack_folder(named: str) -> Path:
    """The folder of the pack in an option, fetched if it is an address.

    Raises:
        UsageError: see `q36eval.references.fetched`.
    """
    from q36eval.references import fetched, is_address, shown

    if not is_address(named):
        return Path(named)
    note(f"The reference pack {shown(named)} is fetched, unless it is here already.")
    return fetched(named, Paths.default().fetched_packs)


ReferencePackOption = Annotated[
    Path | None,
    typer.Option(
        "--reference-pack",
        help="Judge against this reference pack, a folder or an address such as s3://BUCKET/PACK (fetched once); the "
        "reference's weights are not needed.",
        metavar="DIR|URL",
        parser=_pack_folder,
    ),
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Print batches, memory and the requests of every stage, and measure nothing.")
]
CorpusIfAny = Annotated[
    Path | None,
    typer.Option(
        "--corpus",
        help="Corpus file (YAML) to measure the KL on; by default the suite's, or 20 short texts without a family.",
        metavar="FILE",
    ),
]
CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", help="Corpus file (YAML) to measure the KL on; the suite's by default.", metavar="FILE"),
]
MaxItems = Annotated[
    int | None,
    typer.Option("--max-items", help="Evaluate at most this many items of each task, in whole blocks.", min=1),
]
OwnCanaries = Annotated[
    Path | None,
    typer.Option("--canaries", help="Folder of your own canaries, evaluated with the shipped ones.", metavar="DIR"),
]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Print every criterion with its reason, and what was evaluated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


class Quiet:
    """Whether only verdicts and errors are printed (`-q`), while one command runs."""

    wanted = False


PRECEDENCE = (ExitCode.USAGE, ExitCode.FAIL, ExitCode.NOT_MEASURED, ExitCode.INCONCLUSIVE, ExitCode.PASS)


def remark(sentence: str) -> None:
    """A line on stderr in the style of progress: information, not an error."""
    from q36eval.inert_text import SENTENCE, plain

    if not Quiet.wanted:
        print(plain(sentence, SENTENCE), file=sys.stderr, flush=True)


def note(sentence: str) -> None:
    """One line on stderr, omitted with `-q`."""
    if not Quiet.wanted:
        say(sentence)


def say(sentence: str) -> None:
    """One line on stderr; a branch's name can neither move the cursor nor be a command to a pipeline's runner."""
    from q36eval.inert_text import SENTENCE, plain

    print(f"q36eval: {plain(redacted(sentence), SENTENCE)}", file=sys.stderr)


def given_options(context: Any) -> set[str]:
    """The parameters given on the command line, without defaults."""
    return {name for name in context.params if context.get_parameter_source(name).name == "COMMANDLINE"}


def resolve_reference(
    named: str | None, pack: Path | None, family: Family, paths: Paths, *, download: bool = True
) -> Target | None:
    """The reference's checkpoint: the named one, else the family's; with a pack it need not be on this machine, and is
    not downloaded, nor without `download`.

    Raises:
        UsageError: it is needed and unavailable.
    """
    if named is not None:
        return resolve(named, family, paths, note, download=download)
    if pack is None:
        return reference_of_family(family, paths, note, download=download)
    with suppress(UsageError):
        return reference_of_family(family, paths)
    return None


def show_targets(branches: Iterable[Target], reference: Target | None = None) -> None:
    """Print the judged bytes, and the baseline's."""
    for role, target in (*(("Branch", branch) for branch in branches), ("Reference", reference)):
        if target is not None:
            name = "" if target.name == str(target.folder) else f" {target.name}"
            is_reference = role == "Branch" and reference is not None and target.place == reference.place
            remark(f"{role}{name}: {target.place}{', which is the reference' if is_reference else ''}")


def texts_of(family: Family, suite: str | None, corpus: Path | None, paths: Paths) -> tuple[str, Path | None]:
    """The suite, and the corpus file whose texts are scored instead of the suite's.

    Without a family, a suite and a corpus these are general texts that ship.
    """
    if corpus is None and suite is None and isinstance(family, DerivedFamily):
        corpus = paths.data / "corpus" / "general.yaml"
        note("The KL is measured on 20 short general texts (English, code, JSON); name your own with --corpus.")
    return suite or family.suite, corpus


def load_policy(name_or_path: str | None, family: Family, paths: Paths, suite: str | None = None) -> "Policy":
    """The policy of that name or file; when None that of the suite, if it has one, else the family's own.

    Raises:
        UsageError: an unknown name, or a policy that is malformed.
    """
    from q36eval.app.policies.files import policy_file, policy_for
    from q36eval.gate.policy_file import read_policy

    return read_policy(policy_file(name_or_path or policy_for(family, suite or family.suite, paths), paths))


def worst(codes: list[int]) -> int:
    """The overall exit code of several: the worst by the order 2, 1, 4, 3, 0."""
    return int(next(code for code in PRECEDENCE if code in codes))


def open_history(paths: Paths | None = None, *, writing: bool = False) -> "History":
    """The history of this working state, or the named one; `writing` refuses an unwritable one before any measurement.

    Raises:
        UsageError: the folder or the database cannot be used for that, or the named file to read does not exist.
    """
    from q36eval.history import History

    chosen = paths or Paths.default()
    if not writing and not chosen.has_history:
        raise UsageError(
            "history-missing",
            f"There is no history {chosen.history_url}; a gate makes one, or name another (--state, --history).",
        )
    try:
        if writing:
            chosen.state.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=chosen.state).close()
    except OSError as error:
        raise UsageError(
            "folder-unwritable",
            f"The state folder {chosen.state} cannot be written: {error.strerror}; make it writable, or name another "
            f"with Q36EVAL_STATE.",
        ) from error
    history = History.open(chosen.history_url)
    if writing:
        history.check_writable()
    return history


def folder_to_write(named: str) -> Path:
    """The folder in an option; an empty name, as from an unset variable, would be the current folder.

    Raises:
        UsageError: the name is empty.
    """
    if not named.strip():
        raise UsageError("option-empty", "--out names no folder: its value is empty. Write . for the current folder.")
    return Path(named)


def print_json(body: Any) -> None:
    """Print one JSON document on stdout; NaN and infinities are already strings."""
    write_document(redacted(printable_json(body, indent=1)))
