"""What becomes of standard streams, which signals come, how full a disk is, what is in `--out`, who asks the pages."""

import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults import Bench, fault
from benchmarks.faults.bench import COMMAND, ROOT, Done, Running

FINISHED, INTERRUPTED = "finished", "interrupted"


def runs(bench: Bench) -> list[tuple[str, str, str | None]]:
    """Id, state and verdict of every run in history, the newest first."""
    listed = json.loads(bench.q36eval("history", "list", "--json").stdout)
    return [(run["id"], run["state"], run["verdict"]) for run in listed["runs"]]


def in_history(bench: Bench, state: str, verdict: str | None = None) -> str:
    """That the one run there is in that state, and has that verdict; its id.

    Raises:
        AssertionError: it is not.
    """
    (run,) = runs(bench)
    assert run[1:] == (state, verdict), f"history says {run}"
    return run[0]


def gated(bench: Bench, line: str, *options: object, exit: int = 0, says: str | None = None, **environment: str) -> str:
    """A gate of the files alone in that line of bash; that it was measured, passed and left nobody behind."""
    done = bench.bash(line, "gate", "--branch", "main", *bench.weights_alone, *options, **environment)
    seen = done.told(exit=exit, says=says)
    in_history(bench, FINISHED, "PASS")
    return f"{seen}; in history PASS"


@fault("standard output is closed (`gate >&-`)", "measured, exit 0 of the verdict")
def output_closed(bench: Bench) -> str:
    return gated(bench, '"$@" >&-')


@fault("all standard streams are closed, as a service manager may do", "measured, exit 0 of the verdict")
def all_closed(bench: Bench) -> str:
    return gated(bench, '"$@" >&- 2>&- <&-')


@fault("whoever reads the log leaves (`gate 2>&1 >report | head -c1`)", "measured, exit 0 of the verdict")
def log_left(bench: Bench) -> str:
    return gated(bench, 'set -o pipefail; "$@" 2>&1 >/dev/null | head -c1 >/dev/null')


@fault("whoever reads the report leaves (`gate | head -1`)", "measured, exit 0 of the verdict")
def report_left(bench: Bench) -> str:
    return gated(bench, 'set -o pipefail; "$@" | head -1')


@fault("the disk behind `gate > log 2>&1` is full", "measured, exit 0 of the verdict")
def log_full(bench: Bench) -> str:
    return gated(bench, '"$@" >/dev/full 2>&1')


@fault("the disk behind `gate --json > file` is full", "measured; exit 4: the document that was asked for is not there")
def document_full(bench: Bench) -> str:
    return gated(bench, '"$@" >/dev/full', "--json", exit=4, says="could not be written: No space left")


@fault("standard output of `gate --json` is closed", "measured; exit 4, as above")
def document_closed(bench: Bench) -> str:
    return gated(bench, '"$@" >&-', "--json", exit=4, says="could not be written")


@fault("the disk behind `gate --json` of a damaged branch is full", "exit 1: the proven FAIL comes first")
def document_of_a_fail(bench: Bench) -> str:
    branch = bench.copy("main")
    os.truncate(branch / "model.safetensors", 1_000_000)
    line = ("gate", "--branch", branch, *bench.weights_alone, "--json")
    return bench.bash('"$@" >/dev/full', *line).told(exit=1, says="could not be written")


@fault("the terminal goes away in the middle of a gate (SIGHUP)", "measured to its end, the verdict is in history")
def terminal_gone(bench: Bench) -> str:
    arguments = [*COMMAND, "gate", "--branch", "main", *map(str, bench.weights_alone)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(arguments[0], arguments, bench.environment(TERM="xterm"))
    shown = b""
    while b"inspecting" not in shown:
        shown += os.read(terminal, 1000)
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, f"exit {code}"
    in_history(bench, FINISHED, "PASS")
    return f"exit {code}; in history PASS"


@fault("a terminal of Latin-1, a policy with letters that it lacks", "measured, written escaped, exit 0")
def latin_1(bench: Bench) -> str:
    policy = bench.folder / "weights.yaml"
    policy.write_text(policy.read_text("utf-8").replace("Checkpoint intact", "Váhy ≥ celé"), "utf-8")
    return gated(bench, '"$@" | iconv -f latin1 -t utf-8', says=r"\u2265", PYTHONIOENCODING="latin-1")


@fault("an ASCII terminal (LC_ALL=C), a branch whose name it lacks", "exit 2, one sentence, the name escaped")
def ascii_sentence(bench: Bench) -> str:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    return bench.q36eval("gate", "--branch", "větev", *bench.weights_alone, **ascii_only).told(exit=2, says=r"v\u")


@fault("`gate --json` in an encoding that lacks its letters", "the document is whole, JSON, and as it was written")
def document_in_ascii(bench: Bench) -> str:
    policy = bench.folder / "weights.yaml"
    policy.write_text(policy.read_text("utf-8").replace("Checkpoint intact", "Váhy ≥ celé"), "utf-8")
    command = ("gate", "--branch", "main", *bench.weights_alone, "--json")
    done = bench.q36eval(*command, PYTHONIOENCODING="latin-1")
    title = json.loads(done.stdout)["report"]["criteria"][0]["title"]
    assert title == "Váhy ≥ celé", title
    return f"exit {done.exit}: the title in it is {title!r}"


def workers_of(process: int) -> list[int]:
    """Whoever is left of a session."""
    found = subprocess.run(["pgrep", "-s", str(process)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def stopped(running: Running, number: signal.Signals, exit: int, *, group: bool = True) -> str:
    """That a signal ends it with one sentence, and nobody goes on; what was seen."""
    done = running.send(number, group=group).end()
    seen = done.told(exit=exit)
    said = [line for line in done.stderr.splitlines() if line.startswith("q36eval: ")]
    assert len(said) == 1, f"it said {said}"
    left = workers_of(running.process.pid)
    assert not left, f"processes go on: {left}"
    return seen


def resumes(bench: Bench, *options: object) -> str:
    """That the run in history is interrupted, and passes when it is resumed."""
    run = in_history(bench, INTERRUPTED)
    return bench.q36eval("gate", "--branch", "fp8-head", *options, "--resume", run).told(exit=0)


@fault("SIGTERM to all processes while the reference is captured", "exit 143, one sentence, the run resumes and passes")
def term_in_the_capture(bench: Bench) -> str:
    gate = bench.start("gate", "--branch", "fp8-head", *bench.small).wait_for("capturing the reference")
    return f"{stopped(gate, signal.SIGTERM, 143)}; resumed: {resumes(bench, *bench.small)}"


@fault("SIGTERM while the noise floor is measured", "exit 143, one sentence, the run resumes and passes")
def term_in_the_floor(bench: Bench) -> str:
    gate = bench.start("gate", "--branch", "fp8-head", *bench.small).wait_for("measuring the noise floor")
    return f"{stopped(gate, signal.SIGTERM, 143)}; resumed: {resumes(bench, *bench.small)}"


@fault("Ctrl-C while the branch is measured", "exit 130, one sentence, the run resumes and passes")
def interrupt_while_measuring(bench: Bench) -> str:
    bench.reference()
    gate = bench.start("gate", "--branch", "fp8-head", *bench.small).wait_for("measuring the branch")
    return f"{stopped(gate, signal.SIGINT, 130)}; resumed: {resumes(bench, *bench.small)}"


@fault("SIGTERM to the command alone, its workers not told", "exit 143, one sentence, no worker goes on")
def term_to_the_parent(bench: Bench) -> str:
    bench.reference()
    gate = bench.start("gate", "--branch", "fp8-head", *bench.small).wait_for("measuring the branch")
    return stopped(gate, signal.SIGTERM, 143, group=False)


@fault(
    "five SIGTERM and Ctrl-C at once, as impatience sends them", "one sentence, exit 143, the run resumes and passes"
)
def many_signals(bench: Bench) -> str:
    bench.reference()
    gate = bench.start("gate", "--branch", "fp8-head", *bench.small).wait_for("measuring the branch")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        gate.send(number, group=True)
        time.sleep(0.01)
    return f"{stopped(gate, signal.SIGTERM, 143)}; resumed: {resumes(bench, *bench.small)}"


@fault("the command is killed (SIGKILL) while its workers compute", "no worker outlives it, the run resumes and passes")
def killed(bench: Bench) -> str:
    bench.reference()
    gate = bench.start("gate", "--branch", "fp8-head", *bench.small).wait_for("measuring the branch")
    done = gate.send(signal.SIGKILL).end()
    until = time.monotonic() + 60
    while workers_of(gate.process.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not workers_of(gate.process.pid), "workers go on"
    (run,) = runs(bench)
    resumed = bench.q36eval("gate", "--branch", "fp8-head", *bench.small, "--resume", run[0]).told(exit=0)
    return f"killed by signal {-done.exit}; resumed: {resumed}"


@fault("SIGTERM while the reference samples its own answers", "exit 143, one sentence that no run was begun")
def term_while_sampling(bench: Bench) -> str:
    options = ("--policy", bench.folder / "kl.yaml", "--skip", "evals", "--skip", "canaries")
    gate = bench.start("gate", "--branch", "fp8-head", *options).wait_for("sampling the reference's own answers")
    seen = stopped(gate, signal.SIGTERM, 143)
    assert runs(bench) == []
    return seen


@fault("SIGTERM while evals are measured", "exit 143, one sentence with the run to resume")
def term_in_the_evals(bench: Bench) -> str:
    options = ("--policy", bench.folder / "weights.yaml", "--skip", "kl", "--skip", "canaries", "--max-items", "40")
    gate = bench.start("gate", "--branch", "main", "--exhaustive", *options).wait_for("measuring the branch")
    seen = stopped(gate, signal.SIGTERM, 143)
    assert in_history(bench, INTERRUPTED) in seen
    return seen


@fault("SIGTERM in the second of two branches", "exit 143; the first has its verdict and report, the second resumes")
def term_in_the_second(bench: Bench) -> str:
    bench.reference()
    branches = ("gate", "--branch", "fp8-head", "--branch", "int2-experts", *bench.small, "--out", bench.folder / "out")
    gate = bench.start(*branches).wait_for((bench.folder / "out" / "fp8-head" / "report.json").exists)
    gate.wait_for(lambda: len(list((bench.state / "runs").glob("*.lock"))) > 1)
    seen = stopped(gate, signal.SIGTERM, 143)
    found = [run[1:] for run in runs(bench)]
    assert found == [(INTERRUPTED, None), (FINISHED, "PASS")], found
    assert not list((bench.folder / "out" / "int2-experts").iterdir())
    return f"{seen}; the first: PASS"


@fault("a GitHub job is cancelled: SIGINT to the step's shell alone", "the gate stops, verdict=INTERRUPTED, no report")
def job_cancelled(bench: Bench) -> str:
    program, output = bench.folder / "q36eval", bench.folder / "output"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{COMMAND[2]}" "$@"\n')
    program.chmod(0o755)
    bench.reference()
    options = "\n".join(f"{a}={b}" for a, b in zip(bench.small[::2], bench.small[1::2], strict=True))
    inputs = {"BRANCH": "fp8-head", "COMMAND": program, "OPTIONS": options, "STATE": bench.state}
    environment = {f"Q36EVAL_ACTION_{name}": str(value) for name, value in inputs.items()}
    environment |= {"GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(bench.folder)}
    script = ROOT / ".github" / "actions" / "gate" / "gate.sh"
    step = Running(["bash", str(script)], bench.environment(**environment), bench.folder)
    done = step.wait_for("measuring the branch").send(signal.SIGINT).end()
    written = output.read_text().split()[:2]
    assert written == ["verdict=INTERRUPTED", "exit-code=143"], written
    assert not workers_of(step.process.pid)
    assert not list(bench.folder.glob("q36eval-report.*/*"))
    in_history(bench, INTERRUPTED)
    return f"{' '.join(written)}: {done.sentence}"


@fault("SIGTERM to `make gate`", "make hands it on: one sentence, the run is kept, no process goes on")
def make_terminated(bench: Bench) -> str:
    program = bench.folder / "bin" / "q36eval"
    program.parent.mkdir()
    small = " ".join(map(str, bench.small))
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{COMMAND[2]}" "$@" {small}\n')
    program.chmod(0o755)
    bench.reference()
    command = ["make", "-C", str(ROOT), "-o", f"{bench.folder}/.installed", "gate", f"VENV={bench.folder}"]
    make = Running([*command, f"PYTHON={sys.executable}"], bench.environment(), bench.folder)
    done = make.wait_for("measuring the branch").send(signal.SIGTERM).end()
    assert done.exit != 0, "make says that all is well"
    assert "Stopped by SIGTERM. What was measured is kept" in done.stderr, done.stderr[-300:]
    assert not workers_of(make.process.pid)
    in_history(bench, INTERRUPTED)
    return done.sentence


def on_a_disk(bench: Bench, options: str, filled: str, *arguments: object) -> Done:
    """The command with its state on a file system of its own, made with those options and then filled."""
    disk = bench.state
    disk.mkdir()
    line = f'mount -t tmpfs -o {options} tmpfs {disk} && {filled} && exec "$@"'
    command = ["unshare", "-rm", "bash", "-c", line, "bash", *COMMAND, *map(str, arguments)]
    return Running(command, bench.environment(), bench.folder).end()


@fault("the disk of the state is 97 % full", "told with figures before anything is measured; measured, exit 0")
def disk_crowded(bench: Bench) -> str:
    fill = f"head -c 195M /dev/zero >{bench.state}/filled"
    done = on_a_disk(bench, "size=200m", fill, "gate", "--branch", "main", *bench.weights_alone)
    done.told(exit=0)
    said = next((line for line in done.stderr.splitlines() if "% full" in line), None)
    assert said is not None, "nothing was said"
    assert done.stderr.index("% full") < done.stderr.index("inspecting")
    return f"exit {done.exit}: {said.removeprefix('q36eval: ')}"


@fault("the disk of the state has no room for another file", "exit 2 with figures, before anything is measured")
def no_inodes(bench: Bench) -> str:
    fill = f"(while touch {bench.state}/$((i+=1)); do :; done 2>/dev/null; true)"
    done = on_a_disk(bench, "size=50m,nr_inodes=20", fill, "gate", "--branch", "main", *bench.weights_alone)
    assert "inspecting" not in done.stderr
    return done.told(exit=2)


@fault("the reference's states do not fit on the disk", "exit 2 with figures, before the reference is asked anything")
def no_room_for_the_capture(bench: Bench) -> str:
    options = ("--policy", bench.folder / "kl.yaml", "--skip", "evals", "--skip", "canaries")
    done = on_a_disk(bench, "size=2m", "true", "gate", "--branch", "fp8-head", *options)
    assert "sampling" not in done.stderr
    assert "inspecting" not in done.stderr
    return done.told(exit=2, says="are free; make room")


def reported(bench: Bench) -> Path:
    """A report folder with what an earlier gate wrote, and a file of somebody's own."""
    out = bench.folder / "out"
    bench.q36eval("gate", "--branch", "main", *bench.weights_alone, "--out", out).told(exit=0)
    (out / "notes.md").write_text("mine")
    return out


def only_notes(out: Path) -> None:
    left = sorted(file.name for file in out.iterdir())
    assert left == ["notes.md"], f"left in --out: {left}"


@fault(
    "a policy that is not there, with `--out` of an earlier PASS", "exit 2, the earlier reports are gone, notes stay"
)
def usage_error_with_out(bench: Bench) -> str:
    out = reported(bench)
    seen = bench.q36eval("gate", "--branch", "main", "--policy", "nope", "--out", out).told(exit=2)
    only_notes(out)
    return f"{seen} In --out: notes.md"


@fault("an option that does not exist, with `--out` of an earlier PASS", "exit 2, the earlier reports are gone")
def unknown_option_with_out(bench: Bench) -> str:
    out = reported(bench)
    seen = bench.q36eval("gate", "--branch", "main", "--brnach", "main", f"--out={out}").told(exit=2)
    only_notes(out)
    return f"{seen} In --out: notes.md"


@fault("a gate killed at its start, with `--out` of an earlier PASS", "the earlier reports are gone")
def killed_with_out(bench: Bench) -> str:
    out = reported(bench)
    gate = bench.start("gate", "--branch", "main", *bench.weights_alone, "--out", out).wait_for("inspecting")
    code = gate.send(signal.SIGKILL).end().exit
    only_notes(out)
    return f"killed by signal {-code}; in --out: notes.md"


@fault("a file of somebody's own called report.json lies in `--out`", "a gate that cannot begin leaves it")
def own_report_json(bench: Bench) -> str:
    out = bench.folder / "out"
    out.mkdir()
    (out / "report.json").write_text('{"mine": true}')
    seen = bench.q36eval("gate", "--branch", "nope", *bench.weights_alone, "--out", out).told(exit=2)
    assert (out / "report.json").read_text() == '{"mine": true}'
    return f"{seen} In --out: report.json"


@contextmanager
def served(bench: Bench, *options: str) -> Iterator[tuple[int, Running]]:
    """The port of a dashboard over this state."""
    bench.q36eval("history", "list").told(exit=0)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = held.getsockname()[1]
        server = bench.start("ui", "--port", port, *options)
        try:
            server.wait_for(lambda: listens(port))
            yield port, server
        finally:
            if server.process.poll() is None:
                server.send(signal.SIGTERM, group=True).end()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def asked(port: int, path: str, **headers: str) -> tuple[int, str]:
    """Status and first line of what the server answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    given = {"Host": f"localhost:{port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.putrequest("GET", path, skip_host=True)
    for name, value in given.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode("utf-8", "replace")
    return answer.status, text.partition("\n")[0]


HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@fault("a page elsewhere lets its name point to the dashboard (DNS rebinding)", "HTTP and WebSocket: 421, one sentence")
def rebinding(bench: Bench) -> str:
    seen = []
    for options in ((), ("--address", "0.0.0.0")):
        with served(bench, *options) as (port, _):
            evil = {"Host": f"evil.example.com:{port}", "Origin": f"http://evil.example.com:{port}"}
            answers = [asked(port, "/", **evil), asked(port, "/_stcore/stream", **evil, **HANDSHAKE)]
            assert [status for status, _ in answers] == [421, 421], answers
            assert asked(port, "/")[0] == 200
            seen = [f"{status} {text}" for status, text in answers]
    return "; ".join(seen)


@fault("a page of another program on this machine opens the WebSocket", "403, one sentence")
def another_program(bench: Bench) -> str:
    with served(bench) as (port, _):
        status, text = asked(port, "/_stcore/stream", Origin="http://localhost:3000", **HANDSHAKE)
        assert status == 403, status
        return f"{status} {text}"


@fault("metrics, uploads, components and the agents' interface are asked for", "404: nothing but what the pages need")
def other_services(bench: Bench) -> str:
    paths = ("metrics", "upload_file/a/b", "bidi-components/a", "agent/openapi.json", "script-health-check")
    with served(bench) as (port, _):
        found = {path: asked(port, f"/_stcore/{path}")[0] for path in paths}
        assert set(found.values()) == {404}, found
        return ", ".join(f"{path} {status}" for path, status in found.items())


@fault("the dashboard's log is closed", "it serves all the same")
def ui_without_streams(bench: Bench) -> str:
    bench.q36eval("history", "list").told(exit=0)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = held.getsockname()[1]
        line = ["bash", "-c", 'exec "$@" >&- 2>&-', "bash", *COMMAND, "ui", "--port", str(port)]
        server = Running(line, bench.environment(), bench.folder)
        server.wait_for(lambda: listens(port))
        status, text = asked(port, "/_stcore/health")
        server.send(signal.SIGTERM).end()
    assert status == 200, status
    return f"{status} {text}"


@fault("SIGTERM to `q36eval ui`", "exit 0 as by Ctrl-C, the server ends with it")
def ui_terminated(bench: Bench) -> str:
    with served(bench) as (port, server):
        done = server.send(signal.SIGTERM).end()
        assert not listens(port), "the server goes on"
        return done.told(exit=0)
