"""Templates write what transformers writes with them, under limits that no good one meets."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from q36eval.canaries.cases import cases_of
from q36eval.canaries.specification import load_specs
from q36eval.chat import continued_chat, rendered_chat
from q36eval.chat.rendering import (
    Limits,
    Renderer,
    TemplateLimitError,
    TemplateMalformedError,
    TemplateRaisedError,
)
from q36eval.checkpoints import load_tokenizer
from q36eval.errors import EngineError
from q36eval.kl.corpus_plan import generated
from tests.forked import runs
from tests.raising import raises

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"
STRICT = Path(__file__).parents[2] / "canaries" / "template" / "strict.jinja"
USER = {"role": "user", "content": "Příliš žluťoučký kůň <b> & 'co'\n  dál \U0001f600 "}
TEMPLATES = yaml.safe_load((Path(__file__).parent / "templates.yaml").read_text(encoding="utf-8"))
ENDLESS = TEMPLATES["too_much"]["endless"][0]
DEEP = "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}"


@cache
def _tokenizer() -> Any:
    return load_tokenizer(SANDBOX)


@pytest.fixture
def tokenizer() -> Iterator[Any]:
    """The sandbox's, whose template a test may replace."""
    own = _tokenizer()
    before = own.chat_template
    yield own
    own.chat_template = before


@pytest.fixture
def quick() -> Iterator[Renderer]:
    """A renderer with limits that are met soon."""
    renderer = Renderer(Limits(cpu_seconds=1))
    yield renderer
    renderer.close()


def _by_transformers(tokenizer: Any, messages: Any, tools: Any, **settings: Any) -> str:
    return str(tokenizer.apply_chat_template(list(messages), tools=list(tools) or None, tokenize=False, **settings))


@pytest.mark.parametrize("name", TEMPLATES["features"])
def test_what_templates_can_do_is_what_they_can_do_in_transformers(tokenizer: Any, name: str) -> None:
    tokenizer.chat_template = TEMPLATES["features"][name]
    settings = {"add_generation_prompt": True, "enable_thinking": True}
    expected = _by_transformers(tokenizer, [USER], [], **settings)
    assert rendered_chat(tokenizer, [USER], enable_thinking=True) == expected


@pytest.mark.parametrize("template", ["the sandbox's", "strict"])
def test_every_shipped_prompt_is_written_as_transformers_writes_it(tokenizer: Any, template: str) -> None:
    if template == "strict":
        tokenizer.chat_template = STRICT.read_text(encoding="utf-8")
    asked = [(case.messages, case.tools) for spec in load_specs(skills=None, n=3) for case in cases_of(spec)]
    asked += [(line["messages"], line.get("tools", ())) for line in generated("tool_dialogue", 120)]
    for messages, tools in asked:
        for thinking in (False, True):
            expected = _by_transformers(
                tokenizer, messages, tools, add_generation_prompt=True, enable_thinking=thinking
            )
            assert rendered_chat(tokenizer, messages, tools, enable_thinking=thinking) == expected


def test_of_several_templates_the_one_for_tools_is_taken_and_what_one_raises_names_its_file(tokenizer: Any) -> None:
    tokenizer.chat_template = {"default": "plain", "tool_use": "with tools"}
    tool = {"type": "function", "function": {"name": "f"}}
    assert rendered_chat(tokenizer, [USER], enable_thinking=False) == "plain"
    assert rendered_chat(tokenizer, [USER], [tool], enable_thinking=False) == "with tools"
    tokenizer.chat_template = "{{ raise_exception('No user query found.') }}"
    with pytest.raises(TemplateRaisedError) as raised:
        rendered_chat(tokenizer, [USER], enable_thinking=False)
    file = SANDBOX / "chat_template.jinja"
    assert str(raised.value) == f"The chat template in {file} does not write this conversation: No user query found."
    tokenizer.chat_template = "{{ '\\ud800' }}"  # of which no tokenizer makes tokens
    with raises(TemplateRaisedError, "template-raised", file, "surrogates"):
        rendered_chat(tokenizer, [USER], enable_thinking=False)


@pytest.mark.parametrize("template", [None, "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"])
def test_a_message_is_continued_as_transformers_does(tokenizer: Any, template: str | None) -> None:
    tokenizer.chat_template = template or tokenizer.chat_template
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two "}]
    settings = {"continue_final_message": True, "enable_thinking": False}
    assert continued_chat(tokenizer, messages, enable_thinking=False) == _by_transformers(
        tokenizer, messages, [], **settings
    )


@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES["too_much"])
def test_a_template_that_takes_too_much_is_ended_and_the_next_is_rendered(quick: Renderer, name: str) -> None:
    template, limit = TEMPLATES["too_much"][name]
    for _ in range(2):
        with raises(TemplateLimitError, "template-limit", limit):
            quick.render(template, {"messages": [USER]})
        assert quick._worker is None, "the second time none is started"
    assert quick.render("{{ messages[0].role }}", {"messages": [USER]}) == "user"


@pytest.mark.long
def test_many_slow_renderings_are_too_much_together() -> None:
    slow = "{% for i in range(99999) %}{% for j in range(40) %}{% endfor %}{% endfor %}"
    renderer = Renderer(Limits(cpu_seconds=30, slow_seconds=0.2))

    def render_several() -> None:
        for number in range(50):
            renderer.render(slow, {"number": number})

    with raises(TemplateLimitError, "template-limit", "0.2"):
        render_several()
    renderer.close()


@pytest.mark.parametrize(
    ("template", "code", "named"), [*TEMPLATES["refused"], (DEEP, "template-raised", "RecursionError")]
)
def test_what_python_or_jinja_refuses_is_raised(quick: Renderer, template: str, code: str, named: str) -> None:
    kind = TemplateMalformedError if code == "template-malformed" else TemplateRaisedError
    with raises(kind, code, named):
        quick.render(template, {"messages": []})


def test_a_busy_machine_is_no_fault_of_the_template() -> None:
    renderer = Renderer()
    assert renderer.render("x", {}) == "x"
    worker = renderer._running()
    worker._limits = replace(worker._limits, wall_seconds=0.3)
    os.kill(worker._process.pid, signal.SIGSTOP)
    with raises(EngineError, "render-timeout"):
        renderer.render("y", {})
    renderer.close()
    assert worker._process.returncode == -signal.SIGKILL


def test_who_ends_the_process_is_no_template_and_a_fork_has_its_own(quick: Renderer) -> None:
    quick.render("x", {})
    worker = quick._running()
    worker._process.kill()
    with raises(EngineError, "process-died", "status -9"):
        quick.render("y", {})
    assert quick.render("y", {}) == "y"
    assert quick.render("x", {}) == "x"
    mine = quick._running()._process.pid
    child = os.fork()
    if child == 0:
        same = quick.render("y", {}) == "y" and quick._running()._process.pid != mine
        quick.close()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert quick.render("z", {}) == "z"
    assert quick._running()._process.pid == mine


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_ends_with_its_parent_also_amid_a_rendering(number: signal.Signals) -> None:
    program = f"""
        import threading, time
        from q36eval.chat.rendering import Limits, Renderer
        renderer = Renderer(Limits(cpu_seconds=2))
        renderer.render("x", {{}})
        print(renderer._running()._process.pid, flush=True)
        renderer.render({ENDLESS!r}, {{}})
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        worker = int(parent.stdout.readline())
        parent.send_signal(number)
    deadline = time.monotonic() + 60
    while runs(worker):
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.05)
