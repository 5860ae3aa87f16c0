"""The Czech words of price comparisons as lemmas: a stem, a paradigm and a meaning.

A form is matched by its stem and an ending of the stem's paradigm, with the prefixes of negation (`ne-`) and of the
superlative (`nej-`), so that a lemma is listed once and all its forms are recognized.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from q36eval.canaries.checks.base import WORDS


class Meaning(StrEnum):
    """The meaning of a word for a shop, a price or a discount."""

    GOOD = "good"
    """Cheap, better."""
    BAD = "bad"
    """Expensive, loses, pays too much."""
    BEAT = "beat"
    SAVE = "save"
    LESS = "less"
    MORE = "more"
    FAVOUR = "favour"
    """Wins, is worth it, the choice, in favour of."""
    CHOOSE = "choose"
    """Buy, choose, go: a recommendation in the imperative, the infinitive or the first person."""
    PAY = "pay"
    COST = "cost"
    """Nouns: price, amount, expense."""
    FINAL = "final"
    """After the discounts: final, remains, comes out at."""
    ORIGINAL = "original"
    DISCOUNT = "discount"
    """Discounts, and their thresholds."""
    DIFFERENCE = "difference"
    DIFFER = "differ"
    SAME = "same"
    BOTH = "both"
    THAN = "than"
    RANKING = "ranking"
    LABEL = "label"
    """Conclusion, answer, decision."""
    NOT = "not"
    BUT = "but"
    ASIDE = "aside"
    """Although, at first sight."""
    HEDGE = "hedge"
    UNREAL = "unreal"
    IF = "if"
    POINTS = "points"
    """Here, there, this one: refers to an earlier mention."""


def word_set(listed: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(listed.split())


ARTICLES = word_set("""v ve u do z ze na po pro za od k ke s se ten ta to tom toho té tu čili tedy totiž""")
JOINS = word_set("a i ani nebo či")


class Word(NamedTuple):
    """The meaning of a form. `active` is false for a choice that is only described ("koupíte")."""

    meanings: frozenset[Meaning] = frozenset()
    negated: bool = False
    superlative: bool = False
    is_verb: bool = False
    active: bool = True

    def means(self, *wanted: Meaning) -> bool:
        """Whether it means one of them."""
        return any(meaning in self.meanings for meaning in wanted)


_VERB = re.compile(
    r"|i|e|ě|u|í|á|a|é|ou|ej|uj|aj|áv[áa]\w{0,3}|ějí|ejí|ají|ují|ám|ím|áš|íš|eš|uješ|"
    r"(?:[eiíáěu]|ej|uj|aj|uje|ně|ne|á|du)?(?:me|te)|uji|uju|uje|ujou|"
    r"(?:[íieaáéě]|ova|ou|nou|ný)?t|n[euoiě]|nou|neš|du|de|dou|deš|di|ď|"
    r"(?:[iíeěaáuéo]|ova|nu)?l[aoiy]?|(?:[eaáoě]|ová)n[aoyi]?|"
    r"(?:[eáěaí]|ová|nu)n[íý]\w{0,2}|nutí|ujíc\w?"
)
_ADJECTIVE = re.compile(
    r"[ýáéíoěeay]|ého|ému|ém|ým|ou|ých|ými|í(?:ho|mu|m|ch|mi)|(?:[eě]|)(?:j|)š(?:í|ího|ímu|ím|ích|ími)|[eě]ji|[eě]j"
)
_NOUN = re.compile(
    r"|[aáeéiíouyýěů]|em|ou|om|ům|ám|ách|ech|ích|ami|emi|ové|ovi|ové|ům|í[hm]?|ka|ky|ku|kou|ce|ek|"
    r"(?:e|é|ů|i)?[mcnvhd][uiěíaye]?"
)
_PARADIGMS = {"verb": _VERB, "adjective": _ADJECTIVE, "noun": _NOUN, "exact": re.compile(r"")}
_STEMS: dict[str, list[tuple[Meaning, str]]] = {}
for _meaning, _by_paradigm in WORDS["price_comparisons"].items():
    for _paradigm, _stems in _by_paradigm.items():
        for _stem in _stems.split():
            _STEMS.setdefault(_stem, []).append((Meaning(_meaning), _paradigm))
_LONGEST_STEM = max(map(len, _STEMS))
_DESCRIBES = re.compile(r".*(?:[íe]te|íš|eš|í|íme|ujete|uješ|ujeme|uje|neme|nete|ete)")
"""Endings of a described, not recommended choice: the present and future of the second and third person."""
_ORDERS = re.compile(r".*(?:ěte|jte|ďte|[^íeě]te|jděte|berte)")
_NOT_NEGATED = word_set("nej nejen než nebo nechat neboť neb nech necháte nechám nová nové novou nové")


@lru_cache(maxsize=4096)
def read_word(form: str) -> Word:
    """The meaning of a form of any lemma; empty if none has it."""
    small = form.lower()
    if len(small) > 32:
        return Word()
    read = _plain_form(small)
    if read.meanings:
        return read
    if small.startswith("nej"):
        read = _plain_form(small[3:])
        if read.meanings:
            return read._replace(superlative=True)
    if small.startswith("ne") and small not in _NOT_NEGATED:
        inner = small[2:]
        read = _plain_form(inner[3:]) if inner.startswith("nej") else _plain_form(inner)
        if read.meanings - {Meaning.POINTS, Meaning.NOT, Meaning.HEDGE}:
            return read._replace(negated=True)
        if _DENIED_VERB.fullmatch(small):
            return Word(frozenset({Meaning.NOT}), is_verb=True)
    return Word()


_DENIED_VERB = re.compile(r"ne(?!j|bo|ch|b$)\w{1,18}(?:[íáe]te|[íáe]me|[ujnšž]e|[íá]|ají|ejí|l[aoiy]?|n[oay])")
"""A negated verb or participle of any meaning."""


def _plain_form(form: str) -> Word:
    meanings: set[Meaning] = set()
    is_verb, active = False, True
    for length in range(min(len(form), _LONGEST_STEM), 0, -1):
        for meaning, paradigm in _STEMS.get(form[:length], ()):
            if not _PARADIGMS[paradigm].fullmatch(form, length):
                continue
            meanings.add(meaning)
            is_verb = is_verb or paradigm == "verb"
            if meaning is Meaning.CHOOSE:
                active = _ORDERS.fullmatch(form) is not None or _DESCRIBES.fullmatch(form) is None
        if meanings and length < len(form) - 4:
            break
    superlative = form.startswith("nej") and bool(meanings & {Meaning.GOOD, Meaning.BAD, Meaning.LESS, Meaning.MORE})
    return Word(frozenset(meanings), False, superlative, is_verb, active)
