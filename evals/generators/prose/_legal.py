"""Czech in the manner of contracts and statutes. Every phrase is stored in the case its slot needs."""

import random

# nominative/genitive/"f" where the noun is feminine
PARTIES = "Zhotovitel/Zhotovitele/|Objednatel/Objednatele/|Prodávající/Prodávajícího/|Kupující/Kupujícího/|Pronajímatel/Pronajímatele/|Nájemce/Nájemce/|Zaměstnavatel/Zaměstnavatele/|Zaměstnanec/Zaměstnance/|Dodavatel/Dodavatele/|Věřitel/Věřitele/|Dlužník/Dlužníka/|Správce/Správce/|Příjemce/Příjemce/|Společnost/Společnosti/f|Banka/Banky/f|Obec/Obce/f|Pojišťovna/Pojišťovny/f".split(
    "|"
)
DUTIES = "předat dílo|zaplatit kupní cenu|vrátit jistotu|předložit doklady|oznámit vady|uhradit smluvní pokutu|uchovávat záznamy|zajistit přístup do objektu|umožnit kontrolu|nahradit škodu|vystavit fakturu|vyklidit byt|doručit výpověď|vést evidenci|odstranit závady|zachovávat mlčenlivost|pojistit předmět nájmu|zveřejnit smlouvu|provést vyúčtování záloh|poskytnout součinnost".split(
    "|"
)
EVENTS = "od podpisu smlouvy|od doručení výzvy|od nabytí účinnosti|od převzetí díla|od vystavení faktury|od zjištění vady|od skončení nájmu|od právní moci rozhodnutí|od uplynutí zkušební doby|od prvního dne kalendářního měsíce|od písemného upozornění|od zápisu do rejstříku".split(
    "|"
)
CONDITIONS = "Nebude-li závazek splněn včas|Nestanoví-li zákon jinak|Poruší-li smluvní strana tuto povinnost|Dojde-li k prodlení s placením|Odmítne-li druhá strana plnění|Vyjde-li najevo podstatná vada|Změní-li se okolnosti|Neuzavřou-li strany dohodu|Zanikne-li předmět smlouvy|Uplyne-li marně dodatečná lhůta".split(
    "|"
)
EFFECTS = "smlouva se od počátku ruší|vzniká právo na úrok z prodlení|může druhá strana od smlouvy odstoupit|rozhodne soud na návrh|použije se tento zákon obdobně|platí dosavadní sazba|nese náklady ten, kdo je způsobil|považuje se plnění za řádné|zůstává nárok na náhradu škody nedotčen|prodlužuje se lhůta o stejnou dobu|hradí se smluvní pokuta|je jednání neplatné".split(
    "|"
)
TOPICS = "Předmět smlouvy|Cena a platební podmínky|Doba trvání|Práva a povinnosti stran|Odpovědnost za vady|Smluvní pokuta|Ochrana osobních údajů|Výpověď|Závěrečná ustanovení|Náhrada škody|Doručování|Mlčenlivost|Předání a převzetí|Jistota".split(
    "|"
)
CLOSINGS = "Tato smlouva nabývá účinnosti dnem podpisu.|Změny smlouvy vyžadují písemnou formu.|Smlouva je vyhotovena ve dvou stejnopisech.|Spory rozhodují obecné soudy.|Strany prohlašují, že smlouvu uzavřely svobodně a vážně.|Přílohy jsou nedílnou součástí smlouvy.|Práva a povinnosti přecházejí na právní nástupce.".split(
    "|"
)


def _clause(rng: random.Random) -> str:
    nominative, genitive, feminine = rng.choice(PARTIES).split("/")
    bound = "povinna" if feminine else "povinen"
    kind = rng.randrange(6)
    if kind == 0:
        days = rng.choice((5, 7, 10, 14, 15, 30, 60, 90))
        return f"{nominative} je {bound} {rng.choice(DUTIES)} do {days} dnů {rng.choice(EVENTS)}."
    if kind == 1:
        return f"{rng.choice(CONDITIONS)}, {rng.choice(EFFECTS)}."
    if kind == 2:
        return f"Smluvní pokuta činí {rng.randint(1, 50) * 100} Kč za každý den prodlení na straně {genitive[0].lower()}{genitive[1:]}."
    if kind == 3:
        return f"Ustanovení § {rng.randint(5, 2900)} odst. {rng.randint(1, 5)} zákona č. {rng.randint(6, 499)}/{rng.randint(1991, 2024)} Sb. tím není dotčeno."
    if kind == 4:
        return rng.choice(CLOSINGS)
    return f"{nominative} může {rng.choice(DUTIES)} i dříve, jinak {rng.choice(EFFECTS)}."


def paragraph(rng: random.Random) -> str:
    """One numbered section of a contract or a statute."""
    number = rng.randint(2, 120)
    clauses = [f"({index}) {_clause(rng)}" for index in range(1, rng.randint(3, 6))]
    return f"§ {number}\n{rng.choice(TOPICS)}\n" + "\n".join(clauses)
