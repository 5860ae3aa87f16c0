"""Generators: right by construction, on one side of the split, as long as asked, calling the counter rarely."""

import random
import re

import pytest

from benchmarks.sandbox.facts import COMPUTED, draw_question, facts_mmlu, load_subjects
from benchmarks.sandbox.mixture import TEXT_GENERATORS as GENERATORS
from benchmarks.sandbox.ruler import KINDS, MIN_TOKENS, estimate_tokens, make
from q36eval.examples import draw, split_of


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_same_seed_same_example_and_both_sides_of_the_split_exist(name: str) -> None:
    generator = GENERATORS[name]
    assert generator(random.Random(4)) == generator(random.Random(4))
    for split in ("train", "test"):
        assert split_of(draw(generator, random.Random(4), split).key) == split


def test_facts_cover_enough_subjects_without_contradiction() -> None:
    subjects = load_subjects()
    assert len(subjects) + 1 >= 22
    assert all(sum(len(relation.rows) for relation in relations) >= 15 for relations in subjects.values())


def test_mmlu_question_has_one_right_choice_and_solved_examples_never_come_from_the_test_side() -> None:
    tabled = {
        (name, f"{relation.question}|{asked}"): answer
        for name, relations in load_subjects().items()
        for relation in relations
        for asked, answer in relation.rows
    }
    rng = random.Random(1)
    for name in (*load_subjects(), *COMPUTED):
        for _ in range(20):
            question = draw_question(rng, name)
            assert len(set(question.choices)) == 4
            if name not in COMPUTED:
                assert question.choices[question.answer] == tabled[name, question.fact]
    shots = 0
    for _ in range(300):
        example = facts_mmlu(rng)
        header, *blocks = example.prompt.split("\n\n")
        assert header.endswith(f"about {example.expected['subject']}.")
        asked = [block.split("\n")[0] for block in blocks]
        assert len(set(asked)) == len(asked), "a solved example asks for the very fact that is asked next"
        shots += len(blocks) - 1
    assert shots > 100


def test_computed_arithmetic_is_right() -> None:
    rng = random.Random(2)
    sums = 0
    for _ in range(200):
        question = draw_question(rng, "elementary mathematics")
        match = re.fullmatch(r"What is (\d+) ([-+*/]) (\d+)\?", question.text)
        if match:
            left, sign, right = int(match[1]), match[2], int(match[3])
            result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
            assert question.choices[question.answer] == str(result)
            sums += 1
    assert sums > 50


@pytest.mark.parametrize("kind", KINDS)
def test_ruler_prompt_fits_its_length_and_holds_its_answer(kind: str) -> None:
    calls = 0

    def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return estimate_tokens(text)

    for length in (512, 2048, 4096):
        calls = 0
        example = make(kind, random.Random(length), length, count)
        used = estimate_tokens(example.prompt + example.answer)
        assert used <= length
        assert calls <= 20, "counting tokens is the slow part"
        if kind.startswith("niah") or kind == "vt":
            assert used > 0.85 * length, "haystacks must come close to their length"
        for output in example.expected["outputs"]:
            assert output in example.prompt
            assert output in example.answer


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("niah")])
def test_needles_asked_for_stand_once_each_with_their_value(kind: str) -> None:
    for seed in range(20):
        example = make(kind, random.Random(seed), 1024, estimate_tokens)
        text, question = example.prompt.rsplit("\nWhat ", 1)
        keys = re.search(r"magic \w+ for (.+?) mentioned", question)
        assert keys is not None
        asked = re.split(r", and |, ", keys[1])
        pairs = re.findall(r"magic \w+ for (\S+) is: ([\w-]+)\.", text)
        assert [value for key in asked for found, value in pairs if found == key] == example.expected["outputs"]


def test_most_common_words_are_the_answer() -> None:
    for kind in ("cwe", "fwe"):
        for seed in range(20):
            example = make(kind, random.Random(seed), 600, estimate_tokens)
            text = example.prompt.split("Question:")[0]
            words = re.findall(
                r"\b[a-z]{3,}\b", text.split("\n", 1)[1] if kind == "cwe" else text.split("words. ", 1)[1]
            )
            counts = sorted({word: words.count(word) for word in words}.items(), key=lambda entry: -entry[1])
            assert {word for word, _ in counts[:3]} == set(example.expected["outputs"])
            assert counts[2][1] > counts[3][1]


def test_a_variable_chain_is_followed_to_its_end() -> None:
    for seed in range(20):
        example = make("vt", random.Random(seed), 600, estimate_tokens)
        value = re.search(r"assigned the value (\d+)", example.prompt)
        assert value is not None
        known = {value[1]}
        assigned = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", example.prompt)
        found = []
        for name, source in assigned:
            if source in known:
                known.add(name)
                found.append(name)
        assert found == example.expected["outputs"]


def test_a_length_that_cannot_hold_the_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 512"):
        make("niah_multikey_3", random.Random(0), MIN_TOKENS["niah_multikey_3"] - 1, estimate_tokens)
    with pytest.raises(ValueError, match="no RULER kind"):
        make("niah", random.Random(0), 512, estimate_tokens)
