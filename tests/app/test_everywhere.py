"""What every command takes and how it answers: help, JSON, history, quiet, colours, completion, errors."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from q36eval.engines import EngineOptions
from tests import commands
from tests.app.judged_runs import judge_run, open_history
from tests.commands import command_tree

COMMANDS = command_tree()
NO_JSON = {"q36eval ui"}
"""A server: it has no document to print."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    history = open_history(tmp_path)
    judge_run(history, 120, date(2026, 5, 1), branch="main")
    judge_run(history, 0, date(2026, 5, 2), branch="main")
    return tmp_path


@pytest.mark.long
def test_the_history_and_state_named_before_or_after_a_command_are_the_ones_read(
    state: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere, file = tmp_path_factory.mktemp("elsewhere"), str(state / "history.sqlite")
    for option in (["--history", file], ["--state", str(state)]):
        for arguments in ([*option, "history", "list"], ["report", "latest", *option]):
            assert "main" in commands.q36eval(*arguments, "--json", state=elsewhere).stdout, arguments
    assert not (elsewhere / "history.sqlite").exists()


def test_every_command_takes_json() -> None:
    leaves = {name for name, command in COMMANDS.items() if not hasattr(command, "commands")}
    assert {name for name in leaves if not any("--json" in each.opts for each in COMMANDS[name].params)} == NO_JSON


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        *("branches", "branches main", "canaries list", "canaries list json-nested", "doctor"),
        *("history list", "history compare {run} {other}", "history show latest", "history show latest --replay"),
        *("history status", "history gc --dry-run", "policy list", "policy explain release --full"),
        *("policy explain release", "policy check release", "drift", "drift --branch main", "report latest"),
        *("reference show", "review list", "history export latest --out {out}"),
        *("report latest --schema", "report latest --policy sandbox"),
        *("review waive --branch main --criterion tools --owner eva --reason why --ahead --expires {soon}",),
        *("review bless latest --owner eva --reason why", "review sign-off latest --owner eva --reason why"),
    ],
)
def test_with_json_a_command_prints_one_document(command: str, state: Path) -> None:
    runs = [run.id for run in open_history(state).summaries()]
    arguments = command.format(
        run=runs[0], other=runs[-1], out=state / "archive.zip", soon=date.today() + timedelta(days=30)
    ).split()
    done = commands.q36eval(*arguments, "--json", state=state)
    assert done.stdout, done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_values_in_plain_words_on_80_columns(name: str) -> None:
    command = COMMANDS[name]
    with command.make_context(name, [], resilient_parsing=True) as context:
        text = command.get_help(context)
    assert not re.search(r"<[a-z]|\[str\]", text), text
    assert max(map(len, text.splitlines())) <= 80
    assert all(option in text for option in ("--state", "--quiet", "--no-color"))


def test_quiet_prints_the_verdict_alone_and_exits_as_ever(state: Path) -> None:
    loud, quiet, after = (commands.q36eval("drift", "--branch", "main", *q, state=state) for q in ([], ["-q"], []))
    assert quiet.returncode == loud.returncode
    assert quiet.stdout.splitlines() == loud.stdout.splitlines()[:1]
    assert after.stdout == loud.stdout  # the next command is not quiet


def terminal(arguments: list[str], state: Path, **environment: str) -> bytes:
    """What the real program writes to a pseudo-terminal."""
    import pty

    child, end = pty.fork()
    if child == 0:
        os.environ.update({"TERM": "xterm-256color", "Q36EVAL_STATE": str(state), **environment})
        os.execv(sys.executable, [sys.executable, "-m", "q36eval", *arguments])
    written = b""
    while True:
        try:
            written += os.read(end, 65536)
        except OSError:
            break
    os.waitpid(child, 0)
    return written


@pytest.mark.long
def test_a_report_is_drawn_for_a_terminal_and_markdown_elsewhere(state: Path) -> None:
    coloured = re.compile(rb"\x1b\[[\d;]*3\dm")
    assert coloured.search(terminal(["report", "latest"], state))
    assert b"\x1b" not in terminal(["report", "latest"], state, TERM="dumb")
    drawn = terminal(["report", "latest", "--no-color"], state)
    assert not coloured.search(drawn)
    assert b"**" not in drawn
    assert b"| criterion |" in terminal(["report", "latest", "--format", "markdown"], state)
    assert commands.q36eval("report", "latest", state=state).stdout.startswith("# PASS: sandbox/main")


@pytest.mark.long
def test_bash_itself_completes_with_what_is_installed(state: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    program = home / "q36eval"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m q36eval "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    line = """
        source <(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 q36eval --show-completion bash)
        COMP_WORDS=(q36eval attr); COMP_CWORD=1
        "$(complete -p q36eval | sed 's/.*-F \\([^ ]*\\).*/\\1/')" q36eval
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", "Q36EVAL_STATE": str(state)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("attribute\n", "")


# -- exit codes, one sentence, lists of valid names


REPOSITORY = Path(__file__).parents[2]


def test_a_damaged_reference_is_no_fault_of_the_branch(tmp_path: Path) -> None:
    reference, weights = tmp_path / "reference", "model.safetensors"
    shutil.copytree(REPOSITORY / "data" / "sandbox" / "bf16", reference)
    (reference / weights).write_bytes((reference / weights).read_bytes()[:-1000])
    for command in (["inspect", "fp8-head"], ["attribute", "--branch", "fp8-head"]):
        done = commands.q36eval(*command, "--reference", str(reference), state=tmp_path, code=2)
        assert commands.code_of(done) == "header-malformed"
        assert str(reference) in done.stderr


HEAVY = ("torch", "transformers", "lm_eval", "streamlit", "sqlalchemy", "scipy", "numpy")


def test_an_unsupported_architecture_is_refused_without_heavy_imports(tmp_path: Path) -> None:
    config = {"model_type": "mistral3", "text_config": {"model_type": "rwkv"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"not even a header")
    code = (
        "import atexit, sys; from q36eval.app.cli import main; "
        f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules])); main()"
    )
    command = [sys.executable, "-c", code, "gate", "--branch", str(tmp_path), "--family", "nope"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), commands.code_of(done)) == (2, "[]", "architecture-unsupported")
    assert "smollm3" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("gate", "--policy", "nope", "--branch"),
        ("kl", "--branch", "nope", "--reference"),
        ("reference", "capture", "--suite", "nope", "--reference"),
        ("inspect", "--family", "nope"),
    ],
)
def test_an_unsupported_architecture_is_refused_before_anything_else(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModelForCausalLM": "modeling_rwkv.RwkvForCausalLM"}}')
    done = commands.q36eval(*command, str(tmp_path), state=tmp_path / "state")
    assert (done.returncode, commands.code_of(done)) == (2, "architecture-unsupported")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("gate", "--branch", "nope", "--json"), "branch-unknown"),
        (("history", "show", "nope", "--json"), "history-missing"),
        (("doctor", "--json", "--nope"), "usage"),
    ],
)
def test_an_error_has_its_code_on_stderr_and_in_one_json_document(
    arguments: tuple[str, ...], code: str, tmp_path: Path
) -> None:
    ended = commands.program(*arguments, Q36EVAL_STATE=str(tmp_path))
    error = json.loads(ended.stdout)["error"]
    assert (error["code"], error["exit_code"], ended.returncode) == (code, 2, 2)
    assert ended.stderr.splitlines()[-1] == f"q36eval: {error['message']} [{code}]"


# -- options of engines are written once, and every command that opens an engine has them

OPENING = ("gate", "kl", "evals", "canaries", "attribute", "reference capture")


@pytest.mark.parametrize("name", OPENING)
def test_every_option_of_an_engine_is_on_every_command_that_opens_one(name: str) -> None:
    of_reference = name == "reference capture"
    described = EngineOptions.described().values()
    flags = {each.flag for each in described if each.flag and not (of_reference and each.of_branch)}
    assert flags <= {each.opts[0] for each in COMMANDS[f"q36eval {name}"].params if each.param_type_name == "option"}
    with COMMANDS[f"q36eval {name}"].make_context(name, [], resilient_parsing=True) as context:
        text = COMMANDS[f"q36eval {name}"].get_help(context)
    assert all(f"{each.name}=" in text for each in described if each.flag is None)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["weights_only=true"], "emulate_activations", False),
        (["batch-size=3"], "batch_rows", 3),
        (["seed=1", "kv_scales=stored", "a=b=c"], "engine_arguments", ("seed=1", "a=b=c")),
    ],
)
def test_a_name_that_is_ours_sets_its_field_and_others_pass(arguments: list[str], field: str, value: object) -> None:
    assert getattr(EngineOptions.read({}, arguments), field) == value


# -- what the program says of itself: `doctor`, `--version`, `--state` and `python -m q36eval`


def test_it_says_where_everything_lies_and_why(tmp_path: Path) -> None:
    done = commands.q36eval("doctor", "--json", "--state", str(tmp_path / "named"), state=tmp_path / "of-environment")
    body = json.loads(done.stdout)
    assert (done.returncode, body["problems"]) == (0, [])
    assert body["data"] == {"folder": str(REPOSITORY / "data"), "because": "it is this checkout's"}
    assert body["state"]["folder"] == str(tmp_path / "named")
    assert body["state"]["because"] == "named by --state"
    assert body["state"]["writable"]
    assert not body["state"]["exists"], "looking makes nothing"
    assert body["devices"][0]["name"] == "cpu"
    assert "ui" in body["extras"]
    assert str(tmp_path / "of-environment") in commands.q36eval("doctor", state=tmp_path / "of-environment").stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("state", ["a-file", "a-file/below"])
def test_a_state_that_cannot_be_written_is_a_problem(state: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    done = commands.q36eval("doctor", state=tmp_path / state, code=2)
    assert "cannot be written" in done.stdout
    assert "--state" in done.stdout


def test_a_database_url_is_not_printed(tmp_path: Path) -> None:
    done = commands.q36eval("doctor", state=tmp_path, Q36EVAL_HISTORY="postgresql://me:s3cret@db/history", code=0)
    assert "s3cret" not in done.stdout + done.stderr
    assert "the database that Q36EVAL_HISTORY names" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("command", [["-m", "q36eval"], ["-c", "from q36eval.app.cli import main; main()"]])
def test_it_says_its_version(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command, "--version"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("q36eval 0.1.0 (commit ")
    assert f"Python {sys.version.split()[0]})" in done.stdout


def test_a_torch_that_cannot_be_loaded_is_named_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')\n")
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    done = commands.program("doctor", PYTHONPATH=path, Q36EVAL_STATE=str(tmp_path / "state"))
    assert done.returncode == 2
    assert "libcudart" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
