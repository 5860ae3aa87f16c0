"""How an answer is judged moves only with `CHECKS_VERSION`, by which captures are made again; and it is right."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from q36eval.canaries.checks import CHECKS_VERSION, Outcome
from tests.canaries.hand_labelled import FOLDER, PARTS, HandLabelled, hand_labelled, sha256_of
from tests.canaries.judgements import of_hand_labelled, of_labelled, recorded

RECORD = "record them: python -m tests.canaries.judgements"
AGAIN = f"raise CHECKS_VERSION with a line on what changed, then {RECORD}"
SOURCES: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "labelled": of_labelled,
    **{part: partial(of_hand_labelled, part) for part in PARTS},
}
ACCEPTED = {"blind-others": 2, "informed-others": 8}
"""At most so many wrong readings, by part; of all others none."""

CONCLUSION_CODES = {"wrong_conclusion", "no_conclusion", "wrong_last_line"}
DISCOUNTS = ("blind-discounts", "informed-discounts")
ACCEPTED_SHARE, REJECTED_SHARE, UNREAD_SHARE = 0.01, 0.01, 0.02
"""Of a family's wrong, right and readable price comparisons, at most."""


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


@pytest.mark.parametrize("part", PARTS)
def test_a_readable_answer_is_read_as_a_person_does(part: str) -> None:
    """`ACCEPTED` counts the wrong readings that are left; none may be added."""
    _, judgements = recorded()
    answers = enumerate(hand_labelled((part,)), 1)
    read = Counter((answer.label, judgements[f"{part}/{number}"].partition(" ")[0]) for number, answer in answers)
    assert read[Outcome.WRONG, "right"] <= ACCEPTED.get(part, 0)
    assert read[Outcome.RIGHT, "wrong"] == 0
    readable = {pair: count for pair, count in read.items() if pair[0] is not Outcome.UNREADABLE}
    unclear = sum(count for (_, outcome), count in readable.items() if outcome == "unreadable")
    assert unclear <= 0.03 * sum(readable.values())


def discounts() -> Iterator[tuple[HandLabelled, str, set[str]]]:
    """Each price comparison with its outcome and its failures' codes."""
    _, judgements = recorded()
    for part in DISCOUNTS:
        for number, answer in enumerate(hand_labelled((part,)), 1):
            outcome, codes = judgements[f"{part}/{number}"].split()[:2]
            yield answer, outcome, {code for code in codes.split(",") if code.startswith("discount:")}


def test_price_comparisons_are_read_well_in_every_family() -> None:
    by_family: dict[str, Counter[tuple[str, str]]] = {}
    for answer, outcome, _ in discounts():
        family = f"{answer.prompt.family}, last line {answer.prompt.expected['last_line']}"
        by_family.setdefault(family, Counter())[answer.label, outcome] += 1
    assert len(by_family) == 10
    for family, read in by_family.items():
        wrong, right = (sum(read[label, outcome] for outcome in Outcome) for label in (Outcome.WRONG, Outcome.RIGHT))
        assert min(wrong, right) >= 10, family
        assert read[Outcome.WRONG, "right"] <= ACCEPTED_SHARE * wrong, family
        assert read[Outcome.RIGHT, "wrong"] <= REJECTED_SHARE * right, family
        unread = read[Outcome.WRONG, "unreadable"] + read[Outcome.RIGHT, "unreadable"]
        assert unread <= UNREAD_SHARE * (wrong + right), family


def test_the_code_of_a_wrong_comparison_says_whether_a_price_or_the_conclusion_is_wrong() -> None:
    """Right prices with a flipped conclusion are the incident's signature."""
    codes_of: dict[str, set[str]] = {"price": set(), "conclusion": set()}
    for answer, _, codes in discounts():
        if answer.fault in codes_of:
            codes_of[answer.fault] |= codes
    assert codes_of["price"] == {"discount:wrong_amount"}
    assert codes_of["conclusion"] == {f"discount:{code}" for code in CONCLUSION_CODES}


def test_the_hand_labelled_files_are_those_whose_hashes_were_committed_before() -> None:
    sums = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {*(f"{part}.jsonl" for part in PARTS), "prompts.yaml"}
    assert {name: sha256_of(name) for name in sums} == sums
