"""Where a run's reference comes from: its checkpoint, captured when need be, or a pack that was captured before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.targets import Target
from q36eval.capturing import OpenCaptures, captured, kind_of
from q36eval.config import Family
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.probes import Probe
from q36eval.records import DeploymentIdentity, ProbeName
from q36eval.references import Capture, Pack, pack_folder
from q36eval.runner import Progress, Work

if TYPE_CHECKING:
    import torch

    from q36eval.engines.in_process import InProcessEngine

REFERENCE_KV_CACHE_DTYPE = "auto"


@dataclass(frozen=True)
class Reference:
    """One reference deployment with what was, or can be, captured of it.

    `load` is None where only what was captured is at hand, and so is `tokenizer`: the branch's own is used, which has
    the same hash.
    """

    identity: DeploymentIdentity
    root: Path
    probes: Sequence[Probe]
    folder: Path | None
    load: "Callable[[], InProcessEngine] | None" = None
    tokenizer: Callable[[], Any] | None = None

    def open(self, probe: Probe) -> Capture:
        """What is captured for that probe."""
        kind, top_k = kind_of(probe)
        restore = None if self.folder is None else self._head
        return Capture(self.root, self.identity, probe.name, probe.suite_sha256, kind, top_k, restore)

    def knowing_gaps(self) -> "Reference":
        """With the gap of each lower bound told where the full vocabulary was captured too."""
        return replace(self, probes=[_with_full(probe, self.open) for probe in self.probes])

    def captures(self, works: Sequence[Work], progress: Progress, keep_head: bool = True) -> OpenCaptures:
        """The captures of all that is asked; see `q36eval.capturing.captured`."""
        return captured(works, self.open, self.load, progress, keep_head)

    def _head(self) -> "dict[str, torch.Tensor]":
        from q36eval.references import stored_head

        assert self.folder is not None, "asked for only where the reference's folder is known"
        return {"head": stored_head(self.folder)}


def local_reference(
    folder: Path, probes: Sequence[Probe], root: Path, *, device: str, emulate_activations: bool
) -> Reference:
    """The reference of a checkpoint folder, its pack below `root` (or `root` itself where that is a pack).

    Raises:
        UsageError: the checkpoint cannot be used.
    """
    from q36eval.engines.in_process import InProcessEngine, load_tokenizer

    try:
        identity = InProcessEngine.identity_of(
            folder, device=device, emulate_activations=emulate_activations, kv_cache_dtype=REFERENCE_KV_CACHE_DTYPE
        )
    except CorruptCheckpointError as error:
        raise UsageError(f"The reference cannot be used: {error}") from error

    def load() -> InProcessEngine:
        try:
            return InProcessEngine.load(
                folder, device=device, emulate_activations=emulate_activations, kv_cache_dtype=REFERENCE_KV_CACHE_DTYPE
            )
        except CorruptCheckpointError as error:
            raise UsageError(f"The reference cannot be used: {error}") from error

    reference = Reference(
        identity, pack_folder(root, identity), probes, folder, load=load, tokenizer=lambda: load_tokenizer(folder)
    )
    return reference.knowing_gaps()


def packed_reference(
    pack_path: Path, probes: Sequence[Probe], branch: Path, reference: Target | None, family: Family
) -> Reference:
    """The reference of a pack, refused where it is not what `branch` and `probes` can be compared with.

    `reference` is the reference's checkpoint where it is on this machine.

    Raises:
        UsageError: see `q36eval.references.Pack`; the tokenizer, chat template, suite or checkpoint differs (named).
    """
    from q36eval.checkpoints import chat_template_sha256, checkpoint_sha256, tokenizer_sha256

    pack = Pack.open(pack_path)
    declared = family.branches[family.reference].checkpoint_sha256
    if declared is not None:
        pack.check_field("checkpoint_sha256", declared, f"that of {family.name}/{family.reference}")
    if reference is not None:
        found = checkpoint_sha256(reference.folder)
        pack.check_field("checkpoint_sha256", found, f"that of the reference {reference.folder}")
    try:
        own = {"tokenizer_sha256": tokenizer_sha256(branch), "chat_template_sha256": chat_template_sha256(branch)}
    except CorruptCheckpointError:
        own = {}  # the inspection says what is wrong with the branch
    for name, value in own.items():
        pack.check_field(name, value, "the branch's")
    fitted = [_fitted(probe, pack) for probe in probes]
    for probe in fitted:
        withheld = pack.capture_of(probe.name, probe.suite_sha256).withheld
        if withheld and reference is None:
            raise UsageError(
                f"The reference pack {pack_path} keeps only the hash of the reference's {', '.join(withheld)}; "
                f"name the reference's folder with --reference, or capture the pack without --no-head."
            )
    return Reference(pack.identity, pack.folder, fitted, None if reference is None else reference.folder).knowing_gaps()


def _fitted(probe: Probe, pack: Pack) -> Probe:
    """The probe that can read what the pack holds: the KL probe becomes one of bounds where it holds only top-k."""
    if probe.name is not ProbeName.KL:
        return probe
    header = pack.of(probe.name)[0]
    return probe if header.top_k is None else bounding(probe, header.top_k)


def bounding(probe: Probe, top_k: int) -> Probe:
    """The KL probe as one that only bounds the divergence from below; every other probe as it is."""
    from kl.topk_probe import TopKProbe

    return TopKProbe(probe, top_k) if probe.name is ProbeName.KL and not isinstance(probe, TopKProbe) else probe


def _with_full(probe: Probe, open_capture: Callable[[Probe], Capture]) -> Probe:
    """A probe of bounds that knows their gap, where the same documents were also captured over the full vocabulary."""
    from kl.topk_probe import TopKProbe

    if not isinstance(probe, TopKProbe):
        return probe
    full = open_capture(probe.base)
    return probe if full.manifest is None else TopKProbe(probe.base, probe.top_k, full)
