"""The shipped sandbox: every branch is intact, complete, what its recipe says, and the same bytes when built again."""

import contextlib
import http.server
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.app import sandbox as branches
from q36eval.app import sandbox_files
from q36eval.app.sandbox import build, read_raw, verify
from q36eval.app.sandbox_files import check_fetched, fetch, missing_files
from q36eval.app.targets import load_family, resolve
from q36eval.checkpoints import checkpoint_sha256, load_model, tokenizer_sha256
from q36eval.config import Paths
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.q36eval.openai.server import listening
from tests.raising import raises
from tests.stored_formats import formats_of

SANDBOX = branches.SANDBOX_DIR
IDS = torch.arange(96).reshape(1, 96)


def quantized_matrices(name: str) -> dict[str, int]:
    """Quantized matrices per class of tensor that the branch's recipe asks for, from the shape of the reference."""
    config = json.loads((SANDBOX / "bf16" / "config.json").read_text())
    kinds = config["layer_types"]
    per_layer = 3 * config["num_experts"]
    experts, attention = per_layer * len(kinds), 4 * kinds.count("full_attention")
    inner = {"routed experts": experts, "shared expert": 3 * len(kinds), "self-attention": attention}
    middle = kinds[2:-1]
    return {
        "bf16": {},
        "main": inner,
        "fp8-head": inner | {"lm_head": 1},
        "fp8-head-embed": inner | {"lm_head": 1, "embeddings": 1},
        "w4a16": {
            "routed experts": per_layer * len(middle),
            "self-attention": 4 * middle.count("full_attention"),
        },
        "nvfp4-mixed": inner | {"lm_head": 1, "linear attention": 3 * kinds.count("linear_attention")},
    }.get(name, {"routed experts": experts})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


@pytest.mark.long
@pytest.mark.parametrize("name", branches.NAMES)
def test_every_branch_loads_with_exactly_its_recipe_quantized(name: str, built: Path) -> None:
    """What the recipe leaves alone is the reference byte for byte."""
    folder = branches.build(name, SANDBOX, built)
    loaded = load_model(folder)
    quantized = {
        tensor_class: sum(count for layout, count in formats.items() if layout != "plain")
        for tensor_class, formats in formats_of(folder).items()
    }
    assert {tensor_class: count for tensor_class, count in quantized.items() if count} == quantized_matrices(name)
    assert tokenizer_sha256(folder) == tokenizer_sha256(SANDBOX / "bf16")
    assert torch.isfinite(loaded.model(input_ids=IDS).logits).all()
    reference, tensors = read_raw(SANDBOX / "bf16"), read_raw(folder)
    plain = [tensor for tensor in reference if tensor in tensors and tensors[tensor].dtype == "BF16"]
    assert len(plain) == len(reference) - sum(quantized_matrices(name).values())
    assert all(tensors[tensor] == reference[tensor] for tensor in plain)


def test_building_again_gives_the_same_bytes_and_a_damaged_build_is_replaced(tmp_path: Path) -> None:
    first = checkpoint_sha256(branches.build("int2-experts", SANDBOX, tmp_path))
    (tmp_path / "int2-experts" / "config.json").write_text("{}")
    assert checkpoint_sha256(branches.build("int2-experts", SANDBOX, tmp_path)) == first


def test_damage_to_committed_files_is_found(tmp_path: Path) -> None:
    assert branches.verify(SANDBOX) == [], "they are those of the manifest"
    for part in ("bf16", "fp8-head", "overlays", "manifest.json"):
        source = SANDBOX / part
        shutil.copytree(source, tmp_path / part) if source.is_dir() else shutil.copyfile(source, tmp_path / part)
    weights = bytearray((tmp_path / "fp8-head" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "fp8-head" / "model.safetensors").write_bytes(bytes(weights))
    assert any("fp8-head/model.safetensors differs" in problem for problem in branches.verify(tmp_path))
    with raises(CorruptCheckpointError, "sandbox-damaged", "fp8-head/model.safetensors"):
        branches.build("fp8-head", tmp_path)


def test_an_empty_folder_is_no_branch(tmp_path: Path) -> None:
    """A checkout may leave one behind where a branch has become an overlay."""
    (tmp_path / "w4a16").mkdir()
    (tmp_path / "overlays" / "w4a16").mkdir(parents=True)
    assert branches.kind_of("w4a16", tmp_path) == "overlay"


# -- its weights outside a checkout: fetched from a folder or a server that nobody trusts


REPOSITORY = Path(__file__).parents[2]
COMMITTED = REPOSITORY / "data" / "sandbox"
BRANCH = "gptq-int4"
"""An overlay: made of its own tensors, the branch that they are laid over, and the reference's small files."""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """An installed package: all small files, no weights."""
    data = tmp_path / "package" / "data"
    shutil.copytree(COMMITTED, data / "sandbox", ignore=shutil.ignore_patterns("*.safetensors"))
    (data / "families").symlink_to(REPOSITORY / "data" / "families")
    return Paths(tmp_path / "package", tmp_path / "state")


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the committed files, with one of them altered."""

    trouble: str

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, directory=str(COMMITTED), **options)

    def log_message(self, *said: Any) -> None: ...

    def do_GET(self) -> None:
        if not self.path.endswith("bf16/model.safetensors") or not self.trouble:
            return super().do_GET()
        if self.trouble == "gone":
            return self.send_error(404)
        body = (COMMITTED / "bf16" / "model.safetensors").read_bytes()
        self.send_response(200)
        if self.trouble == "cut":
            self.send_header("Content-Length", str(len(body)))
            body = body[: len(body) // 2]
        elif self.trouble == "changed":
            body = bytes([body[0] ^ 1]) + body[1:]
        elif self.trouble == "endless":
            body = body * 10
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)
        return None


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    trouble = getattr(request, "param", "")
    with listening(type("Handler", (Server,), {"trouble": trouble})) as address:
        yield address


def test_a_gate_downloads_nothing_and_says_what_to_run(paths: Paths) -> None:
    with raises(UsageError, "sandbox-missing", "q36eval sandbox build"):
        resolve(BRANCH, load_family("sandbox", paths), paths)


@pytest.mark.parametrize("kind", ["server", "checkout", "folder"])
def test_fetched_branches_are_the_committed_ones(kind: str, paths: Paths, server: str) -> None:
    place = {"server": f"{server}/?token=t", "checkout": str(REPOSITORY), "folder": str(COMMITTED)}[kind]
    said: list[str] = []
    fetch([BRANCH], paths, place, said.append)
    assert missing_files(paths, [BRANCH]) == [] != missing_files(paths)
    check_fetched(BRANCH, paths)
    folder = resolve(BRANCH, load_family("sandbox", paths), paths).folder
    assert folder == paths.built / BRANCH
    assert verify(paths.sandbox) == []
    fetch([BRANCH], paths, "/no/such/place", said.append)  # nothing is lacking, so nothing is asked
    assert len(said) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "code"),
    [
        ("gone", "download-failed"),
        ("cut", "download-failed"),
        ("changed", "download-damaged"),
        ("endless", "download-damaged"),
    ],
    indirect=["server"],
)
def test_what_comes_damaged_is_not_kept(server: str, code: str, paths: Paths) -> None:
    with raises(UsageError, code):
        fetch(["bf16"], paths, server, lambda said: None)
    assert missing_files(paths, ["bf16"]) == ["bf16/model.safetensors"]
    assert not list(paths.state.rglob("*.tmp"))
    fetch(["bf16"], paths, str(REPOSITORY), lambda said: None)
    assert build("bf16", paths.sandbox, paths.built) == paths.sandbox / "bf16"


def test_without_a_network_one_sentence_says_so_and_shows_no_password(paths: Paths) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"http://me:s3cret@127.0.0.1:{taken.getsockname()[1]}/x?token=s3cret"
        with raises(UsageError, "download-failed", "--from DIR") as refused:
            fetch(["bf16"], paths, address, lambda said: None)
    assert "s3cret" not in str(refused.value)


def test_a_server_that_is_silent_is_left(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_files, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf, raises(UsageError, "download-failed"):
        fetch(["bf16"], paths, f"http://127.0.0.1:{deaf.getsockname()[1]}", lambda said: None)


def test_damaged_files_and_those_of_an_older_program_are_fetched_again(paths: Paths) -> None:
    fetch(["fp8-head"], paths, str(REPOSITORY), lambda said: None)
    weights = paths.sandbox / "fp8-head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (paths.sandbox / "manifest.json").write_text("{}")
    with raises(UsageError, "sandbox-outdated"):
        check_fetched("fp8-head", paths)
    fetch(["fp8-head"], paths, str(REPOSITORY), lambda said: None)
    check_fetched("fp8-head", paths)
    assert weights.read_bytes() == (COMMITTED / "fp8-head" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"url": "file:///a%20b/repository", "dir_info": {}}, "/a b/repository"),
        (
            {"url": "https://github.com/o/r.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "https://raw.githubusercontent.com/o/r/c0ffee/data/sandbox",
        ),
    ],
)
def test_where_pip_installed_from_is_where_weights_come_from(
    said: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_files, "installed_from", lambda: said)
    assert sandbox_files._origin() == place


@pytest.mark.parametrize("said", [{}, {"url": "file:///x/q36eval-0.1.0.whl", "archive_info": {}}])
def test_a_wheel_does_not_know_and_asks(said: dict[str, Any], paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_files, "installed_from", lambda: said)
    with raises(UsageError, "sandbox-source-unknown", "--from DIR|URL"):
        fetch(["bf16"], paths, None, lambda said: None)
    monkeypatch.setenv("Q36EVAL_SANDBOX_FROM", str(paths.state))
    with raises(UsageError, "sandbox-source-unknown", str(paths.state)):
        fetch(["bf16"], paths, None, lambda said: None)
