"""A small Hub on loopback: serves folders as repositories of models and data sets, with branches that lead to commits.

It answers what huggingface_hub asks for a download: information, tree, and files with ETag, commit and ranges; large
files by way of a redirect to signed addresses. It speaks no Xet.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".gguf", ".bin")
"""The files that the Hub keeps outside of git: named by their SHA-256, and served from elsewhere."""
BLOCK = 2**16
TOKEN = "hf_loopbackSecretOfNobody"


@dataclass(frozen=True)
class Blob:
    path: Path
    size: int
    sha256: str
    git_sha1: str
    large: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.git_sha1


@dataclass
class Repository:
    """`branches` lead to commits; a `gated` one shows its tree to everybody, a `private` one nothing without token."""

    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    gated: bool = False
    private: bool = False


@dataclass
class Hub:
    """The running server's repositories, and what may go wrong with it."""

    address: str = ""
    home: Path = Path()
    """What this process uses as HF_HOME."""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, bool]] = field(default_factory=list)
    """Method, path and whether a token came along."""
    seconds_per_block: float = 0.0
    cut_after: int | None = None
    """Bytes of a large file after which its connection is closed, and the Hub down."""
    down: bool = False
    sent: int = 0
    """Bytes of large files."""

    def publish(self, name: str, folder: Path, branch: str = "main") -> str:
        """A folder's files, now, as the newest commit of a branch; `datasets/ORG/NAME` names a data set."""
        files = {path.relative_to(folder).as_posix(): _blob(path) for path in folder.rglob("*") if path.is_file()}
        listed = json.dumps({path: blob.etag for path, blob in sorted(files.items())})
        commit = hashlib.sha1(f"{branch}{listed}".encode()).hexdigest()
        kept = name if name.startswith("datasets/") else f"models/{name}"
        repository = self.repositories.setdefault(kept, Repository())
        repository.commits[commit] = files
        repository.branches[branch] = commit
        return commit

    def downloads(self) -> list[str]:
        """The paths of files whose content was asked for."""
        return [path for method, path, _ in self.requests if method == "GET" and "/api/" not in path]

    def environment(self, home: Path) -> dict[str, str]:
        """The variables with which a process finds this Hub, and its cache below `home`."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_HUB_OFFLINE": "0",
            "TRANSFORMERS_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_TOKEN": "",
            "NO_PROXY": "127.0.0.1",
        }

    def use(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        """This process finds it. Some of this huggingface_hub read when it was imported."""
        import huggingface_hub.constants as constants

        self.home = home
        for name, value in self.environment(home).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    """A running one."""
    from tests.q36eval.openai.server import listening  # loads torch

    hub = Hub()
    with listening(type("Handler", (_Handler,), {"served": hub})) as hub.address:
        yield hub


def _blob(path: Path) -> Blob:
    content = path.read_bytes()
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return Blob(path, len(content), hashlib.sha256(content).hexdigest(), git, path.name.endswith(LARGE))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def log_message(self, *said: object) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        bearer = self.headers.get("Authorization", "")
        self.served.requests.append((self.command, path, bool(bearer)))
        if self.served.down:
            self._answer(503, b"down")
        elif bearer and bearer != f"Bearer {TOKEN}":
            self._refuse(401, None, "Invalid credentials in Authorization header")
        elif path.startswith("/cdn/"):
            self._send_large(path.rpartition("/")[2])
        else:
            self._repository(path.removeprefix("/"), bool(bearer))

    def _repository(self, path: str, with_token: bool) -> None:
        is_api = path.startswith("api/")
        path = path.removeprefix("api/")
        path = path if path.startswith(("models/", "datasets/")) else f"models/{path}"
        name, rest = "/".join(path.split("/")[:3]), "/".join(path.split("/")[3:])
        repository = self.served.repositories.get(name)
        if repository is None or (repository.private and not with_token):
            self._refuse(404 if with_token else 401, "RepoNotFound", "Repository not found")
            return
        verb, _, rest = rest.partition("/")
        revisions = sorted((*repository.branches, *repository.commits), key=len, reverse=True)
        revision = next((each for each in revisions if f"{rest}/".startswith(f"{each}/")), None)
        revision = "main" if not verb else revision  # information without a revision
        commit = repository.branches.get(revision or "", revision or "")
        if commit not in repository.commits:
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        files, inner = repository.commits[commit], rest[len(revision or "") :].strip("/")
        if is_api and verb == "tree":
            self._json(_tree(files, inner))
        elif is_api:
            self._json({"_id": "0", "id": name.partition("/")[2], "sha": commit, "siblings": [], "tags": []})
        elif repository.gated and not with_token:
            self._refuse(401, "GatedRepo", "Access to it is restricted")
        elif inner not in files:
            self._refuse(404, "EntryNotFound", "Entry not found", commit)
        else:
            self._resolve(files[inner], commit)

    def _resolve(self, blob: Blob, commit: str) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
        if not blob.large:
            self._send(blob, headers)
            return
        elsewhere = self.served.address.replace("127.0.0.1", "localhost")
        headers |= {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{blob.sha256}"'}
        self._answer(302, b"", headers | {"Location": f"{elsewhere}/cdn/{blob.sha256}?Signature=secret"})

    def _send_large(self, sha256: str) -> None:
        commits = (files for each in self.served.repositories.values() for files in each.commits.values())
        blobs = {blob.sha256: blob for files in commits for blob in files.values()}
        self._send(blobs[sha256], {"ETag": f'"{sha256}"'})

    def _send(self, blob: Blob, headers: dict[str, str]) -> None:
        begin, end = 0, blob.size
        if asked := self.headers.get("Range", "").removeprefix("bytes="):
            first, _, last = asked.partition("-")
            begin, end = int(first), min(blob.size, int(last) + 1) if last else blob.size
            headers = headers | {"Content-Range": f"bytes {begin}-{end - 1}/{blob.size}"}
        self.send_response(206 if asked else 200)
        for key, value in {**headers, "Content-Length": str(end - begin)}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = self.served.cut_after if blob.large else None
        with suppress(OSError), blob.path.open("rb") as stream:
            stream.seek(begin)
            while begin < end:
                if limit is not None and begin >= limit:
                    self.served.down = self.close_connection = True
                    self.connection.close()
                    return
                block = stream.read(min(BLOCK, end - begin))
                self.wfile.write(block)
                begin += len(block)
                if blob.large:
                    self.served.sent += len(block)
                time.sleep(self.served.seconds_per_block if blob.large else 0)

    def _json(self, document: object) -> None:
        self._answer(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str | None, message: str, commit: str | None = None) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Repo-Commit": commit}
        self._answer(status, b"", {key: value for key, value in headers.items() if value is not None})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tree(files: dict[str, Blob], below: str) -> list[dict[str, object]]:
    """All files, and the folders that they are in, below a folder."""
    inside = {path: blob for path, blob in files.items() if not below or path.startswith(f"{below}/")}
    folders = sorted({str(each) for path in inside for each in list(Path(path).parents)[:-1] if str(each) != below})
    listed: list[dict[str, object]] = [{"type": "directory", "path": path, "oid": "0" * 40} for path in folders]
    for path, blob in inside.items():
        large = {"lfs": {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}} if blob.large else {}
        listed.append({"type": "file", "path": path, "size": blob.size, "oid": blob.git_sha1, **large})
    return listed
