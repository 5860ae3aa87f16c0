"""Long contexts of our own making: plain narrative sentences that hold no number and no record.

A context is one of `DOCUMENTS` fixed texts, so that questions about the same text share their prefix, and an engine
that reuses a prefix reads each text once.
"""

import random
from functools import lru_cache

from q36eval.canaries.generators._words import pick

DOCUMENTS = 16
"""Texts for each language and length."""

_PEOPLE_CS = ("Tesař", "Pekař", "Listonoš", "Zahradník", "Hodinář", "Rybář", "Kovář", "Knihovník", "Učitel", "Soused")
_DID_CS = (
    "opravil",
    "přinesl",
    "našel",
    "prohlédl",
    "odložil",
    "vyčistil",
    "zabalil",
    "nakreslil",
    "schoval",
    "půjčil",
)
_THINGS_CS = (
    "starý žebřík", "dřevěný stůl", "malý koberec", "zelený kabát", "těžký klíč", "rozbitý budík", "prázdný košík",
    "papírový plán", "hliněný džbán", "široký pás", "modrý závěs", "kovový zámek",
)  # fmt: skip
_PLACES_CS = (
    "u řeky", "na půdě", "vedle kostela", "za mlýnem", "pod mostem", "na nádraží", "v dílně", "ve sklepě",
    "před školou", "na zahradě",
)  # fmt: skip
_TIMES_CS = ("Ráno", "Večer", "V sobotu", "Po obědě", "Na podzim", "Před bouřkou", "O víkendu", "Za svítání")
_AFTER_CS = (
    "potom šel pomalu domů", "nikdo si toho nevšiml", "začalo hustě pršet", "odpoledne přišla mlha",
    "na dvoře zaštěkal pes", "všichni byli spokojení", "zbytek práce počkal", "z okna bylo vidět les",
)  # fmt: skip

_PEOPLE_EN = ("The baker", "The teacher", "The gardener", "A neighbour", "The pilot", "The tailor", "A sailor")
_DID_EN = ("repaired", "found", "carried away", "painted", "sold", "borrowed", "measured", "hid", "cleaned", "drew")
_THINGS_EN = (
    "the wooden table", "an old ladder", "the heavy box", "a green coat", "the empty basket", "a broken clock",
    "the paper map", "a small carpet", "the silver key", "a wide belt",
)  # fmt: skip
_PLACES_EN = (
    "near the river", "in the garden", "behind the mill", "under the bridge", "at the station", "in the workshop",
    "beside the church", "on the hill",
)  # fmt: skip
_AFTER_EN = (
    "then walked home slowly", "nobody noticed it", "it began to rain", "the fog came down in the afternoon",
    "a dog barked in the yard", "everyone was content", "the rest of the work had to wait",
)  # fmt: skip


def _sentence_cs(rng: random.Random) -> str:
    who, did, thing = pick(rng, _PEOPLE_CS), pick(rng, _DID_CS), pick(rng, _THINGS_CS)
    place, moment, after = pick(rng, _PLACES_CS), pick(rng, _TIMES_CS), pick(rng, _AFTER_CS)
    forms = (
        f"{who} {did} {place} {thing} a {after}.",
        f"{moment} {did} {who.lower()} {thing}, {after}.",
        f"{moment} {place} {who.lower()} {did} {thing}.",
    )
    return pick(rng, forms)


def _sentence_en(rng: random.Random) -> str:
    who, did, thing = pick(rng, _PEOPLE_EN), pick(rng, _DID_EN), pick(rng, _THINGS_EN)
    return f"{who} {did} {thing} {pick(rng, _PLACES_EN)}, and {pick(rng, _AFTER_EN)}."


@lru_cache(maxsize=256)
def sentences(document: int, characters: int, czech: bool) -> tuple[str, ...]:
    """Sentences of together at least `characters`; a longer text starts with the shorter one."""
    rng = random.Random(f"context-{document}-{czech}")
    found, length = [], 0
    while length < characters:
        found.append(_sentence_cs(rng) if czech else _sentence_en(rng))
        length += len(found[-1]) + 1
    return tuple(found)


def context(rng: random.Random, characters: int, czech: bool) -> str:
    """One of the texts, at least `characters` long."""
    return " ".join(sentences(int(rng.random() * DOCUMENTS), characters, czech))
