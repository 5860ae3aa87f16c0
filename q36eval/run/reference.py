"""The origin of a run's reference: its checkpoint, captured if necessary, or an existing pack."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.chat.declared_template import DeclaredTemplate
from q36eval.checkpoints import load_tokenizer
from q36eval.checkpoints.tokenizer import chat_templates
from q36eval.config import Family, Paths
from q36eval.engines import Engine, EngineOptions, as_reference, identity_of, open_engine
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.probes import Probe, Progress
from q36eval.records import DeploymentIdentity
from q36eval.references import Capture, Pack, mark_used, pack_folder
from q36eval.run.capture import ReferenceAnswers
from q36eval.run.items import Work
from q36eval.run.request import Request, Target
from q36eval.run.templates import keep_templates, packed_templates, tokenizer_with

if TYPE_CHECKING:
    import torch


class Loader:
    """Loads an engine once, until `forget`."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        self._load = load
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        if self._engine is None:
            self._engine = self._load()
        return self._engine

    def forget(self) -> None:
        """Release its memory, to other processes too: a branch may run in another one."""
        if self._engine is None:
            return
        import torch

        from q36eval.checkpoints.gpu import give_back

        device, self._engine = torch.device(self._engine.device), None
        give_back(device)


@dataclass(frozen=True)
class Reference:
    """One reference deployment with its existing and possible captures.

    `root` holds all its data: captures, sampled answers, noise floors. `load` is None if only captures are available,
    and so is `tokenizer`: the branch's own is used, which has the same hash.
    """

    identity: DeploymentIdentity
    root: Path
    folder: Path | None
    load: Loader | None = None
    tokenizer: Callable[[], Any] | None = None
    pack: Pack | None = None

    def engine(self) -> Engine:
        """The reference itself.

        Raises:
            UsageError: only a pack of it is available.
        """
        if self.load is None:
            raise UsageError(
                "pack-lacks-answers",
                f"The reference pack {self.root} lacks the reference's sampled answers to the questions of this run; "
                f"copy the pack again, or capture it with this version of q36eval and the same on_policy settings.",
            )
        return self.load()

    def open(self, probe: Probe) -> Capture:
        """The capture for that probe."""
        restore = None if self.folder is None else self._head
        return Capture(
            self.root,
            self.identity,
            probe.name,
            probe.suite_sha256,
            probe.kind,
            restore,
            dict(probe.suite_fields),
        )

    def check(self, probes: Iterable[Probe]) -> None:
        """Refuse a pack that these probes cannot be compared with.

        Raises:
            UsageError: the pack was captured for another suite, or stores no head and its folder is not here.
        """
        if self.pack is None:
            return
        for probe in probes:
            withheld = self.pack.capture_of(probe.name, probe.suite_sha256, dict(probe.suite_fields)).withheld
            if withheld and self.folder is None:
                raise UsageError(
                    "pack-text-withheld",
                    f"The reference pack {self.root} keeps only the hash of the reference's {', '.join(withheld)}; "
                    f"name the reference's folder with --reference, or capture the pack without --no-head.",
                )

    def answers(
        self,
        works: Sequence[Work],
        progress: Progress,
        *,
        load: Callable[[], Engine] | None = None,
        keep_head: bool = True,
        one_at_a_time: bool = False,
    ) -> ReferenceAnswers:
        """Its answers to the items of `works`, captured as needed; `load` is called instead of its own."""
        mark_used(self.root)  # before any request: a pack in use is not cleaned up
        load = None if self.load is None else load or self.load
        return ReferenceAnswers(works, self.open, load, progress, keep_head=keep_head, one_at_a_time=one_at_a_time)

    def keep_templates(self) -> None:
        """Store the chat templates with the captures."""
        if self.load is not None and self.folder is not None and self.root.is_dir():
            keep_templates(self.root, chat_templates(self.folder))

    def _head(self) -> "dict[str, torch.Tensor]":
        from q36eval.engines.head import stored_head

        assert self.folder is not None, "needed only where the reference's folder is known"
        return stored_head(self.folder).tensors()


def reference_of(request: Request, paths: Paths) -> Reference:
    """The reference for the branch; its chat template is compared later (`beside_template`).

    Raises:
        UsageError: it cannot be used, or the branch cannot be compared with it.
    """
    if request.reference_pack is not None:
        return packed_reference(request.reference_pack, request.branch.folder, request.reference, request.family)
    if request.reference is None:
        raise UsageError(
            "reference-required", "No reference is named: name its checkpoint, or a pack captured from it."
        )
    return local_reference(request.reference.folder, paths.captures, request.engine)


def local_reference(folder: Path, root: Path, options: EngineOptions, by: str | None = None) -> Reference:
    """The reference of a checkpoint folder, its pack below `root` (or `root` itself if that is a pack).

    `options` are those of its branches; it is opened `as_reference` of them, with the engine kind `by` if given.

    Raises:
        UsageError: the checkpoint cannot be used.
    """
    settings = as_reference(options, by).of(folder)
    try:
        identity = identity_of(settings)
    except CorruptCheckpointError as error:
        raise UsageError(error.code, f"The reference cannot be used: {error}") from error

    def load() -> Engine:
        try:
            return open_engine(settings)
        except CorruptCheckpointError as error:
            raise UsageError(error.code, f"The reference cannot be used: {error}") from error

    place = pack_folder(root, identity)
    return Reference(identity, place, folder, load=Loader(load), tokenizer=lambda: load_tokenizer(folder))


def packed_reference(pack_path: Path, branch: Path, reference: Target | None, family: Family) -> Reference:
    """The reference of a pack, refused if `branch` cannot be compared with it.

    `reference` is the reference's checkpoint, if it is on this machine. The branch's chat template is compared later:
    it may be declared to differ (`own_tokenizer`).

    Raises:
        UsageError: see `q36eval.references.Pack`; the tokenizer or checkpoint differs (named).
    """
    from q36eval.checkpoints import checkpoint_sha256, tokenizer_sha256

    pack = Pack.open(pack_path)
    declared = family.branches[family.reference].checkpoint_sha256
    if declared is not None:
        pack.check_field("checkpoint_sha256", declared, f"that of {family.name}/{family.reference}")
    if reference is not None:
        own_sha256 = checkpoint_sha256(reference.folder)
        pack.check_field("checkpoint_sha256", own_sha256, f"that of the reference {reference.folder}")
    with suppress(CorruptCheckpointError):  # the inspection reports the fault of the branch
        pack.check_field("tokenizer_sha256", tokenizer_sha256(branch), "the branch's")
    return Reference(pack.identity, pack.folder, None if reference is None else reference.folder, pack=pack)


def beside_template(reference: Reference, branch: Path, template: DeclaredTemplate | None) -> Reference:
    """The reference for a branch whose chat template is declared to differ, or is not.

    Raises:
        UsageError: a pack was made with another template than the branch's, and none is declared.
    """
    pack = reference.pack
    if pack is None:
        return reference
    from q36eval.checkpoints import chat_template_sha256

    if template is not None and template.is_own:
        folder = reference.folder
        if folder is not None:
            pack.check_field("chat_template_sha256", chat_template_sha256(folder), f"that of the reference {folder}")
            return replace(reference, tokenizer=partial(load_tokenizer, folder))
        return replace(reference, tokenizer=partial(tokenizer_with, packed_templates(pack), branch))
    with suppress(CorruptCheckpointError):
        pack.check_field("chat_template_sha256", chat_template_sha256(branch), "the branch's")
    return reference
