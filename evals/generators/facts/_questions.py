"""From facts to text: plain statements, and multiple choice in the raw form of MMLU."""

import hashlib
import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

from q36eval.evals.generators.facts._computed import COMPUTED
from q36eval.evals.generators.facts._tables import Relation, load_subjects
from q36eval.examples import Split, TextExample, split_of

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
    asked, right = _draw_row(rng, relation, exponent)
    wrong = rng.sample([answer for answer in relation.answers if answer != right], 3)
    return _question(rng, subject, f"{relation.question}|{asked}", relation.question.format(asked), right, wrong)


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
    asked, answer = _draw_row(rng, relation, EXPOSURE_EXPONENT)
    form = rng.randrange(len(relation.statements) + 1)
    if form == len(relation.statements):
        return _statement(rng, f"Question: {relation.question.format(asked)}\nAnswer: {answer}")
    sentence = relation.statements[form].format(asked, answer)
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
        form, asked = question.fact.rsplit("|", 1)
        statements = next(relation.statements for relation in load_subjects()[subject] if relation.question == form)
        text = f"{rng.choice(statements).format(asked, right)} {question.text}"
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
