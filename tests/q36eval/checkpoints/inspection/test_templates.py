"""Chat templates that no rendering survives are findings, wherever they lie; so is what is declared of them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from q36eval.chat import renderer
from q36eval.chat.rendering import Limits
from q36eval.checkpoints import chat_template_sha256
from q36eval.checkpoints.inspection import Finding, Severity
from q36eval.checkpoints.inspection.templates import template_findings
from q36eval.checkpoints.open_checkpoints import hold

SANDBOX = Path(__file__).parents[4] / "data" / "sandbox" / "bf16"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HUGE = "{{ 'a' * 10**10 }}"
DEEP = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"


@pytest.fixture(autouse=True)
def one_second(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(renderer(), "limits", Limits(cpu_seconds=1))
        renderer().close()
        yield
    renderer().close()


def in_file(folder: Path, template: str) -> str:
    (folder / "chat_template.jinja").write_text(template)
    return "chat_template.jinja"


def listed_in(file: str) -> Callable[[Path, str], str]:
    """As the second of the templates that a file of settings lists."""

    def write(folder: Path, template: str) -> str:
        listed = [{"name": "default", "template": "fine"}, {"name": "tool_use", "template": template}]
        (folder / file).write_text(json.dumps({"chat_template": listed}))
        return file

    return write


def additional(folder: Path, template: str) -> str:
    (folder / "chat_template.jinja").write_text("fine")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(template)
    return "additional_chat_templates/tool_use.jinja"


def found(folder: Path, declared: str | None = None, reference: Path | None = SANDBOX) -> list[Finding]:
    return template_findings(hold(folder), None if reference is None else hold(reference), declared)


PROCESSOR = listed_in("processor_config.json")
WRITERS = [in_file, listed_in("tokenizer_config.json"), additional, PROCESSOR]


@pytest.mark.long
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("template", "limit"), [(ENDLESS, "1 s of CPU time"), (HUGE, "512 MiB of memory"), ("{% if %}", "is malformed")]
)
def test_a_template_that_cannot_be_rendered_is_named_with_its_file_and_limit(
    tmp_path: Path, write: Callable[[Path, str], str], template: str, limit: str
) -> None:
    file = write(tmp_path, template)
    unusable = [one for one in found(tmp_path, reference=None) if one.rule == "chat-template-unusable"]
    assert [(one.subject, one.severity) for one in unusable] == [(file, Severity.BLOCKING)]
    assert limit in unusable[0].message


@pytest.mark.parametrize("template", ["{{ raise_exception('Never.') }}", DEEP, "{{ strftime_now('%Y') }}"])
def test_what_a_template_raises_of_itself_is_no_finding(tmp_path: Path, template: str) -> None:
    in_file(tmp_path, template)
    assert [one.rule for one in found(tmp_path)] == ["chat-template-differs"]


def test_every_difference_is_named_and_one_sentence_says_how_to_declare_them(tmp_path: Path) -> None:
    additional(tmp_path, "another")
    sha256 = chat_template_sha256(tmp_path)
    differing = found(tmp_path)
    assert [one.subject for one in differing] == ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
    assert [f"sha256: {sha256}, source" in one.message for one in differing] == [False, True]
    assert {one.severity for one in differing} == {Severity.BLOCKING}
    assert {one.severity for one in found(tmp_path, sha256)} == {Severity.ADVISORY}
    otherwise = found(tmp_path, "0" * 64)
    assert {one.severity for one in otherwise} == {Severity.BLOCKING}


def test_the_references_own_template_needs_no_declaration() -> None:
    assert found(SANDBOX) == []
    (one,) = found(SANDBOX, chat_template_sha256(SANDBOX))
    assert (one.rule, one.severity) == ("chat-template-declared", Severity.ADVISORY)


def test_a_processors_template_counts_where_it_is_another_and_not_where_it_repeats(tmp_path: Path) -> None:
    """Engines take it before the tokenizer's: a branch that adds one serves other prompts."""
    plain, repeated, other = (tmp_path / name for name in ("plain", "repeated", "other"))
    for folder in (plain, repeated, other):
        folder.mkdir()
        (folder / "chat_template.jinja").write_text("fine")
    (repeated / "chat_template.json").write_text(json.dumps({"chat_template": "fine"}))
    file = PROCESSOR(other, "{{ messages }} other")
    assert chat_template_sha256(repeated) == chat_template_sha256(plain) != chat_template_sha256(other)
    assert not found(repeated, reference=plain)
    (finding,) = found(other, reference=plain)
    assert (finding.rule, finding.subject) == ("chat-template-differs", file)
