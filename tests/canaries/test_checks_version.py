"""How an answer is judged moves only with `CHECKS_VERSION`, by which captures are made again; and it is right."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from q36eval.canaries.checks import CHECKS_VERSION, Decision, Failure, Outcome
from tests.canaries.hand_labelled import FOLDER, PARTS, hand_labelled, sha256_of
from tests.canaries.judgements import endings, judgement, of_endings, of_hand_labelled, of_labelled, recorded

RECORD = "record them: python -m tests.canaries.judgements"
AGAIN = f"raise CHECKS_VERSION with a line on what changed, then {RECORD}"
SOURCES: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "labelled": of_labelled,
    "endings": of_endings,
    **{part: partial(of_hand_labelled, part) for part in PARTS},
}
ACCEPTED = {"blind-others": 2, "informed-others": 8}
REJECTED = {"second-discounts": 1}
"""At most so many wrong readings, by part; of all others none."""


def outcome_of(judged: str) -> str:
    return judged.partition(" ")[0]


def test_the_record_is_of_this_version_and_of_every_source() -> None:
    version, judgements = recorded()
    assert version == CHECKS_VERSION, f"the record is of version {version}: {AGAIN}"
    assert {name.partition("/")[0] for name in judgements} == set(SOURCES)


@pytest.mark.parametrize(
    "source", [source if source == "labelled" else pytest.param(source, marks=pytest.mark.long) for source in SOURCES]
)
def test_every_labelled_answer_is_judged_as_was_recorded_for_this_version(source: str) -> None:
    _, judgements = recorded()
    before = {name: said for name, said in judgements.items() if name.partition("/")[0] == source}
    now = dict(SOURCES[source]())
    assert set(now) == set(before), f"labelled answers were added or removed, which needs no new version; {RECORD}"
    moved = {name: (before[name], said) for name, said in now.items() if said != before[name]}
    assert not moved, f"{len(moved)} answers are judged differently: {AGAIN}"


def test_endings_are_read_as_a_person_reads_them() -> None:
    _, judgements = recorded()
    read = {name: (label, outcome_of(judgements[name])) for name, _, label, _ in endings()}
    assert {name: pair for name, pair in read.items() if len(set(pair)) > 1} == {}


@pytest.mark.parametrize("part", PARTS)
def test_a_readable_answer_is_read_as_a_person_does(part: str) -> None:
    """`ACCEPTED` and `REJECTED` count the wrong readings that are left; none of them may grow."""
    _, judgements = recorded()
    answers = enumerate(hand_labelled((part,)), 1)
    read = Counter((answer.label, outcome_of(judgements[f"{part}/{number}"])) for number, answer in answers)
    assert read[Outcome.WRONG, "right"] <= ACCEPTED.get(part, 0)
    assert read[Outcome.RIGHT, "wrong"] <= REJECTED.get(part, 0)
    readable = {pair: count for pair, count in read.items() if pair[0] is not Outcome.UNREADABLE}
    unclear = sum(count for (_, outcome), count in readable.items() if outcome == "unreadable")
    assert unclear <= 0.03 * sum(readable.values())


def test_the_hand_labelled_files_are_those_whose_hashes_were_committed_before() -> None:
    sums = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {*(f"{part}.jsonl" for part in PARTS), "prompts.yaml"}
    assert {name: sha256_of(name) for name in sums} == sums


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
