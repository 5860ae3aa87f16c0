"""The prerequisites of a gate as one table: each with its state, a sentence, and the command that fixes it."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from q36eval.app.doctor import EXTRAS
from q36eval.app.targets import DerivedFamily
from q36eval.checkpoints.gguf.files import SUFFIX, is_gguf
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.checkpoints.placements import LAYERS
from q36eval.config import Paths
from q36eval.errors import Q36Error
from q36eval.history import History
from q36eval.run.disk import file_system
from q36eval.run.memory_report import batches_line, size
from q36eval.run.preflight import Prepared, Problem, RefusedError, collecting, prepare
from q36eval.run.request import Request, Target
from q36eval.run.workload import RunPlan, planned_run

CODES = {
    "architecture": ("architecture-", "format-", "scheme-", "activations-", "kv-cache-", "draft-head-", "config-"),
    "files": (
        "branch-",
        "name-",
        "family-",
        "folder-m",
        "weights-missing",
        "file-m",
        "file-n",
        "hub-",
        "not-a-ch",
        "gguf-",
    ),
    "reference": ("reference-", "pack-", "not-a-pack", "engines-apart", "floor-", "sampled-"),
    "tokenizer": ("tokenizer-", "chat-template-", "template-", "vocabulary-"),
    "suite data": ("suite-", "frozen-", "corpus-", "task-", "dataset-", "document", "canar", "slice-", "prompts-"),
    "extras": ("package-",),
    "device": ("device-", "engine-", "kernels-", "gpus-", "plugin-", "server-", "served-"),
    "memory": ("weights-too-large", "placement-"),
    "disk": ("disk-", "hub-disk-full"),
    "time": (),
    "policy": ("policy-", "lane-", "too-few-", "margin-", "skill-"),
}
"""The rows, each with the prefixes of its problems' codes."""

REQUEST = "request"
"""The row of all other problems, present only if there are any."""


class State(StrEnum):
    """The state of a prerequisite."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """One prerequisite of a gate; `command` fixes it if possible, `codes` are those of its problems."""

    what: str
    state: State
    sentence: str
    command: str = ""
    codes: tuple[str, ...] = ()


@dataclass
class Asked:
    """A person's options as written, for building commands."""

    branch: str | None = None
    reference: str | None = None
    family: str | None = None
    suite: str | None = None
    policy: str | None = None
    words: Sequence[str] = ()
    """The words of a gate's command line after its name; empty for other commands."""
    policy_check: str = ""
    folder: str = ""
    """The command that checks the policy, and the folder of a tokenizer; set by `understand`."""

    def gate(self, **changed: str) -> str:
        """The gate's command line as it was typed, with other values for some of its options."""
        words = [word for word in self.words if word != "--plan"]
        if not words:
            named = {name: getattr(self, name) for name in ("branch", "reference", "family", "suite", "policy")}
            return "q36eval gate" + _options(named | changed)
        for name, value in changed.items():
            places = [at for at, word in enumerate(words) if word.partition("=")[0] == f"--{name}"]
            for at in reversed(places):
                del words[at : at + (1 if "=" in words[at] else 2)]
            words += [f"--{name}", value]
        return shlex.join(["q36eval", "gate", *words])

    def understand(self, request: Request) -> None:
        """Use the resolved request: a derived family has no file for which a policy could be checked."""
        folder = (request.reference or request.branch).folder
        self.folder = str(folder) if folder.exists() else ""
        if request.policy is not None and not isinstance(request.family, DerivedFamily):
            self.policy_check = f"q36eval policy check {shlex.quote(self.policy or request.policy.name)}"
            self.policy_check += _options({"family": self.family or request.family.name, "suite": request.suite})


def _options(named: Mapping[str, str | None]) -> str:
    return "".join(f" --{key} {shlex.quote(value)}" for key, value in named.items() if value)


@dataclass(frozen=True)
class Looked:
    """The rows of a request, its plan if any, and why it has none; without either, weights are missing."""

    rows: tuple[Row, ...]
    plan: RunPlan | None = None
    refused: Q36Error | None = None


def look(
    request: Request, asked: Asked, paths: Paths, history: History | None, found: Iterable[Problem] = ()
) -> Looked:
    """Check all prerequisites of a request, and plan it if nothing is missing; nothing is computed.

    `found` are the problems of building the request.
    """
    plan, refused = None, None
    with opened_once() as folders:
        folders.measure_against(None if request.reference is None else request.reference.folder)
        asked.understand(request)
        prepared = prepare(request, paths, [*found, *_of_downloads(request)])
        problems = [*prepared.problems]
        if not request.lacking or any(problem.blocks for problem in problems):
            try:
                plan = planned_run(request, paths, history, prepared)
            except Q36Error as error:
                refused = error
                known = {problem.message for problem in problems}
                problems += [each for each in problems_of(error) if each.message not in known]
        rows = tuple(rows_of(problems, asked, _known(request, prepared, plan, asked, paths)))
    if isinstance(refused, RefusedError):
        refused.rows = rows
    return Looked(rows, plan, refused)


def _of_downloads(request: Request) -> list[Problem]:
    """Problems of weights not downloaded yet, to avoid a useless download."""
    from q36eval.checkpoints.supported_architectures import check_named

    found: list[Problem] = []
    missing: dict[Path, int] = {}
    for target in request.lacking:
        with collecting(found):
            check_named(target.folder)
        assert target.snapshot is not None, "only the Hub's are downloaded"
        missing[target.snapshot.cache] = missing.get(target.snapshot.cache, 0) + target.missing_bytes
    for cache, wanted in missing.items():
        if wanted > (free := shutil.disk_usage(cache).free):
            sentence = f"{size(wanted)} are to be downloaded to {cache}, where {size(free)} are free; make room there."
            found.append(Problem("hub-disk-full", sentence))
    return found


def problems_of(error: Q36Error) -> tuple[Problem, ...]:
    """The problems in an error, or the error as one."""
    return getattr(error, "problems", ()) or (Problem(error.code, str(error)),)


def rows_of(problems: Sequence[Problem], asked: Asked, known: Iterable[Row] = ()) -> Iterator[Row]:
    """One row per prerequisite: its problems; else its `known` state; else "not checked"."""
    by_what: dict[str, list[Problem]] = {}
    for problem in problems:
        by_what.setdefault(_what(problem.code), []).append(problem)
    looked_at = {row.what: row for row in known}
    for what in (*CODES, REQUEST):
        own = by_what.get(what, [])
        row = looked_at.get(what)
        sentence = " ".join(problem.message for problem in own)
        codes = tuple(dict.fromkeys(problem.code for problem in own))
        if any(problem.blocks or problem.code.endswith("-missing") for problem in own):
            commands = [command for problem in own if (command := _mended_by(problem, asked))]
            yield Row(what, State.MISSING, sentence, " && ".join(dict.fromkeys(commands)), codes)
        elif row is not None:
            yield row if not own else replace(row, sentence=f"{row.sentence} {sentence}".strip(), codes=codes)
        elif what != REQUEST or own:
            yield Row(what, State.UNKNOWN, sentence or "Not checked yet: fix the missing items first.", codes=codes)


def _what(code: str) -> str:
    begun = ((what, start) for what, starts in CODES.items() for start in starts if code.startswith(start))
    return max(begun, key=lambda each: len(each[1]), default=(REQUEST, ""))[0]


_TOLD = re.compile(
    r"(pip install [^;]*?|hf auth login|q36eval (?:data freeze|sandbox build)[^;`]*?)`?(?:[.;](?:\s|$)|$)"
)
"""The command in a sentence."""


def _mended_by(problem: Problem, asked: Asked) -> str:
    """The command that fixes it; empty if none does."""
    code, told = problem.code, _TOLD.search(problem.message)
    if told is not None:
        return told[1].replace("FOLDER", shlex.quote(asked.folder or "FOLDER"))
    if _what(code) == "policy" and code != "policy-unknown":
        return asked.policy_check
    skips = " ".join(re.findall(r"--skip \w+", problem.message))
    pack = "q36eval reference capture" + _options({"reference": asked.reference})
    commands = {
        "branch-unknown": "q36eval branches",
        "family-": "q36eval branches",
        "name-ambiguous": "q36eval branches",
        "policy-unknown": "q36eval policy list",
        "reference-required": asked.gate(reference="ORG/NAME"),
        "suite-unknown": asked.gate(suite="standard"),
        "tokenizer-missing": _copied_tokenizer(asked),
        "weights-too-large": f"{asked.gate()} {skips}",
        "weights-missing": asked.gate(),
        "hub-disk-full": f"HF_HOME=/larger/disk {asked.gate()}",
        "hub-gated": "hf auth login",
        "hub-": asked.gate(),
        "device-": asked.gate(device="cpu"),
        "disk-": "q36eval history gc",
        "pack-": pack,
    }
    return next((command for start, command in commands.items() if code.startswith(start)), "")


def _copied_tokenizer(asked: Asked) -> str:
    """From whichever of the two folders has one."""
    both = [Path(named) for named in (asked.reference, asked.branch) if named is not None and Path(named).is_dir()]
    both.sort(key=lambda folder: not (folder / "tokenizer.json").is_file())
    having, lacking = (shlex.quote(str(folder)) for folder in both) if both[1:] else ("REFERENCE", "BRANCH")
    return f"cp {having}/tokenizer* {lacking}/"


_Seen: TypeAlias = tuple[State, str] | tuple[State, str, str]


def _known(request: Request, prepared: Prepared, plan: RunPlan | None, asked: Asked, paths: Paths) -> Iterator[Row]:
    """The observed state of each prerequisite without a problem."""
    each: tuple[tuple[str, Callable[[], _Seen]], ...] = (
        ("architecture", lambda: _architecture(request)),
        ("files", lambda: _files(request, asked)),
        ("reference", lambda: _reference(request, prepared)),
        ("tokenizer", lambda: _tokenizer(request, asked)),
        ("extras", lambda: _extras(request, paths)),
        ("device", lambda: (State.OK, request.engine.device)),
        ("memory", lambda: _memory(request, plan)),
        ("disk", lambda: (State.OK, f"The disk of {paths.state} is {file_system(paths.state).words}.")),
        ("time", lambda: _time(plan)),
    )
    for what, seen in each:
        try:
            yield Row(what, *seen())
        except Q36Error as error:  # reported by loading or inspecting it, too
            found = Problem(error.code, str(error))
            yield Row(what, State.MISSING, str(error), _mended_by(found, asked), (error.code,))
    if not any(_what(problem.code) == "suite data" for problem in prepared.problems):
        yield Row("suite data", State.OK, f"The suite {request.suite} is complete.")
        if request.policy is not None:
            blocking = sum(criterion.tier == "blocking" for criterion in request.policy.criteria)
            yield Row("policy", State.OK, f"{request.policy.name}: {blocking} blocking criteria over this suite.")


def _both(request: Request) -> Iterator[Target]:
    yield from (each for each in (request.branch, request.reference) if each is not None)


def _architecture(request: Request) -> _Seen:
    from q36eval.checkpoints.reader import open_checkpoint, read_json
    from q36eval.checkpoints.supported_architectures import check_named

    named = []
    for each in _both(request):
        if not each.folder.exists():
            return State.UNKNOWN, f"It is in {each.folder}, which does not exist here."
        check_named(each.folder)
        file = each.folder / "config.json"
        config = open_checkpoint(each.folder).config if is_gguf(each.folder) else read_json(file)
        architectures = config.get("architectures") or [config.get("model_type")]
        named += [str(architecture) for architecture in architectures]
    return State.OK, ", ".join(dict.fromkeys(named))


def _files(request: Request, asked: Asked) -> _Seen:
    if request.lacking:
        return State.MISSING, " ".join(_download(each) for each in request.lacking), asked.gate()
    from q36eval.checkpoints.reader import open_checkpoint

    for each in _both(request):
        open_checkpoint(each.folder)
    return State.OK, "; ".join(f"{each.place}, {size(_bytes(each.folder))}" for each in _both(request))


def _download(target: Target) -> str:
    assert target.snapshot is not None, "only the Hub's are downloaded"
    cache = target.snapshot.cache
    free = size(shutil.disk_usage(cache).free)
    return f"{size(target.missing_bytes)} of {target.place} are downloaded by a gate, to {cache} ({free} are free)."


def _bytes(place: Path) -> int:
    files = place.iterdir() if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _reference(request: Request, prepared: Prepared) -> _Seen:
    reference = prepared.reference
    if reference is None:
        return State.UNKNOWN, "It is opened once all weights are here."
    if reference.pack is not None:
        return State.OK, f"The pack {reference.root}."
    captured = "What was captured before is used" if reference.root.is_dir() else "It is captured first"
    return State.OK, f"{captured}: {reference.root}."


def _tokenizer(request: Request, asked: Asked) -> _Seen:
    from q36eval.checkpoints.tokenizer import chat_templates, load_tokenizer, tokenizer_rules

    told = State.UNKNOWN, "It is in a file that is not here."
    for each in _both(request):
        if each.folder.is_dir():
            tokenizer_rules(each.folder)
            template = "with" if chat_templates(each.folder) else "without"
            told = State.OK, f"{len(load_tokenizer(each.folder)):,} words, {template} a chat template."
    return told


def _extras(request: Request, paths: Paths) -> _Seen:
    needed = {
        "gguf": any(each.folder.suffix == SUFFIX for each in _both(request)),
        "ray": request.engine.workers is not None,
        "postgres": paths.history_url.startswith("postgres"),
    }
    names = [name for name, is_needed in needed.items() if is_needed]
    absent = ",".join(name for name in names if find_spec(EXTRAS[name]) is None)
    if absent:
        return State.MISSING, f"Not installed: {absent}.", f"pip install 'q36eval[{absent}]'"
    return State.OK, f"Installed: {', '.join(names)}." if names else "None is needed."


def _memory(request: Request, plan: RunPlan | None) -> _Seen:
    if plan is None:
        return State.UNKNOWN, "It is planned once nothing else is missing."
    if not plan.batches:
        return State.UNKNOWN, f"The engine {request.engine.kind} plans its own."
    lines = [f"{name}: {batches_line(batches)}" for name, batches in plan.batches.items()]
    if any(batches.room.placement == LAYERS for batches in plan.batches.values()):
        lines.append("Too small for all weights, which are run layer by layer.")
    return State.OK, "\n".join(lines)


def _time(plan: RunPlan | None) -> _Seen:
    seconds = [] if plan is None else [stage.seconds for stage in plan.stages]
    known = [each for each in seconds if each is not None]
    if not seconds or len(known) < len(seconds):
        return State.UNKNOWN, "A stage's time is known where an earlier run measured the same on this device."
    return State.OK, f"About {sum(known):,.0f} s, as an earlier run took on this device."
