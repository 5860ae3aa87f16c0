"""Captures on disk: whole or not at all, the same bytes whatever interrupted them, and refused when damaged."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from q36eval.errors import UsageError
from q36eval.probes import Digest
from q36eval.records import ProbeName
from q36eval.references import Capture, Pack, damage
from q36eval.references._shards import Journal
from tests.q36eval.run.runner import IDENTITY
from tests.raising import raises

HEAD = torch.arange(12.0).reshape(4, 3).bfloat16()
KEYS = [f"document {number}" for number in range(6)]


def opened(root: Path, **options: object) -> Capture:
    return Capture(root, IDENTITY, ProbeName.KL, "suite", "hidden-states", **options)  # type: ignore[arg-type]


def digest_of(number: int) -> Digest:
    """Every third has no tensors."""
    if number % 3 == 2:
        return Digest(values={"text": f"odpověď {number}\r\u2028", "tokens": 0})
    return Digest(values={"tokens": number + 1}, tensors={"hidden_states": torch.full((number + 1, 3), float(number))})


def capture_all(root: Path, keys: list[str] = KEYS, wanted: list[str] = KEYS) -> None:
    """What a run does: keep the head and every missing item, then seal."""
    capture = opened(root)
    if not capture.has_shared:
        capture.share({"head": HEAD})
    for key in keys:
        if key not in capture:
            capture.add(key, digest_of(int(key.split()[1])), asked=f"asked {key}")
    capture.finish(wanted)


def contents(root: Path) -> dict[str, bytes]:
    """Without the journal, which a kill right after the manifest leaves behind."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != "journal.jsonl")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    capture_all(tmp_path / "pack")
    return tmp_path / "pack"


def folder_of(pack: Path) -> Path:
    return next(path for path in pack.iterdir() if path.is_dir())


def killed_at(event: int, root: Path) -> bool:
    """Capture in a process that is killed at its n-th touch of the file system; whether it was."""
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(name: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if name in ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate") and str(root) in str(arguments[0]):
                seen += 1
                if seen == event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            capture_all(root)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.long
@pytest.mark.parametrize("finished", [0, 4])
def test_killed_at_every_step_it_resumes_to_the_same_bytes(tmp_path: Path, pack: Path, finished: int) -> None:
    """In the second half of the cases it is killed a second time, while it resumes. A finished capture may be added to.

    No item is lost but the last one.
    """
    whole, event = contents(pack), 0
    while True:
        event += 1
        root = tmp_path / str(event)
        if finished:
            capture_all(root, KEYS[:finished], KEYS[:finished])
        if not killed_at(event, root):
            break
        if event % 2:
            killed_at(event // 2 + 1, root)
        kept = len(opened(root)._shards) - len(list(root.rglob("*.safetensors")))
        assert kept >= -2, f"killed at step {event}"  # the head is such a file too
        capture_all(root)
        assert contents(root) == whole, f"killed at step {event}"
        shutil.rmtree(root)
    assert event > 30


def test_the_order_of_the_answers_leaves_no_trace(tmp_path: Path, pack: Path) -> None:
    capture_all(tmp_path / "backwards", KEYS[::-1])
    assert contents(tmp_path / "backwards") == contents(pack)


def test_what_is_kept_comes_back(pack: Path) -> None:
    capture = opened(pack)
    assert sorted(capture) == KEYS
    assert capture[KEYS[2]].values == digest_of(2).values
    assert torch.equal(capture[KEYS[4]].tensors["hidden_states"], torch.full((5, 3), 4.0))
    assert torch.equal(capture[KEYS[4]].tensors["head"], HEAD)
    manifest = capture.manifest
    assert (manifest.items, manifest.tokens, manifest.vocabulary, manifest.hidden_size) == (6, 1 + 2 + 4 + 5, 4, 3)
    assert damage(folder_of(pack)) == []


def test_a_torn_journal_costs_its_last_line_only(tmp_path: Path) -> None:
    capture = opened(tmp_path)
    for number in (2, 5):
        capture.add(KEYS[number], digest_of(number))
    journal = folder_of(tmp_path) / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-7])
    again = opened(tmp_path)
    assert list(again) == [KEYS[2]]
    again.add(KEYS[5], digest_of(5))
    assert list(opened(tmp_path)) == [KEYS[2], KEYS[5]]


def test_an_answer_that_another_byte_got_into_before_it_was_sealed_is_asked_for_again(
    tmp_path: Path, pack: Path
) -> None:
    capture = opened(tmp_path / "cut")
    capture.share({"head": HEAD})
    for key in KEYS[:4]:
        capture.add(key, digest_of(int(key.split()[1])), asked=f"asked {key}")
    journal = folder_of(tmp_path / "cut") / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace("odpověď 2".encode(), "odpověď 3".encode()))
    assert KEYS[2] not in opened(tmp_path / "cut")
    capture_all(tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(pack)


def test_a_finished_capture_that_is_added_to_trusts_its_manifest_alone(tmp_path: Path) -> None:
    """A kill may leave a journal beside the manifest; and what is damaged then stays damaged."""
    capture_all(tmp_path, KEYS[:4], KEYS[:4])
    folder = folder_of(tmp_path)
    Journal(folder / "journal.jsonl").append({"item": KEYS[5], "asked": "other", "values": {}, "error": None})
    opened(tmp_path).add(KEYS[4], digest_of(4))
    assert set(opened(tmp_path)) == {*KEYS[:5]}
    head = folder / "shared.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\xff")
    with raises(UsageError, "pack-damaged", "shared.safetensors"):
        opened(tmp_path)[KEYS[0]]


def test_what_was_half_written_and_is_not_wanted_any_more_is_gone(tmp_path: Path) -> None:
    """Killed while it wrote the head, and gone on with by one that keeps its hash only."""
    capture = opened(tmp_path, restore=lambda: {"head": HEAD})
    capture.add(KEYS[0], digest_of(0))
    (capture.folder / "shared.safetensors.tmp").write_bytes(b"half")
    again = opened(tmp_path, restore=lambda: {"head": HEAD})
    again.share({"head": HEAD}, keep=False)
    again.finish(KEYS[:1])
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("what", ["truncated", "missing", "altered"])
@pytest.mark.parametrize("name", ["items/*.safetensors", "shared.safetensors", "answers.jsonl"])
def test_damage_is_named_and_never_read(pack: Path, what: str, name: str) -> None:
    file = sorted(folder_of(pack).glob(name))[0]
    payload = bytearray(file.read_bytes())
    if what == "missing":
        file.unlink()
    elif what == "truncated":
        file.write_bytes(payload[:-1])
    else:
        payload[-2] ^= 1
        file.write_bytes(payload)
    assert [line for line in damage(folder_of(pack)) if str(file) in line and (what in line or "damaged" in line)]
    with raises(UsageError, "pack-damaged", file.name):
        [opened(pack)[key] for key in KEYS]
    if what != "altered":  # seen before anything is measured
        with raises(UsageError, "pack-damaged", file.name):
            Pack.open(pack)


def test_a_manifest_that_was_edited_is_damaged(pack: Path) -> None:
    manifest = folder_of(pack) / "pack.json"
    manifest.write_text(manifest.read_text().replace('"tokens": 12', '"tokens": 13'))
    assert any("pack.json is not as it was written" in line for line in damage(folder_of(pack)))
    manifest.write_text("{")
    assert any("pack.json cannot be read" in line for line in damage(folder_of(pack)))
    with raises(UsageError, "pack-unreadable", "pack.json"):
        Pack.open(pack)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "items/../../outside", "items\\..\\x", "link"])
def test_a_file_outside_its_folder_is_refused(pack: Path, name: str) -> None:
    folder = folder_of(pack)
    (pack / "outside").write_text("secret")
    (folder / "link").symlink_to(pack / "outside")
    body = json.loads((folder / "pack.json").read_text())
    body["files"][name] = {"sha256": "0" * 64, "bytes": 6}
    (folder / "pack.json").write_text(json.dumps(body))
    for use in (damage, lambda _: Pack.open(pack)):
        with raises(UsageError, "path-outside-folder"):
            use(folder)


def test_a_shard_that_another_item_s_place_was_given_is_refused(pack: Path) -> None:
    """Hashes agree, yet the manifest sends one item to another's tensors."""
    folder = folder_of(pack)
    body = json.loads((folder / "pack.json").read_text())
    shards = body["shards"]
    shards[KEYS[0]], shards[KEYS[1]] = shards[KEYS[1]], shards[KEYS[0]]
    from q36eval.references import Manifest

    sealed = Manifest.model_validate(body).sealed()
    (folder / "pack.json").write_text(sealed.model_dump_json())
    with raises(UsageError, "pack-damaged"):
        opened(pack)[KEYS[0]]


def test_a_pack_that_never_finished_is_resumed_by_a_capture_and_refused_by_others(tmp_path: Path, pack: Path) -> None:
    root = tmp_path / "unfinished"
    capture = opened(root)
    capture.share({"head": HEAD})
    capture.add(KEYS[0], digest_of(0), asked=f"asked {KEYS[0]}")
    with raises(UsageError, "pack-incomplete"):
        Pack.open(root).of(ProbeName.KL)
    with raises(UsageError, "pack-incomplete"):
        damage(folder_of(root))
    capture_all(root)
    assert contents(root) == contents(pack)


def test_captures_of_two_references_are_no_pack(pack: Path) -> None:
    other = IDENTITY.model_copy(update={"engine_version": "2"})
    Capture(pack, other, ProbeName.EVALS, "suite").add("x", Digest(values={}))
    with raises(UsageError, "pack-mixed", "engine_version"):
        Pack.open(pack)


@pytest.mark.parametrize(("part", "option"), [("own canaries", "--canaries"), ("canaries", "--only")])
def test_a_pack_of_other_canaries_names_the_option_to_change(tmp_path: Path, part: str, option: str) -> None:
    held = {"canaries": "shipped", "own canaries": ""}
    capture = Capture(tmp_path, IDENTITY, ProbeName.CANARIES, "suite", suite=held)
    capture.add("x", Digest(values={}))
    capture.finish(["x"])
    with raises(UsageError, "pack-of-another-suite", part, option):
        Pack.open(tmp_path).capture_of(ProbeName.CANARIES, "another", held | {part: "mine"})


def test_a_head_that_is_not_kept_is_rebuilt_and_checked(tmp_path: Path) -> None:
    capture = opened(tmp_path, restore=lambda: {"head": HEAD})
    capture.share({"head": HEAD}, keep=False)
    capture.add(KEYS[0], digest_of(0))
    capture.finish(KEYS[:1])
    assert (capture.manifest.vocabulary, capture.manifest.hidden_size) == (4, 3)
    assert not list(tmp_path.rglob("shared.safetensors"))
    again = opened(tmp_path, restore=lambda: {"head": HEAD.clone()})
    assert torch.equal(again[KEYS[0]].tensors["head"], HEAD)
    with raises(UsageError, "reference-file-differs", "head"):
        opened(tmp_path, restore=lambda: {"head": HEAD + 1})[KEYS[0]]
    with raises(UsageError, "pack-text-withheld"):
        opened(tmp_path)[KEYS[0]]


@contextmanager
def not_root() -> Iterator[None]:
    """Permissions do not bind the superuser."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_read_only_pack_is_read_and_a_read_only_folder_refused(pack: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o755)
        copy = Path(temporary) / "pack"
        shutil.copytree(pack, copy)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            with not_root():
                assert len([opened(copy)[key] for key in KEYS]) == 6
                assert Pack.open(copy).of(ProbeName.KL)
                with raises(UsageError, "file-unwritable"):
                    Capture(copy, IDENTITY, ProbeName.KL, "another suite").add("x", Digest(values={}))
        finally:
            for path in [copy, *copy.rglob("*")]:
                path.chmod(0o755)
