"""What is asked in a second step, when the reference's answer is known; kept beside the first, under its own key."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from q36eval.asking import Work, in_group
from q36eval.probes import Digest, FollowsUp, WorkItem

SECOND = "/then"
"""Ends the key of what the reference was asked in the second step about the item before it."""


def second_items(work: Work, known: Mapping[str, Digest]) -> list[WorkItem]:
    """What the reference is asked in the second step, about every item whose first answer is `known`."""
    probe = work.probe
    if not isinstance(probe, FollowsUp):
        return []
    found = []
    for item in work.items:
        if item.key not in known:
            continue
        more = probe.follow_up(item, known[item.key])
        if more.scores or more.repeats:
            second = WorkItem(item.key + SECOND, scores=more.scores, generations=more.repeats, stage=item.stage)
            found.append(in_group(second, probe.name))
    return found


def first_key(second_key: str) -> str:
    """The key of the item that a second step is about."""
    return second_key.removesuffix(SECOND)


def followed_up(items: Iterable[WorkItem], second: Iterable[WorkItem]) -> list[WorkItem]:
    """The items as the branch is asked them: with the scores of the second step, whose repeats are the reference's."""
    scores = {item.key: item.scores for item in second}
    return [replace(item, scores=item.scores + scores.get(item.key + SECOND, ())) for item in items]


def known_of(captures: Mapping[str, Digest], key: str) -> Digest | None:
    """All that is captured of one item, both steps as one digest; None where not even the first is."""
    first, second = captures.get(key), captures.get(key + SECOND)
    if first is None or second is None:
        return first
    return Digest(first.values | second.values, first.tensors | second.tensors, first.error)
