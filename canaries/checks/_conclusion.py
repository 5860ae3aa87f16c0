"""The decision that a Czech comparison of shops ends with, in whatever words it is stated.

Read token by token, in linear time: shops, words for cheaper, words that turn or qualify a clause.
"""

import re
from bisect import bisect_right
from typing import NamedTuple

from canaries.checks._plain import plain

TIE = "tie"
SHOP_NOUN = r"(?i:obchod|nabíd|prodejn|variant|možnost|dodavatel|prodejc|e-?shop)\w{0,6}[ \t]{1,3}[\"'„“(]{0,2}"
"""What stands before a shop's letter. The letter is upper case: a small "a" is the conjunction."""

_TOKEN = re.compile(
    rf"(?P<shop>(?<!\w){SHOP_NOUN}([ABC])(?!\w))"
    r"|(?P<than>(?<!\w)(?i:než|oproti|proti|vůči|srovnání|porovnání|rozdíl)(?!\w))"
    r"|(?P<cheaper>(?<!\w)(?i:(?:nej)?(?:levněj\w{1,4}|výhodněj\w{1,4})|vyplatí|vítěz\w{0,4}|vyhrává|doporuč\w{1,5}"
    r"|(?:nej)?lepší[ \t]{1,3}(?:volb|nabídk)\w{1,3})(?!\w))"
    r"|(?P<label>(?<!\w)(?i:závěr|odpověď|rozhodnutí)(?!\w))"
    r"|(?P<more>(?<!\w)(?i:(?:nej)?(?:více?|vyšší\w{0,3}|větší\w{0,3}))(?!\w))"
    r"|(?P<less>(?<!\w)(?i:(?:nej)?(?:méně|míň|lépe|lepší|nižší|menší))(?!\w))"
    r"|(?P<dearer>(?<!\w)(?i:(?:nej)?dra(?:žší\w{0,3}|ž|žeji))(?!\w))"
    r"|(?P<not>(?<!\w)(?i:není|nejsou|nebude|nevyjde|nevyjdou|nevychází|nikoli|nikoliv|ani)(?!\w))"
    r"|(?P<but>(?<!\w)(?i:ale|nýbrž)(?!\w))"
    r"|(?P<aside>(?<!\w)(?i:zatímco|ačkoli|ačkoliv|přestože|jakkoli|třebaže|sice|i když|na první pohled"
    r"|před slevou|původně|bez slevy)(?!\w))"
    r"|(?P<unreal>(?<!\w)(?i:kdyby\w{0,5}|by[lt][aoy]? by|by byl[aoy]?)(?!\w))"
    r"|(?P<same>(?<!\w)(?i:nastejno|stejn\w{1,4}|shodn\w{1,4}|totožn\w{1,4}|totéž|rovnají)(?!\w))"
    r"|(?P<context>(?<!\w)(?i:cen\w{0,4}|částk\w{0,4}|zaplat\w{0,4}|stoj\w{0,3}|vyjd\w{0,3}|vych[áa]z\w{0,4}|plat\w{0,4}"
    r"|utrat\w{0,4}|peněz)(?!\w))"
    r"|(?P<discount>(?<!\w)(?i:slev\w{0,4})(?!\w))"
    r"|(?P<question>\?)"
    r"|(?P<by>(?<!\w)(?i:o)[ \t]{1,3}\d+(?:[ .,]\d+){0,5})"
    r"|(?P<beside>\(\d+(?:[ .,]\d+){0,5}[ \t]{0,3}(?:Kč|CZK|korun)?\))"
    r"|(?P<number>\d+)"
    r"|(?P<bare>(?<![\w])[ABC](?!\w))"
    r"|(?P<comma>[,;](?![ \t]{1,3}což(?!\w)))"
    r"|(?P<end>\n|[.!](?=\s))"
)
_A_VERB = re.compile(r"[ \t]{1,3}(?:je|vyjde|vychází|stojí|má|nabízí|vítězí|vyhrává)(?!\w)")
_LIST_OF_SHOPS = re.compile(r"\s{0,3}(?:,|a|i|nebo|či)\s{0,3}(?:než\s)?\s{0,2}(?:[vzu]e?\s)?")


class Conclusion(NamedTuple):
    """`decision`: a shop's letter or `tie`, stated at [start, end) in a sentence that begins at `sentence`."""

    decision: str
    start: int
    end: int
    sentence: int


class _Token(NamedTuple):
    kind: str
    start: int
    end: int
    shop: str


def conclusion(answer: str) -> str | None:
    """The last decision an answer states: a shop's letter, `tie`, or None when there is none."""
    found = last_conclusion(plain(answer).text)
    return None if found is None else found.decision


def last_conclusion(text: str) -> Conclusion | None:
    """The last decision in plain text; where none names a cheaper shop, the one of two that is not the dearer."""
    last = None
    by_dearer = None
    shops: set[str] = set()
    start, tokens = 0, []
    for token in [*_tokens(text), _Token("end", len(text), len(text), "")]:
        tokens.append(token)
        shops.add(token.shop)
        if token.kind in ("end", "question"):
            if token.kind == "end" and len(tokens) > 1 and not any(one.kind == "unreal" for one in tokens):
                last = _verdict(text, tokens, start) or last
                by_dearer = _dearer(tokens, start) or by_dearer
            start, tokens = token.end, []
    if last is None and by_dearer is not None and len(others := shops - {"", by_dearer.decision}) == 1:
        return by_dearer._replace(decision=others.pop())
    return last


def _tokens(text: str) -> list[_Token]:
    """The telling words. `shop` is the letter of a shop; `end` of such a token is the letter's end."""
    found: list[_Token] = []
    for match in _TOKEN.finditer(text):
        kind, letter = match.lastgroup or "", ""
        if match.group("shop"):
            kind, letter = "shop", match.group()[-1]
        elif kind == "bare":
            first = not found or (found[-1].kind == "end" and not text[found[-1].end : match.start()].strip())
            if match.group() == "A" and first and not _A_VERB.match(text, match.end()):
                continue  # "and", at the beginning of a sentence
            kind, letter = "shop", match.group()
        found.append(_Token(kind, match.start(), match.end(), letter))
    return found


def _begins_sentence(text: str, before: list[_Token], at: int) -> bool:
    sentence = 0 if not before else before[-1].end if before[-1].kind == "end" else at + 1
    return 0 <= at - sentence <= 16 and not text[sentence:at].strip(" \n\t-•#>")


def _verdict(text: str, tokens: list[_Token], start: int) -> Conclusion | None:
    """What one sentence decides."""
    sentence = start + len(text[start : tokens[-1].end]) - len(text[start : tokens[-1].end].lstrip(" \t\n-•#>"))
    denied = False
    for clause in _clauses(_without_compared(text, tokens)):
        kinds = {token.kind for token in clause}
        if "aside" in kinds:
            continue
        shop = _cheaper_shop(clause)
        if shop is None and denied and "but" in kinds:
            shop = next((token for token in clause if token.shop), None)
        if shop is not None and "not" in kinds:
            denied = True
        elif shop is not None:
            return Conclusion(shop.shop, shop.end - 1, shop.end, sentence)
    return _tie(tokens, sentence) or _labelled(_without_compared(text, tokens), sentence)


def _labelled(tokens: list[_Token], sentence: int) -> Conclusion | None:
    """The one shop that a conclusion names which compares nothing: "Závěr: obchod B"."""
    kinds = {token.kind for token in tokens}
    if "label" not in kinds or kinds & {"dearer", "more", "not", "aside"} or {"less", "discount"} <= kinds:
        return None
    shops = [token for token in tokens if token.shop]
    if len({token.shop for token in shops}) != 1:
        return None
    return Conclusion(shops[0].shop, shops[0].end - 1, shops[0].end, sentence)


def _without_compared(text: str, tokens: list[_Token]) -> list[_Token]:
    """Without the shops that another is compared with: "než obchod B", "oproti obchodu A i obchodu B"."""
    kept: list[_Token] = []
    dropping, dropped_end = False, -1
    for token in tokens:
        if token.kind == "than":
            dropping = True
        elif token.kind in ("comma", "end"):
            dropping = dropping and token.kind == "comma" and dropped_end == -1
        joined = token.shop and dropped_end >= 0 and _joins(text, dropped_end, token)
        if token.shop and (dropping or joined):
            dropping, dropped_end = False, token.end
            continue
        kept.append(token)
    return kept


def _joins(text: str, end: int, shop: _Token) -> bool:
    match = _LIST_OF_SHOPS.match(text, end)
    return match is not None and match.end() == shop.start


def _clauses(tokens: list[_Token]) -> list[list[_Token]]:
    clauses: list[list[_Token]] = [[]]
    for token in tokens:
        if token.kind == "comma" or (token.kind == "but" and clauses[-1]):
            clauses.append([])
        clauses[-1].append(token)
    return clauses


def _cheaper_shop(clause: list[_Token]) -> _Token | None:
    """The shop that a clause calls the cheaper one: the first after the word, else the nearest before it."""
    kinds = {token.kind for token in clause}
    shops = [at for at, token in enumerate(clause) if token.shop]
    for at, token in enumerate(clause):
        if token.kind not in ("cheaper", "less") or (token.kind == "less" and not _is_about_price(clause, at, kinds)):
            continue
        following = bisect_right(shops, at)
        if following < len(shops):
            return clause[shops[following]]
        # no shop comes after this word, so none comes after the next either
        if not shops:
            return None
        # "obchod A 500 Kč a méně" speaks of the number, "o 40 Kč méně" of the shop, and so it does after "(500 Kč)"
        differs = clause[at - 1].kind == "by"
        if token.kind == "less" and not differs and any(one.kind == "number" for one in clause[shops[-1] : at]):
            return None
        return clause[shops[-1]]
    return None


def _is_about_price(clause: list[_Token], at: int, kinds: set[str]) -> bool:
    """Whether "less" or "better" speaks of what is paid, not of a discount or of a number ("nižší než 500 Kč")."""
    following = [token.kind for token in clause[at + 1 : at + 3]]
    return "context" in kinds and "discount" not in kinds and following != ["than", "number"]


def _tie(tokens: list[_Token], sentence: int) -> Conclusion | None:
    kinds = {token.kind for token in tokens}
    if "discount" in kinds and "context" not in kinds:
        return None
    affirmed = [clause for clause in _clauses(tokens) if "not" not in {token.kind for token in clause}]
    same = next((token for clause in affirmed for token in clause if token.kind == "same"), None)
    return None if same is None else Conclusion(TIE, same.start, same.end, sentence)


def _dearer(tokens: list[_Token], sentence: int) -> Conclusion | None:
    """The shop that a sentence calls the dearer one."""
    at = next((at for at, token in enumerate(tokens) if token.kind == "dearer"), None)
    if at is None or any(token.kind in ("not", "aside") for token in tokens):
        return None
    before = next((token for token in reversed(tokens[:at]) if token.shop), None)
    shop = before or next((token for token in tokens[at:] if token.shop), None)
    return None if shop is None else Conclusion(shop.shop, shop.end - 1, shop.end, sentence)
