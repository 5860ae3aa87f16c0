"""Chat templates: there, such as can be rendered, and the reference's or declared to be others."""

from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any

from q36eval.chat import TemplateLimitError, TemplateMalformedError, TemplateRaisedError, renderer
from q36eval.checkpoints.inspection.findings import Finding, Section, Severity, finding
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.tokenizer import chat_template_sha256, chat_templates, template_file

_TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}},
}
_ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
_ANSWERED = [
    *_ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "look_up", "arguments": {}}}],
    },
    {"role": "tool", "content": "Here."},
]
_TRIED: tuple[dict[str, Any], ...] = (
    {"messages": _ASKED[1:], "tools": None},
    {"messages": _ASKED, "tools": None},
    {"messages": _ANSWERED, "tools": [_TOOL]},
)
"""Conversations that every template is tried with: whether it ends, not what it writes."""

_finding = partial(finding, Section.CONFIGURATION)


def template_findings(folder: HeldFolder, reference: HeldFolder | None, declared: str | None) -> list[Finding]:
    """What is wrong with the templates. `declared` is the hash that somebody declared the branch's own to have: where
    it has that one, differences from the reference's block nothing."""
    mine = chat_templates(folder)
    if not any(mine.values()):
        if reference is not None and not any(chat_templates(reference).values()):
            message = "neither the checkpoint nor the reference has a chat template: no chat prompt can be evaluated."
            return [_finding("chat-template-missing", "chat_template.jinja", message, Severity.ADVISORY)]
        return [_finding("chat-template-missing", "chat_template.jinja", "the chat template is missing.")]
    findings = [
        _finding("chat-template-unusable", template_file(folder, name), f"{_which(name)} {problem}; correct it.")
        for name in sorted(mine)
        if (problem := _problem(mine[name])) is not None
    ]
    theirs = {} if reference is None else chat_templates(reference)
    differing = [name for name in sorted({*mine, *theirs}) if theirs and mine.get(name) != theirs.get(name)]
    sha256 = chat_template_sha256(folder)
    return [*findings, *_differences(folder, differing, (mine, theirs), sha256, declared)]


def _differences(
    folder: HeldFolder,
    differing: list[str],
    templates: tuple[dict[str, str], dict[str, str]],
    sha256: str,
    declared: str | None,
) -> list[Finding]:
    """Every difference; beside the last one what a declaration says of it, or how to make one."""
    if declared == sha256 and not differing and templates[1]:
        message = "the declared chat template is the reference's: the declaration changes nothing."
        file = template_file(folder, "default")
        return [_finding("chat-template-declared", file, message, Severity.ADVISORY)]
    if declared == sha256:
        rule, severity, said = "chat-template-declared", Severity.ADVISORY, f"It is declared ({sha256})."
    else:
        rule, severity = "chat-template-differs", Severity.BLOCKING
        said = "" if declared is None else f"The declared chat template is {declared}, and the branch ships {sha256}. "
        entry = f"chat_template: {{sha256: {sha256}, source: WHY}}"
        said += f'If it differs on purpose, declare it: add "{entry}" to the branch in the family\'s file.'
    findings = [
        _finding(rule, template_file(folder, name), _difference(name, *templates), severity) for name in differing
    ]
    if not findings:
        return []
    last = findings[-1]
    return [*findings[:-1], last.model_copy(update={"message": f"{last.message} {said}"})]


@lru_cache(maxsize=64)
def _problem(template: str) -> str | None:
    """Why a template can be rendered with nothing; None where it can. What it raises on purpose is no problem."""
    for variables in _TRIED:
        given = variables | {"documents": None, "add_generation_prompt": True, "enable_thinking": False}
        try:
            renderer().render(template, given)
        except TemplateLimitError as error:
            return f"cannot be used: {error}"
        except TemplateMalformedError as error:
            return f"is malformed: {error}"
        except TemplateRaisedError:
            continue
    return None


def _difference(name: str, mine: dict[str, str], theirs: dict[str, str]) -> str:
    if name not in theirs:
        return f"{_which(name)} is one that the reference does not have."
    if name not in mine:
        return f"{_which(name)} of the reference is missing."
    pairs = zip_longest(mine[name].splitlines(), theirs[name].splitlines())
    line, here, there = next(((n, a, b) for n, (a, b) in enumerate(pairs, 1) if a != b), (0, "", ""))
    return f"{_which(name)} differs from the reference's, first in line {line}: {_line(here)} against {_line(there)}."


def _which(name: str) -> str:
    return "the chat template" if name == "default" else f"the chat template {name!r}"


def _line(text: str | None) -> str:
    return "no such line" if text is None else repr(text)
