"""The Czech words that a comparison of prices is made of, as lemmas: a stem, a paradigm and what it means.

A form is read by its stem and by an ending of the stem's paradigm, with the prefixes of negation (`ne-`) and of the
superlative (`nej-`) before it, so that a lemma is listed once and every form of it is known.
"""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple


class Meaning(StrEnum):
    """What a word says about a shop, a price or a discount."""

    GOOD = "good"
    """Cheap, better."""
    BAD = "bad"
    """Dear, loses, pays too much."""
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
    """What is left after the discounts: final, remains, comes out at."""
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
    """Here, there, this one: what was named before."""


def word_set(listed: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(listed.split())


ARTICLES = word_set("""v ve u do z ze na po pro za od k ke s se ten ta to tom toho té tu čili tedy totiž""")
JOINS = word_set("a i ani nebo či")


class Word(NamedTuple):
    """What a form says. `active` is false of a choice that is only described ("koupíte")."""

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
_WHOLE = re.compile(r"")
_VERBS, _ADJECTIVES, _NOUNS, _EXACT = "verb", "adjective", "noun", "exact"
_PARADIGMS = {_VERBS: _VERB, _ADJECTIVES: _ADJECTIVE, _NOUNS: _NOUN, _EXACT: _WHOLE}

_LEMMAS: dict[tuple[Meaning, str], str] = {
    (Meaning.GOOD, _ADJECTIVES): """levn lacin výhodn přízniv úsporn ekonomičt ekonomick rozumn chytř lep optimáln
        ideáln šetrn dostupn zajímavějš atraktivnějš""",
    (Meaning.GOOD, _EXACT): "lépe líp nejlépe nejlíp nejlepší dobře vhodnější nejvhodnější",
    (Meaning.BAD, _ADJECTIVES): "drah draž hor předražen",
    (Meaning.BAD, _EXACT): "hůř hůře nejhůře nejhůř draze dráž dráže",
    (Meaning.CHOOSE, _VERBS): """kup koup nakup nakoup zakup zakoup poříd pořiď pořiz objedn objednáv zvol vyber vyb
        vybír vybr vybeř vezm vza ber sáh sáhn zajd zajdě zamíř zamiř vyraz preferuj preferov upřednostn upřednostň
        upřednostňuj směřuj nasměruj nasměrov směřov navštiv přikloň přiklán přiklon využij využ využív dopřej pojď
        utíkej""",
    (
        Meaning.CHOOSE,
        _EXACT,
    ): """jít jdi jděte jděme jdu šel šla zajít brát bral brala vzít běž běžte vydej vydejte volte
        volím volíme volit volil volila voli rozhodněte rozhodni rozhodnout rozhodl rozhodla rozhodněme""",
    (Meaning.FAVOUR, _VERBS): """doporuč doporučuj doporučov poraď favorizuj vítěz zvítěz vyhr vyhráv vyhraj ved vedl
        vést dominuj triumfuj boduj zaboduj vyplat vyplác""",
    (Meaning.FAVOUR, _EXACT): "navrch jedničkou jednička přednost tip dobru mluví hovoří",
    (Meaning.FAVOUR, _NOUNS): "šanc vítězstv prvenstv prospěch volb vítěz vítězk favorit výhr trefa kandidát",
    (Meaning.BAD, _VERBS): """prohr prohráv prohraj zaostáv zaost podleh podléh ztrác přeplat přeplác připlat připlác
        přeplať""",
    (Meaning.BAD, _NOUNS): "poražen",
    (Meaning.BEAT, _VERBS): """poraz poráž předč překon překonáv předběh trumf trumfn přetrumf přetrumfn dožen dohon
        dohán dohn předstih převýš""",
    (Meaning.SAVE, _VERBS): "ušetř ušet ušetřuj uspoř šetř šetřuj uspo",
    (Meaning.SAVE, _NOUNS): "úspor",
    (Meaning.LESS, _EXACT): """méně míň nejméně nejmíň minimum minimální nižší nižšího nižším nižšímu nižších nejnižší
        nejnižšího nejnižším nejnižších menší menšího menším nejmenší nejmenšího níž níže nejníže nejníž""",
    (Meaning.MORE, _EXACT): """více víc nejvíce nejvíc vyšší vyššího vyšším vyšších nejvyšší nejvyššího nejvyšším větší
        většího větším největší největšího navíc výš výše nejvýše nejvýš""",
    (Meaning.PAY, _VERBS): """plat zaplat plať utrat utrác stoj stá stál vyjd vyjí vyj vyš vycház přijd přij přicház
        vyd vydá vydáv necháv nech necht dát""",
    (Meaning.PAY, _EXACT): "dám dáš stojící dá",
    (Meaning.DISCOUNT, _NOUNS): "slev slevov rabat hranic limit podmínk práh prah minimáln",
    (Meaning.COST, _NOUNS): "cen částk výdaj náklad účet účt sum částek",
    (Meaning.COST, _EXACT): "peněz peníze cenově",
    (Meaning.SAME, _ADJECTIVES): "stejn shodn totožn identick rovnocenn vyrovnan nastejno",
    (Meaning.SAME, _EXACT): """nastejno nerozhodně totéž remíza remízou plichta rovnají rovny rovni rovnost rovnítko
        srovnatelně fuk tolikéž""",
    (Meaning.DIFFER, _VERBS): "liš odlišuj",
    (Meaning.DIFFERENCE, _NOUNS): "rozdíl diferenc",
    (Meaning.NOT, _EXACT): """ne není nejsou nebude nebudou nebyl nebyla nebylo nikoli nikoliv ani nelze nemá nemají
        nemůže nemohou nejde nedá neplatí neznamená nýbrž""",
    (Meaning.HEDGE, _EXACT): """buď snad možná asi patrně těžko sotva stěží třeba nejspíš nejspíše pravděpodobně mohl
        mohla mohlo mohli hm hmm prý údajně těžce""",
    (Meaning.ASIDE, _EXACT): """zatímco ačkoli ačkoliv přestože jakkoli jakkoliv třebaže sice byť ač navzdory zdánlivě
        původně startuje láká lákavě lákavá lákavější vypadá vypadal vypadala nevypadá zdá zdála zdál nezdá zdálo
        působí klame pohled""",
    (Meaning.UNREAL, _EXACT): "kdyby kdybyste kdybychom kdybych kdybys",
    (Meaning.IF, _EXACT): "pokud jestliže jestli když zda li jakmile",
    (Meaning.THAN, _EXACT): "než oproti proti vůči srovnání porovnání místo namísto vedle kromě nežli mimo versus vs",
    (Meaning.BUT, _EXACT): "ale nýbrž avšak však ovšem přesto nicméně přece leč",
    (Meaning.LABEL, _EXACT): """závěr závěrem odpověď rozhodnutí verdikt doporučení vítěz vítězem volba výsledek
        shrnutí resumé""",
    (Meaning.BOTH, _EXACT): "oba obě obou oběma všechny všech všude oboje obojí",
    (Meaning.FINAL, _ADJECTIVES): "konečn výsledn fináln nov",
    (Meaning.FINAL, _VERBS): "zaplat zaplac doplat zbýv zbud zůst zůstáv",
    (Meaning.FINAL, _EXACT): "platíte platím platíme platíš výsledek výsledkem vyjde vychází vyjdou",
    (Meaning.ORIGINAL, _ADJECTIVES): "původn výchoz základn běžn plná ceníkov katalogov počátečn pln",
    (Meaning.ORIGINAL, _EXACT): "základ základu základem",
    (Meaning.DISCOUNT, _VERBS): "odečt odečít odečet strh strhn srazí odpad odejd",
    (Meaning.DISCOUNT, _EXACT): "dolů",
    (Meaning.RANKING, _NOUNS): "pořad žebříč",
    (Meaning.RANKING, _EXACT): "seřazeno seřazené seřadíme",
    (Meaning.POINTS, _EXACT): """tam tady zde tento tato toto tuto této tomto tohoto jeho její ten ta onen tuhle tenhle
        tudy takto sem""",
}
_STEMS: dict[str, list[tuple[Meaning, str]]] = {}
for _entry, _stems in _LEMMAS.items():
    for _stem in _stems.split():
        _STEMS.setdefault(_stem, []).append(_entry)
_LONGEST_STEM = max(map(len, _STEMS))
_DESCRIBES = re.compile(r".*(?:[íe]te|íš|eš|í|íme|ujete|uješ|ujeme|uje|neme|nete|ete)")
"""Endings of a choice that is described, not recommended: the present and future of the second and third person."""
_ORDERS = re.compile(r".*(?:ěte|jte|ďte|[^íeě]te|jděte|berte)")
_NOT_NEGATED = word_set("nej nejen než nebo nechat neboť neb nech necháte nechám nová nové novou nové")


@lru_cache(maxsize=4096)
def read_word(form: str) -> Word:
    """What a form of any lemma says; nothing where none has it."""
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
"""A verb or participle that is denied, whatever it means."""


def _plain_form(form: str) -> Word:
    meanings: set[Meaning] = set()
    is_verb, active = False, True
    for length in range(min(len(form), _LONGEST_STEM), 0, -1):
        for meaning, paradigm in _STEMS.get(form[:length], ()):
            if not _PARADIGMS[paradigm].fullmatch(form, length):
                continue
            meanings.add(meaning)
            is_verb = is_verb or paradigm == _VERBS
            if meaning is Meaning.CHOOSE:
                active = _ORDERS.fullmatch(form) is not None or _DESCRIBES.fullmatch(form) is None
        if meanings and length < len(form) - 4:
            break
    superlative = form.startswith("nej") and bool(meanings & {Meaning.GOOD, Meaning.BAD, Meaning.LESS, Meaning.MORE})
    return Word(frozenset(meanings), False, superlative, is_verb, active)
