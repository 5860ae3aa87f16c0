"""Czech: narrative, news, recipes and letters. Inflected forms are stored, or built by paradigms that have no exceptions."""

import random

MEN = "Petr Jan Karel Tomáš Jiří Pavel Martin Ondřej Josef Lukáš Marek Vojtěch Adam Jakub Filip František Václav Radek Šimon Aleš".split()
WOMEN = "Jana Eva Anna Lucie Tereza Hana Kateřina Věra Zuzana Barbora Markéta Alžběta Ivana Lenka Šárka Dagmar Jitka Olga Růžena Žofie".split()
# Masculine inanimate without vowel shifts (paradigm hrad).
MASCULINE = "telefon papír program projekt plán systém návrh obraz román deník zápisník kabát klobouk motor dopis most strom zákon úkol kufr vlak autobus obchod budík salát koš svetr časopis košík klavír".split()
# Feminine hard stems (paradigm žena).
FEMININE = (
    "lamp map budov zpráv smlouv zahrad váz mís škol kytar bund vstupenk pošt klik pohovk skříňk tašk obálk".split()
)
NEUTER = (
    "auto okno pero kolo město slovo jablko zrcadlo křeslo piano rádio mléko máslo víno světlo prkno kladivo".split()
)
# Stems of hard adjectives.
ADJECTIVES = "star nov mal velk krásn drah levn červen modr zelen černý bíl těžk lehk čist špinav rozbit prázdn pln dřevěn kožen tich dlouh krátk vzácn podivn skvěl oškliv zlat stříbrn pestr měkk tvrd kulat".split()
PLACES = "v kuchyni|na náměstí|u řeky|ve staré knihovně|za domem|pod mostem|na nádraží|v lese|ve škole|na trhu|v parku|u babičky|na chalupě|v kanceláři|ve sklepě|na půdě|vedle kostela|v dílně|na zahradě|ve městě|u moře|na kopci|v kavárně|před divadlem|na poště".split(
    "|"
)
TIMES = "včera|ráno|po obědě|loni v zimě|před polednem|v pondělí|o půlnoci|na jaře|každý večer|o dva dny později|toho léta|za úsvitu|během bouřky|v neděli|v září|kdysi dávno|znovu|nakonec|po škole|před Vánocemi".split(
    "|"
)
# Past tense, masculine and feminine, with an object in the accusative.
VERBS = "koupil našel/našla prodal opravil ztratil namaloval přinesl/přinesla schoval vyčistil otevřel/otevřela zapomněl/zapomněla změřil zabalil zvedl/zvedla nakreslil rozbil vyhodil prohlédl/prohlédla půjčil hledal ukázal viděl/viděla dostal odnesl/odnesla".split()
JOBS = "pekař/pekařka učitel/učitelka lékař/lékařka malíř/malířka prodavač/prodavačka zahradník/zahradnice řidič/řidička zpěvák/zpěvačka spisovatel/spisovatelka kuchař/kuchařka soudce/soudkyně starosta/starostka knihovník/knihovnice úředník/úřednice".split()
FEELINGS = "šťastn unaven zvědav klidn hrd hladov smutn nervózn trpěliv spokojen osamel překvapen".split()
WEATHER = "Přestalo pršet.|Foukal studený vítr.|Slunce už bylo nízko.|Na střechách ležel sníh.|Byla jasná noc.|Údolí zakryla mlha.|Vzduch voněl senem.|V dálce hřmělo.|Listí začínalo červenat.|Hladina řeky stoupla.|Nad městem kroužili ptáci.|Ulice byly prázdné.".split(
    "|"
)
BODIES_M = "Krajský soud|Městský úřad|Dopravní podnik|Obecní úřad|Fotbalový klub|Nejvyšší soud|Energetický úřad".split(
    "|"
)
BODIES_F = "Rada města|Univerzita|Nemocnice|Vláda|Národní banka|Knihovna|Pošta|Sněmovna".split("|")
DECISIONS = "schválil{} nový rozpočet|uzavřel{} severní most|zvýšil{} ceny jízdenek|vyhlásil{} veřejnou soutěž|otevřel{} novou pobočku|zveřejnil{} výroční zprávu|zamítl{} stížnost|odložil{} hlasování|podepsal{} smlouvu|snížil{} poplatky|opravil{} vodovod|slíbil{} lepší služby|zrušil{} dva spoje|oznámil{} výsledky".split(
    "|"
)
REASONS = "kvůli vysokým nákladům|po dlouhé debatě|navzdory protestům|bez udání důvodu|kvůli úsporám energie|podle nového zákona|už potřetí|těsnou většinou|podle plánu|na poslední chvíli".split(
    "|"
)
TOWNS = "Brně Praze Ostravě Plzni Olomouci Liberci Jihlavě Opavě Kladně Pardubicích Táboře Kolíně Chebu Třebíči".split()
# Ingredients in the genitive (after grams) and in the accusative.
FOODS = "mouky/mouku másla/máslo cukru/cukr mléka/mléko rýže/rýži cibule/cibuli mrkve/mrkev žampionů/žampiony brambor/brambory smetany/smetanu sýra/sýr fazolí/fazole rajčat/rajčata jablek/jablka medu/med čočky/čočku špenátu/špenát ořechů/ořechy".split()
STEPS = "Smícháme {0} a {1}.|Nadrobno nakrájíme {0}.|Přidáme {0} a promícháme.|Osmahneme {0} asi {2} minut.|Necháme {0} odpočinout {2} minut.|Uvaříme {0} ve slané vodě.|Pečeme při {3} stupních.|Nakonec vmícháme {0}.|Podáváme teplé.|Ochutíme solí a pepřem.".split(
    "|"
)


def _gendered(pair: str, feminine: bool) -> str:
    masculine, _, other = pair.partition("/")
    return (other or masculine + "a") if feminine else masculine


def _accusative(rng: random.Random) -> str:
    """An adjective and a noun in the accusative singular."""
    stem = rng.choice(ADJECTIVES)
    gender = rng.randrange(3)
    if gender == 0:
        return f"{stem}ý {rng.choice(MASCULINE)}"
    if gender == 1:
        return f"{stem}ou {rng.choice(FEMININE)}u"
    return f"{stem}é {rng.choice(NEUTER)}"


def _nominative(rng: random.Random) -> str:
    """An adjective and a noun in the nominative singular, followed by "byl" in the right gender."""
    stem = rng.choice(ADJECTIVES)
    gender = rng.randrange(3)
    if gender == 0:
        return f"{stem}ý {rng.choice(MASCULINE)} byl"
    if gender == 1:
        return f"{stem}á {rng.choice(FEMININE)}a byla"
    return f"{stem}é {rng.choice(NEUTER)} bylo"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def sentence(rng: random.Random) -> str:
    """One narrative sentence."""
    kind = rng.randrange(8)
    feminine = rng.random() < 0.5
    name = rng.choice(WOMEN if feminine else MEN)
    verb, place, moment = _gendered(rng.choice(VERBS), feminine), rng.choice(PLACES), rng.choice(TIMES)
    if kind == 0:
        return f"{name} {verb} {place} {_accusative(rng)}."
    if kind == 1:
        return f"{_capital(moment)} {verb} {_gendered(rng.choice(JOBS), feminine)} {_accusative(rng)}."
    if kind == 2:
        return f"{_capital(_nominative(rng))} {place}."
    if kind == 3:
        return rng.choice(WEATHER)
    if kind == 4:
        was, ending = ("byla", "á") if feminine else ("byl", "ý")
        return f"{name} {was} {place} {moment} velmi {rng.choice(FEELINGS)}{ending}."
    if kind == 5:
        said = "zeptala se" if feminine else "zeptal se"
        return f"„Kde je {_nominative(rng).rsplit(' ', 1)[0]}?“ {said} {name}. „Asi {place}.“"
    if kind == 6:
        went = "ušla" if feminine else "ušel"
        return f"{name} {went} {rng.randint(5, 40)} kilometrů, než {_gendered('našel/našla', feminine)} {_accusative(rng)}."
    also = _gendered(rng.choice(VERBS), feminine)
    return f"{_capital(_gendered(rng.choice(JOBS), feminine))} {verb} {_accusative(rng)} a {moment} {also} {_accusative(rng)}."


def _news(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(2, 4)):
        feminine = rng.random() < 0.5
        body = rng.choice(BODIES_F if feminine else BODIES_M)
        kind = rng.randrange(3)
        if kind == 0:
            parts.append(f"{body} {rng.choice(DECISIONS).format('a' if feminine else '')} {rng.choice(REASONS)}.")
        elif kind == 1:
            parts.append(f"Počet návštěvníků v {rng.choice(TOWNS)} vzrostl o {rng.randint(5, 48)} procent.")
        else:
            cost = rng.randint(5, 90)
            parts.append(
                f"Oprava v {rng.choice(TOWNS)} bude stát {cost} milionů korun a skončí v roce {rng.randint(2024, 2035)}."
            )
    return " ".join(parts)


def _recipe(rng: random.Random) -> str:
    foods = rng.sample(FOODS, 4)
    listed = ", ".join(f"{rng.randrange(50, 600, 50)} g {food.split('/')[0]}" for food in foods)
    objects = [food.split("/")[1] for food in foods]
    steps = []
    for number in range(1, rng.randint(4, 6)):
        step = rng.choice(STEPS).format(*rng.sample(objects, 2), rng.randint(5, 40), rng.randrange(150, 230, 10))
        steps.append(f"{number}. {step}")
    return f"Suroviny: {listed}.\nPostup:\n" + "\n".join(steps)


def _letter(rng: random.Random) -> str:
    start = rng.choice(["Milá babičko", "Vážený pane řediteli", "Vážená paní učitelko", "Ahoj všichni", "Dobrý den"])
    close = rng.choice(["S pozdravem", "S úctou", "Srdečně zdraví", "Mějte se hezky"])
    body = " ".join(sentence(rng) for _ in range(rng.randint(2, 3)))
    return f"{start},\n{_capital(body)} Prosím, brzy mi napište.\n{close}\n{rng.choice(MEN + WOMEN)}"


def paragraph(rng: random.Random) -> str:
    """One paragraph of some kind."""
    kind = rng.choices((0, 1, 2, 3), (5, 3, 1, 1))[0]
    if kind == 0:
        return " ".join(sentence(rng) for _ in range(rng.randint(3, 6)))
    return (_news, _recipe, _letter)[kind - 1](rng)
