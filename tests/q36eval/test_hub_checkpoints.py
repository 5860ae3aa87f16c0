"""Checkpoints by their names on the Hub: the real huggingface_hub against a Hub on loopback."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, load_model, open_checkpoint, tokenizer_sha256
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.errors import ChangedError, UsageError
from q36eval.files import checkpoint_path
from q36eval.hub_checkpoints import HubName, fetch, located
from q36eval.redaction import redacted
from tests.loopback_hub import TOKEN, Hub
from tests.q36eval.test_references import contents
from tests.raising import raises

ROOT = Path(__file__).parents[2]
BF16 = ROOT / "data" / "sandbox" / "bf16"
GGUF = ROOT / "tests" / "assets" / "ggufs" / "q8_0.gguf"
NAME = HubName("org/name")
MEBIBYTE = 2**20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as people publish it: two shards, and much that nothing reads."""
    folder = tmp_path / "model"
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    write(folder / "config.json", b"{}")
    write(folder / "tokenizer.json", b'{"version": "1.0"}')
    write(
        folder / "model.safetensors.index.json", json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}).encode()
    )
    write(folder / "additional_chat_templates/tool_use.jinja", b"{{ tools }}")
    write(folder / "README.md", b"# NVFP4")
    for seed, shard in enumerate(shards):
        write(folder / shard, random.Random(seed).randbytes(MEBIBYTE * (seed + 1)))
    return folder


UNREAD = (
    "pytorch_model.bin",
    "original/model.safetensors",
    "onnx/model.onnx",
    "consolidated.safetensors",
    "a.png",
    "m.py",
)


def write(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def fetched(name: HubName = NAME) -> tuple[Path, list[str]]:
    """Where it is, and what was said."""
    said: list[str] = []
    return fetch(name, said.append).place, said


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B", HubName("Qwen/Qwen3-8B")),
        ("org/a.b_c-1@fp8-head", HubName("org/a.b_c-1", "fp8-head")),
        ("org/name@refs/pr/4", HubName("org/name", "refs/pr/4")),
        (f"org/name@{'a1' * 20}", HubName("org/name", "a1" * 20)),
        ("org/name:Q4_K_M.gguf", HubName("org/name", None, "Q4_K_M.gguf")),
        ("org/name@v1.0:sub/m-00001-of-00002.gguf", HubName("org/name", "v1.0", "sub/m-00001-of-00002.gguf")),
    ],
)
def test_a_name_is_read_and_spelt(text: str, name: HubName) -> None:
    assert HubName.parse(text) == name
    assert str(name) == text


@pytest.mark.parametrize("text", json.loads(Path(__file__).with_name("odd_hub_names.json").read_text()))
def test_an_odd_name_is_none(text: str) -> None:
    assert HubName.parse(text) is None


def test_only_what_is_read_is_downloaded_and_once(hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = contents(model)
    for name in UNREAD:
        write(model / name, b"x" * MEBIBYTE)
    commit = hub.publish("org/name", model)
    assert located(NAME) is None
    assert not hub.downloads()
    place, said = fetched()
    assert contents(place) == wanted
    assert (place / "README.md").is_symlink()
    assert len(said) == 1
    assert all(value in said[0] for value in ("7 files", "3.0 MiB", commit, "are free"))
    assert len(hub.downloads()) == 7
    assert fetched() == (place, [])
    assert (kept := located(NAME)) is not None
    assert (kept.place, kept.revision, kept.commit) == (place, "main", commit)
    hub.requests.clear()
    assert fetched(HubName("org/name", commit)) == (place, [])
    assert hub.requests == [], "a commit does not move"
    monkeypatch.setenv("HF_HUB_CACHE", str(place.parents[3] / "other"))
    assert located(NAME) is None, "the environment counts as it is now"


def test_a_moved_revision_is_reported_and_only_what_changed_downloaded(hub: Hub, model: Path) -> None:
    first = hub.publish("org/name", model, "fp8-head")
    name = HubName("org/name", "fp8-head")
    old, _ = fetched(name)
    write(model / "config.json", b'{"new": 1}')
    second = hub.publish("org/name", model, "fp8-head")
    hub.requests.clear()
    new, said = fetched(name)
    assert first in said[0]
    assert second in said[0]
    assert "1 files" in said[1]
    assert [path.rpartition("/")[2] for path in hub.downloads()] == ["config.json"]
    assert [(place / "config.json").read_bytes() for place in (old, new)] == [b"{}", b'{"new": 1}']
    assert fetched(HubName("org/name", first)) == (old, [])


@pytest.mark.parametrize("silence", ["down", "refused", "offline"])
def test_without_a_network_the_cache_answers_and_says_so(
    hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch, silence: str
) -> None:
    commit = hub.publish("org/name", model)
    place, _ = fetched()
    if silence == "down":
        hub.down = True
    elif silence == "refused":
        monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:9")
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        hub.requests.clear()
    again, (sentence,) = fetched()
    assert again == place
    assert commit in sentence
    assert "secret" not in sentence
    with raises(UsageError, "hub-unreachable", "org/other", place.parents[2]):
        fetch(HubName("org/other"), print)
    (place / "tokenizer.json").unlink()
    assert located(NAME) is None
    with raises(UsageError, "hub-cache-incomplete", "tokenizer.json"):
        fetch(NAME, print)
    assert silence != "offline" or hub.requests == []


def test_what_another_program_cached_is_used_if_it_is_whole(
    hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import hf_hub_download

    hub.publish("org/name", model)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for number, file in enumerate(("tokenizer.json", *sorted({*contents(model)} - {"tokenizer.json"}))):
        with raises(UsageError, "hub-cache-incomplete" if number else "hub-unreachable"):
            fetch(NAME, print)
        hf_hub_download("org/name", file, cache_dir=hub.home / "hub", endpoint=hub.address)
    place, _ = fetched()
    assert contents(place) == contents(model)


def refusals(hub: Hub, model: Path, tmp_path: Path) -> dict[str, HubName]:
    """A name for each code."""
    for name in ("org/name", "org/gated", "org/private"):
        hub.publish(name, model)
    hub.repositories["models/org/gated"].gated = True
    hub.repositories["models/org/private"].private = True
    hub.publish("org/pickled", write(tmp_path / "pickled" / "pytorch_model.bin", b"x").parent)
    for file in ("Q4.gguf", "Q8.gguf", "mmproj-f16.gguf", "split-00001-of-00003.gguf"):
        write(tmp_path / "ggufs" / file, b"GGUF")
    hub.publish("org/ggufs", tmp_path / "ggufs")
    return {
        "hub-gated": HubName("org/gated"),
        "hub-repository-missing": HubName("org/private"),
        "hub-revision-missing": HubName("org/name", "fp9"),
        "hub-file-missing": HubName("org/ggufs", None, "split-00001-of-00003.gguf"),
        "hub-several-models": HubName("org/ggufs"),
        "hub-not-a-checkpoint": HubName("org/pickled"),
    }


def test_each_refusal_has_a_code_and_writes_nothing(hub: Hub, model: Path, tmp_path: Path) -> None:
    named = refusals(hub, model, tmp_path)
    for code, name in [*named.items(), ("hub-repository-missing", HubName("org/none"))]:
        with raises(UsageError, code, name.repository):
            fetch(name, print)
        assert located(name) is None


def test_a_token_opens_and_appears_nowhere(
    hub: Hub, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    named = refusals(hub, model, tmp_path)
    for token in ("hf_wrongSecret", "hf_broken\x0bSecret", "hf_řSecret"):
        monkeypatch.setenv("HF_TOKEN", token)
        with raises(UsageError, "hub-token-invalid") as error:
            fetch(NAME, print)
        assert "Secret" not in "".join(traceback.format_exception(error.value))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for code in ("hub-gated", "hub-repository-missing"):
        assert contents(fetched(named[code])[0]) == contents(model)
    with raises(UsageError, "hub-revision-missing") as error:
        fetch(named["hub-revision-missing"], print)
    assert "Secret" not in "".join([*traceback.format_exception(error.value), *capfd.readouterr()])
    assert {with_token for _, path, with_token in hub.requests if path.startswith("/cdn/")} == {False}
    monkeypatch.delenv("HF_TOKEN")
    write(hub.home / "token", f"{TOKEN}\n".encode())
    assert "Secret" not in redacted(f"Authorization: Bearer {TOKEN}")


def test_what_does_not_fit_is_refused_before_it_is_downloaded(
    hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish("org/name", model)
    size = sum(map(len, contents(model).values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=size - 1))
    with raises(UsageError, "hub-disk-full", "3.0 MiB"):
        fetch(NAME, print)
    assert hub.downloads() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=size))
    fetched()
    monkeypatch.setenv("HF_HUB_CACHE", str(write(hub.home / "file", b"")))
    with raises(UsageError, "hub-cache-unwritable", "file"):
        fetch(NAME, print)


@pytest.mark.parametrize(("code", "named"), [("hub-disk-full", ""), ("hub-interrupted", "org/name")])
def test_a_disk_that_is_full_or_a_broken_connection_is_reported_and_what_is_complete_kept(
    hub: Hub, model: Path, code: str, named: str
) -> None:
    hub.publish("org/name", model)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if code == "hub-disk-full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (MEBIBYTE * 3 // 2, before[1]))
    else:
        hub.cut_after = MEBIBYTE * 3 // 2
    try:
        with raises(UsageError, code, named):
            fetch(NAME, print)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    hub.cut_after, hub.down = None, False
    hub.requests.clear()
    complete = {blob.name for blob in (hub.home / "hub/models--org--name/blobs").iterdir()}
    assert contents(fetched()[0]) == contents(model)
    again = {path[5:69] for path in hub.downloads() if path.startswith("/cdn/")}  # by SHA-256
    assert (len(again) > 0, again & complete) == (True, set())


def test_remains_are_removed_and_what_is_being_written_is_not(hub: Hub, model: Path) -> None:
    """The lock tells the parts that another process is writing now."""
    hub.publish("org/name", model)
    root = hub.home / "hub"
    written, abandoned = (write(root / f"models--org--name/blobs/{c * 64}.0.incomplete", b"x") for c in "ab")
    lock = root / f".locks/models--org--name/{'a' * 64}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        place, _ = fetched()
    assert written.exists()
    assert not abandoned.exists()
    for name in ("config.json", "model-00001-of-00002.safetensors"):  # as after a power cut
        os.truncate(place / name, 1)
        assert located(NAME) is None
        assert contents(fetched()[0]) == contents(model)


def test_one_model_of_a_repository_of_ggufs(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "ggufs"
    names = ["Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf", "README.md"]
    for file in (*names, "mmproj-f16.gguf"):
        write(folder / file, file.encode())
    hub.publish("org/one", folder)
    hub.publish("org/two", write(folder / "Q8.gguf", GGUF.read_bytes()).parent)
    for name, part in ((HubName("org/one"), names[0]), (HubName("org/two", None, names[1]), names[1])):
        place, _ = fetched(name)
        assert place.relative_to(place.parents[1]).as_posix() == part
        assert sorted(contents(place.parents[1])) == names
    place, _ = fetched(HubName("org/two", None, "Q8.gguf"))
    assert place.is_symlink()
    place = checkpoint_path(place)
    assert checkpoint_sha256(place) == checkpoint_sha256(folder / "Q8.gguf")
    assert open_checkpoint(place).config == open_checkpoint(GGUF).config


def test_a_snapshot_is_the_folder_that_was_published(hub: Hub, tmp_path: Path) -> None:
    plain = shutil.copytree(BF16, tmp_path / "plain")
    hub.publish("org/name", plain)
    place, _ = fetched()
    for identity in (checkpoint_sha256, tokenizer_sha256, chat_template_sha256):
        assert identity(place) == identity(plain)
    loaded, expected = (load_model(folder, dtype=None).model.state_dict() for folder in (place, plain))
    assert loaded.keys() == expected.keys()
    assert all(loaded[key].equal(expected[key]) for key in expected)
    seen, wanted = (inspect_checkpoint(folder, BF16) for folder in (place, plain))
    assert seen.findings == wanted.findings
    with opened_once() as folders:
        folders.hold(place)
        (place / "config.json").unlink()
        (place / "config.json").symlink_to(plain / "config.json")  # the same bytes in another file
        with raises(ChangedError, "files-changed", "config.json"):
            folders.verify()


SCRIPT = """
import sys
from q36eval.hub_checkpoints import HubName, fetch
try:
    fetch(HubName("org/name"), print)
except KeyboardInterrupt as stopped:
    print(*stopped.__notes__)
    sys.exit(130)
"""


def downloading(hub: Hub) -> "subprocess.Popen[str]":
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **hub.environment(hub.home)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_until_sent(hub: Hub, n_bytes: int, process: "subprocess.Popen[str]") -> None:
    """Ends earlier where the process does."""
    while hub.sent < n_bytes and process.poll() is None:
        time.sleep(0.002)


def test_a_signal_stops_a_download_at_once(hub: Hub, model: Path) -> None:
    hub.publish("org/name", model)
    hub.seconds_per_block = 10.0
    with downloading(hub) as process:
        wait_until_sent(hub, 1, process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=60)  # the download itself takes minutes
    assert process.returncode == 130
    assert "kept" in said
    assert "Traceback" not in said


@pytest.mark.long
def test_a_download_that_is_killed_at_ten_moments_ends_in_the_same_bytes(hub: Hub, model: Path) -> None:
    total = 0
    for number in range(3, 11):
        content = random.Random(number).randbytes(number * MEBIBYTE // 4)
        write(model / f"mtp-{number}.safetensors", content)
        total += len(content)
    hub.publish("org/name", model)
    hub.seconds_per_block = 0.01
    blobs = hub.home / "hub/models--org--name/blobs"
    complete: set[str] = set()
    for moment in range(10):
        hub.sent, begin = 0, len(hub.requests)
        with downloading(hub) as process:
            wait_until_sent(hub, 1 + total * moment // 10, process)
            process.kill()
        again = {
            path.rpartition("/")[2] for path in (each[1] for each in hub.requests[begin:]) if path.startswith("/cdn/")
        }
        assert not again & complete, "what was complete is not downloaded again"
        complete = {path.name for path in blobs.iterdir() if path.suffix != ".incomplete"}
    assert complete
    hub.seconds_per_block = 0.0
    assert contents(fetched()[0]) == contents(model)
    assert not list(blobs.glob("*.incomplete"))
