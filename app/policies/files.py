"""Policies by name or file, the intended family of a policy, and the shipped policies."""

from pathlib import Path

from q36eval.app.derived_family import LONGEST, undeclared
from q36eval.app.targets import chosen_family, declared_family
from q36eval.config import Family, Paths
from q36eval.errors import Q36Error, UsageError
from q36eval.gate import Policy
from q36eval.gate.policy_file import read_policy
from q36eval.run.suites import shipped_suites, suite_place, texts_of

FILE_ENDINGS = (".yaml", ".yml")
ANY_MODEL = "any model"


def shipped_policies(paths: Paths) -> dict[str, Path]:
    """The files of the shipped policies, by name.

    Raises:
        UsageError: none exist, so the installation is incomplete.
    """
    shipped = {file.stem: file for file in sorted(paths.policies.glob("*.yaml"), key=lambda file: file.stem)}
    if not shipped:
        raise UsageError(
            "installation-incomplete",
            f"The policies of q36eval are missing from {paths.policies}: install q36eval again.",
        )
    return shipped


def policy_file(name_or_path: str, paths: Paths) -> Path:
    """The file of a shipped policy, or the one that is named.

    Raises:
        UsageError: neither a known name nor a .yaml file; lists the known names.
    """
    if name_or_path.endswith(FILE_ENDINGS):
        return Path(name_or_path)
    shipped = shipped_policies(paths)
    if name_or_path not in shipped:
        known = ", ".join(shipped)
        raise UsageError(
            "policy-unknown", f"There is no policy {name_or_path!r}; known policies: {known}, or name a .yaml file."
        )
    return shipped[name_or_path]


def family_of(policy: Policy, named: str | None, paths: Paths) -> Family:
    """The requested family; else the one judged by this policy, or by the nearest that it extends (the last by name of
    several); else the project file's; else any model, as `standard` judges it.

    Raises:
        UsageError: the requested family does not exist, or a family's file is malformed.
    """
    if named is not None:
        return declared_family(named, paths)
    families = [Family.load(file) for file in sorted(paths.families.glob("*.yaml"), reverse=True)]
    for name in (policy.name, *reversed(policy.lineage)):
        own = next((family for family in families if family.policy == name), None)
        if own is not None:
            return own
    return chosen_family(None, paths) or undeclared(ANY_MODEL, ANY_MODEL, ".", context_length=LONGEST)


def suite_of(policy: Policy, family: Family) -> str:
    """The shipped suite with this policy as its own; else the family's."""
    from q36eval.evals.suite import read_suite

    named = [name for name, file in shipped_suites().items() if read_suite(file).policy == policy.name]
    return named[0] if named else family.suite


def declared_policy(family: Family, paths: Paths) -> Policy | None:
    """The policy in the family's file; None if it cannot be read."""
    try:
        return read_policy(policy_file(family.policy, paths))
    except Q36Error:
        return None


def policy_for(family: Family, suite: str, paths: Paths) -> str:
    """The name of a suite's default policy: its own, else the family's.

    The policy of two joined suites has both their names.

    Raises:
        UsageError: the suite does not exist, or its file is malformed.
    """
    from q36eval.evals.suite import read_suite

    if "+" in suite:
        first, _, second = suite.partition("+")
        return f"{texts_of(first)}+{texts_of(second)}"
    return read_suite(suite_place(suite, paths).file).policy or family.policy
