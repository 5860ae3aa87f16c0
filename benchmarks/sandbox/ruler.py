"""RULER's kinds of task in the raw prompt form of lm-eval's `ruler`, with texts, words and people of our own.

RULER: Hsieh et al. 2024, arXiv 2404.06654. Lists and chains are smaller here, so that a tiny model can learn them.
"""

import random
import string
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from benchmarks.sandbox import prose_english
from benchmarks.sandbox.json_documents import ADJECTIVES, THINGS
from q36eval.examples import TextExample

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True)
class Frame:
    """A prompt still to be cut to length: `inserts[i]` goes at `depths[i]` (0..1, ascending) of the filler used.

    `answer` starts with its space; `outputs` are the strings that must all occur in a right answer.
    """

    query: str
    outputs: tuple[str, ...]
    answer: str
    head: str
    tail: str
    filler: tuple[str, ...]
    inserts: tuple[str, ...] = ()
    depths: tuple[float, ...] = ()
    separator: str = " "
    min_filler: int = 0

    def prompt(self, filler_used: int) -> str:
        """The prompt with the first `filler_used` pieces of filler."""
        pieces = list(self.filler[:filler_used])
        for index, (insert, depth) in enumerate(zip(self.inserts, self.depths, strict=True)):
            pieces.insert(int(depth * (filler_used + 1)) + index, insert)
        return self.head + self.separator.join(pieces) + self.tail


def fill(frame: Frame, max_tokens: int, count_tokens: Callable[[str], int]) -> tuple[str, str]:
    """The prompt with as much filler as fits beside the answer, and the answer.

    The tokens per piece are estimated from the whole filler, then corrected: at most 14 calls of `count_tokens`.

    Raises:
        ValueError: the prompt does not fit even with the least filler.
    """
    bare = count_tokens(frame.prompt(frame.min_filler) + frame.answer)
    if bare > max_tokens:
        raise ValueError(f"the prompt for {frame.query!r} takes {bare} tokens, more than {max_tokens}")
    room = len(frame.filler) - frame.min_filler
    if room <= 0:
        return frame.prompt(frame.min_filler), frame.answer
    sample = frame.separator.join(frame.filler[frame.min_filler : frame.min_filler + 40])
    per_piece = max(count_tokens(sample) / min(40, room), 0.5)
    used = frame.min_filler + min(room, int((max_tokens - bare) / per_piece))
    for _ in range(12):
        excess = count_tokens(frame.prompt(used) + frame.answer) - max_tokens
        if excess <= 0:
            return frame.prompt(used), frame.answer
        used = max(frame.min_filler, used - int(excess / per_piece) - 1)
    return frame.prompt(frame.min_filler), frame.answer


def needle_keys(rng: random.Random) -> Iterator[str]:
    """Endless keys such as "quiet-lamp"; a noun comes back only when all have been used."""
    seen: set[str] = set()
    while True:
        for noun in rng.sample(THINGS, len(THINGS)):
            key = f"{rng.choice(ADJECTIVES)}-{noun}"
            if key not in seen:
                seen.add(key)
                yield key


LIST_WORDS = tuple(sorted({*THINGS, *prose_english.JOBS, *prose_english.FOODS}))
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
    names = rng.sample(prose_english.NAMES, count)
    people = [(name, rng.choice(TOWNS), rng.choice(prose_english.JOBS), rng.choice(THINGS)) for name in names]
    documents = [
        f"Document {number}:\n{name} lives in {town} and works as {prose_english.article(job)}. "
        f"{prose_english.sentence(rng)} At home {name} keeps an old {thing}."
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


NIAH_KINDS = (
    "niah_single_1",
    "niah_single_2",
    "niah_single_3",
    "niah_multikey_1",
    "niah_multikey_2",
    "niah_multikey_3",
    "niah_multivalue",
    "niah_multiquery",
)
_LISTS: dict[str, Callable[[random.Random, int], Frame]] = {
    "vt": variable_tracking,
    "cwe": common_words,
    "fwe": frequent_words,
    "qa": questions,
}
KINDS = (*NIAH_KINDS, *_LISTS)

MIN_TOKENS = {"niah_multikey_3": 512, "niah_multiquery": 320, "niah_multivalue": 320}
"""Kinds whose needles alone do not fit a shorter text."""

SHORTEST_TOKENS = 256
TRAINING_LENGTHS = (256, 384, 512, 768, 1024, 1536, 2048)
TRAINING_WEIGHTS = (20, 10, 6, 3, 2, 1, 1)


def estimate_tokens(text: str) -> int:
    """A fast guess for a byte-level vocabulary of about a thousand tokens in which every digit is a token."""
    digits = sum(map(text.count, "0123456789-"))
    return digits + (len(text) - digits) * 10 // 31


def make(kind: str, rng: random.Random, max_tokens: int, count_tokens: Callable[[str], int]) -> TextExample:
    """One example of `kind` whose prompt and answer take at most `max_tokens`, and close to them.

    `count_tokens` is called a handful of times whatever the length.

    Raises:
        ValueError: an unknown kind, or a length in which the kind does not fit.
    """
    if kind not in KINDS:
        raise ValueError(f"no RULER kind is called {kind!r}; there are {', '.join(KINDS)}")
    if max_tokens < MIN_TOKENS.get(kind, SHORTEST_TOKENS):
        raise ValueError(f"{kind} needs at least {MIN_TOKENS.get(kind, SHORTEST_TOKENS)} tokens, not {max_tokens}")
    frame = _list_frame(kind, rng, max_tokens, count_tokens) if kind in _LISTS else _needles(kind, rng, max_tokens)
    prompt, answer = fill(frame, max_tokens, count_tokens)
    key = f"ruler|{kind}|{frame.query}|{answer}"
    return TextExample(key, prompt, answer, {"kind": kind, "max_tokens": max_tokens, "outputs": list(frame.outputs)})


LIST_SCALES = (1.0, 0.8, 0.65, 0.5, 0.4)


def _list_frame(kind: str, rng: random.Random, max_tokens: int, count_tokens: Callable[[str], int]) -> Frame:
    """A frame of a kind that has no filler to cut: drawn for less and less room until it fits."""
    for scale in LIST_SCALES:
        frame = _LISTS[kind](rng, int(max_tokens * scale))
        if count_tokens(frame.prompt(0) + frame.answer) <= max_tokens:
            break
    return frame


def ruler(
    rng: random.Random,
    kinds: tuple[str, ...] = KINDS,
    lengths: tuple[int, ...] = TRAINING_LENGTHS,
    weights: tuple[int, ...] = TRAINING_WEIGHTS,
    count_tokens: Callable[[str], int] = estimate_tokens,
) -> TextExample:
    """A random kind at a random length; a length too short for its kind is raised to the least that fits."""
    kind = rng.choice(kinds)
    length = max(rng.choices(lengths, weights)[0], MIN_TOKENS.get(kind, 0))
    return make(kind, rng, length, count_tokens)


def _value(rng: random.Random, form: str) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4)) if form == "uuid" else str(rng.randint(10**6, 10**7 - 1))


def _join(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + ", and " + words[-1]


def _needle(key: str, value: str, form: str) -> str:
    return f"One of the special magic {form}s for {key} is: {value}."


def _keys(kind: str, rng: random.Random) -> Iterator[str]:
    """Endless distinct keys of the form that `kind` asks for."""
    if kind != "niah_multikey_3":
        yield from needle_keys(rng)
    while True:
        yield _value(rng, "uuid")


def _needles(kind: str, rng: random.Random, max_tokens: int) -> Frame:
    form = "uuid" if kind in ("niah_single_3", "niah_multikey_3") else "number"
    values_wanted = 3 if kind == "niah_multivalue" else 1
    new_keys = _keys(kind, rng)
    keys = list(islice(new_keys, {"niah_multikey_1": 4, "niah_multiquery": 3}.get(kind, 1)))
    pairs = [(key, _value(rng, form)) for key in keys for _ in range(values_wanted)]
    keys_wanted = keys if kind == "niah_multiquery" else keys[:1]
    outputs = [value for key, value in pairs if key in keys_wanted]
    rng.shuffle(pairs)
    if kind == "niah_multivalue":
        outputs = [value for _, value in pairs]  # in the order in which they stand in the text
    head, tail = _ask(form, _join(keys_wanted), plural=len(outputs) > 1)
    return Frame(
        query=_join(keys_wanted),
        outputs=tuple(outputs),
        answer=f" {_join(outputs)}",
        head=head,
        tail=tail,
        inserts=tuple(_needle(key, value, form) for key, value in pairs),
        depths=tuple(sorted(rng.random() for _ in pairs)),
        filler=_filler(kind, rng, max_tokens, form, new_keys),
    )


def _ask(form: str, query: str, *, plural: bool) -> tuple[str, str]:
    """What stands before and after the text."""
    noun, verb = (f"{form}s", "are") if plural else (form, "is")
    hidden = f"Some special magic {form}s are" if plural else f"A special magic {form} is"
    phrase = f"the special magic {noun} for {query} mentioned in the provided text"
    head = (
        f"{hidden} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {noun} afterwards.\n"
    )
    return head, f"\nWhat {verb} {'all ' if plural else ''}{phrase}? T{phrase[1:]} {verb}"


def _filler(kind: str, rng: random.Random, max_tokens: int, form: str, keys: Iterator[str]) -> tuple[str, ...]:
    """More sentences than `max_tokens` can hold, of which `fill` takes as many as fit."""
    if kind == "niah_single_1":
        return (NOISE,) * (max_tokens // 20)
    if kind in ("niah_multikey_2", "niah_multikey_3"):
        pieces = max_tokens // (60 if form == "uuid" else 20)
        return tuple(_needle(key, _value(rng, form), form) for key in islice(keys, pieces))
    return tuple(prose_english.sentence(rng) for _ in range(max_tokens // 8))
