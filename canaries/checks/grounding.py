"""Whether prose around a structured answer is grounded in the conversation: numbers, dates, yes or no.

A program does not understand prose. But a number or date that is neither in the question nor in the answer's data was
invented or misread; and a word that the question affirms must not be negated.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from q36eval.canaries.checks.base import WORDS, Failure, place_of, shown
from q36eval.canaries.checks.prose import Piece


class Claim(NamedTuple):
    """A statement without support in the question: its first character and its words."""

    at: int
    said: str


_NUMBER = re.compile(r"\d{1,3}(?:[ \u00a0\u202f.,]\d{3})+(?!\d)|\d+", re.ASCII)
_DIGITS = re.compile(r"\d+", re.ASCII)
_PERIOD = re.compile(
    r"[ \u00a0-]{0,2}(?:hodin|dn[íůye]|den|minut|pracovn|týdn|hours?\b|days?\b|minutes?\b|business|/7)"
)
"""A promise such as "within 24 hours" is not a statement about the matter."""

_ISO_DATE = re.compile(r"(?<!\d)(\d{4})-(\d{2})-(\d{2})(?!\d)", re.ASCII)
_CZECH_DATE = re.compile(r"(?<!\d)(\d{1,2})\.[ \u00a0]?(\d{1,2})\.[ \u00a0]?(\d{4})(?!\d)", re.ASCII)
_MONTH_NUMBERS = {name: number for number, names in enumerate(WORDS["months"], 1) for name in names}
_MONTH = "|".join(sorted(_MONTH_NUMBERS, key=len, reverse=True))
_DAY_FIRST = re.compile(rf"(?<!\d)(\d{{1,2}})(?:\.|st|nd|rd|th)?[ \u00a0](?:of )?({_MONTH})\b", re.I)
_MONTH_FIRST = re.compile(rf"\b({_MONTH})\.?[ \u00a0](\d{{1,2}})(?:st|nd|rd|th)?\b(?![ \u00a0,.]\d{{3}}(?!\d))", re.I)


_MOST_COMPARED = 40
_AMOUNT_DIGITS = 5
"""The maximum of numbers for sums and differences, and their minimum of digits, which excludes years and counts."""

_MONEY = re.compile(r"[ \u00a0]?(?:Kč|korun|CZK|EUR|€|,-|crowns)")


def false_sentences(
    check: str, text: str, prose: Piece, known: Sequence[str], affirmed: Sequence[str]
) -> Iterator[Failure]:
    """Claims of `prose` without support in `known`, or that contradict `affirmed`."""
    said = text[prose.start : prose.end]
    for claims, message in (
        (unknown_numbers(said, known), "a number that was not given"),
        (unknown_dates(said, known), "a day that was not given"),
        (denials(said, affirmed), "the contrary of what was said"),
    ):
        for claim in claims:
            place = place_of(text, prose.start + claim.at)
            yield Failure(check, "false_sentence", place, f"{message}: {shown(claim.said)}")


def unknown_numbers(prose: str, known: Iterable[str]) -> Iterator[Claim]:
    """Numbers of two digits or more in `prose` that are neither in the `known` texts nor a sum or difference of two of
    their amounts; leading zeros are ignored."""
    held = {digits.lstrip("0") for text in known for digits in _forms(text)}
    values = sorted({int(digits) for digits in held if len(digits) >= _AMOUNT_DIGITS})[-_MOST_COMPARED:]
    worked_out = {str(abs(sign * one + other)) for one, other in combinations(values, 2) for sign in (1, -1)}
    for match in _NUMBER.finditer(prose):
        said = match.group()
        parts = [digits.lstrip("0") for digits in _DIGITS.findall(said)]
        whole = "".join(_DIGITS.findall(said)).lstrip("0")
        money = _MONEY.match(prose, match.end())
        if len(whole) < 2 or whole in held or (money and whole in worked_out) or all(part in held for part in parts):
            continue
        if not _PERIOD.match(prose, match.end()):
            yield Claim(match.start(), said)


def _forms(text: str) -> Iterator[str]:
    """The numbers of a text, with thousands joined and each group separately."""
    for match in _NUMBER.finditer(text):
        groups = _DIGITS.findall(match.group())
        yield "".join(groups)
        yield from groups


_THANKS = re.compile(r"(?<!bez )\b(?:po)?děk\w+|\bdík\w*|\bthank\w*|\bgrateful\b|\bappreciat\w+", re.I)


def thanks(prose: str) -> bool:
    """Whether the text says thanks."""
    return _THANKS.search(prose) is not None


def unknown_dates(prose: str, known: Iterable[str]) -> Iterator[Claim]:
    """Days in `prose`, with the month by name or as in `3. 4. 2028`, that are not in the `known` texts.

    If the known texts have no date at all, no date is reported.
    """
    held = {(month, day) for text in known for month, day, _ in _dates(text)}
    if held:
        for month, day, match in _dates(prose):
            if (month, day) not in held:
                yield Claim(match.start(), match.group())


def _dates(text: str) -> Iterator[tuple[int, int, re.Match[str]]]:
    for match in _ISO_DATE.finditer(text):
        yield int(match[2]), int(match[3]), match
    for match in _CZECH_DATE.finditer(text):
        yield int(match[2]), int(match[1]), match
    for match in _DAY_FIRST.finditer(text):
        yield _MONTH_NUMBERS[match[2].lower()], int(match[1]), match
    for match in _MONTH_FIRST.finditer(text):
        yield _MONTH_NUMBERS[match[1].lower()], int(match[2]), match


_CZECH = (
    ("zaplac", "zaplatil", "uhraz", "uhradil", "proplac"),
    ("urgent", "naléhav", "spěšn"),
    ("člen",),
    ("sklad", "dostupn"),
)
_ENGLISH = (("paid", "settled"), ("urgent",), ("member",), ("stock", "available"))
"""Beginnings of words with the same meaning for a matter that is true or false."""

_PAYMENT = ("platb", "payment")
"""A noun of the first of each: as awaited or missing, it negates them; else it has no meaning here."""

_DENIES = re.compile(
    r"\b(?:není|nejsou|nejste|nejsi|nejsem|neb[yu]\w{1,4}|nemá\w{0,3}|zatím ne|not(?! only)|isn't|aren't|wasn't|"
    r"hasn't|haven't|don't|doesn't|never|yet to be|no longer|out of|without|"
    r"ček\w+ na|očekáv\w+|await\w*|waiting for|pending|outstanding)\b",
    re.I,
)
_DENIES_AFTER = re.compile(r"\b(?:není|nejsou|nebyl\w?)\b", re.I)
_SUPPOSES = re.compile(
    r"-li\b|\b(?:m[áa]j?í? být|mus[íi] být|je třeba|(?:has|have|needs?) to be|must be|pokud|kdyby\w*|jestli\w*|zda"
    r"|až(?!\s*\d)|jakmile|hned jak|dokud|bude\w*|budou"
    r"|if|whether|unless|should|once|when|until|as soon as|will)\b",
    re.I,
)
"""A supposed or future matter is not stated as true."""
_CZECH_CLAUSE = re.compile(r"(?:(?!\b(?:a|ale|takže|proto|protože|tedy)\b)[^.,;:!?\n])+", re.I)
_ENGLISH_CLAUSE = re.compile(r"(?:(?!\b(?:and|but|so|because)\b)[^.,;:!?\n])+", re.I)
_NEGATED_WORD = ("ne", "un", "non-", "non")


def denials(prose: str, known: Iterable[str]) -> Iterator[Claim]:
    """Clauses of `prose` that deny what the `known` texts affirm, or the reverse.

    Only for the matters listed above: paid or not, urgent or not, a member or not, in stock or not.
    """
    texts = list(known)
    for clause, listed in ((_CZECH_CLAUSE, _CZECH), (_ENGLISH_CLAUSE, _ENGLISH)):
        for beginnings in listed:
            denied_in_prompt = {denied for text in texts for _, denied, _ in _said_of(text, beginnings, clause)}
            for match, denied, supposed in _said_of(prose, beginnings, clause) if len(denied_in_prompt) == 1 else ():
                if denied not in denied_in_prompt and not supposed:
                    yield Claim(match.start(), match.group().strip())


def _said_of(
    text: str, beginnings: tuple[str, ...], clauses: re.Pattern[str]
) -> Iterator[tuple[re.Match[str], bool, bool]]:
    """Every clause with one of these words, whether it is negated, and whether it is only supposed."""
    word = re.compile(rf"(?<![\w\"])({'|'.join(_NEGATED_WORD)})?(?:{'|'.join(beginnings)})", re.I)
    for clause in clauses.finditer(text):
        match = word.search(clause.group())
        paid = any(noun in clause.group().lower() for noun in _PAYMENT) and beginnings[0] in (
            _CZECH[0][0],
            _ENGLISH[0][0],
        )
        if match is None and paid and _DENIES.search(clause.group()):
            yield clause, True, bool(_SUPPOSES.search(clause.group()))
        if match:
            before = clause.group()[: match.start()]
            after = clause.group()[match.end() :]
            denied = bool(match.group(1)) != bool(_DENIES.search(before) or _DENIES_AFTER.search(after))
            if "yet" in clause.group()[match.end() :] and _DENIES.search(clause.group()):
                denied = True
            yield clause, denied, bool(_SUPPOSES.search(clause.group()))
