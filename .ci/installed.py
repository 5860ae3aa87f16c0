"""A first hour with an installed q36eval, outside any checkout: what `.ci/wheel` runs in an environment of the wheel.

    python installed.py CHECKOUT    in an empty folder; the checkout only serves the sandbox's weights over HTTP

It ends with an exception where the program does not do what a newcomer is promised.
"""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import q36eval

POLICY = """\
name: small
criteria:
  - {id: intact, title: Checkpoint intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: CI}, lanes: [structured, freeform], waivable: false}
  - {id: close, title: Close to the reference, probe: kl, metric: kl_divergence, slice: all,
     margin: {kind: max_value, value: 0.05, source: CI}, lanes: [structured, freeform], min_clusters: 8}
"""
DOCUMENTS = 12
PATIENCE_SECONDS = 120.0


def run(*arguments: str, code: int = 0) -> str:
    """What the command wrote, which must end with that exit code."""
    done = subprocess.run([sys.executable, "-P", "-m", "q36eval", *arguments], capture_output=True, text=True)
    if done.returncode != code:
        raise SystemExit(f"{arguments}: exit {done.returncode}, not {code}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def serve(folder: Path) -> str:
    """The address of a server of that folder, as long as this process."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *said: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def small_gate(data: Path) -> None:
    """A corpus of the shortest of the shipped documents, and a policy over it."""
    files = sorted((data / "corpus" / "sandbox").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    Path("texts.jsonl").write_text("\n".join(sorted(lines, key=len)[:DOCUMENTS]) + "\n", encoding="utf-8")
    Path("corpus.yaml").write_text("name: small\njson_lines: [{path: texts.jsonl}]\non_policy: null\n")
    Path("policy.yaml").write_text(POLICY)


def check_pages(history: Path, package: Path) -> None:
    """The server answers, and the overview is drawn with the run on it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-P", "-m", "q36eval", "ui", "--port", str(port)])
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                    assert b"<title>" in answer.read()
                    break
            except OSError:
                assert server.poll() is None, "the server ended"
                assert time.monotonic() < until, "the server does not answer"
                time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)
    from streamlit.testing.v1 import AppTest

    sys.argv = ["main.py", str(history)]
    page = AppTest.from_file(str(package / "app" / "dashboard" / "main.py"), default_timeout=PATIENCE_SECONDS).run()
    assert not page.exception, page.exception
    assert any("STALE" in each.value for each in page.markdown), "two criteria release nothing"


def main() -> None:
    checkout, package = Path(sys.argv[1]).resolve(), Path(q36eval.__file__).resolve().parent
    assert Path(sys.prefix).resolve() in package.parents, f"{package} is not of this environment"
    body = json.loads(run("doctor", "--json"))
    state = Path(body["state"]["folder"])
    assert body["problems"] == [], body["problems"]
    assert body["commit"] is None, "a wheel knows no commit"
    assert Path(os.environ["HOME"]) in state.parents, state
    assert "sandbox" in run("policy", "list")
    run("gate", "--branch", "fp8-head", code=2)  # no family is chosen here
    run("gate", "--branch", "sandbox/fp8-head", code=2)  # which fetches nothing
    run("sandbox", "build", "fp8-head", "--from", serve(checkout / "data" / "sandbox"))
    run("sandbox", "build", "bf16", "--from", str(checkout))
    small_gate(package / "data")
    small = ("--policy", "policy.yaml", "--corpus", "corpus.yaml", "--skip", "canaries", "--skip", "evals")
    begun = time.monotonic()
    report = json.loads(run("gate", "--branch", "sandbox/fp8-head", *small, "--out", "reports", "--json"))
    print(f"a gate of fp8-head: PASS in {time.monotonic() - begun:.0f} s", flush=True)
    assert report["report"]["verdict"] == "PASS", report["report"]["headline"]
    assert Path("reports/report.json").stat().st_size > 0
    assert "<html" in run("report", "latest", "--format", "html")
    check_pages(state / "history.sqlite", package)
    assert not (package.parent / ".q36eval").exists(), "the state lies in site-packages"
    print(f"Python {sys.version.split()[0]}: an installed q36eval works ({package})", flush=True)


if __name__ == "__main__":
    main()
