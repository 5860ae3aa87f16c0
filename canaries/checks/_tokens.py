"""An answer taken apart: numbers with their units, signs, shops and words, each with its place. One pass, linear."""

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property

from q36eval.canaries.checks._lexicon import Word, number_word, read_word, word_set


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
    CURRENCY = "currency"
    PERCENT = "percent"
    BREAK = "break"
    """A comma, semicolon, colon or dash: a clause may end there."""
    STOP = "stop"
    """`.`, `!`, `?` or `…` at the end of a sentence."""
    SMUDGE = "smudge"
    """A number of which a digit cannot be read."""
    OTHER = "other"


CROWNS, PERCENT, FOREIGN = "Kč", "%", "foreign"
THOUSAND = 1000


@dataclass(frozen=True)
class Token:
    """`text[start:end]` of the plain text, or some words of it that make one number.

    `value` and `unit` are a number's; `shop` is the letter of a shop; `ordinal` says that it is named by its place.
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
        """What it means as a word; nothing where it is none."""
        return read_word(self.text) if self.kind is Kind.WORD else Word()

    def as_sign(self, kind: Kind, sign: str) -> "Token":
        """A word that stands for a sign: "z" of a percentage, "je" for equals."""
        return Token(kind, sign, self.start, self.end)

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
    rf"|(?P<money_before>[€£](?=[ \t]?[0-9]))"
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
    r"|(?P<colon>:)"
    r"|(?P<break>[,;—|])"
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
    grouped = re.fullmatch(r"([1-9][0-9]{0,2}(?:[ .,][0-9]{3})+)(?:,([0-9]{1,2}))?", number)
    if grouped:
        return Fraction(f"{re.sub(r'[ .,]', '', grouped.group(1))}.{grouped.group(2) or '0'}")
    if len(re.findall(r"[.,]", number)) > 1:
        return Fraction(re.sub(r"[ .,]", "", number))
    return Fraction(number.replace(",", ".").replace(" ", ""))


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
    found: list[Token] = []
    for match in _TOKEN.finditer(line):
        token = _token(line, match, offset, found)
        if token is not None:
            found.append(token)
    return _with_number_words(found)


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
    if kind == "word":
        return _word(of(Kind.WORD), before)
    if kind == "colon":
        divides = _divides(line, match, before)
        return Token(Kind.OPERATOR, "÷", start, end) if divides else of(Kind.BREAK)
    if kind == "operator":
        return Token(Kind.OPERATOR, "÷" if text == "/" else text, start, end)
    if kind == "stop":
        return _stop(line, match, of(Kind.STOP), before)
    if kind == "marker":
        return None
    kinds = {"money_before": Kind.OTHER, "break": Kind.BREAK}
    return of(kinds.get(kind) or Kind(kind))


def _number(match: re.Match[str], offset: int, before: list[Token]) -> Token:
    digits = match.group("digits")
    unit = CROWNS if match.group("crowns") else PERCENT if match.group("percents") else ""
    start = offset + match.start()
    if match.group("foreign") or (before and before[-1].text in "€£" and start - before[-1].end <= 1):
        unit = FOREIGN
    return Token(Kind.NUMBER, match.group(), start, offset + match.end("digits"), number_value(digits), unit)


def _word(token: Token, before: list[Token]) -> Token:
    sign = _WORD_OPERATORS.get(token.lower)
    if sign is not None and (token.lower != "x" or (before and before[-1].kind in _ENDS_TERM)):
        return token.as_sign(Kind.OPERATOR, sign)
    if token.lower in ("kč", "czk", "korun", "koruny"):
        return Token(Kind.CURRENCY, token.text, token.start, token.end)
    return token


_ENDS_TERM = (Kind.NUMBER, Kind.CLOSE, Kind.CURRENCY, Kind.PERCENT)


def _is_conjunction(line: str, match: re.Match[str], before: list[Token]) -> bool:
    """Whether a single `A` is the word "and" at the beginning of a sentence."""
    if match.group() != "A" or (before and before[-1].kind is not Kind.STOP):
        return False
    following = re.match(r"[ \t]{1,3}([^\W\d_]+)", line[match.end() : match.end() + 40])
    if following is None:
        return False
    if following.group(1) in ("A", "B", "C"):
        return False
    word = following.group(1).lower()
    label, colon, _ = line[match.end() :].partition(":")
    if colon and not before and word not in _AFTER_CONJUNCTION and not re.search(r"(?<!\w)[ABC](?!\w)", label):
        return False  # "A po první slevě: 4 950 Kč"
    return word in _AFTER_CONJUNCTION or not (read_word(word).is_verb or read_word(word).meanings)


def _divides(line: str, match: re.Match[str], before: list[Token]) -> bool:
    """A colon between numbers divides where both sides are spaced alike; after a label it does not."""
    if not before or before[-1].kind not in _ENDS_TERM or before[-1].unit == PERCENT:
        return False
    after = line[match.end() : match.end() + 4]
    spaced = line[match.start() - 1 : match.start()].isspace()
    return bool(re.match(r"[ \t]{1,3}[0-9(]" if spaced else r"[0-9(]", after))


def _stop(line: str, match: re.Match[str], token: Token, before: list[Token]) -> Token:
    after = line[match.end() : match.end() + 2]
    inside = after[:1].strip() and after[:1] not in "\"'“”)]"
    abbreviated = token.text == "." and (
        (before and before[-1].kind is Kind.WORD and before[-1].lower in _ENDS_NO_SENTENCE)
        or (before and before[-1].kind is Kind.NUMBER and after[1:2].islower())
        or (before and before[-1].kind is Kind.NUMBER and before[-1].value < 10 and not before[-1].unit)
    )
    return Token(Kind.OTHER, token.text, token.start, token.end) if inside or abbreviated else token


def _with_number_words(tokens: list[Token]) -> list[Token]:
    """Numbers that are written out ("pět set korun", "stovku") as numbers."""
    found: list[Token] = []
    at = 0
    while at < len(tokens):
        total, value, taken, money = Fraction(0), Fraction(0), at, False
        while taken < len(tokens) and taken < at + 6 and tokens[taken].kind is Kind.WORD:
            read = number_word(tokens[taken].lower)
            if read is None:
                break
            if not read.multiplies:
                value += read.value
            elif read.value == THOUSAND:
                total, value = total + (value or 1) * read.value, Fraction(0)
            else:
                value = (value or 1) * read.value
            money = money or read.money
            taken += 1
        value += total
        if taken == at:
            found.append(tokens[at])
            at += 1
            continue
        unit = CROWNS if money or (taken < len(tokens) and tokens[taken].kind is Kind.CURRENCY) else ""
        if unit != CROWNS:
            found += tokens[at:taken]
        else:
            text = " ".join(token.text for token in tokens[at:taken])
            found.append(Token(Kind.NUMBER, text, tokens[at].start, tokens[taken - 1].end, value, unit))
        at = taken
    return found
