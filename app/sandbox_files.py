"""The sandbox's committed files in an installation without the repository: presence and fetching.

A package contains the manifest and all small files; the weights (27 MB) are fetched from a checkout or a web server
into the state folder. The source is not trusted: a file counts only if its SHA-256 is the one in the package's
manifest.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from q36eval.app.sandbox import NAMES, OVERLAY_PLAN, REFERENCE, kind_of, read_manifest
from q36eval.checkpoints.hashing import file_sha256
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.files import replacing
from q36eval.provenance import installed_from

FROM = "Q36EVAL_SANDBOX_FROM"
"""The variable for the source of the weights, like `--from`: a checkout, or the web address of its `data/sandbox`."""

COMMAND = "q36eval sandbox build"
LARGEST_BYTES = 64 * 1024**2
"""An upper bound on the size of the sandbox's files; a larger download is refused."""

SECONDS = 30.0
"""The timeout of a silent server."""


def committed_files(branch: str, shipped: Path) -> dict[str, str]:
    """The files of a branch: SHA-256 of each committed file by its path below `data/sandbox`."""
    manifest, kind = read_manifest(shipped), kind_of(branch, shipped)
    if kind == "committed":
        return _below(branch, manifest["branches"][branch])
    reference = _below(REFERENCE, manifest["branches"][REFERENCE])
    if kind == "computed":
        return reference
    base = json.loads((shipped / "overlays" / branch / OVERLAY_PLAN).read_text(encoding="utf-8"))["base"]
    return _below(f"overlays/{branch}", manifest["overlays"][branch]) | reference | committed_files(base, shipped)


def _below(folder: str, listed: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": sha256 for name, sha256 in listed.items()}


def missing_files(paths: Paths, branches: Iterable[str] | None = None) -> list[str]:
    """The missing committed files of these branches (of all by default), by their paths."""
    wanted = {name for each in branches or NAMES for name in committed_files(each, paths.data / "sandbox")}
    return sorted(name for name in wanted if not (paths.sandbox / name).is_file())


def check_fetched(branch: str, paths: Paths) -> None:
    """Check that a branch can be opened; a gate downloads nothing.

    Raises:
        UsageError: its files were not fetched, or belong to another version of this program.
    """
    if missing_files(paths, [branch]):
        raise UsageError(
            "sandbox-missing", f"The weights of the sandbox are not on this machine; fetch them (27 MB): {COMMAND}."
        )
    own, fetched = paths.data / "sandbox" / "manifest.json", paths.sandbox / "manifest.json"
    if not fetched.is_file() or fetched.read_bytes() != own.read_bytes():
        raise UsageError(
            "sandbox-outdated",
            f"The sandbox in {paths.sandbox} is that of another q36eval; bring it up to date: {COMMAND}.",
        )


def fetch(branches: Iterable[str], paths: Paths, named: str | None, notify: Callable[[str], None]) -> None:
    """Fetch the committed files of these branches into the state folder; correct existing ones stay.

    Raises:
        UsageError: no source is given, it is unavailable, or its files differ.
    """
    shipped, wanted = paths.data / "sandbox", dict[str, str]()
    for branch in branches:
        wanted |= committed_files(branch, shipped)
    lacking = {
        name: sha256
        for name, sha256 in sorted(wanted.items())
        if not (paths.sandbox / name).is_file() or file_sha256(paths.sandbox / name) != sha256
    }
    own = [name for name in lacking if (shipped / name).is_file()]
    others = [name for name in lacking if name not in own]
    place = _place(named or os.environ.get(FROM) or _origin()) if others else shipped
    if others:
        notify(f"Fetching {len(others)} files of the sandbox from {_shown(place)}.")
    for name in (*own, *others):
        content = _read(shipped if name in own else place, name)
        if hashlib.sha256(content).hexdigest() != lacking[name]:
            raise UsageError(
                "download-damaged",
                f"{name} from {_shown(place)} is not the file that belongs to this q36eval: its SHA-256 is not the "
                f"manifest's ({len(content):,} bytes). Nothing of it is kept.",
            )
        _keep(paths.sandbox / name, content)
    _keep(paths.sandbox / "manifest.json", _read(shipped, "manifest.json"))


def _keep(target: Path, content: bytes) -> None:
    """Write a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as fresh:
        fresh.write_bytes(content)


def _origin() -> str:
    """The origin of this installation: a checkout, or a repository whose host serves single files."""
    said = installed_from()
    url = urlsplit(str(said.get("url", "")))
    if "dir_info" in said and url.scheme == "file":
        return unquote(url.path)
    commit, parts = (said.get("vcs_info") or {}).get("commit_id"), url.path.strip("/").removesuffix(".git").split("/")
    if commit and url.hostname == "github.com" and len(parts) == 2:
        return f"https://raw.githubusercontent.com/{parts[0]}/{parts[1]}/{commit}/data/sandbox"
    raise UsageError(
        "sandbox-source-unknown",
        f"This installation does not know where the sandbox's weights are: name a checkout of its repository, or the "
        f"web address of its data/sandbox: {COMMAND} --from DIR|URL.",
    )


def _place(named: str) -> Path | str:
    """A folder laid out as `data/sandbox`, or a web address without a slash at its end."""
    if named.startswith(("http://", "https://")):
        url = urlsplit(named)
        return url._replace(path=url.path.rstrip("/")).geturl()
    folder = Path(named)
    for place in (folder / "data" / "sandbox", folder):
        if (place / "manifest.json").is_file():
            return place.resolve()
    raise UsageError(
        "sandbox-source-unknown",
        f"{named} is neither a checkout of the repository with data/sandbox nor a web address; name one: "
        f"{COMMAND} --from DIR|URL.",
    )


def _shown(place: Path | str) -> str:
    """The place without a password."""
    if isinstance(place, Path):
        return str(place)
    url = urlsplit(place)
    return url._replace(netloc=url.netloc.rpartition("@")[2], query="").geturl()


def _read(place: Path | str, name: str) -> bytes:
    """One file of the sandbox, from a folder or a server; a query string is sent with every file.

    Raises:
        UsageError: it is unavailable.
    """
    if isinstance(place, Path):
        try:
            return (place / name).read_bytes()
        except OSError as error:
            why = f"{place / name} cannot be read: {error.strerror}; name another place with --from."
            raise UsageError("file-unreadable", why) from error
    import httpx

    url = urlsplit(place)
    address, content = url._replace(path=f"{url.path}/{name}").geturl(), bytearray()
    try:
        with httpx.stream("GET", address, follow_redirects=True, timeout=SECONDS) as answer:
            answer.raise_for_status()
            for portion in answer.iter_bytes():
                content += portion
                if len(content) > LARGEST_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        why = str(error) or type(error).__name__
        if isinstance(error, httpx.HTTPStatusError):
            why = f"the server answers {error.response.status_code}"
        raise UsageError(
            "download-failed",
            f"{_shown(address)} could not be fetched: {why}. What was fetched is kept; try "
            f"again, or name a checkout: {COMMAND} --from DIR.",
        ) from error
    return bytes(content)
