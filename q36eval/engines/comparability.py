"""The engines of a branch and of its reference: whether the comparison is fair, and how to describe it.

A reference from the engine in-process defines BF16. Compared with it, a served branch is judged together with its
engine, as it is deployed. Any other reference has its own engine's error, which only the same engine in the same
version shares. Does not import torch.
"""

from q36eval.engines.base import IN_PROCESS
from q36eval.records import DeploymentIdentity

NEVER_RUN = "never run by us"
"""Part of an engine's version if we never compared that version with another engine."""


def engine_words(identity: DeploymentIdentity) -> str:
    """The engine of a deployment and its version, for a sentence."""
    return f"{identity.engine} ({identity.engine_version})"


def trusted_words(identity: DeploymentIdentity | None) -> tuple[str, ...]:
    """The basis of trust in the engine's version if we never ran it."""
    if identity is None or NEVER_RUN not in identity.engine_version:
        return ()
    return (f"{engine_words(identity)}: its start-up test alone vouches for it",)


def is_fair(branch: DeploymentIdentity, reference: DeploymentIdentity) -> bool:
    """Whether no error of another engine counts against the branch."""
    if reference.engine == IN_PROCESS:
        return True
    return (branch.engine, branch.engine_version) == (reference.engine, reference.engine_version)


def apart_words(branch: str, reference: DeploymentIdentity) -> str:
    """The start of a sentence on the figures between these two; `branch` names the branch's engine."""
    return (
        f"The reference was captured by {engine_words(reference)} and the branch is answered by {branch}, so the "
        f"figures hold what these two engines differ by on BF16 itself"
    )


def shared_words(branch: DeploymentIdentity | None, reference: DeploymentIdentity | None) -> str | None:
    """The part missing from a verdict against a reference of the branch's own engine, and the differing settings.

    None if the reference is from the engine in-process, or is unknown.
    """
    if branch is None or reference is None or reference.engine == IN_PROCESS:
        return None
    names = sorted(branch.settings.keys() | reference.settings.keys())
    differing = [name for name in names if branch.settings.get(name) != reference.settings.get(name)]
    differing += ["kv_cache_dtype"] if branch.kv_cache_dtype != reference.kv_cache_dtype else []
    settings = f"; their settings differ in {', '.join(differing)}" if differing else ""
    return (
        f"what {reference.engine} does wrong to the reference too does not show: it answered for both "
        f"({reference.engine_version}){settings}"
    )
