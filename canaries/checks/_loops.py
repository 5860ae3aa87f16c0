"""Repetition loops, found in one pass: no period is guessed, so loops that count or vary a little are found too.

A sequence is worn out once it was said a few times before; a long stretch of nothing but worn-out sequences is a loop.
Prose repeats names and phrases, but never so many sequences in a row.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

SEQUENCE_WORDS, WORN_OUT_WORDS, LOOP_WORDS = 4, 3, 24
"""24 words in a row whose sequences of 4 were all said at least 3 times before."""

SEQUENCE_CHARACTERS, WORN_OUT_CHARACTERS, LOOP_CHARACTERS = 12, 8, 120
"""The same by characters, for loops without spaces: 120 in a row, sequences of 12, said at least 8 times before."""

SAME_CHARACTER = 300
"""More of one character in a row than any ruled line is long."""

SENTENCE_WORDS, SENTENCE_TIMES = 6, 3
PARAGRAPH_WORDS, PARAGRAPH_TIMES = 20, 2
"""A sentence of so many words that comes so often is a loop; of a paragraph it takes less."""

WINDOW_WORDS, STEM_LETTERS, LEAST_VARIED = 60, 5, 0.5
"""Of so many words in a row, told apart by their first letters, at least this share differs in prose that goes on; one
that says the same in ever other words falls below it. Sentences with digits are left out: sums repeat their words."""

MAX_SCANNED = 100_000
"""Characters looked at from the beginning and from the end of a longer answer."""

_WORD = re.compile(r"[^\W\d_]+")
_TABLE_LINE = re.compile(r"^[ \t]{0,8}\|.*$", re.MULTILINE)
_SAME = re.compile(rf"(.)\1{{{SAME_CHARACTER - 1},}}", re.DOTALL)
_SENTENCE = re.compile(r"[^.!?…\n]+")
_LINE = re.compile(r"[^\n]+")
_DIGIT = re.compile(r"\d")
_BLANK_LINES = re.compile(r"\n(?:[ \t]{0,8}\n){49,}")
_SAY_SOMETHING = re.compile(r"[^\W_]")


def first_loop(text: str) -> tuple[int, str] | None:
    """Where the first loop that is found begins to be one, and what goes round; None where there is none."""
    ends = [0] if len(text) <= MAX_SCANNED else [0, max(MAX_SCANNED, len(text) - MAX_SCANNED)]
    for start in ends:
        part = text[start : start + MAX_SCANNED]
        found = (
            _same_character(part) or _by_words(part) or _by_characters(part) or _by_sentences(part) or _by_variety(part)
        )
        if found is not None:
            return start + found[0], found[1]
    return None


def _same_character(text: str) -> tuple[int, str] | None:
    found = _SAME.search(text) or _BLANK_LINES.search(text)
    return None if found is None else (found.start(), found.group()[:12])


def _by_words(text: str) -> tuple[int, str] | None:
    """By words alone, so that a number that goes up hides no loop. Lines of tables are left out."""
    prose = _TABLE_LINE.sub(lambda line: " " * len(line.group()), text)
    found = [(match.start(), match.group().lower()) for match in _WORD.finditer(prose)]
    sequences = (
        (found[at][0], tuple(word for _, word in found[at : at + SEQUENCE_WORDS]))
        for at in range(len(found) - SEQUENCE_WORDS + 1)
    )
    at = _worn_out_stretch(sequences, WORN_OUT_WORDS, LOOP_WORDS - SEQUENCE_WORDS + 1)
    return None if at is None else (at, text[at : at + 120])


def _by_characters(text: str) -> tuple[int, str] | None:
    at = _worn_out_stretch(_runs(text), WORN_OUT_CHARACTERS, LOOP_CHARACTERS - SEQUENCE_CHARACTERS + 1)
    return None if at is None else (at, text[at : at + 60])


def _by_sentences(text: str) -> tuple[int, str] | None:
    """The same sentence, or the same paragraph, again and again; lines of tables and of code count for nothing."""
    prose = _TABLE_LINE.sub(lambda line: " " * len(line.group()), text)
    for pieces, least, often in (
        (_SENTENCE, SENTENCE_WORDS, SENTENCE_TIMES),
        (_LINE, PARAGRAPH_WORDS, PARAGRAPH_TIMES),
    ):
        seen: Counter[tuple[str, ...]] = Counter()
        for match in pieces.finditer(prose):
            words = tuple(word.lower() for word in _WORD.findall(match.group()))
            if len(words) >= least and not _DIGIT.search(match.group()):
                seen[words] += 1
                if seen[words] >= often:
                    return match.start(), match.group().strip()[:120]
    return None


def _by_variety(text: str) -> tuple[int, str] | None:
    """A long stretch with few different words."""
    found: list[tuple[int, str]] = []
    for match in _SENTENCE.finditer(_TABLE_LINE.sub(lambda line: " " * len(line.group()), text)):
        if not _DIGIT.search(match.group()):
            words = _WORD.finditer(text, match.start(), match.end())
            found += [(word.start(), word.group().lower()[:STEM_LETTERS]) for word in words]
    inside: Counter[str] = Counter()
    for at, (_, stem) in enumerate(found):
        inside[stem] += 1
        if at >= WINDOW_WORDS:
            left = found[at - WINDOW_WORDS][1]
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
        if at >= WINDOW_WORDS - 1 and len(inside) < LEAST_VARIED * WINDOW_WORDS:
            begin = found[at - WINDOW_WORDS + 1][0]
            return begin, text[begin : begin + 120]
    return None


def _runs(text: str) -> Iterator[tuple[int, str | None]]:
    """Every sequence of characters; None for ruled lines and other runs that say nothing."""
    saying = [match.start() for match in _SAY_SOMETHING.finditer(text)]
    following = 0
    for at in range(len(text) - SEQUENCE_CHARACTERS + 1):
        while following < len(saying) and saying[following] < at:
            following += 1
        says = following < len(saying) and saying[following] < at + SEQUENCE_CHARACTERS
        yield at, text[at : at + SEQUENCE_CHARACTERS] if says else None


def _worn_out_stretch(sequences: Iterable[tuple[int, object]], often: int, length: int) -> int | None:
    """Where the first stretch of `length` sequences begins that were each seen at least `often` times before."""
    seen: dict[object, int] = {}
    begin, run = 0, 0
    for at, sequence in sequences:
        before = seen.get(sequence, 0) if sequence is not None else 0
        if sequence is not None:
            seen[sequence] = before + 1
        if before < often:
            run = 0
            continue
        begin = at if run == 0 else begin
        run += 1
        if run >= length:
            return begin
    return None
