"""Which engines answered for a branch and for its reference: whether that is a fair comparison, and what to say of it.

A reference of the engine in-process is what BF16 is. Held against it, a served branch is judged with its engine, as it
is deployed. Any other reference has an error of its engine too, which only the same engine in the same version has in
common with it. Free of torch.
"""

from q36eval.engines.base import IN_PROCESS
from q36eval.records import DeploymentIdentity

NEVER_RUN = "never run by us"
"""Stands in an engine's version that we did not hold against another engine."""


def engine_words(identity: DeploymentIdentity) -> str:
    """The engine of a deployment and its version, for a sentence."""
    return f"{identity.engine} ({identity.engine_version})"


def trusted_words(identity: DeploymentIdentity | None) -> tuple[str, ...]:
    """On what trust in the version of the engine rests, where we never ran it."""
    if identity is None or NEVER_RUN not in identity.engine_version:
        return ()
    return (f"{engine_words(identity)}: its start-up test alone vouches for it",)


def is_fair(branch: DeploymentIdentity, reference: DeploymentIdentity) -> bool:
    """Whether nothing counts against the branch that is the error of another engine than its own."""
    if reference.engine == IN_PROCESS:
        return True
    return (branch.engine, branch.engine_version) == (reference.engine, reference.engine_version)


def apart_words(branch: str, reference: DeploymentIdentity) -> str:
    """What figures between these two hold, as the beginning of a sentence; `branch` names the branch's engine."""
    return (
        f"The reference was captured by {engine_words(reference)} and the branch is answered by {branch}, so the "
        f"figures hold what these two engines differ by on BF16 itself"
    )


def shared_words(branch: DeploymentIdentity | None, reference: DeploymentIdentity | None) -> str | None:
    """What a verdict against a reference of the branch's own engine leaves out, and which settings differ.

    None where the reference is of the engine in-process, or is not known.
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
