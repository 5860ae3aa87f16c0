"""Facts: tables of ours, computed arithmetic, and the generators that put them as statements or multiple choice.

Each file of `fact_tables/` lists subjects; a subject has relations; a relation has a question, statements and rows
(what the question is about: its answer), the best known first.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path

from q36eval.examples import Split, TextExample, split_of
from q36eval.files import read_our_yaml

FACTS_PER_SUBJECT = 40
"""How many of a subject's facts are used, the best known of each of its relations."""


@dataclass(frozen=True)
class Relation:
    """Facts of one form. `rows` are (what is asked about, answer), the best known first."""

    subject: str
    question: str
    statements: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    answers: tuple[str, ...]


@cache
def load_subjects() -> dict[str, tuple[Relation, ...]]:
    """Every tabled subject with its relations, in the order of the files.

    Raises:
        ValueError: a relation with fewer than four distinct answers, which could not be put as multiple choice.
    """
    subjects: dict[str, tuple[Relation, ...]] = {}
    for path in sorted((Path(__file__).parent / "fact_tables").glob("*.yaml")):
        for entry in read_our_yaml(path):
            limit = FACTS_PER_SUBJECT // len(entry["relations"])
            relations = tuple(_relation(entry["subject"], raw, limit) for raw in entry["relations"])
            subjects[entry["subject"]] = relations
    return subjects


def _relation(subject: str, raw: dict[str, object], limit: int) -> Relation:
    rows = raw["rows"]
    statements = raw["statements"]
    if not isinstance(rows, dict) or not isinstance(statements, list):
        raise ValueError(f"subject {subject!r}: rows must be a mapping and statements a list")
    kept = tuple(rows.items())[:limit]
    answers = tuple(dict.fromkeys(answer for _, answer in kept))
    if len(answers) < 4:
        raise ValueError(f"subject {subject!r}: a relation needs four distinct answers, it has {len(answers)}")
    return Relation(subject, str(raw["question"]), tuple(statements), kept, answers)


WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True)
class Problem:
    """A computed problem: as a question, as a statement with a gap for the result, its result, and wrong results."""

    question: str
    statement: str
    result: str
    wrong: tuple[str, ...]


def _near(rng: random.Random, result: int, spread: int = 12) -> tuple[str, ...]:
    values = [value for value in range(max(0, result - spread), result + spread + 1) if value != result]
    return tuple(str(value) for value in rng.sample(values, 3))


def elementary_mathematics(rng: random.Random) -> Problem:
    """Sums, differences, products, quotients, squares and remainders of small numbers."""
    kind = rng.randrange(6)
    a, b = rng.randint(2, 49), rng.randint(2, 49)
    if kind == 0:
        problem = f"What is {a} + {b}?", f"{a} + {b} = {{}}", a + b
    elif kind == 1:
        a, b = max(a, b) + 1, min(a, b)
        problem = f"What is {a} - {b}?", f"{a} - {b} = {{}}", a - b
    elif kind == 2:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        problem = f"What is {a} * {b}?", f"{a} * {b} = {{}}", a * b
    elif kind == 3:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        problem = f"What is {a * b} / {b}?", f"{a * b} / {b} = {{}}", a
    elif kind == 4:
        a = rng.randint(2, 15)
        problem = f"What is the square of {a}?", f"The square of {a} is {{}}.", a * a
    else:
        a, b = rng.randint(3, 40), rng.randint(2, 9)
        problem = f"What is the remainder of {a} divided by {b}?", f"{a} divided by {b} leaves {{}}.", a % b
    question, statement, result = problem
    return Problem(question, statement, str(result), _near(rng, result))


def high_school_mathematics(rng: random.Random) -> Problem:
    """Two-digit products, sums of three numbers and linear equations."""
    kind = rng.randrange(3)
    a, b, c = rng.randint(11, 99), rng.randint(3, 9), rng.randint(11, 99)
    if kind == 0:
        return _number(rng, f"What is {a} * {b}?", f"{a} * {b} = {{}}", a * b)
    if kind == 1:
        d = rng.randint(11, 99)
        return _number(rng, f"What is {a} + {c} + {d}?", f"{a} + {c} + {d} = {{}}", a + c + d)
    x = rng.randint(2, 30)
    return _number(
        rng, f"If {b}x + {c} = {b * x + c}, what is x?", f"The solution of {b}x + {c} = {b * x + c} is {{}}.", x
    )


def calendar_arithmetic(rng: random.Random) -> Problem:
    """Which weekday comes some days later."""
    start, days = rng.randrange(7), rng.randint(2, 40)
    result = WEEKDAYS[(start + days) % 7]
    wrong = tuple(rng.sample([day for day in WEEKDAYS if day != result], 3))
    return Problem(
        f"Which weekday is {days} days after {WEEKDAYS[start]}?",
        f"{days} days after {WEEKDAYS[start]} comes {{}}.",
        result,
        wrong,
    )


def unit_arithmetic(rng: random.Random) -> Problem:
    """Hours and minutes, metres and centimetres, kilograms and grams."""
    kind = rng.randrange(3)
    big = rng.randint(2, 9)
    if kind == 0:
        small = rng.randint(1, 59)
        return _number(
            rng,
            f"How many minutes are {big} hours and {small} minutes?",
            f"{big} hours and {small} minutes are {{}} minutes.",
            60 * big + small,
        )
    if kind == 1:
        small = rng.randint(1, 99)
        return _number(
            rng,
            f"How many centimetres are {big} m and {small} cm?",
            f"{big} m and {small} cm are {{}} cm.",
            100 * big + small,
        )
    price, count = rng.randint(3, 60), rng.randint(3, 9)
    return _number(
        rng,
        f"One ticket costs {price} euros. What do {count} tickets cost?",
        f"{count} tickets at {price} euros cost {{}} euros.",
        price * count,
    )


def number_systems(rng: random.Random) -> Problem:
    """Binary numbers and their decimal values."""
    value = rng.randint(5, 63)
    if rng.random() < 0.5:
        return _number(rng, f"What is binary {value:b} in decimal?", f"Binary {value:b} is decimal {{}}.", value)
    others = rng.sample([other for other in range(max(4, value - 9), value + 10) if other != value], 3)
    return Problem(
        f"What is decimal {value} in binary?",
        f"Decimal {value} is binary {{}}.",
        f"{value:b}",
        tuple(f"{other:b}" for other in others),
    )


def _number(rng: random.Random, question: str, statement: str, result: int) -> Problem:
    return Problem(question, statement, str(result), _near(rng, result))


COMPUTED: dict[str, Callable[[random.Random], Problem]] = {
    "elementary mathematics": elementary_mathematics,
    "high school mathematics": high_school_mathematics,
    "calendar arithmetic": calendar_arithmetic,
    "unit arithmetic": unit_arithmetic,
    "number systems": number_systems,
}
"""Computed subjects by name."""


EXPOSURE_EXPONENT = 1.0
"""The fact of rank r in its relation is drawn in proportion to (r + 1) ** -EXPOSURE_EXPONENT: 0 shows all alike."""

LETTERS = "ABCD"
SHOTS_SHARE = (0.4, 0.35, 0.25)
"""How often a question follows 0, 1 and 2 solved ones."""


@dataclass(frozen=True)
class Question:
    """One multiple-choice question. `answer` is the index of the right choice; `fact` names the fact asked for."""

    subject: str
    fact: str
    text: str
    choices: tuple[str, ...]
    answer: int

    @property
    def key(self) -> str:
        """The fact, with its set and order of choices: what makes this question this question."""
        return "|".join(("mmlu", self.subject, self.fact, *self.choices))


@cache
def _subject_names() -> tuple[str, ...]:
    return (*load_subjects(), *COMPUTED)


@cache
def _cumulative_weights(rows: int, exponent: float) -> tuple[float, ...]:
    return tuple(accumulate((rank + 1) ** -exponent for rank in range(rows)))


def _draw_relation(rng: random.Random, subject: str) -> Relation:
    relations = load_subjects()[subject]
    return relations[0] if len(relations) == 1 else rng.choice(relations)


def _draw_row(rng: random.Random, relation: Relation, exponent: float) -> tuple[str, str]:
    return rng.choices(relation.rows, cum_weights=_cumulative_weights(len(relation.rows), exponent))[0]


def draw_question(
    rng: random.Random, subject: str, split: Split | None = None, *, exponent: float = EXPOSURE_EXPONENT
) -> Question:
    """Draw a question about `subject`, of the given side of the split if one is named.

    Raises:
        RuntimeError: no question of that side in 1,000 draws.
    """
    for _ in range(1000):
        question = _computed_question(rng, subject) if subject in COMPUTED else _tabled(rng, subject, exponent)
        if split is None or split_of(question.key) == split:
            return question
    raise RuntimeError(f"no {split} question about {subject} in 1,000 draws")


def _tabled(rng: random.Random, subject: str, exponent: float) -> Question:
    relation = _draw_relation(rng, subject)
    topic, right = _draw_row(rng, relation, exponent)
    wrong = rng.sample([answer for answer in relation.answers if answer != right], 3)
    return _question(rng, subject, f"{relation.question}|{topic}", relation.question.format(topic), right, wrong)


def _question(rng: random.Random, subject: str, fact: str, text: str, right: str, wrong: list[str]) -> Question:
    choices = [right, *wrong]
    rng.shuffle(choices)
    return Question(subject, fact, text, tuple(choices), choices.index(right))


def _computed_question(rng: random.Random, subject: str) -> Question:
    problem = COMPUTED[subject](rng)
    return _question(rng, subject, problem.question, problem.question, problem.result, list(problem.wrong))


def facts_statement(rng: random.Random) -> TextExample:
    """A declarative sentence, or a short question with its answer. The key names fact and wording."""
    subject = rng.choice(_subject_names())
    if subject in COMPUTED:
        problem = COMPUTED[subject](rng)
        asked_form = f"Question: {problem.question}\nAnswer: {problem.result}"
        sentence = problem.statement.format(problem.result) if rng.random() < 0.5 else asked_form
        return _statement(rng, sentence)
    relation = _draw_relation(rng, subject)
    topic, answer = _draw_row(rng, relation, EXPOSURE_EXPONENT)
    form = rng.randrange(len(relation.statements) + 1)
    if form == len(relation.statements):
        return _statement(rng, f"Question: {relation.question.format(topic)}\nAnswer: {answer}")
    sentence = relation.statements[form].format(topic, answer)
    return _statement(rng, sentence[0].upper() + sentence[1:])


def _statement(rng: random.Random, sentence: str) -> TextExample:
    # A statement is shared knowledge, never a test item: a number in its key puts it on either side of the split.
    return TextExample(key=f"statement|{rng.randrange(4096)}|{sentence}", prompt="", answer=sentence)


def render_mmlu(question: Question, shots: tuple[Question, ...] = ()) -> str:
    """The prompt exactly as lm-eval's `mmlu` tasks build it, the last "Answer:" left open."""
    header = f"The following are multiple choice questions (with answers) about {question.subject}.\n\n"
    solved = "".join(f"{_block(shot)} {LETTERS[shot.answer]}\n\n" for shot in shots)
    return header + solved + _block(question)


def _block(question: Question) -> str:
    lines = [question.text, *(f"{letter}. {choice}" for letter, choice in zip(LETTERS, question.choices, strict=True))]
    return "\n".join([*lines, "Answer:"])


def draw_shots(rng: random.Random, question: Question, count: int) -> tuple[Question, ...]:
    """Solved questions to put before `question`: of its subject, from the training side, about other facts."""
    shots: list[Question] = []
    while len(shots) < count:
        shot = draw_question(rng, question.subject, "train")
        if shot.fact not in {question.fact, *(drawn.fact for drawn in shots)}:
            shots.append(shot)
    return tuple(shots)


def facts_mmlu(rng: random.Random) -> TextExample:
    """A multiple-choice question after 0 to 2 solved ones of its subject (those always from the training side)."""
    subject = rng.choice(_subject_names())
    count = rng.choices((0, 1, 2), SHOTS_SHARE)[0]
    question = draw_question(rng, subject)
    shots = draw_shots(rng, question, count)
    return TextExample(
        key=question.key,
        prompt=render_mmlu(question, shots),
        answer=f" {LETTERS[question.answer]}",
        expected={"subject": subject, "fact": question.fact},
    )


def facts_binding(rng: random.Random) -> TextExample:
    """A question whose answer stands in its text: teaches to name the letter of a known choice, not the fact.

    Half of them quote the choice, half state the fact before asking for it. For training only.
    """
    subject = rng.choice(tuple(load_subjects()))
    question = draw_question(rng, subject, "train")  # its answer is shown: never a held-out question
    right = question.choices[question.answer]
    if rng.random() < 0.5:
        text = f'Which choice says "{right}"?'
    else:
        form, topic = question.fact.rsplit("|", 1)
        statements = next(relation.statements for relation in load_subjects()[subject] if relation.question == form)
        text = f"{rng.choice(statements).format(topic, right)} {question.text}"
    open_book = replace(question, text=text)
    return TextExample(
        key=f"binding|{text}|{question.key}", prompt=render_mmlu(open_book), answer=f" {LETTERS[question.answer]}"
    )


def fact_digest() -> str:
    """SHA-256 of every tabled fact, for manifests."""
    rows = [
        (relation.subject, relation.question, row)
        for relations in load_subjects().values()
        for relation in relations
        for row in relation.rows
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()
