"""An answer as tokens: plain text first, then numbers with their units, signs, shops and words, each with its position.

The plain text has no Markdown emphasis, LaTeX or typographic characters. One pass each, linear.
"""

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from q36eval.canaries.checks.discount.words import Word, read_word, word_set

_ARROWS = "→⇒➔➜➡⟹⟶↦👉"
_REWRITES = {
    "×": r"(?<=[ \t])\*(?=[ \t])|(?<=[\d)%č])\*(?=[\d(])|[·⋅∙✕✖]|\\(?:times|cdot|ast)(?![a-zA-Z])",
    "÷": r"\\div(?![a-zA-Z])|÷|\}[ \t]{0,4}\{",
    "→": r"\\(?:Rightarrow|rightarrow|Longrightarrow|longrightarrow|implies|to|therefore)(?![a-zA-Z])"
    rf"|[{_ARROWS}]\ufe0f?|[-=]{{1,2}}>",
    "≈": r"\\(?:approx|doteq|simeq|sim)(?![a-zA-Z])|[≈≐≙≅]",
    "≤": r"\\leq?(?![a-zA-Z])|\\leqslant",
    "≥": r"\\geq?(?![a-zA-Z])|\\geqslant",
    "<": r"\\lt(?![a-zA-Z])|&lt;",
    ">": r"\\gt(?![a-zA-Z])|&gt;",
    ",": r"\{,\}",
    "%": r"\\%",
    "$": r"\\\$",
    " ": r"[\u00a0\u2007\u2009\u202f]|\\[,;: ]|\\q?quad(?![a-zA-Z])|\\hspace\{[^{}\n]{0,9}\}|~(?!~)(?<!~~)|&",
    "-": r"[\u2212\u2013\u2012\u2011]",
    "\n": r"\\\\(?:\[[^\]\n]{0,9}\])?|<br[ \t]?/?>",
    "9▯9": r"~~[^~\n]{0,200}~~",
    "A": r"[🅰Ⓐ]\ufe0f?",
    "B": r"[🅱Ⓑ]\ufe0f?",
    "C": r"Ⓒ",
    "": r"\\(?:begin|end)\{[a-zA-Z*]{1,20}\}(?:\{[|lcr@ ]{0,12}\})?"
    r"|[*`_${}]|\\[()\[\]!{}]|\\[a-zA-Z]{1,20}\*?|[\u200b\u200d\ufe0f\ufeff]",
}
"""Replacements for Markdown, LaTeX and typographic characters, in order of application."""

_WRITTEN = list(_REWRITES)
_REWRITE = re.compile("|".join(f"({pattern})" for pattern in _REWRITES.values()) + r"|[^\W\d_][\u0300-\u036f]")


class Plain(NamedTuple):
    """`text` to read; `original(at)` is the position in the answer of its character `at`."""

    text: str
    starts: list[int]
    offsets: list[int]

    def original(self, at: int) -> int:
        """The position in the answer of `text[at]`."""
        return at + self.offsets[bisect_right(self.starts, at) - 1]


def plain(answer: str) -> Plain:
    """Composed letters, ordinary spaces, minus and multiplication signs; no emphasis, no LaTeX around numbers.

    LaTeX fractions become quotients, its line breaks become line breaks, arrows one arrow. Text that is
    struck through becomes a number that cannot be read.
    """
    parts: list[str] = []
    starts, offsets = [0], [0]
    position = length = 0
    for match in _REWRITE.finditer(answer):
        kind = match.lastindex
        new = unicodedata.normalize("NFC", match.group()) if kind is None else _WRITTEN[kind - 1]
        parts += (answer[position : match.start()], new)
        length += match.start() - position + len(new)
        position = match.end()
        if length + offsets[-1] != position:
            starts.append(length)
            offsets.append(position - length)
    parts.append(answer[position:])
    return Plain("".join(parts), starts, offsets)


class Kind(StrEnum):
    """What a token is."""

    NUMBER = "number"
    OPERATOR = "operator"
    OPEN = "open"
    CLOSE = "close"
    EQUALS = "equals"
    RELATION = "relation"
    ARROW = "arrow"
    SHOP = "shop"
    WORD = "word"
    PERCENT = "percent"
    BREAK = "break"
    """A comma, semicolon, colon or dash: a clause may end there."""
    STOP = "stop"
    """`.`, `!`, `?` or `…` at the end of a sentence."""
    SMUDGE = "smudge"
    """A number with an unreadable digit."""
    OTHER = "other"


CROWNS, PERCENT, FOREIGN = "Kč", "%", "foreign"


@dataclass(frozen=True)
class Token:
    """`text[start:end]` of the plain text.

    `value` and `unit` belong to a number; `shop` is the letter of a shop; `ordinal` means that the shop is named by its
    position.
    """

    kind: Kind
    text: str
    start: int
    end: int
    value: Fraction = Fraction(0)
    unit: str = ""
    shop: str = ""
    ordinal: bool = False

    @property
    def lower(self) -> str:
        """For comparison with words."""
        return self.text.lower()

    @cached_property
    def word(self) -> Word:
        """Its meaning as a word; empty if it is not one."""
        return read_word(self.text) if self.kind is Kind.WORD else Word()

    @property
    def is_money(self) -> bool:
        """Whether it is a number that may be an amount of crowns."""
        return self.kind is Kind.NUMBER and self.unit != PERCENT


_SHOP_NOUN = r"(?:e-?shop|obchůd|obchod|nabíd|prodejn|variant|možnost|dodavatel|prodejc|prodávajíc|shop|store)\w{0,6}"
_LETTER = r"[ABC](?![\w'’])"
_ORDINALS = {"prv": "A", "dru": "B", "tře": "C"}
_ORDINAL = r"(?:prvn\w{1,3}|druh(?:ý|á|é|ého|ém|ému|ou|ým)|třet\w{1,3})"
_NUMBER = (
    r"(?<![0-9,.])[0-9]{1,3}(?:[ .,][0-9]{3}){1,4}(?![0-9])(?:,[0-9]{1,2}(?![0-9]))?"
    r"|[0-9]{1,15}(?:[.,][0-9]{1,6}(?![0-9]))?"
)
_CROWNS = r"[ \t]{0,3}(?:Kč|KČ|kč|Kc|CZK|korun\w{0,3}(?!\w))|,-{1,2}(?![0-9])"
_FOREIGN = (
    r"[ \t]{0,3}(?:€|\$|£|zł|(?:EUR|USD|PLN|tis|mil|mld|euro?|eur[ay]?|dolar\w{0,2}|zlot\w{0,3}|tisíc\w{0,2}"
    r"|haléř\w{0,2})(?!\w))"
)
_NO_DIGIT = r"[?_#X\u25a0-\u25af\ufffd]"
_TOKEN = re.compile(
    rf"(?P<marker>^[ \t>#]{{0,12}}\(?[0-9]{{1,2}}[.)](?=[ \t]))"
    rf"|(?P<smudge>[0-9](?:[ .]?[0-9]){{0,5}}{_NO_DIGIT}[0-9]{{1,3}}(?![\w])|[0-9][ .]?[A-Z][0-9]{{1,3}}(?!\w))"
    rf"|(?P<number>(?P<digits>{_NUMBER})(?:(?P<crowns>{_CROWNS})|(?P<foreign>{_FOREIGN})|(?P<percents>[ \t]{{0,3}}%))?)"
    rf"|(?P<shop>(?i:(?<!\w){_SHOP_NOUN})[ \t]{{1,3}}(?:č\.[ \t])?[\"'„“(]{{0,2}}(?P<letter>{_LETTER}))"
    rf"|(?P<ordinal>(?i:(?<!\w)(?P<rank>{_ORDINAL})[ \t]{{1,3}}(?:z[ \t])?{_SHOP_NOUN}(?!\w)))"
    rf"|(?P<pronoun>(?i:(?<!\w)(?:ten|tom|toho|tomu|tu|té|ta|ve?|ze?|u|do)[ \t]{{1,3}}(?P<rank2>{_ORDINAL})"
    rf"(?=[ \t]{{0,3}}(?:[,.!?)\n-]|\Z)|[ \t]{{1,3}}(?:je|vyjde|vychází|zaplat\w{{1,4}}|stojí|ušetř\w{{1,4}}"
    rf"|nakoup\w{{1,4}}|koup\w{{1,4}}|pořídí\w{{0,3}}|jmenovan\w{{1,3}}|uveden\w{{1,3}}|zmíněn\w{{1,3}})(?!\w))))"
    rf"|(?P<nickname>(?<!\w)(?i:áčk|béčk|céčk)\w{{1,3}})"
    rf"|(?P<bare>(?<![\w'’]){_LETTER})"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)?)"
    r"|(?P<operator>[-+×÷/])"
    r"|(?P<equals>[=≈])"
    r"|(?P<relation>[<>≤≥≠])"
    r"|(?P<arrow>→)"
    r"|(?P<open>\()|(?P<close>\))"
    r"|(?P<percent>%)"
    r"|(?P<stop>[.!?…]+)"
    r"|(?P<break>[:,;—|])"
    r"|(?P<other>[^\s])",
    re.MULTILINE,
)
_WORD_OPERATORS = {"minus": "-", "mínus": "-", "plus": "+", "krát": "×", "děleno": "÷", "lomeno": "÷", "x": "×"}
_AFTER_CONJUNCTION = word_set(
    """proto tak to co když pokud nakonec teď pak potom také taky navíc ještě dál dále přitom pozor určitě jen"""
)
_ENDS_NO_SENTENCE = word_set("tj tzn tzv resp vs cca tis např č mj max min popř příp vč kupř")


def number_value(number: str) -> Fraction:
    """2 450, 2.450 and 2,450 are thousands (three digits follow), 2450,50 and 0,125 have a decimal comma."""
    if re.match(r"[1-9][0-9]{0,2}(?:[ .,][0-9]{3})+(?![0-9])", number):
        number = re.sub(r"[ .,](?=[0-9]{3})", "", number)
    digits = number.replace(",", ".").replace(" ", "")
    return Fraction(digits.replace(".", "", digits.count(".") - 1))  # of several, as in 0.000,5, the last is decimal


def lines_of(text: str) -> list[list[Token]]:
    """The tokens of every line of plain text; a line that begins with `=` continues the one before."""
    lines: list[list[Token]] = []
    at = 0
    for line in text.split("\n"):
        tokens = _tokens_of_line(line, at)
        at += len(line) + 1
        if tokens and tokens[0].kind is Kind.EQUALS and lines and any(lines[-1]):
            lines[-1] += tokens
        else:
            lines.append(tokens)
    return lines


def _tokens_of_line(line: str, offset: int) -> list[Token]:
    tokens: list[Token] = []
    for match in _TOKEN.finditer(line):
        token = _token(line, match, offset, tokens)
        if token is not None:
            tokens.append(token)
    return tokens


def _token(line: str, match: re.Match[str], offset: int, before: list[Token]) -> Token | None:
    kind = match.lastgroup or "other"
    text, start, end = match.group(), offset + match.start(), offset + match.end()

    def of(new: Kind, **more: object) -> Token:
        return Token(new, text, start, end, **more)  # type: ignore[arg-type]  # values by field name

    if match.group("number"):
        return _number(match, offset, before)
    if match.group("shop"):
        return of(Kind.SHOP, shop=match.group("letter"))
    if match.group("ordinal") or match.group("pronoun"):
        rank = (match.group("rank") or match.group("rank2")).lower()
        return of(Kind.SHOP, shop=_ORDINALS[rank[:3]], ordinal=True)
    if kind == "nickname":
        return of(Kind.SHOP, shop={"á": "A", "b": "B", "c": "C"}[text[0].lower()])
    if kind == "bare":
        return None if _is_conjunction(line, match, before) else of(Kind.SHOP, shop=text)
    sign = _WORD_OPERATORS.get(text.lower())
    if sign is not None and (text.lower() != "x" or (before and before[-1].kind in _ENDS_TERM)):
        return Token(Kind.OPERATOR, sign, start, end)
    if kind == "operator":
        return Token(Kind.OPERATOR, "÷" if text == "/" else text, start, end)
    if kind == "stop":
        return _stop(line, match, of(Kind.STOP), before)
    if kind == "marker":
        return None
    return of(Kind(kind))


def _number(match: re.Match[str], offset: int, before: list[Token]) -> Token:
    digits = match.group("digits")
    unit = CROWNS if match.group("crowns") else PERCENT if match.group("percents") else ""
    start = offset + match.start()
    if match.group("foreign") or (before and before[-1].text in "€£" and start - before[-1].end <= 1):
        unit = FOREIGN
    return Token(Kind.NUMBER, match.group(), start, offset + match.end("digits"), number_value(digits), unit)


_ENDS_TERM = (Kind.NUMBER, Kind.CLOSE, Kind.PERCENT)


def _is_conjunction(line: str, match: re.Match[str], before: list[Token]) -> bool:
    """Whether a single `A` is the word "and" at the beginning of a sentence."""
    if match.group() != "A" or (before and before[-1].kind is not Kind.STOP):
        return False
    following = re.match(r"[ \t]{1,3}([^\W\d_]{2,})", line[match.end() : match.end() + 40])
    word = following.group(1).lower() if following else ""
    known = read_word(word).meanings or ":" in line  # "A po první slevě: 4 950 Kč"
    return word in _AFTER_CONJUNCTION or (bool(word) and not known)


def _stop(line: str, match: re.Match[str], token: Token, before: list[Token]) -> Token:
    after = line[match.end() : match.end() + 2]
    inside = after[:1].strip() and after[:1] not in "\"'“”)]"
    abbreviated = token.text == "." and (
        (before and before[-1].kind is Kind.WORD and before[-1].lower in _ENDS_NO_SENTENCE)
        or (before and before[-1].kind is Kind.NUMBER and after[1:2].islower())
        or (before and before[-1].kind is Kind.NUMBER and before[-1].value < 10 and not before[-1].unit)
    )
    return Token(Kind.OTHER, token.text, token.start, token.end) if inside or abbreviated else token
