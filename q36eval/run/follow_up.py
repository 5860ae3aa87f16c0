"""What is asked in a second step, when the reference's answer is known; kept beside the first, under its own key."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from q36eval.probes import Digest, WorkItem, in_group
from q36eval.run.items import Work

SECOND = "/then"
"""Ends the key of what the reference was asked in the second step about the item before it."""


def second_items(work: Work, known: Mapping[str, Digest]) -> list[WorkItem]:
    """What the reference is asked in the second step, about every item whose first answer is `known`."""
    probe = work.probe
    if not probe.follows_up:
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


class BothSteps(Mapping[str, Digest]):
    """What is captured of items, both steps as one digest, read from disk only where it is looked up."""

    def __init__(self, captures: Mapping[str, Digest], keys: Sequence[str]) -> None:
        self._captures, self._keys = captures, [key for key in keys if key in captures]

    def __getitem__(self, key: str) -> Digest:
        digest = known_of(self._captures, key)
        if digest is None:
            raise KeyError(key)
        return digest

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
