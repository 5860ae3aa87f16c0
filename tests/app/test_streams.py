"""Whatever becomes of the standard streams, a gate measures, decides and ends with its verdict's code.

What breaks around a gate, done for real: limits, links, foreign code, signals.
"""

import contextlib
import fcntl
import json
import os
import pty
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from q36eval.checkpoints import load_model
from q36eval.history import RunState
from q36eval.records import Verdict
from tests import commands, forked
from tests.app.sandbox_gates import SKIPPING, copied, runs, said
from tests.branches import folder_of

POLICY = """
name: žluť ≥ 1
description: kůň
criteria:
  - {id: intact, title: "Žádná vada ≥ nula 🐎", probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform], waivable: false}
"""


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A gate of a second, that judges the files alone; its policy has letters that many encodings lack."""
    folder = tmp_path_factory.mktemp("gate")
    policy = folder / "weights.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    options = ("gate", "--branch", "bf16", "--policy", str(policy), *SKIPPING)
    commands.q36eval(*options, state=folder)  # what it imports, every forked child has then
    return options


def measured(state: Path) -> None:
    """The run was measured whole and has its verdict: nothing crashed in it."""
    (run,) = runs(state)
    assert (run.state, run.verdict) == (RunState.FINISHED, Verdict.PASS)
    assert [probe for probe in run.report.failures if probe.kind == "crashed"] == []


@contextlib.contextmanager
def left_reader() -> Iterator[str]:
    """The path of a pipe that nobody reads any more, as `| head` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    yield f"/dev/fd/{writing}"
    os.close(writing)


@pytest.mark.long
def test_streams_that_nobody_reads_or_that_are_full_cost_no_measurement(tmp_path: Path, gate: tuple[str, ...]) -> None:
    with left_reader() as left:
        for name, stdout, stderr in (
            ("log-left", "/dev/null", left),
            ("log-full", "/dev/null", "/dev/full"),
            ("both-left", left, left),
            ("both-full", "/dev/full", "/dev/full"),
        ):
            child = forked.start(*gate, state=tmp_path / name, stderr=Path(stderr), stdout=stdout)
            assert child.wait() == 0, name
            measured(tmp_path / name)


def closed() -> None:
    os.close(1)
    sys.stdout = None  # type: ignore[assignment]  # as Python finds it when it starts


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "before", "code", "said"),
    [
        ((), None, 0, ["The output could not be written: No space left on device. [output-lost]"]),
        (("--json",), None, 4, ["The document could not be written: No space left on device. [output-lost]"]),
        ((), closed, 0, []),
        (("--json",), closed, 4, ["The document could not be written: it is closed. [output-lost]"]),
    ],
)
def test_a_text_is_a_copy_and_a_document_is_what_was_asked_for(
    tmp_path: Path,
    gate: tuple[str, ...],
    options: tuple[str, ...],
    before: Callable[[], None] | None,
    code: int,
    said: list[str],
) -> None:
    state, stderr = tmp_path / "state", tmp_path / "stderr"
    child = forked.start(*gate, *options, state=state, stderr=stderr, stdout="/dev/full", before=before)
    assert child.wait() == code
    assert [line for line in stderr.read_text().splitlines() if line.startswith("q36eval: ")] == [
        f"q36eval: {sentence}" for sentence in said
    ]
    measured(state)


@pytest.mark.long
def test_a_terminal_that_goes_away_ends_nothing(tmp_path: Path, gate: tuple[str, ...]) -> None:
    ours, theirs = pty.openpty()

    def gone() -> None:
        hangs_up = select.poll()
        hangs_up.register(1, 0)
        hangs_up.poll()

    def of_a_session() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # a session leader's first terminal is its own
        os.close(ours)
        os.close(theirs)
        forked.inspecting_after(gone)

    terminal = os.ttyname(theirs)
    child = forked.start(*gate, state=tmp_path / "state", stderr=Path(terminal), stdout=terminal, before=of_a_session)
    os.close(theirs)
    shown = b""
    while b"inspecting" not in shown:
        shown += os.read(ours, 1000)
    os.close(ours)
    assert child.wait() == 0
    measured(tmp_path / "state")


def encoded(encoding: str) -> Callable[[], None]:
    return lambda: [stream.reconfigure(encoding=encoding, errors="strict") for stream in (sys.stdout, sys.stderr)]


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "cp1250"])
def test_what_an_encoding_lacks_is_escaped(tmp_path: Path, gate: tuple[str, ...], encoding: str) -> None:
    state, out = tmp_path / "state", tmp_path / "text"
    options = {"state": state, "stderr": tmp_path / "stderr", "before": encoded(encoding)}
    assert forked.start(*gate, stdout=str(out), **options).wait() == 0
    measured(state)
    assert forked.start("report", "latest", "--details", stdout=str(out), **options).wait() == 0
    text = out.read_text(encoding=encoding)
    assert r"\U0001f40e" in text
    assert forked.start("report", "latest", "--format", "json", stdout=str(out), **options).wait() == 0
    document = json.loads(out.read_text(encoding="ascii"))
    assert document["report"]["criteria"][0]["title"] == "Žádná vada ≥ nula 🐎"
    assert "PASS" in text
    branch = tmp_path / "větev ≥"  # in a sentence of stderr
    assert forked.start("gate", "--branch", str(branch), stdout=str(out), **options).wait() == 2
    assert r"\u2265" in (tmp_path / "stderr").read_text(encoding=encoding)


def test_a_pipe_that_does_not_block_gets_all_of_a_document(tmp_path: Path) -> None:
    """Some programs leave their pipes so; a slow reader then made every write fail."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)

    def piped() -> None:
        os.dup2(writing, 1)

    command = ("report", "latest", "--schema")
    child = forked.start(*command, state=tmp_path / "state", stderr=tmp_path / "stderr", before=piped)
    os.close(writing)
    text = b""
    while part := os.read(reading, 1 << 16):
        text += part
    os.close(reading)
    assert child.wait() == 0
    assert len(json.loads(text)) > 1


def test_a_reader_that_does_not_read_keeps_no_command_from_ending(tmp_path: Path) -> None:
    """As a pager that waits for a key: the first signal ends the writing, the second the wait for the rest."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)

    def piped() -> None:
        from q36eval import interrupts

        interrupts.SECONDS_TO_CLOSE = 0.0
        os.dup2(writing, 1)

    stderr = tmp_path / "stderr"
    command = ("report", "latest", "--schema")
    child = forked.start(*command, state=tmp_path / "state", stderr=stderr, before=piped)
    os.close(writing)
    select.select([reading], [], [])
    code = None
    while code is None:
        os.kill(child.pid, signal.SIGTERM)
        ended, status = os.waitpid(child.pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        time.sleep(0.05)
    os.close(reading)
    assert code in (0, 143)
    assert "Traceback" not in stderr.read_text()


# -- limits, links, foreign code, signals

WEIGHTS = "model.safetensors"


def test_a_policy_of_billions_of_values_is_refused_within_little_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    policy, stderr = tmp_path / "policy.yaml", tmp_path / "stderr"
    policy.write_text("\n".join([*lines, "name: *a11", "criteria: *a11"]) + "\n")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 2**30
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (most, most))
    gate = ("gate", "--branch", "main", "--policy", str(policy))
    assert forked.start(*gate, state=tmp_path / "state", stderr=stderr, before=limit).wait() == 2
    assert "policy.yaml" in said(stderr.read_text())


def test_code_that_a_branch_brings_is_never_run(tmp_path: Path, weights: tuple[str, ...]) -> None:
    branch, ran = copied(folder_of("main"), tmp_path / "main"), tmp_path / "ran"
    (branch / "modeling.py").write_text(f"open({str(ran)!r}, 'w').write('ran')\n")
    config = json.loads((branch / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"}
    (branch / "config.json").write_text(json.dumps(config))
    assert commands.q36eval("gate", "--branch", str(branch), *weights, state=tmp_path / "state").returncode == 0
    load_model(branch)
    assert not ran.exists()


def test_a_pickle_in_place_of_the_weights_is_never_unpickled(tmp_path: Path, weights: tuple[str, ...]) -> None:
    branch, ran = copied(folder_of("main"), tmp_path / "main"), tmp_path / "ran"
    (branch / WEIGHTS).unlink()
    (branch / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {ran}'\ntR.".encode())
    assert commands.q36eval("gate", "--branch", str(branch), *weights, state=tmp_path / "state").returncode == 1
    assert not ran.exists()


@pytest.mark.parametrize("option", ["--branch", "--policy", "--waivers-from", "--out", "--suite"])
def test_a_link_to_itself_is_one_sentence(option: str, tmp_path: Path) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    branch = () if option == "--branch" else ("--branch", "main")
    done = commands.q36eval("gate", *branch, "--skip", "canaries", option, str(loop), state=tmp_path / "state", code=2)
    assert "loop" in said(done.stderr)


def test_sigterm_in_the_second_of_two_branches_costs_the_second_alone(tmp_path: Path, weights: tuple[str, ...]) -> None:
    state, stderr, out = tmp_path / "state", tmp_path / "stderr", tmp_path / "out"
    report, waits = out / "bf16" / "report.json", tmp_path / "waits"

    def wait() -> None:
        if report.exists():
            waits.touch()
            while True:
                time.sleep(0.01)

    both = ("gate", "--branch", "bf16", "--branch", "main", *weights, "--out", str(out))
    child = forked.start(*both, state=state, stderr=stderr, before=partial(forked.inspecting_after, wait))
    child.until(waits.exists)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == 143
    second, first = runs(state)
    assert (second.state, second.verdict, first.verdict) == (RunState.INTERRUPTED, None, Verdict.PASS)
    assert json.loads(report.read_text())["report"]["verdict"] == "PASS"
    assert not list((out / "main").iterdir())
    assert f"--resume {second.id}" in said(stderr.read_text())
