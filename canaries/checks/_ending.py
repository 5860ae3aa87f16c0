"""Whether prose ends, or breaks off in the middle of a sentence."""

import re
import unicodedata

from q36eval.canaries.checks._prose import sentences

_END_MARKS = ".!?…"
_OPEN_MARKS = ",;:-–—(„"
_SMILEY = re.compile(r"[:;]-?[)D(]\s*\Z")
_ITEM = re.compile(r"^[ \t]{0,40}(?:[-*•–—+][ \t]*|\d{1,3}[.)][ \t]+|\|)(?=\S)")
_WORD = re.compile(r"[^\W_]+")
_GOES_ON = """a i nebo že aby když kdy protože ale ani však než zda jestli pokud jak jako který která které kteří
    kterou kde kam v ve na do k ke s se z ze o u po při pro za nad pod před mezi bez přes podle kolem
    během kvůli díky místo kromě od svůj svou své svého jeho její jejich tento tato toto nejen jen velmi
    více méně mohl mohla mohli the a an and or but that which who of to in on at for with from by as if
    than because when while into your our their its his her is are was were be has have had can could
    will would should may might must not very more this these"""
"""Words after which a sentence goes on. Some of them can end one, but hardly without a full stop."""

_DANGLING = frozenset(_GOES_ON.split())

SIGNATURE_WORDS = 4
"""A last line of so few words, on its own, may be a name or a greeting that needs no full stop."""

LONG_SENTENCES = 3
"""Prose of more sentences than this that lacks its last full stop was cut off."""


def breaks_off(text: str) -> str | None:
    """The last words of a text that ends in the middle of a sentence or in a block of code; None where it ends well.

    A last item of a list may do without a full stop where another item does; so may a signature, and a sentence or two.
    """
    said = text.rstrip()
    if not said or _SMILEY.search(said):
        return None
    if _open_fence(said):
        return "a block of code that is not closed"
    kept = _without_ornaments(said)
    if not kept or kept[-1] in _END_MARKS:
        return None
    lines = said.split("\n")
    last = lines[-1].strip()
    shown = last[-40:]
    words = _WORD.findall(last)
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


def _open_fence(text: str) -> bool:
    fence = ""
    for line in text.split("\n"):
        mark = line.strip()[:3]
        if mark in ("```", "~~~"):
            fence = mark if not fence else "" if mark == fence else fence
    return bool(fence)


def _without_ornaments(text: str) -> str:
    """Without quotes, brackets, emphasis and emoji at the end."""
    end = len(text)
    while end and (text[end - 1].isspace() or text[end - 1] in "\"'“”’‘»«)]*_`~\ufe0f\u200d"
                   or unicodedata.category(text[end - 1]) in ("So", "Sk")):  # fmt: skip
        end -= 1
    return text[:end]
