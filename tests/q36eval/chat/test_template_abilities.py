"""What a template writes is found by rendering it: formats, dropped tools, roles, reasoning; hostile ones."""

import json
import shutil
from pathlib import Path

import pytest

from q36eval.chat.template_abilities import Abilities, abilities_of
from q36eval.config.family import ChatTemplate
from tests.q36eval.chat import templates
from tests.q36eval.chat.templates import BY_FORMAT, templated

ROOT = Path(__file__).parents[3]
NONE = ChatTemplate(present=False, system=False, tools=False, results=False, thinking="never")


def _of(place: Path, template: str) -> Abilities:
    return abilities_of(templated(place, template))


@pytest.mark.parametrize("shape", BY_FORMAT)
def test_the_format_of_calls_is_read_from_a_rendered_call(shape: str, tmp_path: Path) -> None:
    tool_format, template = BY_FORMAT[shape]
    known = _of(tmp_path, template)
    assert (known.tool_format, known.template.tools) == (tool_format, True)
    assert known.template.results == (tool_format in ("hermes", "mistral")), "two calls in a turn"
    assert known.template.system == (tool_format != "mistral")
    assert known.template.thinking == ("always" if tool_format == "harmony" else "never")


def test_the_sandbox_and_the_shape_of_qwen_and_a_gguf(tmp_path: Path) -> None:
    strict = (ROOT / "tests/canaries/template/strict.jinja").read_text(encoding="utf-8")
    for folder in (ROOT / "data/sandbox/bf16", templated(tmp_path, strict)):
        assert abilities_of(folder) == Abilities(ChatTemplate(), "qwen3_xml")
    gguf = abilities_of(ROOT / "tests/assets/ggufs/bf16.gguf")
    assert gguf == Abilities(ChatTemplate(tools=False, results=False, thinking="never"))


def test_a_template_may_drop_tools_refuse_a_system_message_and_always_reason(tmp_path: Path) -> None:
    dropped = _of(tmp_path, templates.DROPS_TOOLS)
    assert dropped == Abilities(ChatTemplate(tools=False, results=False, thinking="never"))
    assert not _of(tmp_path, templates.NO_SYSTEM).template.system
    silent = templates.DROPS_TOOLS.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
    assert not _of(tmp_path, silent).template.system
    other = _of(tmp_path, templates.OTHER_FORMAT)
    assert (other.template.tools, other.tool_format) == (True, None)
    names_only = templates.HERMES.replace("tools | tojson", "tools | map(attribute='function.name') | join")
    assert not _of(tmp_path, names_only).template.tools
    as_text = templates.HERMES.replace("c.function.arguments | tojson", "c.function.arguments | tojson | tojson")
    assert _of(tmp_path, as_text).tool_format is None, "arguments that are a text are not parsed"
    for template, thinking in ((templates.ALWAYS_REASONS, "always"), (templates.SWITCHES, "switch")):
        assert (_of(tmp_path, template).template.thinking, _of(tmp_path, template).tool_format) == (thinking, "hermes")


def test_of_several_templates_the_one_for_tools_counts(tmp_path: Path) -> None:
    templated(tmp_path, templates.DROPS_TOOLS)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(templates.HERMES)
    assert abilities_of(tmp_path).tool_format == "hermes"
    shutil.rmtree(tmp_path / "additional_chat_templates")
    assert abilities_of(tmp_path).tool_format is None


HOSTILE = {
    "malformed": "{% if %}",
    "raises": "{{ raise_exception('never') }}",
    "constant": "Hello!",
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "huge": "{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "of another kind": "{{ messages | length + 'x' }}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_template_that_is_of_no_use_is_reported(kind: str, tmp_path: Path) -> None:
    known = _of(tmp_path, HOSTILE[kind])
    assert known.template.trouble
    assert known.template.model_copy(update={"trouble": ""}) == NONE


def test_without_a_template_or_with_malformed_files_nothing_is_known(tmp_path: Path) -> None:
    assert abilities_of(tmp_path) == Abilities(NONE)
    for given in ("{", "[]", json.dumps({"chat_template": 7}), json.dumps({"chat_template": {"rag": "x"}})):
        (tmp_path / "tokenizer_config.json").write_text(given)
        assert not abilities_of(tmp_path).template.present
    config = {"chat_template": templates.LLAMA, "bos_token": {"content": "<s>"}, "eos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert abilities_of(tmp_path).tool_format == "llama_json"
