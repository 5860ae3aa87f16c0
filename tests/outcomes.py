"""The outcome of one item, as a probe makes it."""

from typing import Any

from q36eval.records import Answer, ItemOutcome, ProbeName


def outcome(probe: ProbeName, name: str, branch: Answer, reference: Answer, **fields: Any) -> ItemOutcome:
    """An item of the group that its name begins with, a cluster of its own unless `fields` say otherwise."""
    known = {"group": name.partition("/")[0], "item_key": name, "cluster": name} | fields
    return ItemOutcome(probe=probe, branch=branch, reference=reference, **known)
