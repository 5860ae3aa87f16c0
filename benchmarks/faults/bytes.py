"""What happens to the files that are judged, before and while they are: disks, downloaders, colleagues, kills."""

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path

from benchmarks.faults import Bench, fault
from benchmarks.faults.bench import Done

WEIGHTS = "model.safetensors"
MEASURING = "measuring the branch: "


def flip(file: Path, at: float = 1.0) -> None:
    """One other bit, in place, at that part of the file."""
    with file.open("r+b") as stream:
        place = int(at * (file.stat().st_size - 2))
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 1]))


def renamed_over(file: Path, changed: bool = True) -> None:
    """Another file in its place, as downloaders put it there."""
    copy = file.with_name("download.incomplete")
    shutil.copyfile(file, copy)
    if changed:
        flip(copy)
    copy.replace(file)


def change_while(bench: Bench, change: Callable[[Path], object], until: str = MEASURING, *options: object) -> Done:
    """A gate of a copy, into which `change` is done as soon as it says `until`."""
    bench.reference()
    branch = bench.copy("fp8-head")
    gate = bench.start("gate", "--branch", branch, *bench.small, *options).wait_for(until)
    change(branch)
    return gate.end()


def last_run(bench: Bench) -> str:
    """The id of the newest run."""
    runs = json.loads(bench.q36eval("history", "list", "--json").stdout)
    listed = runs["runs"] if isinstance(runs, dict) else runs
    return str(listed[0].get("id") or listed[0]["run_id"])


def damaged(bench: Bench, branch: Path, says: str) -> str:
    """A gate of weights alone, and the finding as `inspect` names it."""
    seen = bench.q36eval("gate", "--branch", branch, *bench.weights_alone).told(exit=1)
    bench.q36eval("inspect", branch).told(exit=1, says=says)
    return f"{seen}; inspect names it"


@fault("the weights are overwritten in place while the branch is measured", "exit 4, the file is named; no verdict")
def overwritten(bench: Bench) -> str:
    return change_while(bench, lambda branch: flip(branch / WEIGHTS)).told(exit=4, says="changed while it was judged")


@fault("the weights are overwritten, and their old times put back", "exit 4, the file is named")
def overwritten_secretly(bench: Bench) -> str:
    def secretly(branch: Path) -> None:
        file = branch / WEIGHTS
        before = file.stat()
        flip(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change_while(bench, secretly).told(exit=4, says="was overwritten")


@fault("another file is renamed over the weights before they are loaded", "exit 4: nothing read mixes the two")
def replaced(bench: Bench) -> str:
    done = change_while(bench, lambda branch: renamed_over(branch / WEIGHTS), "inspecting the checkpoint")
    return done.told(exit=4, says="was replaced")


@fault("the weights are cut short while the branch is measured", "exit 4, never the branch's fault")
def truncated(bench: Bench) -> str:
    return change_while(bench, lambda branch: os.truncate(branch / WEIGHTS, 5000)).told(exit=4, says="truncated")


@fault("the branch's folder is deleted while it is measured", "exit 4, the file is named")
def deleted(bench: Bench) -> str:
    return change_while(bench, shutil.rmtree).told(exit=4, says="was removed")


@fault("another shard comes into the folder: the download was not over", "exit 4, the file is named")
def download_goes_on(bench: Bench) -> str:
    def arrives(branch: Path) -> None:
        shutil.copyfile(branch / WEIGHTS, branch / "model-00002-of-00002.safetensors")

    return change_while(bench, arrives).told(exit=4, says="came into the folder")


@fault("the tokenizer is replaced while the branch is measured", "exit 4, the file is named")
def tokenizer_replaced(bench: Bench) -> str:
    done = change_while(bench, lambda branch: renamed_over(branch / "tokenizer.json"))
    return done.told(exit=4, says="tokenizer.json was replaced")


@fault("a snapshot of the Hub is pointed at another blob meanwhile", "exit 4, the file is named")
def another_blob(bench: Bench) -> str:
    bench.reference()
    blobs = bench.copy("fp8-head")
    snapshot = bench.folder / "snapshot"
    snapshot.mkdir()
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)
    gate = bench.start("gate", "--branch", snapshot, *bench.small).wait_for(MEASURING)
    other = bench.folder / "another blob"
    shutil.copyfile(blobs / WEIGHTS, other)
    flip(other)
    (snapshot / WEIGHTS).unlink()
    (snapshot / WEIGHTS).symlink_to(other)
    return gate.end().told(exit=4, says="was replaced")


@fault(
    "the weights are touched, linked and replaced by the same bytes meanwhile",
    "a verdict: what counts is the contents",
)
def touched(bench: Bench) -> str:
    def touch(branch: Path) -> None:
        os.utime(branch / WEIGHTS)
        os.link(branch / "tokenizer.json", bench.folder / "a second name")
        renamed_over(branch / "config.json", changed=False)
        (branch / "notes.txt").write_text("what no model reads")

    return change_while(bench, touch).told(exit=0, says="PASS")


@fault("the reference's weights are overwritten while the branch is measured", "exit 4, the file is named")
def reference_overwritten(bench: Bench) -> str:
    bench.reference()
    reference = bench.copy("bf16")
    gate = bench.start("gate", "--branch", "fp8-head", "--reference", reference, *bench.small).wait_for(MEASURING)
    flip(reference / WEIGHTS)
    return gate.end().told(exit=4, says="changed while it was judged")


@fault("a run whose weights changed is resumed, the old bytes back in place", "exit 2: a new run is needed")
def resumed_after_change(bench: Bench) -> str:
    branch = bench.folder / "fp8-head"
    change_while(bench, lambda branch: flip(branch / WEIGHTS)).told(exit=4)
    flip(branch / WEIGHTS)
    resumed = bench.q36eval("gate", "--branch", branch, *bench.small, "--resume", last_run(bench))
    return resumed.told(exit=2, says="cannot be resumed")


@fault("a run is killed, its weights are exchanged, and it is resumed", "exit 2: it measured another deployment")
def resumed_with_others(bench: Bench) -> str:
    bench.reference()
    branch = bench.copy("fp8-head")
    bench.start("gate", "--branch", branch, *bench.small).wait_for(MEASURING).send(signal.SIGKILL, group=True).end()
    flip(branch / WEIGHTS)
    resumed = bench.q36eval("gate", "--branch", branch, *bench.small, "--resume", last_run(bench))
    return resumed.told(exit=2, says="checkpoint_sha256")


@fault("a gate is killed (SIGKILL) while the branch is measured, and resumed", "the verdict it would have given")
def killed_measuring(bench: Bench) -> str:
    bench.reference()
    gate = ("gate", "--branch", "fp8-head", *bench.small)
    bench.start(*gate).wait_for(MEASURING).send(signal.SIGKILL, group=True).end()
    return bench.q36eval(*gate, "--resume", last_run(bench)).told(exit=0, says="PASS")


@fault("a gate is killed while the reference is asked, and the same command given again", "a verdict")
def killed_capturing(bench: Bench) -> str:
    gate = ("gate", "--branch", "fp8-head", *bench.small)
    captured = bench.state / "packs"
    running = bench.start(*gate).wait_for(lambda: len([*captured.rglob("items/*.safetensors")]) > 3)
    running.send(signal.SIGKILL, group=True).end()
    return bench.q36eval(*gate).told(exit=0, says="PASS")


@fault("a gate is killed in the noise floor, and the same command given again", "a verdict; the floor is whole")
def killed_in_floor(bench: Bench) -> str:
    state = bench.reference()
    for floor in state.rglob("floor-*.json"):
        floor.unlink()
    gate = ("gate", "--branch", "fp8-head", *bench.small)
    bench.start(*gate).wait_for("measuring the noise floor").send(signal.SIGKILL, group=True).end()
    return bench.q36eval(*gate).told(exit=0, says="PASS")


@fault("a weight file is cut short by a byte", "FAIL, exit 1, the file is named")
def cut_short(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    os.truncate(branch / WEIGHTS, (branch / WEIGHTS).stat().st_size - 1)
    return damaged(bench, branch, WEIGHTS)


@fault("a byte is appended to a weight file", "FAIL, exit 1: it belongs to nothing")
def a_byte_more(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    with (branch / WEIGHTS).open("ab") as stream:
        stream.write(b"\0")
    return damaged(bench, branch, "belong to nothing")


@fault("a weight's exponent flips and it is NaN", "FAIL, exit 1, the weight is named")
def one_nan(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    with (branch / WEIGHTS).open("r+b") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(size))
        name = next(each for each, entry in header.items() if entry.get("dtype") == "BF16" and "norm" in each)
        stream.seek(8 + size + header[name]["data_offsets"][0])
        stream.write(struct.pack("<H", 0x7FC0))
    return damaged(bench, branch, name)


@fault("a header says that two tensors lie on the same bytes", "FAIL, exit 1")
def overlapping(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    content = (branch / WEIGHTS).read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    alike: dict[int, str] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if end - begin in alike:
            entry["data_offsets"] = header[alike[end - begin]]["data_offsets"]
            break
        alike[end - begin] = name
    text = json.dumps(header).encode()
    (branch / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    return damaged(bench, branch, "overlaps")


@fault("a header claims to be longer than any memory", "FAIL, exit 1, in seconds")
def endless_header(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    with (branch / WEIGHTS).open("r+b") as stream:
        stream.write(struct.pack("<Q", 2**62))
    line = 'ulimit -v 8000000; "$@"'
    return bench.bash(line, "gate", "--branch", branch, *bench.weights_alone).told(exit=1, says="header")


@fault("an index leads out of the folder (../../etc/passwd)", "FAIL, exit 1; nothing there is read")
def index_leads_out(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    index = {"weight_map": {"model.norm.weight": "../../../etc/passwd"}}
    (branch / "model.safetensors.index.json").write_text(json.dumps(index))
    return bench.q36eval("gate", "--branch", branch, *bench.weights_alone).told(exit=1, says="index")


@fault("a process may open few files (ulimit -n), fewer than the checkpoint has", "exit 4: no fault of the branch")
def few_descriptors(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    for number in range(60):
        (branch / f"model-{number:05}-of-00060.safetensors").write_bytes(b"")
    done = bench.bash('ulimit -n 48; "$@"', "gate", "--branch", branch, *bench.weights_alone)
    return done.told(exit=4, says="Too many open files")


def flipped(bench: Bench, pattern: str, at: float = 0.9) -> str:
    """A gate after one bit flipped in what is kept of the reference."""
    file = min(bench.reference().glob(f"packs/*/{pattern}"))
    flip(file, at)
    return bench.q36eval("gate", "--branch", "fp8-head", *bench.small).told(exit=2, says=file.name)


@fault("a bit flips in a captured state of the reference", "exit 2, the file is named; never PASS")
def flipped_state(bench: Bench) -> str:
    return flipped(bench, "kl-*/items/*.safetensors")


@fault("a bit flips in the captured head of the reference", "exit 2, the file is named")
def flipped_head(bench: Bench) -> str:
    return flipped(bench, "kl-*/shared.safetensors", 0.5)


@fault("a bit flips in the manifest of a capture", "exit 2, the file is named")
def flipped_manifest(bench: Bench) -> str:
    return flipped(bench, "kl-*/pack.json", 0.5)


@fault("a bit flips in the reference's noise floor", "exit 2, the file is named")
def flipped_floor(bench: Bench) -> str:
    return flipped(bench, "floor-*.json", 0.5)


@fault("a captured state is missing", "exit 2, the file is named")
def missing_state(bench: Bench) -> str:
    file = min(bench.reference().glob("packs/*/kl-*/items/*.safetensors"))
    file.unlink()
    return bench.q36eval("gate", "--branch", "fp8-head", *bench.small).told(exit=2, says=file.name)


@fault("a pack of another reference is given", "exit 2, the field that differs")
def foreign_pack(bench: Bench) -> str:
    pack = min(path for path in (bench.reference() / "packs").iterdir() if path.is_dir())
    reference = bench.copy("bf16")
    flip(reference / WEIGHTS)
    named = ("--reference-pack", pack, "--reference", reference)
    done = bench.q36eval("gate", "--branch", "fp8-head", *named, *bench.small)
    return done.told(exit=2, says="checkpoint_sha256")


@fault("a frozen suite has one other byte", "exit 2, the file is named")
def changed_suite(bench: Bench) -> str:
    data = Path(shutil.copytree(Path(__file__).parents[2] / "data" / "tasks" / "sandbox", bench.folder / "tasks"))
    file = min(data.rglob("mmlu/*.jsonl"))
    flip(file, 0.5)
    options = ("--suite", f"sandbox={data}", "--skip", "kl", "--skip", "canaries")
    done = bench.q36eval("gate", "--branch", "fp8-head", *bench.weights_alone[:2], *options)
    return done.told(exit=2, says=file.name)
