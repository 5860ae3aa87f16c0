"""Prose taken apart: words, sentences, bullets. Simple rules, stated here; every one takes linear time."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Piece(NamedTuple):
    """Characters `text[start:end]` of an answer."""

    start: int
    end: int


_RUN = re.compile(r"\S+")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_BULLET = re.compile(r"^([ \t]{0,40})[-*•–‣◦][ \t]+(?=\S)", re.MULTILINE)
_ANY_MARK = re.compile(
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
    """The first word, without the quotes, emphasis or heading marks before it; None where something else begins."""
    leading = _LEADING.match(text)
    word = _FIRST_WORD.match(text, leading.end() if leading else 0)
    return None if word is None else Piece(*word.span())


def bullets(text: str) -> list[Piece]:
    """The marks of the bullet points of the outermost level. Numbered points are not bullets."""
    found = [(len(match.group(1).expandtabs()), match) for match in _BULLET.finditer(text)]
    outermost = min((indent for indent, _ in found), default=0)
    return [Piece(match.end(1), match.end()) for indent, match in found if indent < outermost + 2]


class Bullet(NamedTuple):
    """A bullet point: its mark, its text on the same line, and whether it stands within another one."""

    mark: Piece
    text: Piece
    inner: bool


def all_bullets(text: str) -> list[Bullet]:
    """Every line that begins with a mark of bullet points, dashes without a space after them included."""
    found = [(len(match.group(1).expandtabs()), match) for match in _ANY_MARK.finditer(text)]
    outermost = min((indent for indent, _ in found), default=0)
    points = []
    for indent, match in found:
        end = text.find("\n", match.end())
        mark = Piece(match.start(2), match.end(2))
        points.append(Bullet(mark, Piece(match.end(), len(text) if end < 0 else end), indent >= outermost + 2))
    return points


def sentences(text: str) -> list[Piece]:
    """The sentences: a line ends one unless it ends with a comma, and so do `.!?…` before white space that no
    lower-case letter follows.

    Within a line, a full stop ends none after an abbreviation, the initial of a name, a Roman numeral, the number of a
    list item, or a number before another (`3. 5. 2026`).
    """
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        line_end = match.group() == "\n"
        if (line_end and text[start : match.start()].rstrip().endswith(",")) or not (line_end or _ends(text, match)):
            continue
        found.append(_trimmed(text, start, match.end()))
        start = match.end()
    found.append(_trimmed(text, start, len(text)))
    return [piece for piece in found if _LETTER_OR_DIGIT.search(text, piece.start, piece.end)]


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


def _trimmed(text: str, start: int, end: int) -> Piece:
    inner = text[start:end]
    begin = start + len(inner) - len(inner.lstrip())
    return Piece(begin, max(begin, start + len(inner.rstrip())))
