"""Words, number formats, and Czech names of people and towns with the grammatical forms that sentences need."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from q36eval.examples import ChatExample

T = TypeVar("T")

CITIES = (
    "Praha", "Brno", "Ostrava", "Plzeň", "Liberec", "Olomouc", "Děčín", "Zlín", "Třebíč", "Jihlava",
    "Kroměříž", "Písek", "Tábor", "Cheb", "Kolín", "Přerov", "Žďár", "Uherský Brod", "Náchod", "Česká Lípa",
)  # fmt: skip
PRODUCTS = (
    "kávovar", "batoh", "tiskárna", "lampa", "stůl", "židle", "monitor", "klávesnice", "bunda", "svetr",
    "hodinky", "vrtačka", "koloběžka", "stan", "mixér", "žehlička", "řetěz", "sešit", "kufr", "dětská sedačka",
)  # fmt: skip
PRODUCTS_EN = (
    "coffee maker", "backpack", "printer", "lamp", "desk", "chair", "monitor", "keyboard", "jacket", "sweater",
    "watch", "drill", "scooter", "tent", "mixer", "iron", "chain", "notebook", "suitcase", "child seat",
)  # fmt: skip


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One of `options`, uniformly; about three times as fast as `rng.choice`."""
    return options[int(rng.random() * len(options))]


def question(key: str, prompt: str, answer: str, expected: dict[str, Any]) -> ChatExample:
    """A conversation of one message: the prompt."""
    return ChatExample(key=key, messages=({"role": "user", "content": prompt},), answer=answer, expected=expected)


def step_number(rng: random.Random, low: int, high: int, step: int) -> int:
    """A multiple of `step` in [low, high] (`low` itself must be one)."""
    return low + step * int(rng.random() * ((high - low) // step + 1))


def iso_date(rng: random.Random) -> str:
    """A date in 2019–2029 as YYYY-MM-DD; days stop at 28 so that every month has them."""
    return f"{2019 + int(rng.random() * 11)}-{1 + int(rng.random() * 12):02d}-{1 + int(rng.random() * 28):02d}"


def code(rng: random.Random, digits: int = 4) -> str:
    """An identifier such as `QX-4071`."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    number = int(rng.random() * 10**digits)
    return f"{pick(rng, letters)}{pick(rng, letters)}-{number:0{digits}d}"


def spaced(number: int) -> str:
    """Thousands apart by a plain space, the way Czech is typed: 2 450."""
    return f"{number:,}".replace(",", " ")


def koruna(number: int) -> str:
    """An amount of money: 2 450 Kč."""
    return f"{spaced(number)} Kč"


class Name(NamedTuple):
    """A name in the nominative, the genitive (whose?) and the dative (to whom?)."""

    nominative: str
    genitive: str
    dative: str


class Town(NamedTuple):
    """A town in the nominative and the genitive, and with the prepositions that say from where and in which place."""

    nominative: str
    genitive: str
    origin: str
    place: str


FIRST_NAMES_F = (
    Name("Jana", "Jany", "Janě"), Name("Eliška", "Elišky", "Elišce"), Name("Markéta", "Markéty", "Markétě"),
    Name("Lucie", "Lucie", "Lucii"), Name("Žaneta", "Žanety", "Žanetě"), Name("Kateřina", "Kateřiny", "Kateřině"),
    Name("Věra", "Věry", "Věře"), Name("Šárka", "Šárky", "Šárce"), Name("Zdeňka", "Zdeňky", "Zdeňce"),
    Name("Anežka", "Anežky", "Anežce"), Name("Tereza", "Terezy", "Tereze"), Name("Dagmar", "Dagmar", "Dagmar"),
    Name("Růžena", "Růženy", "Růženě"), Name("Blažena", "Blaženy", "Blaženě"), Name("Ivana", "Ivany", "Ivaně"),
    Name("Žofie", "Žofie", "Žofii"), Name("Běla", "Běly", "Běle"), Name("Klára", "Kláry", "Kláře"),
    Name("Jiřina", "Jiřiny", "Jiřině"), Name("Adéla", "Adély", "Adéle"),
)  # fmt: skip
FIRST_NAMES_M = (
    Name("Petr", "Petra", "Petru"), Name("Ondřej", "Ondřeje", "Ondřeji"), Name("Jiří", "Jiřího", "Jiřímu"),
    Name("Tomáš", "Tomáše", "Tomáši"), Name("Zdeněk", "Zdeňka", "Zdeňku"), Name("Matěj", "Matěje", "Matěji"),
    Name("Lukáš", "Lukáše", "Lukáši"), Name("Řehoř", "Řehoře", "Řehoři"), Name("Vojtěch", "Vojtěcha", "Vojtěchu"),
    Name("Štěpán", "Štěpána", "Štěpánu"), Name("Jakub", "Jakuba", "Jakubu"), Name("Bořivoj", "Bořivoje", "Bořivoji"),
    Name("Luděk", "Luďka", "Luďku"), Name("Čeněk", "Čeňka", "Čeňku"), Name("Radek", "Radka", "Radku"),
    Name("Oldřich", "Oldřicha", "Oldřichu"), Name("Kryštof", "Kryštofa", "Kryštofu"),
    Name("Dušan", "Dušana", "Dušanu"), Name("Hynek", "Hynka", "Hynku"), Name("Přemysl", "Přemysla", "Přemyslu"),
)  # fmt: skip
SURNAMES_F = (
    Name("Nováková", "Novákové", "Novákové"), Name("Dvořáková", "Dvořákové", "Dvořákové"),
    Name("Černá", "Černé", "Černé"), Name("Procházková", "Procházkové", "Procházkové"),
    Name("Kučerová", "Kučerové", "Kučerové"), Name("Říhová", "Říhové", "Říhové"),
    Name("Šťastná", "Šťastné", "Šťastné"), Name("Pokorná", "Pokorné", "Pokorné"),
    Name("Hájková", "Hájkové", "Hájkové"), Name("Žáková", "Žákové", "Žákové"),
    Name("Králová", "Králové", "Králové"), Name("Růžičková", "Růžičkové", "Růžičkové"),
    Name("Benešová", "Benešové", "Benešové"), Name("Fialová", "Fialové", "Fialové"),
    Name("Sedláčková", "Sedláčkové", "Sedláčkové"), Name("Doležalová", "Doležalové", "Doležalové"),
    Name("Zemanová", "Zemanové", "Zemanové"), Name("Kolářová", "Kolářové", "Kolářové"),
    Name("Čermáková", "Čermákové", "Čermákové"), Name("Vaňková", "Vaňkové", "Vaňkové"),
    Name("Křížová", "Křížové", "Křížové"), Name("Bláhová", "Bláhové", "Bláhové"),
    Name("Šimková", "Šimkové", "Šimkové"), Name("Hrušková", "Hruškové", "Hruškové"),
    Name("Němcová", "Němcové", "Němcové"), Name("Ptáčková", "Ptáčkové", "Ptáčkové"),
    Name("Žižková", "Žižkové", "Žižkové"), Name("Tůmová", "Tůmové", "Tůmové"),
)  # fmt: skip
SURNAMES_M = (
    Name("Novák", "Nováka", "Novákovi"), Name("Dvořák", "Dvořáka", "Dvořákovi"), Name("Černý", "Černého", "Černému"),
    Name("Procházka", "Procházky", "Procházkovi"), Name("Kučera", "Kučery", "Kučerovi"), Name("Říha", "Říhy", "Říhovi"),
    Name("Šťastný", "Šťastného", "Šťastnému"), Name("Pokorný", "Pokorného", "Pokornému"),
    Name("Hájek", "Hájka", "Hájkovi"), Name("Žák", "Žáka", "Žákovi"), Name("Král", "Krále", "Královi"),
    Name("Růžička", "Růžičky", "Růžičkovi"), Name("Beneš", "Beneše", "Benešovi"), Name("Fiala", "Fialy", "Fialovi"),
    Name("Sedláček", "Sedláčka", "Sedláčkovi"), Name("Doležal", "Doležala", "Doležalovi"),
    Name("Zeman", "Zemana", "Zemanovi"), Name("Kolář", "Koláře", "Kolářovi"), Name("Čermák", "Čermáka", "Čermákovi"),
    Name("Vaněk", "Vaňka", "Vaňkovi"), Name("Kříž", "Kříže", "Křížovi"), Name("Bláha", "Bláhy", "Bláhovi"),
    Name("Šimek", "Šimka", "Šimkovi"), Name("Hruška", "Hrušky", "Hruškovi"), Name("Němec", "Němce", "Němcovi"),
    Name("Ptáček", "Ptáčka", "Ptáčkovi"), Name("Žižka", "Žižky", "Žižkovi"), Name("Tůma", "Tůmy", "Tůmovi"),
)  # fmt: skip

TOWNS = (
    Town("Praha", "Prahy", "z Prahy", "v Praze"), Town("Brno", "Brna", "z Brna", "v Brně"),
    Town("Ostrava", "Ostravy", "z Ostravy", "v Ostravě"), Town("Plzeň", "Plzně", "z Plzně", "v Plzni"),
    Town("Liberec", "Liberce", "z Liberce", "v Liberci"), Town("Olomouc", "Olomouce", "z Olomouce", "v Olomouci"),
    Town("České Budějovice", "Českých Budějovic", "z Českých Budějovic", "v Českých Budějovicích"),
    Town("Hradec Králové", "Hradce Králové", "z Hradce Králové", "v Hradci Králové"),
    Town("Ústí nad Labem", "Ústí nad Labem", "z Ústí nad Labem", "v Ústí nad Labem"),
    Town("Pardubice", "Pardubic", "z Pardubic", "v Pardubicích"), Town("Zlín", "Zlína", "ze Zlína", "ve Zlíně"),
    Town("Havířov", "Havířova", "z Havířova", "v Havířově"), Town("Kladno", "Kladna", "z Kladna", "v Kladně"),
    Town("Most", "Mostu", "z Mostu", "v Mostě"), Town("Opava", "Opavy", "z Opavy", "v Opavě"),
    Town("Frýdek-Místek", "Frýdku-Místku", "z Frýdku-Místku", "ve Frýdku-Místku"),
    Town("Karviná", "Karviné", "z Karviné", "v Karviné"), Town("Jihlava", "Jihlavy", "z Jihlavy", "v Jihlavě"),
    Town("Teplice", "Teplic", "z Teplic", "v Teplicích"), Town("Děčín", "Děčína", "z Děčína", "v Děčíně"),
    Town("Karlovy Vary", "Karlových Varů", "z Karlových Varů", "v Karlových Varech"),
    Town("Chomutov", "Chomutova", "z Chomutova", "v Chomutově"),
    Town("Jablonec nad Nisou", "Jablonce nad Nisou", "z Jablonce nad Nisou", "v Jablonci nad Nisou"),
    Town("Mladá Boleslav", "Mladé Boleslavi", "z Mladé Boleslavi", "v Mladé Boleslavi"),
    Town("Prostějov", "Prostějova", "z Prostějova", "v Prostějově"),
    Town("Přerov", "Přerova", "z Přerova", "v Přerově"),
    Town("Česká Lípa", "České Lípy", "z České Lípy", "v České Lípě"),
    Town("Třebíč", "Třebíče", "z Třebíče", "v Třebíči"), Town("Třinec", "Třince", "z Třince", "v Třinci"),
    Town("Tábor", "Tábora", "z Tábora", "v Táboře"), Town("Znojmo", "Znojma", "ze Znojma", "ve Znojmě"),
    Town("Příbram", "Příbrami", "z Příbrami", "v Příbrami"), Town("Kolín", "Kolína", "z Kolína", "v Kolíně"),
    Town("Cheb", "Chebu", "z Chebu", "v Chebu"), Town("Písek", "Písku", "z Písku", "v Písku"),
    Town("Trutnov", "Trutnova", "z Trutnova", "v Trutnově"),
    Town("Kroměříž", "Kroměříže", "z Kroměříže", "v Kroměříži"),
    Town("Žďár nad Sázavou", "Žďáru nad Sázavou", "ze Žďáru nad Sázavou", "ve Žďáru nad Sázavou"),
    Town("Uherské Hradiště", "Uherského Hradiště", "z Uherského Hradiště", "v Uherském Hradišti"),
    Town("Břeclav", "Břeclavi", "z Břeclavi", "v Břeclavi"), Town("Vsetín", "Vsetína", "ze Vsetína", "ve Vsetíně"),
    Town("Český Krumlov", "Českého Krumlova", "z Českého Krumlova", "v Českém Krumlově"),
    Town("Jindřichův Hradec", "Jindřichova Hradce", "z Jindřichova Hradce", "v Jindřichově Hradci"),
)  # fmt: skip
_SMALLER = (
    Town("Žďár", "Žďáru", "ze Žďáru", "ve Žďáru"), Town("Náchod", "Náchoda", "z Náchoda", "v Náchodě"),
    Town("Uherský Brod", "Uherského Brodu", "z Uherského Brodu", "v Uherském Brodě"),
)  # fmt: skip
TOWN_OF = {town.nominative: town for town in (*TOWNS, *_SMALLER)}
"""Every town that any prompt names, by its nominative."""


class Person(NamedTuple):
    """First name and surname, declined together."""

    name: Name
    woman: bool


def declined_person(rng: random.Random) -> Person:
    """A first name with a surname that agrees with it, in every form."""
    woman = rng.random() < 0.5
    first = pick(rng, FIRST_NAMES_F if woman else FIRST_NAMES_M)
    last = pick(rng, SURNAMES_F if woman else SURNAMES_M)
    return Person(Name(*(f"{one} {other}" for one, other in zip(first, last, strict=True))), woman)


def person(rng: random.Random) -> str:
    """First name and surname in the nominative."""
    return declined_person(rng).name.nominative
