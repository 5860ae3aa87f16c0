"""Prose parsed by simple rules, in linear time: words, sentences, bullets, scripts, its end, loops.

Repetition loops are found in one pass. No period is assumed, so loops that count or vary slightly are found, too: a
sequence is worn out after a few occurrences, and a long stretch of only worn-out sequences is a loop. Prose repeats
names and phrases, but never that many sequences in a row.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import regex

from q36eval.canaries.checks.base import WORDS, shown


class Piece(NamedTuple):
    """Characters `text[start:end]` of an answer."""

    start: int
    end: int


_RUN = re.compile(r"\S+")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BULLET = re.compile(
    r"^([ \t]{0,40})(?:\*\*|__)?([-‐‑–—―−](?![-‐‑–—―−\d])[ \t]*|[*•‣◦▪●○∙·+][ \t]+)(?=\S)", re.MULTILINE
)
DASHES = "-‐‑–—―−"
_LEADING = re.compile(r"[\s*_#>\"'„“‚‘»«]*")
_FIRST_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'“”’»)\]*_]*+(?=\s)|\n")
_SPACE = re.compile(r"\s{1,64}")
_ABBREVIATION = re.compile(
    r"(?<!\w)(?:např|tj|tzv|tzn|resp|mj|cca|kap|str|čl|odst|obr|č|čp|ul|nám|sv|p|sl|dr|mgr|ing|bc|prof|doc|mudr|judr"
    r"|rndr|tis|mil|mld|hod|e\.g|i\.e|mr|mrs|ms|vs|fig|approx|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|no)\.$",
    re.IGNORECASE,
)
_ROMAN = re.compile(r"(?<!\w)[IVXLC]{2,6}\.$")
_INITIAL = re.compile(r"(?:^|[.\n] ?|[A-ZÁČĎÉĚÍŇÓŘŠŤÚŮÝŽ]\w{0,12} )[A-ZÁČĎÉĚÍŇÓŘŠŤÚŮÝŽ]\.$")
_NUMBER_OF_LIST = re.compile(r"(?:^|\n)[ \t]{0,4}\d{1,3}\.$")
_ENDS_NOTHING = (_ABBREVIATION, _ROMAN, _INITIAL, _NUMBER_OF_LIST)
_LOOK_BACK = 16


def words(text: str) -> Iterator[Piece]:
    """Runs without white space that hold a letter or a digit."""
    return (Piece(*run.span()) for run in _RUN.finditer(text) if _LETTER_OR_DIGIT.search(text, *run.span()))


def first_word(text: str) -> Piece | None:
    """The first word, without preceding quotes, emphasis or heading marks; None if something else comes first."""
    leading = _LEADING.match(text)
    word = _FIRST_WORD.match(text, leading.end() if leading else 0)
    return None if word is None else Piece(*word.span())


class Bullet(NamedTuple):
    """A bullet point: its mark, its text on the same line, and whether it is nested."""

    mark: Piece
    text: Piece
    inner: bool


def bullets(text: str) -> list[Bullet]:
    """Every line that begins with a mark of bullet points, dashes without a space after them included. Numbered points
    are not bullets."""
    matches = [(len(match.group(1).expandtabs()), match) for match in _BULLET.finditer(text)]
    outermost = min((indent for indent, _ in matches), default=0)
    points = []
    for indent, match in matches:
        end = text.find("\n", match.end())
        mark = Piece(match.start(2), match.end(2))
        points.append(Bullet(mark, Piece(match.end(), len(text) if end < 0 else end), indent >= outermost + 2))
    return points


class CodeBlock(NamedTuple):
    """A fenced block of code with its fences, and the code within them."""

    outer: Piece
    inner: Piece


_FENCE_OPENS = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*$", re.MULTILINE)


def code_blocks(text: str) -> list[CodeBlock | None]:
    """The fenced blocks of an answer, after CommonMark; None for one that is not closed."""
    blocks: list[CodeBlock | None] = []
    at = 0
    while opening := _FENCE_OPENS.search(text, at):
        mark = opening.group(1)
        start = min(len(text), opening.end() + 1)
        closing = re.compile(rf"^ {{0,3}}{mark[0]}{{{len(mark)},}}[ \t\r]*$", re.MULTILINE).search(text, start)
        if closing is None:
            return [*blocks, None]
        at = closing.end()
        blocks.append(CodeBlock(Piece(opening.start(), at), Piece(start, max(start, closing.start() - 1))))
    return blocks


def sentences(text: str) -> list[Piece]:
    """The sentences: a line ends one unless it ends with a comma, and so do `.!?…` before white space that no
    lower-case letter follows.

    Within a line, a full stop ends none after an abbreviation, the initial of a name, a Roman numeral, the number of a
    list item, or a number before another (`3. 5. 2026`).
    """
    pieces, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        line_end = match.group() == "\n"
        if (line_end and text[start : match.start()].rstrip().endswith(",")) or not (line_end or _ends(text, match)):
            continue
        pieces.append(trimmed(text, start, match.end()))
        start = match.end()
    pieces.append(trimmed(text, start, len(text)))
    return [piece for piece in pieces if _LETTER_OR_DIGIT.search(text, piece.start, piece.end)]


def _ends(text: str, mark: re.Match[str]) -> bool:
    space = _SPACE.match(text, mark.end())
    if space is None or "\n" in space.group():
        return True
    after = text[space.end() : space.end() + 1]
    if after.islower():
        return False
    if mark.group() != ".":
        return True
    before = text[max(0, mark.start() - _LOOK_BACK) : mark.end()]
    if after.isdigit() and before[-2:-1].isdigit():
        return False
    return not any(pattern.search(before) for pattern in _ENDS_NOTHING)


def trimmed(text: str, start: int, end: int) -> Piece:
    """`text[start:end]` without surrounding white space."""
    inner = text[start:end]
    begin = start + len(inner) - len(inner.lstrip())
    return Piece(begin, max(begin, start + len(inner.rstrip())))


def scripts_exist(scripts: Sequence[str]) -> None:
    """Refuse a name that is not a Unicode script.

    Raises:
        ValueError: the sentence names it.
    """
    for script in scripts:
        try:
            _foreign((script,))
        except regex.error as error:
            raise ValueError(f"there is no Unicode script {shown(script)}") from error


def first_foreign(text: str, scripts: Sequence[str]) -> int | None:
    """The first letter of `text` that belongs to none of `scripts`; None without one."""
    letter = _foreign(tuple(scripts)).search(text)
    return None if letter is None else int(letter.start())


@lru_cache(maxsize=256)
def _foreign(scripts: tuple[str, ...]) -> "regex.Pattern[str]":
    """Letters of no script in `scripts`. A single Greek letter is a mathematical sign ("Δ = 50 Kč")."""
    for script in scripts:
        if not re.fullmatch(r"[A-Za-z_]{1,40}", script):
            raise regex.error(f"{script!r} is no name")
    known = "".join(rf"\p{{Script={script}}}" for script in scripts)
    sign = r"(?<!\p{L})\p{Script=Greek}(?!\p{L})"
    return regex.compile(rf"(?!{sign})[\p{{L}}--[{known}\p{{Script=Common}}\p{{Script=Inherited}}]]", regex.V1)


_END_MARKS = ".!?…"
_OPEN_MARKS = ",;:-–—(„"
_SMILEY = re.compile(r"[:;]-?[)D(]\s*\Z")
_ITEM = re.compile(r"^[ \t]{0,40}(?:[-*•–—+][ \t]*|\d{1,3}[.)][ \t]+|\|)(?=\S)")
_WORD_OR_NUMBER = re.compile(r"[^\W_]+")
_DANGLING = frozenset(WORDS["goes_on"].split())
"""Words after which a sentence continues. Some can end one, but rarely without a full stop."""

SIGNATURE_WORDS = 4
"""A separate last line of at most this many words may be a name or a greeting, which needs no full stop."""

LONG_SENTENCES = 3
"""Prose of more sentences than this without a last full stop was cut off."""


def breaks_off(text: str) -> str | None:
    """The last words of a text that ends within a sentence or a block of code; None if it ends properly.

    The last item of a list may omit its full stop if another item does; so may a signature, and a sentence or two.
    """
    said = text.rstrip()
    if not said or _SMILEY.search(said):
        return None
    if None in code_blocks(said):
        return "a block of code that is not closed"
    kept = _without_ornaments(said)
    if not kept or kept[-1] in _END_MARKS:
        return None
    lines = said.split("\n")
    last = lines[-1].strip()
    shown = last[-40:]
    words = _WORD_OR_NUMBER.findall(last)
    if not words or last.startswith(("```", "~~~")):
        return None
    if kept[-1] in _OPEN_MARKS or (words[-1].lower() in _DANGLING and words[-1].islower()):
        return shown
    if _ITEM.match(lines[-1]):
        others = [line for line in lines[:-1] if _ITEM.match(line)]
        ended = [line for line in others if _without_ornaments(line).endswith(tuple(_END_MARKS))]
        return shown if len(others) > 1 and len(ended) == len(others) and "|" not in last else None
    if len(words) <= SIGNATURE_WORDS and len(lines) > 1 and last[:1].isupper():
        return None
    return shown if len(sentences(said)) > LONG_SENTENCES else None


def _without_ornaments(text: str) -> str:
    """Without quotes, brackets, emphasis and emoji at the end."""
    end = len(text)
    while end and (text[end - 1].isspace() or text[end - 1] in "\"'“”’‘»«)]*_`~\ufe0f\u200d"
                   or unicodedata.category(text[end - 1]) in ("So", "Sk")):  # fmt: skip
        end -= 1
    return text[:end]


SEQUENCE_WORDS, WORN_OUT_WORDS, LOOP_WORDS = 4, 3, 24
"""24 words in a row whose sequences of 4 were all said at least 3 times before."""

SEQUENCE_CHARACTERS, WORN_OUT_CHARACTERS, LOOP_CHARACTERS = 12, 8, 120
"""The same by characters, for loops without spaces: 120 in a row, sequences of 12, said at least 8 times before."""

SAME_CHARACTER = 300
"""Longer than any ruled line."""

SENTENCE_WORDS, SENTENCE_TIMES = 6, 3
PARAGRAPH_WORDS, PARAGRAPH_TIMES = 20, 2
"""A sentence of this many words repeated this often is a loop; fewer repetitions suffice for a paragraph."""

WINDOW_WORDS, STEM_LETTERS, LEAST_VARIED = 60, 5, 0.5
"""In this many consecutive words, compared by their first letters, at least this share is distinct in sound prose; text
that repeats itself in other words is below it. Sentences with digits are excluded: sums repeat their words."""

MAX_SCANNED = 100_000
"""Characters examined at the start and at the end of a longer answer."""

_WORD = re.compile(r"[^\W\d_]+")
_TABLE_LINE = re.compile(r"^[ \t]{0,8}\|.*$", re.MULTILINE)
_SAME = re.compile(rf"(.)\1{{{SAME_CHARACTER - 1},}}", re.DOTALL)
_SENTENCE = re.compile(r"[^.!?…\n]+")
_LINE = re.compile(r"[^\n]+")
_DIGIT = re.compile(r"\d")
_BLANK_LINES = re.compile(r"\n(?:[ \t]{0,8}\n){49,}")


def first_loop(text: str) -> tuple[int, str] | None:
    """The position of the first loop, and the repeated text; None without one.

    In the lines of tables only characters are compared.
    """
    ends = [0] if len(text) <= MAX_SCANNED else [0, max(MAX_SCANNED, len(text) - MAX_SCANNED)]
    for start in ends:
        part = text[start : start + MAX_SCANNED]
        prose = _TABLE_LINE.sub(lambda line: " " * len(line.group()), part)
        loop = (
            _same_character(part)
            or _by_words(prose)
            or _by_characters(part)
            or _by_sentences(prose)
            or _by_variety(prose)
        )
        if loop is not None:
            return start + loop[0], loop[1]
    return None


def _same_character(text: str) -> tuple[int, str] | None:
    run = _SAME.search(text) or _BLANK_LINES.search(text)
    return None if run is None else (run.start(), run.group()[:12])


def _by_words(text: str) -> tuple[int, str] | None:
    """By words alone, so that an increasing number does not hide a loop."""
    spoken = [(match.start(), match.group().lower()) for match in _WORD.finditer(text)]
    sequences = (
        (spoken[at][0], tuple(word for _, word in spoken[at : at + SEQUENCE_WORDS]))
        for at in range(len(spoken) - SEQUENCE_WORDS + 1)
    )
    at = _worn_out_stretch(sequences, WORN_OUT_WORDS, LOOP_WORDS - SEQUENCE_WORDS + 1)
    return None if at is None else (at, text[at : at + 120])


def _by_characters(text: str) -> tuple[int, str] | None:
    at = _worn_out_stretch(_runs(text), WORN_OUT_CHARACTERS, LOOP_CHARACTERS - SEQUENCE_CHARACTERS + 1)
    return None if at is None else (at, text[at : at + 60])


def _by_sentences(text: str) -> tuple[int, str] | None:
    """The same sentence or paragraph, repeated."""
    for pieces, least, often in (
        (_SENTENCE, SENTENCE_WORDS, SENTENCE_TIMES),
        (_LINE, PARAGRAPH_WORDS, PARAGRAPH_TIMES),
    ):
        seen: Counter[tuple[str, ...]] = Counter()
        for match in pieces.finditer(text):
            words = tuple(word.lower() for word in _WORD.findall(match.group()))
            if len(words) >= least and not _DIGIT.search(match.group()):
                seen[words] += 1
                if seen[words] >= often:
                    return match.start(), match.group().strip()[:120]
    return None


def _by_variety(text: str) -> tuple[int, str] | None:
    """A long stretch with few different words."""
    stems: list[tuple[int, str]] = []
    for match in _SENTENCE.finditer(text):
        if not _DIGIT.search(match.group()):
            words = _WORD.finditer(text, match.start(), match.end())
            stems += [(word.start(), word.group().lower()[:STEM_LETTERS]) for word in words]
    inside: Counter[str] = Counter()
    for at, (_, stem) in enumerate(stems):
        inside[stem] += 1
        if at >= WINDOW_WORDS:
            left = stems[at - WINDOW_WORDS][1]
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
        if at >= WINDOW_WORDS - 1 and len(inside) < LEAST_VARIED * WINDOW_WORDS:
            begin = stems[at - WINDOW_WORDS + 1][0]
            return begin, text[begin : begin + 120]
    return None


def _runs(text: str) -> Iterator[tuple[int, str | None]]:
    """Every sequence of characters; None for ruled lines and other meaningless runs."""
    for at in range(len(text) - SEQUENCE_CHARACTERS + 1):
        run = text[at : at + SEQUENCE_CHARACTERS]
        yield at, run if _LETTER_OR_DIGIT.search(run) else None


def _worn_out_stretch(sequences: Iterable[tuple[int, object]], often: int, length: int) -> int | None:
    """The start of the first stretch of `length` sequences that each occurred at least `often` times before."""
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
