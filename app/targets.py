"""From what a person names (a branch alias or a path) to a checkpoint folder on this machine."""

from pathlib import Path
from typing import Any

from q36eval.config import Branch, Family, Paths, Source
from q36eval.errors import Q36Error, UsageError
from q36eval.files import absolute_path, real_path
from q36eval.run.request import Target

REFERENCE = "reference"
"""The one branch of a derived family."""
CONTEXT_LENGTH = 4096
"""Of a model whose configuration names none."""
ANY_SUITE = "quick"
"""The suite that a derived family names; nothing of it is evaluated."""


class DerivedFamily(Family):
    """A family that no file describes, for measurements that need none: its suite and policy are never used."""


def load_family(name_or_path: str | None, paths: Paths) -> Family:
    """The family of that name, or from that file; the sandbox when None.

    Raises:
        UsageError: neither a known name nor a file; lists the known names.
    """
    if name_or_path is None:
        return Family.load(paths.families / "sandbox.yaml")
    if name_or_path.endswith((".yaml", ".yml")):
        return _where_it_lies(Family.load(Path(name_or_path)), Path(name_or_path).parent)
    path = paths.families / f"{name_or_path}.yaml"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in paths.families.glob("*.yaml")))
        raise UsageError(
            "family-unknown", f"There is no family {name_or_path!r}; known families: {known}, or name a .yaml file."
        )
    return Family.load(path)


def family_of(
    named: str | None, paths: Paths, branch: str, reference: str | None = None, *, needs_reference: bool = True
) -> Family:
    """The family named; else the sandbox, if a checkpoint is one of its branches or, without a reference, has its
    sizes; else one derived from the reference, or without one from the branch.

    Raises:
        UsageError: as `load_family`; or there is neither a family nor a reference, and the command needs one.
    """
    family = load_family(named, paths)
    base = branch if reference is None else reference
    if named is not None or not {branch, reference}.isdisjoint(family.branches) or not _is_there(Path(base)):
        return family
    if reference is None and belongs(Path(base), family, paths):
        return family
    if reference is None and needs_reference:
        raise UsageError(
            "reference-required", f"{branch} belongs to no known family: name its reference with --reference FOLDER."
        )
    return _derived(real_path(base))


def belongs(folder: Path, family: Family, paths: Paths) -> bool:
    """Whether a folder's configuration gives the sizes of the family's reference.

    One that cannot be read is assumed to; a reference that is not on this machine has none.
    """
    try:
        reference = resolve(family.reference, family, paths).folder
    except UsageError:
        return False
    try:
        mine, theirs = _settings(folder), _settings(reference)
        return all(mine.get(key) == theirs.get(key) for key in ("hidden_size", "num_hidden_layers", "num_experts"))
    except (Q36Error, AttributeError):
        return True


def _settings(folder: Path) -> dict[str, Any]:
    """The text model's part of a checkpoint's configuration."""
    from q36eval.checkpoints.gguf.files import is_gguf
    from q36eval.checkpoints.reader import open_checkpoint, read_json

    config = open_checkpoint(folder).config if is_gguf(folder) else read_json(folder / "config.json")
    settings: dict[str, Any] = config.get("text_config") or config
    return settings


def _derived(folder: Path) -> DerivedFamily:
    try:
        settings = _settings(folder)
    except Q36Error:  # reported where it is inspected or loaded
        settings = {}
    settings = settings if isinstance(settings, dict) else {}
    lengths = (settings.get(name) for name in ("max_position_embeddings", "n_positions"))
    return DerivedFamily(
        name=folder.name,
        base_model=folder.name,
        architectures=(),
        context_length=next((length for length in lengths if isinstance(length, int) and length > 0), CONTEXT_LENGTH),
        reference=REFERENCE,
        suite=ANY_SUITE,
        policy="",
        branches={REFERENCE: Branch(source=Source(path=str(folder)), description="The reference.", scheme="")},
    )


def _where_it_lies(family: Family, folder: Path) -> Family:
    """The family with those branches' folders named in full that lie where its file says, counted from the file."""
    branches = dict(family.branches)
    for name, branch in branches.items():
        path = branch.source.path
        if path is not None and _is_there(folder / path):
            source = branch.source.model_copy(update={"path": str(real_path(folder / path))})
            branches[name] = branch.model_copy(update={"source": source})
    return family.model_copy(update={"branches": branches})


def resolve(name_or_path: str, family: Family, paths: Paths) -> Target:
    """The checkpoint a person means. A branch alias wins over a folder of the same name.

    Raises:
        UsageError: neither a branch of the family nor a checkpoint's folder; or its weights are not on this machine.
    """
    if not name_or_path.strip():  # as a path, nothing is the current folder
        raise UsageError(
            "option-empty",
            f"The name is empty; name a folder, or a branch of {family.name}: {', '.join(family.branches)}.",
        )
    name = name_in_history(name_or_path, family)
    if name_or_path in family.branches:
        return Target(name, _branch_folder(name_or_path, family, paths))
    folder = Path(name_or_path)
    if _is_there(folder):
        from q36eval.checkpoints.reader import check_folder

        check_folder(folder)  # before any run is begun, which nothing could resume
        return Target(name, real_path(folder))
    raise UsageError(
        "branch-unknown",
        f"The family {family.name} has no branch {name_or_path!r}, and there is no such folder; "
        f"its branches are: {', '.join(family.branches)}.",
    )


def name_in_history(name_or_path: str, family: Family) -> str:
    """The name that a branch goes by in history, whether or not its weights are here: its alias, or a folder's path.

    Two folders called `release` are two branches; one that is built again, or a link to the newest build, stays one.
    """
    if name_or_path in family.branches:
        return name_or_path
    return str(absolute_path(name_or_path)) if Path(name_or_path).exists() else kept_name(name_or_path)


def kept_name(named: str) -> str:
    """The name in history where no family is chosen: a path is made absolute, a name without a slash stays."""
    return str(absolute_path(named)) if "/" in named else named


def _is_there(path: Path) -> bool:
    """Whether a folder, or a GGUF file, is there."""
    return path.is_dir() or (path.suffix == ".gguf" and path.exists())


def _branch_folder(name: str, family: Family, paths: Paths) -> Path:
    branch = family.branches[name]
    if branch.source.path is None:
        size = "" if branch.size_gib is None else f" (about {branch.size_gib:g} GiB)"
        raise UsageError(
            "weights-missing",
            f"The weights of {family.name}/{name}, {branch.source}{size}, are not on this machine; "
            f"download that revision and name its folder instead of {name!r}.",
        )
    folder = paths.repository / branch.source.path
    if folder.parent == paths.data / "sandbox":
        from q36eval.app.sandbox import build

        if not paths.is_checkout:
            from q36eval.app.sandbox_files import check_fetched

            check_fetched(folder.name, paths)
        return build(folder.name, paths.sandbox, paths.built)
    if not _is_there(folder):
        raise UsageError(
            "folder-missing",
            f"The folder {folder} of branch {name!r} is missing; restore it or correct the family file.",
        )
    return folder
