"""Which deployments give the same answers whenever they are asked the same. Free of torch."""

from q36eval.records import DeploymentIdentity


def repeats_itself(identity: DeploymentIdentity) -> bool:
    """Whether the same list of requests gives bitwise the same answers in every process of that deployment.

    The in-process engine on a CPU does: its batches follow from the whole list, and reductions of a CPU have one order.
    A GPU's kernels choose their own, and what a server batches together depends on who else asks.
    """
    return identity.engine == "in-process" and identity.settings.get("device") == "cpu"
