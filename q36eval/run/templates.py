"""A branch's declared chat template, compared with the shipped one and the reference's."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from q36eval.chat.declared_template import DeclaredTemplate
from q36eval.config import Family
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.files import canonical_json

if TYPE_CHECKING:
    from q36eval.references import Pack
    from q36eval.run.request import Request, Target

PACKED = "chat_templates.json"
"""The file of a reference pack with the templates that rendered its prompts."""


def family_template(family: Family, branch: str) -> str | None:
    """The hash that the family's file declares for a branch; None for a folder that is not one of its branches."""
    known = family.branches.get(branch)
    return None if known is None or known.chat_template is None else known.chat_template.sha256


def declared_template(request: "Request", reference_sha256: str) -> DeclaredTemplate | None:
    """The declaration for this branch in the family's file, or in the project file for branches without one; else None.

    Raises:
        UsageError: the branch ships another template than the declared one.
    """
    from q36eval.checkpoints import chat_template_sha256

    known = request.family.branches.get(request.branch.name)
    written = None if known is None else known.chat_template
    declared, source = (request.template, "") if written is None else (written.sha256, written.source)
    if declared is None:
        return None
    try:
        shipped = chat_template_sha256(request.branch.folder)
    except CorruptCheckpointError:
        return None  # the inspection reports its fault
    if written is None and shipped == reference_sha256:  # the project file is about own templates
        return None
    by: Literal["the family's file", "the project file"] = "the family's file" if written else "the project file"
    if declared == shipped:
        return DeclaredTemplate(sha256=shipped, by=by, source=source, reference_sha256=reference_sha256)
    raise UsageError(
        "template-declared-differs",
        f"The chat template that {by} declares for {request.branch.name} is {declared}, and the branch ships "
        f"{shipped}; look at what differs with `q36eval inspect`, and declare that one or none.",
    )


def shipped_template(family: Family, branch: "Target", declared: str | None) -> str | None:
    """The declared hash of the branch's template, from the family's file or the project file (`declared`).

    None without a declaration about this branch.
    """
    from q36eval.checkpoints import chat_template_sha256

    own = family_template(family, branch.name)
    if own is None and declared is not None:
        with suppress(CorruptCheckpointError):
            return declared if chat_template_sha256(branch.folder) == declared else None
    return own


def keep_templates(root: Path, templates: Mapping[str, str]) -> None:
    """Store the reference's chat templates in its pack, for gates that have only the pack.

    Raises:
        UsageError: the pack is not writable.
    """
    from q36eval.references import write_whole

    if not (root / PACKED).exists():
        write_whole(root / PACKED, canonical_json(dict(templates)).encode())


def packed_templates(pack: "Pack") -> dict[str, str]:
    """The reference's templates by name, from its pack.

    Raises:
        UsageError: the pack does not hold them, or others than its identity names.
    """
    from q36eval.checkpoints.hashing import json_sha256

    file = pack.folder / PACKED
    try:
        templates: dict[str, str] = json.loads(file.read_bytes())
        if json_sha256(templates) != pack.identity.chat_template_sha256:
            raise ValueError("another template than its prompts were written with")
    except (OSError, ValueError) as error:
        raise UsageError(
            "pack-lacks-template",
            f"The reference pack {pack.folder} does not hold the chat template that its prompts were written with "
            f"({file.name}), needed to compare a branch with its own template; capture the pack again, or name the "
            f"reference's folder with --reference.",
        ) from error
    return templates


def tokenizer_with(templates: Mapping[str, str], branch: Path) -> Any:
    """The reference's tokenizer if only its pack is available: the branch's, which is equal except for the templates.

    Raises:
        CorruptCheckpointError: the branch's cannot be loaded.
    """
    from q36eval.checkpoints import load_tokenizer

    tokenizer = load_tokenizer(branch)
    tokenizer.chat_template = templates["default"] if [*templates] == ["default"] else dict(templates)
    return tokenizer
