"""RULER's kinds of task in the raw prompt form of lm-eval's `ruler`, with texts, words and people of our own.

RULER: Hsieh et al. 2024, arXiv 2404.06654. Lists and chains are smaller here, so that a tiny model can learn them.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from itertools import islice

from q36eval.evals.generators._ruler_lists import common_words, frequent_words, questions, variable_tracking
from q36eval.evals.generators._ruler_text import NOISE, Frame, fill, needle_keys
from q36eval.evals.generators.prose import _english
from q36eval.examples import TextExample

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
    asked = keys if kind == "niah_multiquery" else keys[:1]
    outputs = [value for key, value in pairs if key in asked]
    rng.shuffle(pairs)
    if kind == "niah_multivalue":
        outputs = [value for _, value in pairs]  # in the order in which they stand in the text
    head, tail = _ask(form, _join(asked), plural=len(outputs) > 1)
    return Frame(
        query=_join(asked),
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
    asked = f"the special magic {noun} for {query} mentioned in the provided text"
    head = (
        f"{hidden} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {noun} afterwards.\n"
    )
    return head, f"\nWhat {verb} {'all ' if plural else ''}{asked}? T{asked[1:]} {verb}"


def _filler(kind: str, rng: random.Random, max_tokens: int, form: str, keys: Iterator[str]) -> tuple[str, ...]:
    """More sentences than `max_tokens` can hold, of which `fill` takes as many as fit."""
    if kind == "niah_single_1":
        return (NOISE,) * (max_tokens // 20)
    if kind in ("niah_multikey_2", "niah_multikey_3"):
        pieces = max_tokens // (60 if form == "uuid" else 20)
        return tuple(_needle(key, _value(rng, form), form) for key in islice(keys, pieces))
    return tuple(_english.sentence(rng) for _ in range(max_tokens // 8))
