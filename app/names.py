"""The meaning of a name on the command line: a branch of a family, a folder or file, or a checkpoint on the Hub.

./folder  /folder  file.gguf     a path
FAMILY/BRANCH                    a branch of that family
ORG/NAME[@REVISION][:FILE]       a checkpoint on the Hub
NAME                             a branch of the chosen family, otherwise a folder
"""

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from q36eval.config import Family, Paths, Source
from q36eval.errors import UsageError
from q36eval.files import absolute_path
from q36eval.hub_checkpoints import HubName


@dataclass(frozen=True)
class Meaning:
    """One of three: a `branch` of a `family`, a `path`, or a name on the Hub."""

    family: Family | None = None
    branch: str = ""
    path: Path | None = None
    hub: HubName | None = None

    def name(self, chosen: Family | None) -> str:
        """The name in history: a branch's alias (with its family, if another one is `chosen`), a repository with its
        revision, or a full path.

        Two folders called `release` are two branches; one that is built again, or a link to the newest build, stays
        one.
        """
        if self.family is not None:
            own = chosen is None or chosen.name == self.family.name
            return self.branch if own else f"{self.family.name}/{self.branch}"
        if self.hub is not None:
            return hub_name(self.hub)
        assert self.path is not None, "one of the three is given"
        return str(absolute_path(self.path))


def hub_name(name: HubName) -> str:
    """A Hub name with its revision, also where the person left it out."""
    return str(HubName(name.repository, name.revision or "main", name.file))


def source_on_hub(source: Source) -> HubName | None:
    """The published source of a branch in a family's file; None for a folder."""
    return None if source.repository is None else HubName(source.repository, source.revision or "main")


def shipped_families(paths: Paths) -> Iterator[Family]:
    """The families whose files ship, by name."""
    return (Family.load(file) for file in sorted(paths.families.glob("*.yaml")))


def is_checkpoint(place: str | Path) -> bool:
    """Whether a folder, or a GGUF file, exists there."""
    return os.path.isdir(place) or (str(place).endswith(".gguf") and os.path.exists(place))


def meaning(text: str, chosen: Family | None, paths: Paths, *, everywhere: bool = False) -> Meaning:
    """The meaning of a name, given the `chosen` family.

    A Hub name that a family's file gives as a branch's source is that branch; with `everywhere` all shipped families
    are searched, otherwise the chosen one.

    Raises:
        UsageError: the name is empty, unknown, or ambiguous; then each unambiguous spelling is listed.
    """
    if not text.strip():  # an empty path is the current folder
        raise UsageError("option-empty", "A checkpoint's name is empty; name a branch, ./folder or ORG/NAME.")
    if text.startswith(("/", "./", "../")) or text in (".", "..") or (text.endswith(".gguf") and ":" not in text):
        return Meaning(path=Path(text))
    if "/" not in text:
        return _bare(text, chosen, paths)
    prefix, _, branch = text.partition("/")
    family = family_called(prefix, chosen, paths)
    if family is not None and branch in family.branches:
        return Meaning(family=family, branch=branch)
    hub = HubName.parse(text)
    if hub is None or is_checkpoint(text):
        return Meaning(path=Path(text))
    known = () if chosen is None else (chosen,)
    for family in (*known, *(shipped_families(paths) if everywhere else ())):
        for alias, published in family.branches.items():
            source = source_on_hub(published.source)
            if source is not None and hub_name(source) == hub_name(hub):
                return Meaning(family=family, branch=alias)
    return Meaning(hub=hub)


def family_called(name: str, chosen: Family | None, paths: Paths) -> Family | None:
    """The chosen family, or the shipped one, of that name."""
    if chosen is not None and chosen.name == name:
        return chosen
    file = paths.families / f"{name}.yaml"
    return Family.load(file) if name.strip(".") and "\0" not in name and file.is_file() else None


def _bare(text: str, chosen: Family | None, paths: Paths) -> Meaning:
    families = shipped_families(paths) if chosen is None else (chosen,)
    having = [family for family in families if text in family.branches]
    is_folder = is_checkpoint(text)
    if having and chosen is not None and not is_folder:
        return Meaning(family=chosen, branch=text)
    if is_folder and not having:
        return Meaning(path=Path(text))
    spellings = [f"{family.name}/{text}" for family in having] + [f"./{text}"] * is_folder
    if len(spellings) > 1:
        raise UsageError("name-ambiguous", f"{text!r} may mean {' or '.join(spellings)}; write the one that you mean.")
    if spellings:
        raise UsageError(
            "family-required",
            f"No family is chosen, so {text!r} names no branch; write {spellings[0]}, or choose a family with --family "
            f"or in q36eval.yaml.",
        )
    raise _unknown(text, chosen)


def closest(name: str, names: Iterable[str]) -> str:
    """Names similar to an unknown one, in words."""
    known = sorted(set(names))
    close = difflib.get_close_matches(name, known, n=5) or known[:10]
    more = "closest are" if len(close) < len(known) else "there is"
    return f"{more}: {', '.join(close) or 'none'}"


def _unknown(text: str, chosen: Family | None) -> UsageError:
    if chosen is None:
        return UsageError(
            "branch-unknown",
            f"No family is chosen, no shipped family has a branch {text!r}, and no such folder exists; name a folder "
            f"(./NAME), FAMILY/BRANCH or ORG/NAME.",
        )
    return UsageError(
        "branch-unknown",
        f"The family {chosen.name} has no branch {text!r}, and there is no such folder; "
        f"{closest(text, chosen.branches)}.",
    )
