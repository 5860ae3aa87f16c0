"""`q36eval reference capture|show`: the reference pack."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.engine_options import engine_options
from q36eval.app.cli.options import (
    CorpusOption,
    FamilyOption,
    JsonOption,
    OwnCanaries,
    PlanOption,
    Quiet,
    ReferenceOption,
    SuiteOption,
    folder_to_write,
    note,
    print_json,
    resolve_reference,
    show_targets,
)
from q36eval.app.cli.tables import plain_table, print_parts
from q36eval.app.targets import declared_family, family_of
from q36eval.config.paths import Paths
from q36eval.engines import IN_PROCESS, EngineOptions
from q36eval.errors import ExitCode, Q36Error, UsageError
from q36eval.records import ProbeName
from q36eval.run.request import CanaryChoice

if TYPE_CHECKING:
    from rich.console import RenderableType

    from q36eval.kl.floor_file import FloorFigures, ReferenceFloor
    from q36eval.references import Header, Manifest
    from q36eval.run.pack import Estimate

app = typer.Typer(help="Capture the reference, and show what was captured.", no_args_is_help=True)

PackArgument = Annotated[
    Path | None, typer.Argument(help="Folder of a pack; every pack of the working state by default.", metavar="PACK")
]


@app.command()
@engine_options(of_reference=True)
def capture(
    engine: EngineOptions,
    reference: ReferenceOption = None,
    family: FamilyOption = None,
    suite: SuiteOption = None,
    plan: PlanOption = False,
    corpus: CorpusOption = None,
    probe: Annotated[
        list[ProbeName] | None, typer.Option(help="Capture only for this probe; for all by default.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the pack, to take it elsewhere.", metavar="DIR", parser=folder_to_write),
    ] = None,
    no_head: Annotated[bool, typer.Option("--no-head", help="Store only the hash of the reference's head.")] = False,
    canaries: OwnCanaries = None,
    as_json: JsonOption = False,
) -> int:
    """Capture the reference once, for every later gate.

    Prints the size first. An interrupted capture is continued. One by --engine vllm is for branches that vLLM answers.
    """
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.run.pack import CAPTURED_PROBES, CaptureRequest
    from q36eval.run.pack import capture as run
    from q36eval.run.probe_set import Scored

    paths = Paths.default()
    if reference is None:
        chosen = declared_family(family, paths)
    else:
        chosen = family_of(family, paths, reference, needs_reference=False, notify=note)
    unasked = [name for name in probe or [] if name not in CAPTURED_PROBES]
    if unasked:
        raise UsageError(
            "probe-not-captured", f"The {unasked[0]} probe needs no capture; capture for {', '.join(CAPTURED_PROBES)}."
        )
    target = resolve_reference(reference, None, chosen, paths)
    assert target is not None, "without a pack it is on this machine"
    show_targets([], target)
    wanted = CaptureRequest(
        reference=target,
        scored=Scored(suite or chosen.suite, chosen.context_length, corpus),
        probes=tuple(name for name in CAPTURED_PROBES if name in (probe or CAPTURED_PROBES)),
        engine=engine,
        out=out,
        keep_head=not no_head,
        family=chosen,
        canaries=CanaryChoice(own=canaries),
    )
    if plan:
        from q36eval.app.cli.plan_command import show_plans
        from q36eval.run.workload import planned_capture

        return show_plans([planned_capture(wanted, paths)], as_json=as_json)
    announced: list[Estimate] = []

    def announce(estimate: "Estimate") -> None:
        announced.append(estimate)
        for line in [] if Quiet.wanted else _size_lines(estimate):
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    with ConsoleProgress() as progress:
        pack = run(wanted, paths, progress, announce)
    used = _used(pack.folder)
    rows = [_row(pack.folder, folder, header, manifest) | used for folder, header, manifest in pack.captures]
    if as_json:
        total = announced[0].total
        print_json(
            {"pack": str(pack.folder), "estimated_bytes": total, "free_bytes": announced[0].free, "captures": rows}
        )
    elif not Quiet.wanted:
        print(f"captured into {pack.folder}")
        print_parts(_row_parts(rows))
        if pack.identity.engine != IN_PROCESS:
            print(f"Judge a branch against it with --engine {pack.identity.engine} --reference-pack {pack.folder}")
    return int(ExitCode.PASS)


@app.command()
def show(
    pack: PackArgument = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every file instead.")] = False,
    as_json: JsonOption = False,
) -> int:
    """List packs with their captures and noise floors.

    The floor is the reference against itself. With --verify every file is checked: exit 1 names what is damaged, exit 2
    what is unfinished.
    """
    if verify:
        return _verify(pack, as_json)
    from q36eval.references import load_header, load_manifest

    folders = _packs(pack, may_be_none=True)
    rows = []
    for folder in folders:
        used = _used(folder)
        for path in sorted(header.parent for header in folder.glob("*/capture.json")):
            try:
                row = _row(folder, path, load_header(path), load_manifest(path))
            except Q36Error as error:
                row = {"pack": str(folder), "capture": path.name, "state": "damaged", "damage": str(error)}
            rows.append(row | used)
    floors = {folder: _floors(folder) for folder in folders}
    if as_json:
        bodies = [json.loads(floor.model_dump_json()) for held in floors.values() for floor in held]
        print_json({"captures": rows, "floors": bodies})
        return int(ExitCode.PASS)
    print_parts(_row_parts(rows))
    print_parts(part for held in floors.values() for floor in held for part in _floor_parts(floor))
    return int(ExitCode.PASS)


def _floors(folder: Path) -> "list[ReferenceFloor]":
    """The noise floors in a pack; `--verify` reports damaged ones."""
    from q36eval.kl.floor_file import VERSION, load_floor

    floors = []
    for file in sorted(folder.glob(f"floor-*-v{VERSION}.json")):
        with suppress(UsageError):
            floors.append(load_floor(file))
    return [floor for floor in floors if floor is not None]


def _verify(pack: Path | None, as_json: bool) -> int:
    from q36eval.references import damage, load_header
    from q36eval.run.floor import floor_state

    damaged: list[str] = []
    refused: list[UsageError] = []
    checked = 0
    for folder in _packs(pack):
        for path in sorted(header.parent for header in folder.glob("*/capture.json")):
            try:
                damaged += damage(path)
                checked += 1
                lacking = floor_state(folder, load_header(path))
                if lacking is not None:
                    refused.append(UsageError("pack-incomplete", f"The capture {path} is unfinished: {lacking}."))
            except UsageError as error:
                refused.append(error)
        damaged += _damage_beside(folder)
    if as_json:
        print_json({"captures": checked, "damage": damaged, "refused": [str(error) for error in refused]})
    for line in [] if as_json else damaged:
        print(f"damaged: {line}")
    if damaged:
        return int(ExitCode.FAIL)
    if refused:
        raise refused[0]
    if not as_json and not Quiet.wanted:
        print(f"{checked} captures are whole")
    return int(ExitCode.PASS)


def _damage_beside(folder: Path) -> list[str]:
    """The errors in the sampled answers and noise floors next to a pack's captures."""
    from q36eval.kl.floor_file import VERSION, load_floor
    from q36eval.kl.on_policy import read_answers

    readers: dict[str, Callable[[Path], object]]
    readers = {"on-policy-*.jsonl": read_answers, f"floor-*-v{VERSION}.json": load_floor}
    damaged = _lacking_answers(folder)
    for pattern, read in readers.items():
        for file in sorted(folder.glob(pattern)):
            try:
                read(file)
            except UsageError as error:
                damaged.append(str(error))
    return damaged


def _lacking_answers(folder: Path) -> list[str]:
    """The captures of a pack whose sampled answers are missing from its files."""
    from q36eval.kl.on_policy import read_answers
    from q36eval.kl.planning import answers_sha256
    from q36eval.references import load_header

    held: set[str] = set()
    for path in folder.glob("on-policy-*.jsonl"):
        with suppress(UsageError):  # reported already
            held.add(answers_sha256([answer.key for answer in read_answers(path).answers]))
    lacking = []
    for path in sorted(header.parent for header in folder.glob("*/capture.json")):
        with suppress(UsageError):
            wanted = load_header(path).suite.get("answers")
            if wanted and wanted not in held:
                lacking.append(
                    f"The sampled answers that {path} scored ({wanted[:16]}) are in no whole file "
                    f"{folder / 'on-policy-*.jsonl'}; copy the pack again, or capture it again."
                )
    return lacking


def _packs(named: Path | None, may_be_none: bool = False) -> list[Path]:
    """The selected packs.

    Raises:
        UsageError: none exists.
    """
    root = Paths.default().captures if named is None else named
    folders = sorted(
        {header.parent.parent for header in [*root.glob("*/capture.json"), *root.glob("*/*/capture.json")]}
    )
    if not folders and not (may_be_none and named is None):
        raise UsageError(
            "pack-missing", f"There is no reference pack in {root}; make one with `q36eval reference capture`."
        )
    return folders


def _used(pack: Path) -> dict[str, Any]:
    from q36eval.references import use_of

    use = use_of(pack)
    times = {name: time.isoformat(timespec="seconds") for name, time in vars(use).items() if name != "size_bytes"}
    return {"pack_bytes": use.size_bytes, **times}


def _row(pack: Path, folder: Path, header: "Header", manifest: "Manifest | None") -> dict[str, Any]:
    from q36eval.run.floor import floor_state

    row: dict[str, Any] = {
        "pack": str(pack),
        "capture": folder.name,
        "state": "unfinished" if manifest is None else "finished",
        **json.loads(header.model_dump_json()),
    }
    if manifest is not None:
        totals = manifest.model_dump(
            mode="json", include={"items", "tokens", "hidden_size", "vocabulary", "withheld", "manifest_sha256"}
        )
        row |= {**totals, "bytes": manifest.bytes}
        lacking = floor_state(pack, header)
        row |= {} if lacking is None else {"state": "unfinished", "lacking": lacking}
    return row


def _size_lines(estimate: "Estimate") -> list[str]:
    lines = []
    for size in estimate.sizes:
        if size.kind == "answers":
            lines.append(f"{size.probe}: {size.items:,} items, at most {_mb(size.total)}")
            continue
        head = f" + head {_mb(size.shared_bytes)}" if size.shared_bytes else ""
        lines.append(
            f"{size.probe}: {size.items:,} documents, {size.tokens:,} tokens x {size.bytes_per_token:,} bytes per token"
            f"{head}, {_mb(size.total)} in all"
        )
    there = f", {_mb(estimate.present)} of it there already" if estimate.present else ""
    lines.append(f"the pack takes {_mb(estimate.total)}{there}; {_mb(estimate.free)} are free in {estimate.folder}")
    return lines


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _row_parts(rows: list[dict[str, Any]]) -> Iterator["RenderableType"]:
    for pack in sorted({row["pack"] for row in rows}):
        mine = [row for row in rows if row["pack"] == pack]
        identity = next((row["identity"] for row in mine if "identity" in row), None)
        yield pack
        if identity is not None:
            where = identity["settings"].get("device", "")
            answered = f"{identity['engine']} ({identity['engine_version']}, {where})"
            yield f"  checkpoint {identity['checkpoint_sha256'][:16]}, answered by {answered}"
        yield f"  {_mb(mine[0]['pack_bytes'])}, captured {mine[0]['captured']}, last used {mine[0]['last_used']}"
        cells = []
        for row in mine:
            counts = [f"{row[name]:,}" if name in row else "" for name in ("items", "tokens")]
            size = _mb(row["bytes"]) if "bytes" in row else ""
            suite = row.get("suite_sha256", "")[:12]
            cells.append((row.get("probe", row["capture"]), row.get("kind", ""), suite, *counts, size, row["state"]))
        yield plain_table(PACK_COLUMNS, cells, right=(3, 4, 5))
        yield from (f"  {row[name]}" for row in mine for name in ("damage", "lacking") if name in row)
    if not rows:
        yield "No pack was captured yet; `q36eval reference capture` makes one."


PACK_COLUMNS = ("probe", "kind", "suite", "items", "tokens", "size", "state")
COLUMNS = ("perturbation", "KL", "95 % interval", "p99", "max", "top-1", "documents")


def _floor_parts(measured: "ReferenceFloor") -> Iterator["RenderableType"]:
    yield "the reference against itself, in nats/token"
    rows = [(row.name, *_cells(row.slices["all"])) for row in measured.perturbations if "all" in row.slices]
    yield plain_table(COLUMNS, rows, right=range(1, len(COLUMNS)))
    for row in measured.perturbations:
        if row.skipped is not None:
            yield f"not measured: {row.name} ({row.what}): {row.skipped}"
        elif not row.moved:
            yield f"no effect: {row.name} gives identical bits here, so it shows no noise"


def _cells(figures: "FloorFigures") -> tuple[str, ...]:
    interval = figures.kl_interval
    return (
        f"{figures.kl:.2g}",
        f"[{interval.lower:.2g}, {interval.upper:.2g}]",
        f"{figures.kl_p99:.2g}",
        f"{figures.kl_max:.2g}",
        f"{figures.top1_agreement:.2%}",
        str(figures.documents),
    )
