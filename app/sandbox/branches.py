"""The sandbox's branches: where each is, how to build those that are not committed whole, and whether all are intact.

A branch is committed as a complete Hugging Face folder `data/sandbox/<branch>/`, or as an overlay
`data/sandbox/overlays/<branch>/` (its configuration, and the tensors in which it differs from another branch), or it is
computed from the reference. Overlays and computed branches are built on first use into `.q36eval/sandbox/`; the bytes
must be those of `data/sandbox/manifest.json`.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from q36eval.app.sandbox.branches_raw import read_raw, read_raw_file, write_raw
from q36eval.checkpoints.hashing import file_sha256
from q36eval.errors import CorruptCheckpointError, UsageError

SANDBOX_DIR = Path(__file__).resolve().parents[2] / "data" / "sandbox"
REFERENCE = "bf16"
SHARED_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
OVERLAY_FILE, OVERLAY_PLAN = "overlay.safetensors", "overlay.json"
Kind = Literal["committed", "overlay", "computed"]


@dataclass(frozen=True)
class Branch:
    """One branch: what was done to it, and the published checkpoint whose recipe it follows."""

    name: str
    recipe: str
    as_in: str


BRANCHES = (
    Branch(REFERENCE, "the reference", "Qwen/Qwen3.6-35B-A3B"),
    Branch("main", "NVFP4 W4A4 experts, shared expert, self-attention; BF16 head and embeddings", "inferRouter main"),
    Branch("fp8-head", "main's inner weights, bit for bit; FP8_BLOCK lm_head", "inferRouter fp8-head"),
    Branch("fp8-head-embed", "fp8-head with FP8_BLOCK embeddings (lab only)", "inferRouter 27B fp8-head-embed"),
    Branch("w4a16", "attention W8A16, experts W4A16 g32, super-experts W8A16, boundary layers BF16", "88plug W4A16"),
    Branch("gptq-int4", "experts GPTQ int4 g128 sym, the rest BF16", "palmfuture GPTQ-Int4"),
    Branch("nvfp4-modelopt", "experts NVFP4 W4A4, Model Optimizer serialization", "nerkyor NVFP4-modelopt"),
    Branch("int2-experts", "experts rounded to 2 bits g32: deliberately ruined", "nothing published"),
)


@dataclass(frozen=True)
class BranchStatus:
    """A branch as found: `path` is its folder, or None while it is still to be built."""

    branch: Branch
    kind: Kind
    path: Path | None
    n_bytes: int | None


def names() -> list[str]:
    """The branch names, reference first."""
    return [branch.name for branch in BRANCHES]


def build(name: str, sandbox_dir: Path = SANDBOX_DIR, build_dir: Path | None = None) -> Path:
    """The complete folder of a branch, built first if need be, its bytes checked against the manifest.

    Raises:
        UsageError: no such branch, or its source or the manifest is missing.
        CorruptCheckpointError: a file's bytes are not those of the manifest.
    """
    if name not in names():
        raise UsageError(f"The sandbox has no branch {name!r}; it has {', '.join(names())}.")
    manifest = read_manifest(sandbox_dir)
    folder, expected = _folder(name, sandbox_dir, build_dir), manifest["branches"].get(name)
    if expected is None:
        raise UsageError(f"{sandbox_dir / 'manifest.json'} does not list branch {name!r}; build the sandbox first.")
    if kind_of(name, sandbox_dir) != "committed" and _differences(folder, expected):
        _build_into(folder, name, sandbox_dir)
    differences = _differences(folder, expected)
    if differences:
        raise CorruptCheckpointError(
            f"{folder / differences[0]} is not what {sandbox_dir / 'manifest.json'} says it is."
        )
    return folder


def status(sandbox_dir: Path = SANDBOX_DIR, build_dir: Path | None = None) -> list[BranchStatus]:
    """Every branch with its kind and, where it is complete, its folder and size."""
    found = []
    for branch in BRANCHES:
        folder = _folder(branch.name, sandbox_dir, build_dir)
        there = (folder / "config.json").is_file()
        size = sum(file.stat().st_size for file in folder.iterdir()) if there else None
        found.append(BranchStatus(branch, kind_of(branch.name, sandbox_dir), folder if there else None, size))
    return found


def verify(sandbox_dir: Path = SANDBOX_DIR) -> list[str]:
    """What is wrong with the committed files, one sentence each; empty when every byte is as in the manifest.

    Raises:
        UsageError: there is no manifest.
    """
    manifest = read_manifest(sandbox_dir)
    problems = []
    for name in names():
        kind = kind_of(name, sandbox_dir)
        listed = manifest["overlays"].get(name, {}) if kind == "overlay" else manifest["branches"].get(name, {})
        folder = sandbox_dir / "overlays" / name if kind == "overlay" else sandbox_dir / name
        if kind == "computed":
            continue
        if not listed:
            problems.append(f"{folder} is not listed in the manifest.")
        problems += [
            f"{folder / file} differs from the manifest or is missing." for file in _differences(folder, listed)
        ]
        strays = sorted({file.name for file in folder.iterdir()} - set(listed)) if listed else []
        problems += [f"{folder / file} is not listed in the manifest." for file in strays]
    return problems


def kind_of(name: str, sandbox_dir: Path = SANDBOX_DIR) -> Kind:
    """How a branch is kept."""
    if (sandbox_dir / name / "config.json").is_file():  # a checkout may leave an empty folder of a branch that moved
        return "committed"
    return "overlay" if (sandbox_dir / "overlays" / name).is_dir() else "computed"


def read_manifest(sandbox_dir: Path) -> dict[str, Any]:
    """`{"branches": {name: {file: sha256}}, "overlays": {name: {file: sha256}}}`.

    Raises:
        UsageError: there is none.
    """
    file = sandbox_dir / "manifest.json"
    if not file.is_file():
        raise UsageError(f"{file} is missing: the sandbox has not been built there.")
    manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return manifest


def write_manifest(sandbox_dir: Path) -> None:
    """Hash every committed file, and every file of the branches built from them, into the manifest."""
    branches: dict[str, dict[str, str]] = {}
    overlays: dict[str, dict[str, str]] = {}
    for name in names():
        if kind_of(name, sandbox_dir) == "committed":
            branches[name] = _hashes(sandbox_dir / name)
            continue
        if kind_of(name, sandbox_dir) == "overlay":
            overlays[name] = _hashes(sandbox_dir / "overlays" / name)
        with tempfile.TemporaryDirectory() as scratch:
            _build_into(Path(scratch) / name, name, sandbox_dir)
            branches[name] = _hashes(Path(scratch) / name)
    document = json.dumps({"branches": branches, "overlays": overlays}, indent=2, sort_keys=True)
    (sandbox_dir / "manifest.json").write_text(document + "\n", encoding="utf-8")


def write_overlay(branch: Path, base: str, sandbox_dir: Path) -> None:
    """Keep a complete branch folder as an overlay over the committed branch `base`."""
    under, tensors = read_raw(sandbox_dir / base), read_raw(branch)
    target = sandbox_dir / "overlays" / branch.name
    target.mkdir(parents=True, exist_ok=True)
    for file in branch.iterdir():
        if file.suffix != ".safetensors" and file.name not in SHARED_FILES:
            shutil.copyfile(file, target / file.name)
    changed = {name: tensor for name, tensor in tensors.items() if under.get(name) != tensor}
    write_raw(target / OVERLAY_FILE, changed)
    dropped = sorted(set(under) - set(tensors))
    document = json.dumps({"base": base, "dropped": dropped}, indent=1)
    (target / OVERLAY_PLAN).write_text(document + "\n", encoding="utf-8")


def _build_into(folder: Path, name: str, sandbox_dir: Path) -> None:
    """Build beside the final place, then move, so that an interrupted build leaves nothing half-made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fresh = Path(scratch) / name
        fresh.mkdir()
        for file in SHARED_FILES:
            if (sandbox_dir / REFERENCE / file).is_file():
                shutil.copyfile(sandbox_dir / REFERENCE / file, fresh / file)
        if kind_of(name, sandbox_dir) == "overlay":
            _apply_overlay(sandbox_dir, name, fresh)
        elif name == "int2-experts":
            from q36eval.app.sandbox.branches_int2 import write_int2_experts

            write_int2_experts(sandbox_dir / REFERENCE, fresh)
        else:
            raise UsageError(f"{sandbox_dir / name} is missing and cannot be computed: check the data out again.")
        if folder.exists():
            shutil.rmtree(folder)
        fresh.rename(folder)


def _apply_overlay(sandbox_dir: Path, name: str, target: Path) -> None:
    overlay = sandbox_dir / "overlays" / name
    for file in overlay.iterdir():
        if file.name not in (OVERLAY_FILE, OVERLAY_PLAN):
            shutil.copyfile(file, target / file.name)
    plan = json.loads((overlay / OVERLAY_PLAN).read_text(encoding="utf-8"))
    tensors = read_raw(sandbox_dir / plan["base"]) | read_raw_file(overlay / OVERLAY_FILE)
    for dropped in plan["dropped"]:
        del tensors[dropped]
    write_raw(target / "model.safetensors", tensors)


def _folder(name: str, sandbox_dir: Path, build_dir: Path | None) -> Path:
    if kind_of(name, sandbox_dir) == "committed":
        return sandbox_dir / name
    return (build_dir or sandbox_dir.parent.parent / ".q36eval" / "sandbox") / name


def _hashes(folder: Path) -> dict[str, str]:
    return {file.name: file_sha256(file) for file in sorted(folder.iterdir()) if file.is_file()}


def _differences(folder: Path, expected: dict[str, str]) -> list[str]:
    """The files of `expected` that are missing in `folder` or have other bytes."""
    return [
        name
        for name, sha256 in sorted(expected.items())
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256
    ]
