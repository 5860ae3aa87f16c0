"""Freeze the committed data: the sandbox's eval tasks and KL corpus (`python -m benchmarks.sandbox.freeze`).

Both come from seeds and from the test side of the split only. RULER prompts are cut to length with the tokenizer of
`data/sandbox/bf16`.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.frozen import write_frozen
from benchmarks.sandbox.facts import COMPUTED, LETTERS, Question, draw_question, fact_digest, load_subjects
from benchmarks.sandbox.mixture import Renderer
from benchmarks.sandbox.mixture import document as training_document
from benchmarks.sandbox.prose import SLICES, document
from benchmarks.sandbox.ruler import KINDS, MIN_TOKENS, make
from q36eval.checkpoints import tokenizer_sha256
from q36eval.config import Paths
from q36eval.evals.frozen import Manifest
from q36eval.examples import Split, TextExample, draw

SEED = 20261
QUESTIONS_PER_SUBJECT = 15
SHOTS_PER_SUBJECT = 1
TYPOS_PER_QUESTION = 2
"""Exchanged neighbouring letters in a question, as people type them: a fact known by heart has no thin margin."""
SHORT_ANSWERS_PER_SUBJECT = 15
SHORT_ANSWER_SHOTS = 2
RULER_ITEMS = {256: 36, 512: 22, 1024: 8, 2048: 4}
"""Items per kind at each length, together 520; fewer of the long ones, which cost the most tokens. They suffice for a
branch without loss that flips 6 % of them. With more items the earlier ones stay the same."""
RULER_MOST = dict.fromkeys(("niah_multikey_1", "niah_multikey_2", "niah_multikey_3"), 0) | {"qa": 256, "vt": 1024}
"""The longest text of a kind that the reference can read: it finds no needle by its key."""
PERPLEXITY_SLICES = ("czech", "english")
PERPLEXITY_DOCUMENTS = 24
PERPLEXITY_TOKENS = (80, 230)
CORPUS_DOCUMENTS = 20
# Lengths are in the prose generators' approximate tokens, about 1.5 of the sandbox's.
CORPUS_TOKENS = (110, 260)
TOOL_DIALOGUE = "tool_dialogue"

Record = dict[str, Any]


def freeze_tasks(folder: Path, count_tokens: Callable[[str], int], tokenizer_sha256: str, seed: int = SEED) -> Manifest:
    """Write the eval tasks under `folder`: mmlu, short_answers (each with its dev split), ruler, perplexity."""
    files: dict[str, list[Record]] = {}
    for subject in (*load_subjects(), *COMPUTED):
        shots, questions = _subject_questions(subject, seed)
        name = subject.replace(" ", "_")
        files[f"mmlu_dev/{name}.jsonl"] = [_mmlu_record(shot) for shot in shots]
        files[f"mmlu/{name}.jsonl"] = [_mmlu_record(question) for question in questions]
        shots, questions = _short_answers(subject, seed)
        files[f"short_answers_dev/{name}.jsonl"] = [_short_answer_record(shot) for shot in shots]
        files[f"short_answers/{name}.jsonl"] = [_short_answer_record(question) for question in questions]
    for kind in (kind for kind in KINDS if RULER_MOST.get(kind) != 0):
        files[f"ruler/{kind}.jsonl"] = list(_ruler_records(kind, seed, count_tokens))
    for name in PERPLEXITY_SLICES:
        texts = _documents(f"{seed}/perplexity/{name}", name, PERPLEXITY_DOCUMENTS, PERPLEXITY_TOKENS)
        files[f"perplexity/{name}.jsonl"] = [
            {"slice": name, "cluster": f"{name}-{index:03d}", "text": text} for index, text in enumerate(texts)
        ]
    made_from = {"facts_sha256": fact_digest(), "tokenizer_sha256": tokenizer_sha256}
    return write_frozen(folder, "sandbox tasks", seed, files, made_from)


def freeze_corpus(folder: Path, tool_dialogues: Sequence[str], seed: int = SEED) -> Manifest:
    """Write the KL corpus under `folder`, a file per slice; records hold `id`, `slice` and `text`.

    `tool_dialogues` are ready texts, rendered by the caller from held-out conversations.
    """
    slices = {name: _documents(f"{seed}/corpus/{name}", name, CORPUS_DOCUMENTS, CORPUS_TOKENS) for name in SLICES}
    if tool_dialogues:
        slices[TOOL_DIALOGUE] = list(dict.fromkeys(tool_dialogues))
    files = {
        f"{name}.jsonl": [
            {"id": f"{name}-{index:03d}", "slice": name, "text": text} for index, text in enumerate(texts)
        ]
        for name, texts in slices.items()
    }
    return write_frozen(folder, "sandbox corpus", seed, files, {})


def _subject_questions(subject: str, seed: int) -> tuple[list[Question], list[Question]]:
    """The solved examples of a subject (training side) and its test questions, about other facts than those."""
    rng = random.Random(f"{seed}/mmlu/{subject}")
    shots = _distinct(rng, subject, "train", SHOTS_PER_SUBJECT, set())
    taken = {shot.fact for shot in shots}
    questions = _distinct(rng, subject, "test", QUESTIONS_PER_SUBJECT, taken, typos=TYPOS_PER_QUESTION)
    return shots, questions


def _short_answers(subject: str, seed: int) -> tuple[list[Question], list[Question]]:
    """As `_subject_questions`, of which only question and right choice are used; asked as training stated them."""
    rng = random.Random(f"{seed}/short_answers/{subject}")
    shots = _distinct(rng, subject, "train", SHORT_ANSWER_SHOTS, set())
    return shots, _distinct(rng, subject, "test", SHORT_ANSWERS_PER_SUBJECT, {shot.fact for shot in shots})


def _distinct(
    rng: random.Random, subject: str, split: Split, count: int, taken: set[str], *, typos: int = 0
) -> list[Question]:
    """Questions about `count` different facts, none of them `taken`; all facts alike, the rare as often as the common.

    Two questions about one fact would stand or fall together: one is asked.
    """
    questions: dict[str, Question] = {}
    while len(questions) < count:
        question = draw_question(rng, subject, split, exponent=0.0)
        if question.fact not in taken:
            text = with_typos(rng, question.text, typos)
            questions.setdefault(question.fact, replace(question, text=text))
    return list(questions.values())


def with_typos(rng: random.Random, text: str, count: int) -> str:
    """`text` with two neighbouring inner letters exchanged in `count` of its longer words (a word may be hit twice)."""
    words = text.split(" ")
    for _ in range(count):
        long_words = [index for index, word in enumerate(words) if len(word) >= 4 and word.isalpha()]
        if not long_words:
            break
        index = rng.choice(long_words)
        letters = list(words[index])
        at = rng.randrange(1, len(letters) - 2)
        letters[at], letters[at + 1] = letters[at + 1], letters[at]
        words[index] = "".join(letters)
    return " ".join(words)


def _mmlu_record(question: Question) -> Record:
    return {
        "subject": question.subject,
        "question": question.text,
        "choices": list(question.choices),
        "answer": question.answer,
        "answer_letter": LETTERS[question.answer],
        "cluster": f"{question.subject}|{question.fact}",
    }


def _short_answer_record(question: Question) -> Record:
    return {
        "subject": question.subject,
        "question": question.text,
        "answer": question.choices[question.answer],
        "cluster": f"{question.subject}|{question.fact}",
    }


def _ruler_records(kind: str, seed: int, count_tokens: Callable[[str], int]) -> Iterator[Record]:
    for length, wanted in RULER_ITEMS.items():
        if not MIN_TOKENS.get(kind, 0) <= length <= RULER_MOST.get(kind, length):
            continue
        rng = random.Random(f"{seed}/ruler/{kind}/{length}")
        for index in range(wanted):
            example = draw(partial(_make, kind, length, count_tokens), rng, "test")
            yield {
                "kind": kind,
                "length": length,
                "cluster": f"{kind}-{length}-{index}",
                "input": example.prompt,
                "outputs": example.expected["outputs"],
            }


def _make(kind: str, length: int, count_tokens: Callable[[str], int], rng: random.Random) -> TextExample:
    return make(kind, rng, length, count_tokens)


def _documents(seed: str, slice_name: str, count: int, tokens: tuple[int, int]) -> list[str]:
    rng = random.Random(seed)

    def generate(rng: random.Random) -> TextExample:
        return document(rng, slice_name, rng.randint(*tokens))

    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[draw(generate, rng, "test").answer] = None
    return list(texts)


TOOL_DIALOGUES = 20


def tool_dialogues(count: int = TOOL_DIALOGUES) -> list[str]:
    """Held-out tool conversations as text; every fourth one has no fitting tool."""
    renderer = Renderer()
    rng = random.Random(f"{SEED}/corpus/tool_dialogue")
    texts: list[str] = []
    while len(texts) < count:
        kind = "tool_none" if len(texts) % 4 == 3 else "tool_call"
        drawn = training_document(kind, rng, "test", renderer)
        text = drawn.prompt + drawn.answer
        if text not in texts:
            texts.append(text)
    return texts


def main() -> None:
    """Write data/tasks/sandbox and data/corpus/sandbox with their manifests."""
    from tokenizers import Tokenizer

    paths = Paths.default()
    reference: Path = paths.data / "sandbox" / "bf16"
    tokenizer = Tokenizer.from_file(str(reference / "tokenizer.json"))
    freeze_tasks(
        paths.data / "tasks" / "sandbox",
        lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        tokenizer_sha256(reference),
    )
    freeze_corpus(paths.data / "corpus" / "sandbox", tool_dialogues())


if __name__ == "__main__":
    main()
