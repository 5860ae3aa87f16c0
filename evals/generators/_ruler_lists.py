"""RULER's kinds other than needles: variable tracking, common and frequent words, question answering."""

import random
import string

from q36eval.evals.generators._ruler_text import NOISE, Frame
from q36eval.evals.generators.prose import _english

LIST_WORDS = tuple(sorted({*_english.THINGS, *_english.JOBS, *_english.FOODS}))
TOWNS = ("Brno", "Prague", "Vienna", "Oslo", "Rome", "Lima", "Cairo", "Dublin", "Madrid", "Lisbon", "Warsaw", "Athens")
COMMON_WORDS = 3
FREQUENT_WORDS = 3


def variable_tracking(rng: random.Random, max_tokens: int) -> Frame:
    """One or two chains of 2 to 4 assignments in noise; the question asks for every variable of one chain."""
    hops, chains = rng.randint(2, 4), rng.choice((1, 2))
    names: list[str] = []
    while len(names) < (hops + 1) * chains:
        name = "".join(rng.choices(string.ascii_uppercase, k=3))
        if name not in names:
            names.append(name)
    values = rng.sample(range(10000, 100000), chains)
    lines: list[tuple[float, str]] = []
    for chain, value in enumerate(values):
        members = names[chain * (hops + 1) : (chain + 1) * (hops + 1)]
        depths = sorted(rng.random() for _ in members)
        sources = [str(value), *(f"VAR {member}" for member in members)]
        lines += [(d, f"VAR {m} = {s}.") for d, m, s in zip(depths, members, sources[:-1], strict=True)]
    lines.sort()
    outputs = tuple(names[: hops + 1])
    query = str(values[0])
    tail = (
        f"\nQuestion: Find all variables that are assigned the value {query} in the text above. Answer: According to "
        f"the chain(s) of variable assignment in the text above, {hops + 1} variables are assigned the value {query}, "
        "they are:"
    )
    return Frame(
        query=query,
        outputs=outputs,
        answer=f" {' '.join(outputs)}",
        head="Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
        tail=tail,
        filler=(NOISE,) * (max_tokens // 20),
        inserts=tuple(line for _, line in lines),
        depths=tuple(depth for depth, _ in lines),
    )


def common_words(rng: random.Random, max_tokens: int) -> Frame:
    """A numbered list in which three words appear far more often than any other."""
    size = max(18, max_tokens // 8)
    repeats = max(4, min(6, size // 5), size // 20)
    words = rng.sample(LIST_WORDS, COMMON_WORDS + 60)
    common, others = words[:COMMON_WORDS], words[COMMON_WORDS:]
    listed = common * repeats
    while len(listed) < size:
        listed.append(others[(len(listed) - COMMON_WORDS * repeats) % len(others)])
    rng.shuffle(listed)
    numbered = " ".join(f"{index}. {word}" for index, word in enumerate(listed, 1))
    outputs = tuple(sorted(common, key=listed.index))
    return Frame(
        query=numbered,
        outputs=outputs,
        answer="".join(f" {index}. {word}" for index, word in enumerate(outputs, 1)),
        head="Below is a numbered list of words. In these words, some appear more often than others. "
        "Memorize the ones that appear most often.\n",
        tail=f"{numbered}\nQuestion: What are the {COMMON_WORDS} most common words in the above list? "
        f"Answer: The top {COMMON_WORDS} words that appear most often in the list are:",
        filler=(),
    )


def frequent_words(rng: random.Random, max_tokens: int) -> Frame:
    """A coded text of invented words among dots; three words are clearly more frequent than the rest."""
    words: list[str] = []
    while len(words) < 24:
        word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2))
        if word not in words:
            words.append(word)
    size = max(24, max_tokens // 4)
    counts = (size * 9 // 30, size * 6 // 30, size * 4 // 30)
    coded = [word for word, count in zip(words, counts, strict=False) for _ in range(count)]
    while len(coded) < size:
        coded.append(rng.choice(words[FREQUENT_WORDS:]) if rng.random() < 0.6 else "....")
    rng.shuffle(coded)
    text = " ".join(coded)
    return Frame(
        query=text,
        outputs=tuple(words[:FREQUENT_WORDS]),
        answer=f" {' '.join(words[:FREQUENT_WORDS])}",
        head="Read the following coded text and track the frequency of each coded word. "
        "Find the three most frequently appeared coded words. ",
        tail=f"{text}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
        "three most frequently appeared words in the above coded text? Answer: According to the coded text above, the "
        "three most frequently appeared words are:",
        filler=(),
    )


def questions(rng: random.Random, max_tokens: int) -> Frame:
    """Short documents about people of our own; the question asks one thing about one of them."""
    count = max(2, min(24, max_tokens // 70))
    names = rng.sample(_english.NAMES, count)
    people = [(name, rng.choice(TOWNS), rng.choice(_english.JOBS), rng.choice(_english.THINGS)) for name in names]
    documents = [
        f"Document {number}:\n{name} lives in {town} and works as {_english.article(job)}. {_english.sentence(rng)} "
        f"At home {name} keeps an old {thing}."
        for number, (name, town, job, thing) in enumerate(people, 1)
    ]
    name, town, job, thing = rng.choice(people)
    query, answer = rng.choice(
        (
            (f"In which town does {name} live?", town),
            (f"What does {name} work as?", job),
            (f"What does {name} keep at home?", thing),
        )
    )
    instruction = (
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    )
    context = "\n\n".join(documents)
    return Frame(
        query=f"{query}|{context}",
        outputs=(answer,),
        answer=f" {answer}",
        head=f"{instruction}\n\nThe following are given documents.\n\n{context}",
        tail=f"\n\n{instruction}\n\nQuestion: {query} Answer:",
        filler=(),
    )
