"""From a person's input to the judging family, and to a checkpoint on this machine."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.app.derived_family import DerivedFamily as DerivedFamily
from q36eval.app.derived_family import config_of, derive_family, undeclared
from q36eval.app.names import Meaning, hub_name, is_checkpoint, meaning, shipped_families, source_on_hub
from q36eval.config import Branch, Family, Paths, Project
from q36eval.errors import Q36Error, UsageError
from q36eval.files import checkpoint_path, real_path
from q36eval.hub_checkpoints import HubName, fetch, located
from q36eval.run.request import Target

if TYPE_CHECKING:
    from q36eval.history import History

Notify = Callable[[str], None]


def load_family(name_or_path: str, paths: Paths) -> Family:
    """The family of that name, or from that file.

    Raises:
        UsageError: neither a known name nor a file; lists the known names.
    """
    if name_or_path.endswith((".yaml", ".yml")):
        return _where_it_lies(Family.load(Path(name_or_path)), Path(name_or_path).parent)
    path = paths.families / f"{name_or_path}.yaml"
    if not path.exists():
        raise UsageError(
            "family-unknown",
            f"There is no family {name_or_path!r}; known families: {_known(paths)}, or name a .yaml file.",
        )
    return Family.load(path)


def chosen_family(named: str | None, paths: Paths) -> Family | None:
    """The family named, else the project file's; None without either.

    Raises:
        UsageError: as `load_family`, or the project file is malformed.
    """
    name = named if named is not None else Project.here().family
    return None if name is None else load_family(name, paths)


def project_template(family: str | None) -> str | None:
    """The chat template's hash in the project file, for branches with their own template; None if the command line
    names a family, to which that file does not apply."""
    return Project.here().chat_template if family is None else None


def declared_family(named: str | None, paths: Paths) -> Family:
    """The chosen family, for a command that needs one.

    Raises:
        UsageError: none is chosen, or as `chosen_family`.
    """
    chosen = chosen_family(named, paths)
    if chosen is None:
        raise UsageError(
            "family-required",
            f"No family is chosen: name one with --family, or in q36eval.yaml; known families: {_known(paths)}.",
        )
    return chosen


def family_of(
    named: str | None,
    paths: Paths,
    branch: str | Sequence[str],
    reference: str | None = None,
    *,
    needs_reference: bool = True,
    notify: Notify = lambda _: None,
    download: bool = True,
) -> Family:
    """The family in which branches are judged.

    It is the family named; else that of a branch's own spelling; else that of the reference's; else the project file's,
    if the checkpoint can be one of it; else one derived from the reference, or without one from the branch. Without
    `download`, only small files of a checkpoint on the Hub are downloaded.

    Raises:
        UsageError: as `load_family`; the branches are of several families; a name means nothing or several things; or
            there is neither a family nor a reference, and the command needs one.
    """
    chosen = chosen_family(named, paths)
    branches = [branch] if isinstance(branch, str) else branch
    meant = [each for name in branches if (each := _meant(name, chosen, paths, named is None)) is not None]
    families = {each.family.name: each.family for each in meant if each.family is not None}
    if named is not None and chosen is not None:
        families.setdefault(chosen.name, chosen)
    if len(families) > 1:
        raise UsageError(
            "option-conflict", f"One gate judges branches of one family, not of {' and '.join(sorted(families))}."
        )
    if families:
        return next(iter(families.values()))
    against = None if reference is None else _meant(reference, chosen, paths, everywhere=True)
    if against is not None and against.family is not None:
        return against.family
    base = against or next(iter(meant), None)
    if chosen is not None and (base is None or (base.path is not None and not is_checkpoint(base.path))):
        return chosen  # which reports the error of the name
    assert base is not None, "without a family a name that means nothing was refused"
    target = _target(base, chosen, paths, notify, download)
    if chosen is not None and belongs(target.folder, chosen, paths):
        return chosen
    if reference is None and needs_reference:
        raise UsageError(
            "reference-required", f"{branches[0]} belongs to no known family: name its reference with --reference."
        )
    return _derived(target, paths, notify)


def _meant(name: str, chosen: Family | None, paths: Paths, everywhere: bool) -> Meaning | None:
    """None for a name that the chosen family does not know, which is reported when it is resolved."""
    try:
        return meaning(name, chosen, paths, everywhere=everywhere)
    except UsageError:
        if chosen is None:
            raise
        return None


def _known(paths: Paths) -> str:
    return ", ".join(family.name for family in shipped_families(paths))


def belongs(folder: Path, family: Family, paths: Paths) -> bool:
    """Whether a folder's configuration has the sizes of the family's reference, or, if that is not on this machine, one
    of the family's architectures. An unreadable one is assumed to.
    """
    try:
        reference = reference_of_family(family, paths).folder
    except UsageError:
        reference = None
    try:
        if reference is None:
            known, named = {*family.architectures}, config_of(folder).get("architectures")
            return not isinstance(named, list) or not known or not known.isdisjoint(named)
        mine, theirs = _settings(folder), _settings(reference)
        return all(mine.get(key) == theirs.get(key) for key in ("hidden_size", "num_hidden_layers", "num_experts"))
    except (Q36Error, AttributeError):
        return True


def _settings(folder: Path) -> dict[str, Any]:
    """The text model's part of a checkpoint's configuration."""
    config = config_of(folder)
    settings: dict[str, Any] = config.get("text_config") or config
    return settings


def _derived(base: Target, paths: Paths, notify: Notify) -> DerivedFamily:
    """The family derived from that reference; this is reported."""
    if base.snapshot is not None:
        family = derive_family(base.folder, paths, repository=base.snapshot.repository)
    else:  # by its own name, which stays if it is a link to the newest of several folders
        family = derive_family(base.folder, paths, Path(base.name).name)
    for line in family.lines():
        notify(line)
    return family


def _where_it_lies(family: Family, folder: Path) -> Family:
    """The family with full paths for those branches that are at their places, relative to its file."""
    branches = dict(family.branches)
    for name, branch in branches.items():
        path = branch.source.path
        if path is not None and is_checkpoint(folder / path):
            source = branch.source.model_copy(update={"path": str(real_path(folder / path))})
            branches[name] = branch.model_copy(update={"source": source})
    return family.model_copy(update={"branches": branches})


def resolve(
    name: str, family: Family | None, paths: Paths, notify: Notify | None = None, *, download: bool = True
) -> Target:
    """The selected checkpoint (see `q36eval.app.names`), downloaded only with `notify`, which receives the sizes.

    Without `download` only its small files are, and the snapshot records the missing size.

    Raises:
        UsageError: the name is unknown or ambiguous, it is not on this machine, or cannot be downloaded.
    """
    return _target(meaning(name, family, paths), family, paths, notify, download)


def reference_of_family(family: Family, paths: Paths, notify: Notify | None = None, *, download: bool = True) -> Target:
    """The family's own reference; downloaded, as in `resolve`, only with `notify`, which receives the sizes.

    Raises:
        UsageError: it is not on this machine, or cannot be downloaded.
    """
    return _target(Meaning(family=family, branch=family.reference), family, paths, notify, download)


def _target(meant: Meaning, chosen: Family | None, paths: Paths, notify: Notify | None, download: bool) -> Target:
    name = meant.name(chosen)
    if meant.family is not None:
        source = source_on_hub(meant.family.branches[meant.branch].source)
        if source is None:
            return Target(name, _branch_folder(meant.branch, meant.family, paths))
        return _on_hub(name, source, meant.family.branches[meant.branch], notify, download)
    if meant.hub is not None:
        return _on_hub(name, meant.hub, None, notify, download)
    assert meant.path is not None, "a name means one of the three"
    if not is_checkpoint(meant.path):
        raise UsageError(
            "branch-unknown", f"There is no checkpoint {meant.path}: name a folder, or a .gguf file, that exists."
        )
    from q36eval.checkpoints.reader import check_folder

    check_folder(meant.path)  # before any run is begun, which could not be resumed
    return Target(name, checkpoint_path(meant.path))


def _on_hub(name: str, source: HubName, branch: Branch | None, notify: Notify | None, download: bool) -> Target:
    size = "" if branch is None or branch.size_gib is None else f" Its files take about {branch.size_gib:g} GiB."
    try:
        snapshot = located(source) if notify is None else fetch(source, notify, weights=download)
    except UsageError as error:
        raise UsageError(error.code, f"{error}{size}") from error
    if snapshot is None:
        raise UsageError("weights-missing", f"The weights of {hub_name(source)} are not on this machine.{size}")
    return Target(name, snapshot.place, snapshot)


def name_in_history(name: str, family: Family | None, paths: Paths) -> str:
    """A branch's name in history, even without its weights.

    Raises:
        UsageError: it is ambiguous.
    """
    try:
        return meaning(name, family, paths).name(family)
    except UsageError as error:
        if error.code == "name-ambiguous":
            raise
        return name


def kept_name(named: str, paths: Paths | None = None) -> str:
    """The name in history if no family is chosen: a path is made absolute, a name without a slash stays."""
    if "/" not in named and not named.endswith(".gguf"):
        return named
    return meaning(named, None, paths or Paths.default()).name(None)


def recorded_family(named: str | None, branch: str, paths: Paths, history: "History") -> tuple[Family, str]:
    """The family of a branch and its name in history.

    A branch that no family lists has the family of its newest run, which was derived from the reference of that run.

    Raises:
        UsageError: no family is chosen and no run records it, or as `chosen_family`.
    """
    chosen = chosen_family(named, paths)
    meant = _meant(branch, chosen, paths, named is None) if chosen is not None or "/" in branch else None
    if named is None and meant is not None and meant.family is not None:
        return meant.family, meant.branch
    name = name_in_history(branch, chosen, paths)
    own = chosen is not None and history.list_runs(family=chosen.name, branch=name, limit=1)
    runs = [] if named is not None or own else history.list_runs(branch=name, limit=1)
    if not runs:
        return chosen or declared_family(named, paths), name
    if runs[0].family in (family.name for family in shipped_families(paths)):
        return load_family(runs[0].family, paths), name
    return undeclared(runs[0].family, runs[0].family, name), name


def _branch_folder(name: str, family: Family, paths: Paths) -> Path:
    branch = family.branches[name]
    assert branch.source.path is not None, "branches on the Hub are downloaded"
    folder = paths.repository / branch.source.path
    if folder.parent == paths.data / "sandbox":
        from q36eval.app.sandbox import build

        if not paths.is_checkout:
            from q36eval.app.sandbox_files import check_fetched

            check_fetched(folder.name, paths)
        return build(folder.name, paths.sandbox, paths.built)
    if not is_checkpoint(folder):
        raise UsageError(
            "folder-missing",
            f"The folder {folder} of branch {name!r} is missing; restore it or correct the family file.",
        )
    return folder
