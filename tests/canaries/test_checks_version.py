"""How an answer is judged moves only with `CHECKS_VERSION`, by which captures are made again."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from q36eval.canaries.checks import CHECKS_VERSION, Decision, Failure
from tests.canaries.hand_labelled import PARTS
from tests.canaries.judgements import judgement, of_endings, of_hand_labelled, of_labelled, recorded

RECORD = "record them: python -m tests.canaries.judgements"
ANEW = f"raise CHECKS_VERSION with a line on what changed, then {RECORD}"
SOURCES: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "labelled": of_labelled,
    "endings": of_endings,
    **{part: partial(of_hand_labelled, part) for part in PARTS},
}


def test_the_record_is_of_this_version_and_of_every_source() -> None:
    version, judgements = recorded()
    assert version == CHECKS_VERSION, f"the record is of version {version}: {ANEW}"
    assert {name.partition("/")[0] for name in judgements} == set(SOURCES)


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_every_labelled_answer_is_judged_as_was_recorded_for_this_version(source: str) -> None:
    _, judgements = recorded()
    before = {name: said for name, said in judgements.items() if name.partition("/")[0] == source}
    now = dict(SOURCES[source]())
    assert set(now) == set(before), f"labelled answers were added or removed, which needs no new version; {RECORD}"
    moved = {name: (before[name], said) for name, said in now.items() if said != before[name]}
    assert not moved, f"{len(moved)} answers are judged differently: {ANEW}"


def test_a_judgement_that_moves_is_seen() -> None:
    failure = Failure("text", "different_text", "line 1, character 2", "says this")
    same = judgement([Failure("text", "different_text", "line 1, character 2", "says it in other words")])
    assert judgement([failure]) == same, "a message may be reworded"
    others = [
        judgement([Failure("text", "different_text", "line 1, character 3", "says this")]),
        judgement([Failure("text", "different_text", "line 1, character 2", "says this", unreadable=True)]),
        judgement([Failure("text", "different_case", "line 1, character 2", "says this")]),
        judgement([failure, failure]),
    ]
    assert len({same, *others}) == 5
    assert judgement([], [Decision("text", 0, 3)]) != judgement([], [Decision("text", 0, 4)])
