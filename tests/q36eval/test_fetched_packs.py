"""A pack at an address is fetched once, held to its manifest, and never used half."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from q36eval.errors import UsageError
from q36eval.probes import Digest
from q36eval.records import ProbeName
from q36eval.references import Capture, Pack, _fetched, fetched, is_address
from tests.loopback_hub import TOKEN, loopback_hub
from tests.q36eval.run.runner import IDENTITY
from tests.raising import failing, raises

ITEMS = {f"item{n}": f"answer {n}" for n in range(4)}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A small one, whole; beside it a capture that never ended."""
    folder = tmp_path / "pack"
    capture = Capture(folder, IDENTITY, ProbeName.CANARIES, "s" * 64, "answers", None)
    for key, text in ITEMS.items():
        capture.add(key, Digest({"text": text}), "asked")
    capture.finish(list(ITEMS))
    unfinished = Capture(folder, IDENTITY, ProbeName.EVALS, "t" * 64, "answers", None)
    unfinished.add("one", Digest({"text": "x"}), "asked")
    (folder / "chat_templates.json").write_text("{}")
    (folder / "on-policy-1.jsonl").write_text("sampled")
    (folder / "last-used").touch()
    return folder


@pytest.fixture
def remote(pack: Path) -> Iterator[str]:
    """The same in another kind of file system."""
    memory = fsspec.filesystem("memory")
    memory.put(str(pack), "/packs/one", recursive=True)
    yield "memory://packs/one"
    memory.rm("/packs", recursive=True)


def listed(pack: Path) -> list[Path]:
    """Its finished capture's files that the manifest lists."""
    (folder,) = [path.parent for path in pack.glob("*/pack.json")]
    (_, _, manifest), *_ = [each for each in Pack.open(pack).captures if each[2] is not None]
    return [folder / name for name in manifest.files]


def test_what_is_fetched_is_the_pack(pack: Path, remote: str, tmp_path: Path) -> None:
    assert is_address(remote)
    assert not is_address(str(pack))
    place = fetched(remote, tmp_path / "cache")
    assert Pack.open(place).identity == Pack.open(pack).identity
    assert [each[2] is not None for each in Pack.open(place).captures] == [True], "only what is finished"
    for file in listed(pack):
        assert (place / file.relative_to(pack)).read_bytes() == file.read_bytes()
    beside = {path.name for path in place.iterdir() if path.is_file()}
    assert beside == {"chat_templates.json", "on-policy-1.jsonl"}
    assert (place / "on-policy-1.jsonl").read_text() == "sampled"


def test_one_pack_at_two_addresses_is_fetched_once(pack: Path, remote: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = fetched(remote, cache)
    before = {file: file.stat().st_mtime_ns for file in first.rglob("*")}
    assert fetched(f"file://{pack}", cache) == first
    assert {file: file.stat().st_mtime_ns for file in first.rglob("*")} == before


def test_what_was_half_fetched_is_gone_on_with_and_never_used(pack: Path, remote: str, tmp_path: Path) -> None:
    cache, memory = tmp_path / "cache", fsspec.filesystem("memory")
    victim = listed(pack)[-1]
    there = f"/packs/one/{victim.relative_to(pack)}"
    whole = memory.cat_file(there)
    memory.pipe_file(there, whole[:-1] + bytes([whole[-1] ^ 1]))
    with raises(UsageError, "pack-damaged", victim.name):
        fetched(remote, cache)
    assert [path for path in cache.iterdir() if path.is_dir() and path.suffix != ".part"] == []
    assert not list(cache.rglob(victim.name))
    memory.rm_file(there)
    with raises(UsageError, "pack-unreadable"):
        fetched(remote, cache)
    memory.pipe_file(there, whole)
    assert Pack.open(fetched(remote, cache)).identity == IDENTITY
    assert [path.suffix for path in cache.iterdir() if path.is_dir()] == [""]


def test_a_pack_that_changed_under_its_address_is_another_one(pack: Path, remote: str, tmp_path: Path) -> None:
    first = fetched(remote, tmp_path / "cache")
    fsspec.filesystem("memory").pipe_file("/packs/one/chat_templates.json", b'{"default": "x"}')
    assert fetched(remote, tmp_path / "cache") != first


def test_what_is_no_pack_is_refused_in_words(pack: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with raises(UsageError, "pack-missing"):
        fetched(f"file://{tmp_path / 'nothing'}", cache)
    with raises(UsageError, "address-unsupported"):
        fetched("abacus://packs/one", cache)
    manifest = next(pack.glob("*/pack.json"))
    manifest.write_text(manifest.read_text().replace('"items": 4', '"items": 5'))
    with raises(UsageError, "pack-damaged", "pack.json"):
        fetched(f"file://{pack}", cache)


def test_what_is_longer_than_listed_is_not_read_to_its_end(
    pack: Path, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might never end, and would fill the disk."""
    victim = listed(pack)[-1]
    there = f"/packs/one/{victim.relative_to(pack)}"
    memory = fsspec.filesystem("memory")
    memory.pipe_file(there, victim.read_bytes() + bytes(10_000))
    monkeypatch.setattr(_fetched, "BLOCK_BYTES", 64)
    opened, systems = [], type(memory)
    whole = systems.open
    monkeypatch.setattr(systems, "open", lambda self, *how: opened.append(whole(self, *how)) or opened[-1])
    tell: list[int] = []
    monkeypatch.setattr(type(memory.store[there]), "close", lambda self: tell.append(self.tell()))
    with raises(UsageError, "pack-damaged", victim.name):
        fetched(remote, tmp_path / "cache")
    assert opened
    assert tell[-1] <= victim.stat().st_size + 64
    assert not list((tmp_path / "cache").rglob("*.tmp"))


class OddError(Exception):
    """As libraries of file systems have them: no OSError."""


@pytest.mark.parametrize("method", ["find", "size", "cat_file", "open"])
@pytest.mark.parametrize("error", [OddError, PermissionError])
def test_whatever_a_file_system_raises_is_a_sentence(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: type[Exception]
) -> None:
    """And says nothing of this machine's disk."""

    with monkeypatch.context() as patch:
        patch.setattr(
            type(fsspec.filesystem("memory")),
            method,
            failing(error("403 for\nmemory://key:secret@packs/one?signature=abc.")),
        )
        with raises(UsageError, "pack-unreadable", "403 for memory://packs/one"):
            fetched(remote, tmp_path / "cache")


def test_what_cannot_be_written_is_told_apart_from_what_cannot_be_read(remote: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with raises(UsageError, "file-unwritable"):
        fetched(remote, tmp_path / "cache")


def test_a_kept_pack_that_lost_a_file_is_fetched_again(pack: Path, remote: str, tmp_path: Path) -> None:
    first = fetched(remote, tmp_path / "cache")
    victims = [first / file.relative_to(pack) for file in listed(pack)[:1]] + [first / "chat_templates.json"]
    for victim in victims:
        before = victim.read_bytes()
        for damage in (victim.unlink, lambda path=victim: path.write_bytes(b"x")):
            damage()
            assert fetched(remote, tmp_path / "cache") == first
            assert victim.read_bytes() == before


def test_no_password_of_an_address_is_printed(tmp_path: Path) -> None:
    for address in ("abacus://user:pa@ss@host/pack?sig=pass", "memory://user:pass@nothing?sig=pass"):
        with pytest.raises(UsageError) as raised:
            fetched(address, tmp_path / "cache")
        assert "://" in str(raised.value)
        for secret in ("pass", "pa@", "user", "sig"):
            assert secret not in str(raised.value)


@pytest.mark.parametrize("kind", ["", "datasets/"])
def test_a_pack_on_the_hub(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """As a repository's folder, of a branch that moves, and with a token."""
    cache, address = tmp_path / "cache", f"hf://{kind}org/packs@v1/bf16"
    with loopback_hub() as hub:
        hub.use(monkeypatch, tmp_path / "home")
        shutil.copytree(pack, tmp_path / "repository" / "bf16")
        hub.publish(f"{kind}org/packs", tmp_path / "repository", "v1")
        first = fetched(address, cache)
        assert Pack.open(first).identity == IDENTITY
        for file in listed(pack):
            assert (first / file.relative_to(pack)).read_bytes() == file.read_bytes()
        hub.requests.clear()
        assert fetched(address, cache) == first
        assert not [path for path in hub.downloads() if not path.endswith((".json", ".jsonl"))]
        (tmp_path / "repository" / "bf16" / "on-policy-2.jsonl").write_text("more")
        hub.publish(f"{kind}org/packs", tmp_path / "repository", "v1")
        assert (fetched(address, cache) / "on-policy-2.jsonl").read_text() == "more", "the branch moved"
        for missing in (f"hf://{kind}org/none/bf16", f"hf://{kind}org/packs@v2/bf16"):
            with raises(UsageError, "pack-unreadable", missing.partition("://")[2]):
                fetched(missing, cache)
        repository = hub.repositories[f"{kind or 'models/'}org/packs"]
        repository.private = True
        with raises(UsageError, "pack-unreadable"):
            fetched(address, cache)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        fetched(address, tmp_path / "other")
        monkeypatch.setenv("HF_TOKEN", "hf_wrongSecret")
        with raises(UsageError, "pack-unreadable") as error:
            fetched(address, cache)
        assert "Secret" not in str(error.value)
