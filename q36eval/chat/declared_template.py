"""A chat template that a branch is declared to have of its own, and what that changes, as a run keeps it."""

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any, Literal

from pydantic import Field, ValidationError

from q36eval.inert_text import storable
from q36eval.records import Record

TEMPLATE = "chat_template"
"""Where a run's provenance holds its `DeclaredTemplate`."""

DIFF_LINES, LINE_CHARACTERS = 24, 160
"""Of the first prompt that differs so much is kept."""


class Prompts(Record):
    """Of a probe's `prompts` that a template writes, how many have other token ids than the reference's, how many one
    of the templates does not write, and the first that differs, as the lines of a diff from the reference's."""

    prompts: int
    differing: int
    unwritten: int
    first: str = ""
    diff: tuple[str, ...] = ()


class DeclaredTemplate(Record):
    """A declaration that holds: the branch ships the chat template of that hash, on purpose.

    `by` is who declared it; `prompts` are by probe, empty before they were rendered.
    """

    sha256: str
    by: Literal["the family's file", "the project file"]
    source: str = ""
    reference_sha256: str
    prompts: dict[str, Prompts] = Field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether it is another template than the reference's."""
        return self.sha256 != self.reference_sha256

    def lines(self) -> Iterator[str]:
        """`sentences`, and of each probe the first prompt that differs, as the lines of a diff."""
        yield from self.sentences()
        for probe, of in self.prompts.items():
            if of.diff:
                yield f"{probe}: the first prompt that differs, {of.first} (- reference, + branch):"
                yield from of.diff

    def sentences(self) -> Iterator[str]:
        """What a person should know, without full stops."""
        source = f" ({self.source})" if self.source else ""
        if not self.is_own:
            yield f"the chat template {self.sha256}, declared by {self.by}{source}, is the reference's: nothing changes"
            return
        yield (
            f"the branch has its own chat template, {self.sha256}, declared by {self.by}{source}; the reference's "
            f"is {self.reference_sha256}"
        )
        yield (
            "canaries and evals are asked as each deployment's own template writes them, and compared prompt by "
            "prompt; the KL is measured on identical token ids, as the reference's template writes them"
        )
        for probe, of in self.prompts.items():
            if not of.prompts:
                continue
            words = f"{probe}: {of.differing:,} of {of.prompts:,} prompts have other token ids"
            if of.unwritten:
                words += f"; {of.unwritten:,} are not written by one of the templates, and errored"
            yield words


def prompts_of(prompts: int, differing: int, unwritten: int, first: tuple[str, str, str] | None) -> Prompts:
    """The figures with the diff of the first prompt: its name, the reference's text and the branch's."""
    if first is None:
        return Prompts(prompts=prompts, differing=differing, unwritten=unwritten)
    name, theirs, ours = first
    lines = list(unified_diff(theirs.splitlines(), ours.splitlines(), n=1, lineterm=""))[2:]
    # texts may differ in nothing but how their last line ends
    lines = lines or ["- …" + repr(theirs[-40:]), "+ …" + repr(ours[-40:])]
    cut = [line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…" for line in lines[:DIFF_LINES]]
    more = [f"… and {len(lines) - DIFF_LINES} more lines"] if len(lines) > DIFF_LINES else []
    diff = tuple(storable(line) for line in [*cut, *more])
    return Prompts(prompts=prompts, differing=differing, unwritten=unwritten, first=name, diff=diff)


def recorded_template(provenance: Mapping[str, Any]) -> DeclaredTemplate | None:
    """What a run's provenance says of a declared template; None where none was declared."""
    try:
        return DeclaredTemplate.model_validate(provenance[TEMPLATE])
    except (KeyError, ValidationError):
        return None
