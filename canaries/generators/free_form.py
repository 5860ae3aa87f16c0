"""Free-form answers: long ones that must stay sound, the same after a long context, ones under several constraints."""

import random
from dataclasses import replace

from q36eval.canaries.generators.discount import SYSTEMS, LastLine, discount_compare
from q36eval.canaries.generators.recall import context
from q36eval.canaries.generators.words import CITIES, FIRST_NAMES_F, FIRST_NAMES_M, PRODUCTS, TOWN_OF, pick, question
from q36eval.examples import ChatExample

LONG_CHARACTERS = 6_000
"""About 2,000 tokens of Qwen's, whose Czech takes three characters a token; specifications ask for more."""

SHORT_CHARACTERS = 250
"""A long context for the sandbox, whose questions have a hundred tokens."""

ADVISER = SYSTEMS[0]

MAX_CHARACTERS = 9_000
MIN_CHARACTERS_PER_WORD = 2
"""Of a long answer: a third of the requested length, since a Czech word takes six characters with its space."""

SUBJECTS = (
    "údržba dřevěného plotu", "pěstování rajčat", "stěhování do menšího bytu", "první zimní výprava do hor",
    "oprava starého kola", "založení sousedské knihovny", "vaření pro deset lidí", "výběr pracovního stolu",
    "péče o včelstvo", "cesta vlakem přes celou zemi", "zateplení chalupy", "výuka dětí doma", "správa malé dílny",
    "pečení kváskového chleba", "úklid po povodni", "nákup ojetého auta", "příprava na maraton", "sběr hub",
    "výsadba ovocného sadu", "hra na varhany", "vedení kroniky obce", "oprava střechy", "chov slepic",
    "organizace plesu", "úspora elektřiny",
)  # fmt: skip
FORMS = (
    "Napiš souvislý článek na téma „{subject}“.",
    "Napiš podrobný návod pro začátečníky. Téma: {subject}.",
    "Napiš vyprávění, ve kterém hraje hlavní roli {subject}.",
    "Napiš dopis příteli o tom, co obnáší {subject}.",
    "Sepiš rozhovor dvou sousedů. Mluví o tom, co přináší {subject}.",
)
FRAME = "{form} Text zasaď do {town} a ať v něm vystupuje {person}. Piš česky, asi {words} slov, bez nadpisů."
LANGUAGE = {
    "scripts": ["Latin"],
    "max_characters": MAX_CHARACTERS,
    "language": "cs",
    "headings": False,
    "finished": True,
}
SHORT_PROSE = {"scripts": ["Latin"], "min_characters": 1, "max_characters": 4_000, "finished": True}
"""Of the points under several constraints, whose language the style states."""

STORY = (
    "Je to práce, která se zdá jednoduchá jen zpovzdálí.",
    "{person} s ní {place} začíná den co den znovu a pokaždé se něčemu přiučí.",
    "Nejdřív bylo potřeba všechno rozmyslet, sehnat pomoc a nespěchat.",
    "Sousedé radili různě: jeden chválil starý způsob, druhý věřil novým nástrojům.",
    "Po týdnu už byl vidět kus hotového díla, a s ním přišla i dobrá nálada.",
    "Samozřejmě se objevily chyby, ale žádná nebyla tak velká, aby se nedala napravit.",
    "Nejvíc pomohlo, že si všichni zapisovali, co se povedlo a co ne.",
    "Když napadl první sníh, zůstalo dost času na odpočinek i na plány pro další rok.",
    "Kdo chce zkusit totéž, ať začne s malým kouskem a ať se nebojí zeptat.",
    "Téma „{subject}“ tak nakonec spojilo lidi, kteří se předtím sotva zdravili.",
)
"""An answer of the right kind; what a model writes is its own."""


def _long_question(rng: random.Random) -> tuple[str, str, str]:
    """The content by which the question is known, the question, and an answer of the right kind."""
    subject, city = pick(rng, SUBJECTS), pick(rng, CITIES)
    name, words = pick(rng, FIRST_NAMES_M + FIRST_NAMES_F).nominative, 200 + 10 * int(rng.random() * 16)
    form, town = int(rng.random() * len(FORMS)), TOWN_OF[city]
    prompt = FRAME.format(form=FORMS[form].format(subject=subject), town=town.genitive, person=name, words=words)
    answer = " ".join(STORY).format(subject=subject, place=town.place, person=name)
    return f"{subject}:{city}:{name}:{words}:{'abcde'[form]}", prompt, answer


def stability(rng: random.Random) -> ChatExample:
    """A text of a few hundred words; judged is whether it stays sound and ends, not what it says."""
    key, prompt, answer = _long_question(rng)
    _, city, name, words, _ = key.split(":")
    stable = LANGUAGE | {"min_characters": MIN_CHARACTERS_PER_WORD * int(words)}
    expected = {"stable": stable, "style": {"mentions": [city, name]}}
    return question(f"stability:{key}", prompt, answer, expected)


def stability_long_context(rng: random.Random, characters: int = LONG_CHARACTERS) -> ChatExample:
    """The same after a long text, where a cache of low precision decays first."""
    example = stability(rng)
    key = example.key.replace("stability:", "stability_long_context:", 1)
    text = f"{context(rng, characters, True)}\n\nPředchozí text nech stranou. {example.messages[0]['content']}"
    return replace(example, key=key, messages=({"role": "user", "content": text},))


def discount_after_context(
    rng: random.Random, characters: int = SHORT_CHARACTERS, last_line: LastLine = "free"
) -> ChatExample:
    """A price comparison after other text in another language, as much of it as the sandbox bears."""
    example = discount_compare(rng, last_line)
    prompt = f"{context(rng, characters, False)}\n{example.messages[-1]['content']}"
    messages = ({"role": "system", "content": ADVISER}, {"role": "user", "content": prompt})
    key = example.key.replace("discount_compare:", "discount_after_context:", 1)
    return replace(example, key=key, messages=messages)


FIRST_WORDS = ("Souhrn", "Přehled", "Doporučení", "Závěr", "Odpověď", "Stručně", "Shrnutí", "Rady", "Postup", "Kroky")
BANNED = (
    "samozřejmě", "bohužel", "zkrátka", "mimochodem", "koneckonců", "opravdu", "naštěstí", "pochopitelně",
)  # fmt: skip
NOTES_EN = (
    "The following note came from an English-speaking colleague: keep it short and practical.",
    "Our office in London asked for this; the readers are in Brno.",
    "Context for you: the text goes to a Czech newsletter.",
)
COUNTED = {3: "tři odrážky", 4: "čtyři odrážky", 5: "pět odrážek", 6: "šest odrážek", 7: "sedm odrážek"}
CONSTRAINED = (
    "Téma: {subject}. Začni slovem „{first}“ a dvojtečkou. Potom napiš přesně {count}, každou na vlastní řádek "
    "začínající pomlčkou. V textu použij výraz „{word}“ přesně v tomto tvaru a nepoužij slovo „{banned}“. "
    "Piš česky, nejvýš {most} slov."
)


def instruction_order(rng: random.Random) -> ChatExample:
    """Several constraints at once: the first word, exactly so many bullets, Czech, a word to use and one to avoid."""
    subject, first, word, banned = pick(rng, SUBJECTS), pick(rng, FIRST_WORDS), pick(rng, PRODUCTS), pick(rng, BANNED)
    bullets, most = pick(rng, tuple(COUNTED)), 100 + 10 * int(rng.random() * 11)
    prompt = CONSTRAINED.format(
        subject=subject, first=first, word=word, banned=banned, count=COUNTED[bullets], most=most
    )
    if rng.random() < 0.4:
        prompt = f"{pick(rng, NOTES_EN)}\n{prompt}"
    lines = [f"- {_ADVICE[number]}" for number in range(bullets - 1)] + [f"- Nakonec přijde na řadu {word}."]
    style = {
        "bullets": bullets,
        "bullet": "dash",
        "first_word": first,
        "colon": True,
        "language": "cs",
        "max_words": most,
        "contains": [word],
        "lacks": [banned],
    }
    key = f"instruction_order:{subject}:{first}:{word}:{banned}:{COUNTED[bullets]}:{most}"
    answer = "\n".join([f"{first}: {subject} krok za krokem.", *lines])
    return question(key, prompt, answer, {"style": style, "stable": SHORT_PROSE})


_ADVICE = (
    "Začněte včas a rozmyslete si pořadí práce.",
    "Sežeňte někoho, kdo už to jednou dělal.",
    "Nechte si rezervu pro případ špatného počasí.",
    "Zapisujte si, co se osvědčilo.",
    "Každý den ukliďte místo, kde pracujete.",
    "Nešetřete na věcech, které drží pohromadě.",
)
