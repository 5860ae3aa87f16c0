"""Faults of installing: packages that are not whole, folders that are somebody else's, weights from servers."""

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import Bench, fault
from benchmarks.faults.bench import ROOT, SANDBOX, Done, Running

BUILDING = threading.Lock()
SOMEBODY = 65534
"""The user `nobody`."""


def installed(bench: Bench, *, inside_repository: bool = False) -> Path:
    """The wheel of this checkout, unpacked as pip unpacks it; it is built once for all faults."""
    built = bench._shared / "wheel"
    with BUILDING:
        if not built.exists():
            source = bench._shared / "source"
            skipped = shutil.ignore_patterns(
                "*.safetensors", ".git", ".venv", ".q36eval", ".*_cache", "__pycache__", "tests", "build"
            )
            shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
            pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
            subprocess.run([*pip, "-w", str(built), str(source)], check=True, capture_output=True)
            shutil.rmtree(source)
    site = bench.folder / "site-packages"
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    if inside_repository:
        git = ["git", "-C", str(bench.folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "somebody's project"], check=True)
    return site


def program(bench: Bench, site: Path, *arguments: object, **environment: str) -> Done:
    """The unpacked program, in a folder of its own, with the state of `bench` unless another is named."""
    place = bench.folder / "elsewhere"
    place.mkdir(exist_ok=True)
    command = [sys.executable, "-P", "-m", "q36eval", *map(str, arguments)]
    changes = {"PYTHONPATH": str(site), "HOME": str(bench.folder / "home")} | environment
    line = f'cd "{place}" && exec "$@"'
    return Running(["bash", "-c", line, "bash", *command], bench.environment(**changes), bench.folder).end()


@contextlib.contextmanager
def server(answer: str) -> Iterator[str]:
    """A server of the sandbox's files that answers for weights with `answer`."""

    class Hostile(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said: Any) -> None: ...

        def do_GET(self) -> None:
            if answer == "right" or not self.path.endswith(".safetensors"):
                return super().do_GET()
            body = (SANDBOX / self.path.lstrip("/")).read_bytes()
            self.send_response(200)
            if answer == "cut":
                self.send_header("Content-Length", str(len(body)))
                body = body[: len(body) // 2]
            self.end_headers()
            with contextlib.suppress(OSError):
                if answer == "endless":
                    while True:
                        self.wfile.write(bytes(2**20))
                self.wfile.write(bytes(64) + body[64:] if answer == "changed" else body)
            return None

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Hostile, directory=str(SANDBOX))) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def nothing_kept(bench: Bench) -> None:
    """No weights, and nothing that was half written, are in the state."""
    left = [file.name for file in bench.state.rglob("*") if file.suffix in (".safetensors", ".tmp")]
    assert not left, f"left in the state: {left}"


@fault("q36eval is installed from its wheel, and its policies are listed in an empty folder", "all of them, exit 0")
def policies_of_the_wheel(bench: Bench) -> str:
    done = program(bench, installed(bench), "policy", "list", "--json")
    done.told(exit=0)
    names = [row["name"] for row in json.loads(done.stdout)]
    assert names == sorted(file.stem for file in (ROOT / "data" / "policies").glob("*.yaml")), names
    return f"exit 0: {', '.join(names)}"


@fault("the policies are missing from the installed package", "exit 2: no empty list that passes for an answer")
def policies_missing(bench: Bench) -> str:
    site = installed(bench)
    shutil.rmtree(site / "q36eval" / "data" / "policies")
    return program(bench, site, "policy", "list").told(exit=2, says="install q36eval again")


@fault("one shipped policy is emptied in the installed package", "exit 2, the file")
def policy_emptied(bench: Bench) -> str:
    site = installed(bench)
    (site / "q36eval" / "data" / "policies" / "release.yaml").write_text("")
    return program(bench, site, "policy", "list").told(exit=2, says="release.yaml")


@fault("a byte of the shipped corpus changes in the installed package", "exit 2, the file: nothing is measured on it")
def corpus_changed(bench: Bench) -> str:
    site = installed(bench)
    texts = site / "q36eval" / "data" / "corpus" / "sandbox" / "english.jsonl"
    texts.write_bytes(texts.read_bytes().replace(b"the", b"teh", 1))
    return program(bench, site, "data", "verify", "sandbox").told(exit=2, says="english.jsonl")


@fault("an installed q36eval gates the sandbox before its weights were fetched", "exit 2, the command; no download")
def gate_without_weights(bench: Bench) -> str:
    seen = program(bench, installed(bench), "gate", "--branch", "fp8-head").told(exit=2, says="q36eval sandbox build")
    nothing_kept(bench)
    return seen


@fault("weights are fetched by an installed q36eval that does not know from where", "exit 2, what to name")
def fetch_from_nowhere(bench: Bench) -> str:
    return program(bench, installed(bench), "sandbox", "build").told(exit=2, says="--from DIR|URL")


@fault("weights are fetched without a network", "exit 2, one sentence; nothing is kept")
def fetch_without_network(bench: Bench) -> str:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        seen = program(bench, installed(bench), "sandbox", "build", "fp8-head", "--from", address).told(
            exit=2, says="could not be fetched"
        )
    nothing_kept(bench)
    return seen


@fault("the server of the weights serves other bytes", "exit 2, the SHA-256; nothing is kept")
def fetch_changed(bench: Bench) -> str:
    with server("changed") as address:
        seen = program(bench, installed(bench), "sandbox", "build", "fp8-head", "--from", address).told(
            exit=2, says="SHA-256"
        )
    nothing_kept(bench)
    return seen


@fault("the download of the weights breaks off half way", "exit 2; nothing half is kept, and the next try succeeds")
def fetch_cut(bench: Bench) -> str:
    site = installed(bench)
    with server("cut") as address:
        seen = program(bench, site, "sandbox", "build", "fp8-head", "--from", address).told(
            exit=2, says="could not be fetched"
        )
    nothing_kept(bench)
    with server("right") as address:
        program(bench, site, "sandbox", "build", "fp8-head", "--from", address).told(exit=0)
    return f"{seen}; then fetched"


@fault("the server of the weights never stops sending", "exit 2 after 64 MiB; nothing is kept")
def fetch_endless(bench: Bench) -> str:
    with server("endless") as address:
        seen = program(bench, installed(bench), "sandbox", "build", "fp8-head", "--from", address).told(
            exit=2, says="is not the file"
        )
    nothing_kept(bench)
    return seen


@fault("a password stands in the address of the weights, and the server is down", "exit 2, the password not shown")
def fetch_with_password(bench: Bench) -> str:
    address = "http://me:s3cret@127.0.0.1:9/sandbox?token=s3cret"
    done = program(bench, installed(bench), "sandbox", "build", "fp8-head", "--from", address)
    assert "s3cret" not in done.stdout + done.stderr, "the password is shown"
    return done.told(exit=2)


@fault("fetched weights are damaged on the disk", "FAIL, exit 1, the file; `sandbox build` mends it")
def fetched_then_damaged(bench: Bench) -> str:
    site = installed(bench)
    program(bench, site, "sandbox", "build", "fp8-head", "--from", ROOT).told(exit=0)
    weights = bench.state / "sandbox" / "fetched" / "fp8-head" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    seen = program(bench, site, "inspect", "fp8-head").told(exit=1, says="manifest.json")
    program(bench, site, "sandbox", "build", "fp8-head", "--from", ROOT).told(exit=0)
    return f"{seen}; then mended"


@fault("the weights in the state were fetched by another version of q36eval", "exit 2, the command that mends it")
def fetched_by_another(bench: Bench) -> str:
    site = installed(bench)
    program(bench, site, "sandbox", "build", "fp8-head", "--from", ROOT).told(exit=0)
    manifest = bench.state / "sandbox" / "fetched" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("model.safetensors", "weights.safetensors", 1))
    return program(bench, site, "inspect", "fp8-head").told(exit=2, says="that of another q36eval")


@fault("two processes fetch the weights into one state at once", "both succeed, every byte right")
def fetched_twice_at_once(bench: Bench) -> str:
    site = installed(bench)
    done: list[Done] = []
    with server("right") as address:
        threads = [
            threading.Thread(
                target=lambda: done.append(program(bench, site, "sandbox", "build", "fp8-head", "--from", address))
            )
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = [each.told(exit=0) for each in done]
    program(bench, site, "sandbox", "verify").told(exit=0)
    return f"{len(seen)} × exit 0, verified"


@fault("the environment lies in the work tree of somebody's repository", "no run names that repository's commit")
def foreign_commit(bench: Bench) -> str:
    done = program(bench, installed(bench, inside_repository=True), "doctor", "--json")
    done.told(exit=0)
    assert json.loads(done.stdout)["commit"] is None, "a foreign commit"
    return "exit 0: commit not known"


@fault("a gate runs in a git hook of another repository (GIT_DIR is set)", "the run names q36eval's own commit")
def in_a_hook(bench: Bench) -> str:
    other = bench.folder / "other"
    git = ["git", "-C", str(bench.folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q", str(other)], check=True)
    subprocess.run([*git, "-C", str(other), "commit", "-q", "--allow-empty", "-m", "not ours"], check=True)
    head = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    done = bench.q36eval("doctor", "--json", GIT_DIR=str(other / ".git"), GIT_WORK_TREE=str(other))
    done.told(exit=0)
    said = json.loads(done.stdout)["commit"]
    assert said == (head or None), said
    return "exit 0: its own commit"


@fault("the current folder holds a `.q36eval` of another user", "exit 2: nobody's runs and decisions come unasked")
def anothers_state(bench: Bench) -> str:
    local = bench.folder / "elsewhere" / ".q36eval"
    local.parent.mkdir()
    if os.getuid() == 0:
        local.mkdir()
        os.chown(local, SOMEBODY, SOMEBODY)
    else:
        local.symlink_to("/usr")
    return program(bench, installed(bench), "history", "list", Q36EVAL_STATE="").told(
        exit=2, says="belongs to another user"
    )


@fault("no state is named, and nothing lies in the current folder", "the user's data folder, never site-packages")
def state_of_the_user(bench: Bench) -> str:
    site = installed(bench)
    done = program(bench, site, "waive", "list", Q36EVAL_STATE="", XDG_DATA_HOME=str(bench.folder / "of-user"))
    seen = done.told(exit=0)
    made = [str(file.relative_to(bench.folder)) for file in bench.folder.glob("**/history.sqlite")]
    assert made == ["of-user/q36eval/history.sqlite"], made
    return f"{seen}; made {made[0]}"


@fault("the state is to lie where no folder can be made", "exit 2, the folder and how to name another")
def nothing_writable(bench: Bench) -> str:
    return bench.q36eval("history", "list", "--state", "/proc/nowhere").told(exit=2, says="cannot be written")


@fault("the state is named by a file", "exit 2; `doctor` names it as a problem")
def state_is_a_file(bench: Bench) -> str:
    (bench.folder / "file").touch()
    bench.q36eval("doctor", "--state", bench.folder / "file").told(exit=2, says="cannot be written")
    return bench.q36eval("history", "list", "--state", bench.folder / "file").told(exit=2)


@fault("PyTorch cannot be imported", "`doctor` says so and exits 2, without a traceback")
def torch_broken(bench: Bench) -> str:
    broken = bench.folder / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    return bench.q36eval("doctor", PYTHONPATH=f"{broken}{os.pathsep}{ROOT}").told(exit=2, says="libcudart")


@fault("the hub does not answer, and `doctor --hub` is run", "an answer within seconds, exit 0")
def hub_silent(bench: Bench) -> str:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        done = bench.q36eval("doctor", "--hub", "--json", HF_ENDPOINT=address, HF_HUB_OFFLINE="")
    done.told(exit=0)
    return f"exit 0: {json.loads(done.stdout)['hub']}"


@fault("a folder `q36eval` or `app` of somebody else lies where the dashboard is started", "ours is run all the same")
def foreign_package(bench: Bench) -> str:
    place = bench.folder / "elsewhere"
    for name in ("app", "kl", "evals"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    program(bench, installed(bench), "branches", "list").told(exit=0, says="fp8-head")
    return "exit 0: the branches"


@fault("two jobs gate two branches in one state at once, and its reference is not captured", "one captures, both PASS")
def two_jobs(bench: Bench) -> str:
    jobs = [bench.start("gate", "--branch", name, *bench.small) for name in ("fp8-head", "main")]
    done = [job.end() for job in jobs]
    seen = [each.told(exit=0) for each in done]
    captured = sum("capturing the reference" in each.stderr + each.stdout for each in done)
    waited = sum("waiting for another run" in each.stderr + each.stdout for each in done)
    assert (captured, waited) == (1, 1), f"{captured} captured, {waited} waited"
    return f"{len(seen)} × exit 0; one captured, the other waited"
