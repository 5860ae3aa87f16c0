"""Options and small steps that several commands share."""

import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli import completing
from q36eval.app.cli.streams import write_document
from q36eval.app.targets import resolve
from q36eval.checkpoints.as_served import check_as_served
from q36eval.checkpoints.kv_cache import check_kv_cache_dtype, check_kv_scales
from q36eval.checkpoints.placements import check_placement
from q36eval.checkpoints.state_dtypes import check_state_dtype
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.engines import IN_PROCESS, EngineOptions, check_options
from q36eval.errors import ExitCode, UsageError
from q36eval.files import printable_json
from q36eval.run.request import Target

if TYPE_CHECKING:
    from q36eval.gate import Policy
    from q36eval.history import History

BRANCH_HELP = "Branch name, or path of a checkpoint folder."

BranchOption = Annotated[
    list[str],
    typer.Option(
        "--branch",
        help="Branch name, or path of a checkpoint folder; repeat it for several.",
        autocompletion=completing.branches,
    ),
]
OneBranch = Annotated[str, typer.Option("--branch", help=BRANCH_HELP, autocompletion=completing.branches)]
ReferenceOption = Annotated[
    str | None,
    typer.Option(
        "--reference",
        help="Reference branch or folder; the family's reference by default.",
        autocompletion=completing.branches,
    ),
]
FamilyOption = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="Family name or file; the sandbox by default.",
        metavar="NAME|FILE",
        autocompletion=completing.families,
    ),
]
RunArgument = Annotated[
    str, typer.Argument(help="Run id, unique prefix, or latest.", metavar="RUN", autocompletion=completing.runs)
]
SuiteOption = Annotated[
    str | None,
    typer.Option(
        "--suite",
        help="A shipped suite or a .yaml file, with =DIR if its data was frozen with --out; the family's by default.",
        metavar="NAME|FILE[=DIR]",
        autocompletion=completing.suites,
    ),
]


def _pack_folder(named: str) -> Path:
    """The folder of the pack that an option names, fetched where that is an address.

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
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine", help="What answers for the branch; in-process by default.", autocompletion=completing.engines
    ),
]
EnginePython = Annotated[
    str | None,
    typer.Option(
        "--engine-python",
        help="Python of the engine's own environment (vllm); Q36EVAL_VLLM_PYTHON by default.",
        metavar="FILE",
    ),
]
EngineArgument = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-arg",
        help="Argument of the engine's own, such as gpu_memory_utilization=0.7; repeat it for several.",
        metavar="NAME=VALUE",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        help="Address of the server, with --engine openai; by default OPENAI_BASE_URL. A key goes into OPENAI_API_KEY.",
        metavar="URL",
    ),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        "--served-model", help="Name of the branch at the server; needed where it serves several.", metavar="NAME"
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, or a GPU such as cuda:0.")]
WeightsOnly = Annotated[bool, typer.Option("--weights-only", help="Do not emulate the quantization of activations.")]
KVCacheDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-dtype",
        help="KV cache of the branch: auto, fp8_e4m3, turboquant_4bit_nc (_3bit_nc, _k3v4_nc, _k8v4); "
        "what it declares by default.",
        metavar="DTYPE",
    ),
]
KVScales = Annotated[
    str | None,
    typer.Option(
        "--kv-scales",
        help="Scales of a quantized KV cache: stored, or ignored (1 for all); by default the worse of both.",
        metavar="WHICH",
    ),
]
RecurrentState = Annotated[
    str | None,
    typer.Option(
        "--recurrent-state-dtype",
        help="Recurrent state of linear attention: float32, bfloat16 or float16; float32 by default.",
        metavar="DTYPE",
    ),
]
ConvState = Annotated[
    str | None,
    typer.Option(
        "--conv-state-dtype",
        help="Convolution state of linear attention: float32, bfloat16 or float16; as the model by default.",
        metavar="DTYPE",
    ),
]
AsServed = Annotated[
    str | None,
    typer.Option(
        "--as-served",
        help="Measure the branch as this engine is known to compute it: vllm, or vllm:4 for four GPUs that split "
        "every layer; otherwise as it is stored.",
        metavar="ENGINE",
    ),
]
TemplateDeclared = Annotated[
    str | None,
    typer.Option(
        "--template-declared",
        help="The branch's chat template differs on purpose: its hash, as `q36eval inspect` prints it.",
        metavar="SHA256",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        "--placement",
        help="Where weights lie: decoded or packed on the device, or layers, one at a time; by default what fits.",
        metavar="WHERE",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Spread the work over this many replicas, each on a GPU (or core) of its own; no figure depends on it.",
        metavar="N",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Place the workers on this Ray cluster: auto or HOST:PORT; on this machine by default.",
        metavar="ADDRESS",
    ),
]
PlanOption = Annotated[
    bool, typer.Option("--plan", help="Print batches, memory and the requests of every stage, and measure nothing.")
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", help="Generate at most this many answers of the branch together.", min=1),
]
CorpusOption = Annotated[
    Path | None,
    typer.Option("--corpus", help="Corpus file (YAML) to measure the KL on; the suite's by default.", metavar="FILE"),
]
ContextOption = Annotated[
    int | None,
    typer.Option("--context", help="Longest context for the KL, in tokens; the family's by default.", min=2),
]
MaxItems = Annotated[
    int | None,
    typer.Option("--max-items", help="Evaluate at most this many items of each task, in whole blocks.", min=1),
]
AllowCodeExecution = Annotated[
    bool,
    typer.Option("--allow-code-execution", help="Also measure tasks that run programs the model writes (HumanEval)."),
]
OwnCanaries = Annotated[
    Path | None,
    typer.Option("--canaries", help="Folder of your own canaries, evaluated beside the shipped ones.", metavar="DIR"),
]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Print all criteria, why, and what was evaluated, not one screen.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]

PANELS = {
    "How it runs": (
        "--engine",
        "--engine-python",
        "--engine-arg",
        "--base-url",
        "--served-model",
        "--device",
        "--weights-only",
        "--kv-cache-dtype",
        "--kv-scales",
        "--recurrent-state-dtype",
        "--conv-state-dtype",
        "--as-served",
        "--placement",
        "--workers",
        "--ray",
        "--plan",
        "--template-declared",
        "--batch-size",
        "--context",
    ),
    "How much is evaluated": (
        "--skip",
        "--draws",
        "--max-items",
        "--allow-code-execution",
        "--exhaustive",
        "--fresh",
        "--resume",
    ),
    "Decision and reports": ("--waivers-from", "--require-sign-off", "--out", "--format", "--details", "--json"),
}
"""The headings of the longest help pages, and what stands under each; the rest is under Options."""

METAVARS = {
    "--branch": "BRANCH",
    "--reference": "BRANCH|DIR",
    "--family": "FAMILY",
    "--engine": "KIND",
    "--device": "DEVICE",
    "--format": "FORMAT",
    "--out": "DIR",
    "--owner": "NAME",
    "--name": "NAME",
    "--reason": "WHY",
    "--why": "WHY",
    "--criterion": "ID",
    "--canary": "ID",
    "--id": "ID",
    "--slice": "SLICE",
    "--metric": "TEXT",
    "--check": "CHECK",
    "--skill": "SKILL",
    "--run-state": "STATE",
    "--verdict": "VERDICT",
    "--table": "TABLE",
    "--address": "ADDRESS",
    "--port": "PORT",
    "--probe": "PROBE",
    "--skip": "PROBE",
    "--effective-recovery": "SHARE",
    "--batch-size": "N",
    "--context": "TOKENS",
    "--max-new-tokens": "TOKENS",
    "--budget": "TOKENS",
    "--keep-days": "DAYS",
    "--repeat": "N",
}
"""What help pages show for the value of an option that names none itself."""


class Quiet:
    """Whether only verdicts and errors are wanted (`-q`), for as long as one command runs."""

    wanted = False


WORKERS_OWN = ("cuda", "cuda:0")
"""Devices that each worker has for itself."""

PRECEDENCE = (ExitCode.USAGE, ExitCode.FAIL, ExitCode.NOT_MEASURED, ExitCode.INCONCLUSIVE, ExitCode.PASS)


def engine_options(
    *,
    engine: str = IN_PROCESS,
    base_url: str | None = None,
    served_model: str | None = None,
    device: str,
    weights_only: bool = False,
    kv_cache_dtype: str | None = None,
    batch_size: int | None = None,
    as_served: str | None = None,
    kv_scales: str | None = None,
    recurrent_state_dtype: str | None = None,
    conv_state_dtype: str | None = None,
    placement: str | None = None,
    engine_python: str | None = None,
    engine_arguments: list[str] | None = None,
    workers: int | None = None,
    ray: str | None = None,
) -> EngineOptions:
    """How the branch is opened, as the options of the command line say it; checked before anything is measured.

    Raises:
        UsageError: no such engine or device, an option that the engine does not have, or a value that an option does
            not have.
    """
    # a cluster may have GPUs where this machine has none
    if workers is None or (ray is None and device in WORKERS_OWN):
        check_device(device)
    check_as_served(as_served)
    check_kv_scales(kv_scales)
    check_placement(placement)
    for dtype in (recurrent_state_dtype, conv_state_dtype):
        check_state_dtype(dtype)
    if kv_cache_dtype is not None:
        check_kv_cache_dtype(kv_cache_dtype)
    options = EngineOptions(
        kind=engine,
        device=device,
        emulate_activations=not weights_only,
        kv_cache_dtype=kv_cache_dtype,
        kv_scales=kv_scales,
        recurrent_state_dtype=recurrent_state_dtype,
        conv_state_dtype=conv_state_dtype,
        as_served=as_served,
        placement=placement,
        batch_rows=batch_size,
        engine_python=engine_python,
        engine_arguments=tuple(engine_arguments or ()),
        base_url=base_url,
        served_model=served_model,
        workers=workers,
        ray=ray,
    )
    of_others = (base_url, served_model, engine_python, engine_arguments, workers, ray)
    if engine != IN_PROCESS or any(of_others):  # its import takes seconds
        check_options(options)
    return options


def resolve_reference(named: str | None, pack: Path | None, family: Family, paths: Paths) -> Target | None:
    """The reference's checkpoint: the one named, else the family's; with a pack it need not be on this machine.

    Raises:
        UsageError: it is needed and not here.
    """
    try:
        return resolve(named or family.reference, family, paths)
    except UsageError:
        if pack is None or named is not None:
            raise
        return None


def load_policy(name_or_path: str | None, family: Family, paths: Paths, suite: str | None = None) -> "Policy":
    """The policy of that name or file; when None that of the suite, if it has one, else the family's own.

    Raises:
        UsageError: an unknown name, or a policy that is malformed.
    """
    from q36eval.app.policies.files import policy_file, policy_for
    from q36eval.gate.policy_file import read_policy

    return read_policy(policy_file(name_or_path or policy_for(family, suite or family.suite, paths), paths))


def worst(codes: list[int]) -> int:
    """The exit code that stands for several, by DESIGN's precedence."""
    return int(next(code for code in PRECEDENCE if code in codes))


def open_history(paths: Paths | None = None, *, writing: bool = False) -> "History":
    """The history of this working state, or the one named; `writing` refuses what could not be written, before anything
    is measured.

    Raises:
        UsageError: the folder or the database cannot be used for that, or there is no file of the name given to read.
    """
    from q36eval.history import History

    chosen = paths or Paths.default()
    if chosen.named_history is not None and not writing and not chosen.has_history:
        raise UsageError(
            "history-missing",
            f"There is no history {chosen.named_history}; a gate makes one, or name another (--history).",
        )
    try:
        chosen.state.mkdir(parents=True, exist_ok=True)
        if writing:
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
    """The folder that an option names; an empty name would be the current folder, as of a variable that is not set.

    Raises:
        UsageError: it names none.
    """
    if not named.strip():
        raise UsageError("option-empty", "--out names no folder: its value is empty. Write . for the current folder.")
    return Path(named)


def check_device(device: str) -> None:
    """Refuse a device that is not here.

    Raises:
        UsageError: no such device.
    """
    if device == "cpu":
        return
    import torch

    if not device.startswith("cuda") or not torch.cuda.is_available():
        raise UsageError(
            "device-unavailable",
            f"The device {device!r} is not available here; use cpu, or a machine with that device.",
        )


def print_json(body: Any) -> None:
    """One JSON document on stdout; NaN and infinities are strings in what it is given."""
    write_document(printable_json(body, indent=1))


def note(sentence: str) -> None:
    """One line on stderr that a quiet command leaves out."""
    if not Quiet.wanted:
        say(sentence)


def say(sentence: str) -> None:
    """One line on stderr; what a branch is called moves no cursor and is no command to a pipeline's runner."""
    from q36eval.reports.text import SENTENCE, plain

    print(f"q36eval: {plain(sentence, SENTENCE)}", file=sys.stderr)
