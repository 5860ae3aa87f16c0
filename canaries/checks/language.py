"""Which language prose is in, by a rule that fits in a head.

A word speaks for a language when it is one of its function words, or holds a letter that, of the languages known here,
only it has. A sentence is in the language that most of its speaking words speak for; it takes two such words, and more
than the wanted language has, to call a sentence foreign. Words that two of the languages share speak for none.

Short sentences often hold no such word. Of them the groups of three letters speak: how much likelier another language
makes them than the wanted one does, by the common words of both (a naive Bayes classifier over trigrams; Dunning 1994,
"Statistical identification of language"). It takes much to call a sentence foreign by that, for names are foreign too.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from q36eval.canaries.checks.base import Failure, place_of, shown
from q36eval.canaries.checks.prose import Piece, sentences, words

Language = Literal["cs", "en"]

FUNCTION_WORDS = {
    "cs": """je jsou byl byla bylo byli být se si že ale nebo ani aby když kdy pokud protože proto tak také jako jak už
        ještě jen pouze ve ze ke ku pro při podle mezi přes před pod nad bez od po za by který která které kteří kterou
        kterého tento tato toto tyto tím tom tohoto této těchto jeho její jejich můj naše vaše co kdo kde
        proč není nejsou má mají může mohou musí lze bude budou než však tedy například velmi více méně nejen""",
    "en": """the and of is are was were be been has have had it its this that these those with for from at as or by
        not but if then than which who what when where why how can could will would should may might must you your we
        our they their he she his her into about over under between because also very more most such there here""",
    "sk": """je si by má nad pod bez od po za ku nie či sú bol bola bolo boli byť sa že ale alebo ani aby keď kedy ak
        pretože preto tak tiež ako ešte len iba vo zo pre pri podľa medzi cez pred ktorý ktorá ktoré
        ktorí ktorú ktorého táto toto tieto čo kto kde prečo majú môže môžu musí možno budú však teda
        napríklad veľmi viac menej aj""",
    "pl": """jest są był była było byli być się że ale lub albo ani żeby gdy kiedy jeśli ponieważ dlatego tak też jak
        już jeszcze tylko we ze dla przy według między przez przed który która które którzy którą tego ten ta co kto
        gdzie dlaczego nie ma mają może mogą musi można będzie będą jednak więc bardzo więcej oraz""",
    "de": """der die das den dem des ein eine einen einem einer ist sind war waren sein und oder aber nicht auch auf
        mit für von zu zum zur bei nach aus im ins als wie wenn weil dass kann können wird werden hat haben sie wir ihr
        ich es sich nur noch sehr mehr über unter zwischen""",
}  # fmt: skip
OWN_LETTERS = {"cs": "ěřů", "sk": "ľĺŕô", "pl": "ąćęłńśźż", "de": "ß", "en": ""}
"""Letters that no other language of this table writes (é, í, š, ü and the like are shared)."""

MIN_WORDS_TO_TELL = 8
"""An answer of so many words must hold one that speaks for the wanted language, or its letters must."""

MIN_FOREIGN_WORDS = 2
MIN_WORDS_BY_LETTERS = 2
MIN_NATS_OTHERS, MIN_NATS = 15.0, {("cs", "sk"): 10.0}
"""That the letters must speak for another language; a Slovak sentence shares most of its own with a Czech one."""

NATS_OF_A_WORD = 6.0
"""What a word that speaks for the wanted language weighs against that, and one for the other in favour."""

MAX_LETTERS = 2_000
"""Of a sentence that are looked at."""

SMOOTHING = 0.1
"""Added to every count."""

_SETS = {language: frozenset(listed.split()) for language, listed in FUNCTION_WORDS.items()}
_SPEAKS_FOR = {
    word: language
    for language, known in _SETS.items()
    for word in known
    if not any(word in others for other, others in _SETS.items() if other != language)
}
_OWNERS = {letter: language for language, letters in OWN_LETTERS.items() for letter in letters}
_LETTERS = re.compile(r"[^\W\d_]+")
_CODE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|\\[A-Za-z]{2,20}|`[^`\n]{0,300}`|https?://\S+|„[^“”\n]{0,300}[“”]|\"[^\"\n]{0,300}\"",
    re.DOTALL,
)


class Foreign(NamedTuple):
    """A sentence in another language than the wanted one."""

    piece: Piece
    language: str


def spoken_for(word: str) -> str | None:
    """The language that a word speaks for, if any."""
    small = word.lower()
    if not small.isascii():
        own = next((_OWNERS[letter] for letter in small[:64] if letter in _OWNERS), None)
        if own is not None:
            return own
    return _SPEAKS_FOR.get(small)


def counts(text: str) -> dict[str, int]:
    """How many words of `text` speak for each language."""
    speaking = dict.fromkeys(FUNCTION_WORDS, 0)
    for match in _LETTERS.finditer(text):
        language = spoken_for(match.group())
        if language is not None:
            speaking[language] += 1
    return speaking


def language_failures(check: str, text: str, wanted: Language) -> Iterator[Failure]:
    """The sentences in another language, or that nothing tells the wanted one."""
    foreign = list(foreign_sentences(text, wanted))
    for piece, language in foreign:
        message = f"a sentence in {language}, not {wanted}: {shown(text[piece.start : piece.end])}"
        yield Failure(check, "wrong_language", place_of(text, piece.start), message)
    if foreign or counts(text)[wanted] or sum(1 for _ in words(text)) < MIN_WORDS_TO_TELL:
        return
    scores = _scores([match.group().lower() for match in _LETTERS.finditer(text[:MAX_LETTERS])])
    if max(scores, key=lambda language: scores[language]) != wanted:
        yield Failure(check, "unclear_language", "answer", f"no word speaks for {wanted}")


def foreign_sentences(text: str, wanted: Language) -> Iterator[Foreign]:
    """The sentences in another language than `wanted`; code, addresses and quotations do not count."""
    prose = _CODE.sub(lambda match: " " * len(match.group()), text)
    for piece in sentences(prose):
        sentence = prose[piece.start : piece.end]
        speaking = counts(sentence)
        language = max(speaking, key=lambda name: speaking[name])
        if speaking[language] >= MIN_FOREIGN_WORDS and speaking[language] > speaking[wanted]:
            yield Foreign(piece, language)
        else:
            by_letters = likelier_language(sentence, wanted, speaking)
            if by_letters is not None:
                yield Foreign(piece, by_letters)


def likelier_language(sentence: str, wanted: Language, speaking: dict[str, int]) -> str | None:
    """The language that makes the letters of a sentence much likelier than `wanted` does; None where none does.

    `speaking` are the words that speak for each language: the more for `wanted`, the more it takes.
    """
    said = [match.group().lower() for match in _LETTERS.finditer(sentence[:MAX_LETTERS])]
    said = [word for word in said if len(word) > 1]
    if len(said) < MIN_WORDS_BY_LETTERS:
        return None
    scores = _scores(said)
    language = max(scores, key=lambda name: scores[name])
    enough = MIN_NATS.get((wanted, language), MIN_NATS_OTHERS)
    enough += NATS_OF_A_WORD * (speaking[wanted] - speaking[language])
    return language if scores[language] - scores[wanted] > enough else None


def _scores(said: list[str]) -> dict[str, float]:
    """The log-likelihood of words in every language, in nats."""
    return {language: sum(map(model.log_likelihood, said)) for language, model in _models().items()}


class _Trigrams(NamedTuple):
    """How often groups of three letters occur in a language's common words, ends of words included."""

    three: Counter[str]
    two: Counter[str]

    def log_likelihood(self, word: str) -> float:
        """In nats: of each letter after the two before it, smoothed."""
        padded = f"  {word} "
        return sum(
            math.log((self.three[padded[at : at + 3]] + SMOOTHING) / (self.two[padded[at : at + 2]] + SMOOTHING * 40))
            for at in range(len(padded) - 2)
        )


@lru_cache(maxsize=1)
def _models() -> dict[str, _Trigrams]:
    models = {}
    for language, listed in COMMON_WORDS.items():
        padded = [f"  {word} " for word in dict.fromkeys(listed.split())]
        three = Counter(word[at : at + 3] for word in padded for at in range(len(word) - 2))
        two = Counter(word[at : at + 2] for word in padded for at in range(len(word) - 2))
        models[language] = _Trigrams(three, two)
    return models


COMMON_WORDS = {
    "cs": """
        je jsou byl byla bylo být se si že ale nebo ani aby když protože proto tak také jako jak už ještě jen pouze ve
        ze pro při podle mezi přes před pod nad bez který která které kteří kterou tento tato toto tyto tím tom jeho
        její jejich můj naše vaše co kdo kde proč není nejsou má mají může mohou musí lze bude budou než však tedy
        velmi více méně dům práce den dny dní rok roky let čas člověk lidé lidí dítě děti žena muž město vesnice ulice
        cesta voda dřevo kámen země pole zahrada strom stromy květina zvíře pes kočka kráva slepice včela včely úl med
        začněte vyberte kupte připravte zkontrolujte rozmyslete sežeňte nechte zapisujte ukliďte nešetřete vezměte
        dejte uvařte nakupte posaďte změřte roztřiďte popište uložte zabalte vysejte vysaďte zalévejte vylamujte
        přidejte použijte postupujte nezapomeňte promyslete stanovte naplánujte zajistěte ověřte udržujte větrejte
        hlídejte doplňte rozšiřujte otevírejte sledujte sedněte nabijte odpočiňte umyjte vyměňte nastavte nahustěte
        očistěte důležité potřebné vhodné dobré nové staré malé velké celý celá každý každá vždy nikdy často zřídka
        brzy pozdě ráno večer dopoledne odpoledne jaro léto podzim zima sníh déšť vítr slunce světlo tma teplo chladno
        peníze cena koruna objednávka zpráva zákazník údaje děkujeme prosím děkuji dobrý posíláme evidujeme přijali
        zaplaceno uhrazena částka platba datum věk skladem zboží záznam následující uvedené shrnutí přehled kroky
        doporučení závěr odpověď stručně postup rady začátečník zvládnete včas předem pořadí seznam nábytek krabice
        byt pokoj kuchyně okno dveře stůl židle skříň postel nádobí oblečení kolo řetěz brzda šroub nářadí vrtačka
        žehlička batoh sešit stan kufr svetr monitor klávesnice tiskárna lampa hodinky koloběžka mixér sedačka vlak
        jízdenka nádraží přestup výluka trať sedadlo svačina pití knížka jídlo polévka guláš maso zelenina ovoce hrnec
        talíř ubrus host hosté recept chléb kvásek mouka houba les hřib košík muchomůrka poradna rybník soused
        sousedka babička dědeček přítel rodina škola učitel kniha příběh článek text věta slovo odrážka střecha taška
        komín krov plot prkno barva nátěr štětec výkop povodeň bahno pojištění škoda auto motor karoserie kilometr
        najeto prodejce smlouva maraton běh trénink boty tempo sad jabloň hruška roubování varhany píšťala tón cvičení
        kronika obec zápis událost ples sál hudba vstupenka elektřina spotřeba žárovka lednička úspora zateplení vata
        fasáda knihovna police výpůjčka dílna ponk pila objednat sklad výuka vyučování matematika chtěl chtěla začal
        začala řekl řekla přišel přišla viděl věděl našel našla dostal vrátil seděl zůstal pomohl potřeba udělat
        koupit napsat říct vidět vědět mluvit jít jet pracovat dělat učit čekat zkusit hledat najít dobře špatně
        rychle pomalu snadno obtížně opatrně nejdřív potom nakonec dále dál zpátky domů venku uvnitř nahoře dole vedle
        kolem během zatímco jakmile dokud jestliže přestože kvůli díky místo kromě včetně zejména obvykle hlavně
        například zároveň nejlépe nejméně alespoň aspoň možná určitě jistě správně přesně společně přidávejte vyhněte
        nezapomínejte pravidelně dostatek kvalitní vhodného zkušeného pomocníka rezervu počasí osvědčilo drží
        pohromadě přijde řadu místem vašeho svého svých všechno všichni několik mnoho málo trochu první druhý třetí
        mohla mohl bych byste bychom jste jsme jsem nebyl nebude neměl nemůže nechce nezná nejsme
        """,
    "en": """
        the and of is are was were be been has have had it its this that these those with for from at as or by not but
        if then than which who what when where why how can could will would should may might must you your we our they
        their he she his her into about over under between because also very more most such there here house work day
        days year time man woman child people city town village street way water wood stone land field garden tree
        trees flower animal dog cat cow hen bee bees hive honey start choose buy prepare check think find leave write
        clean take give cook shop seat measure sort label store pack sow plant remove add use proceed forget plan make
        sure keep watch sit charge rest wash change set inflate open close bring move put get let important necessary
        suitable good new old small large whole each every always never often early late morning evening afternoon
        spring summer autumn winter snow rain wind sun light dark warm cold money price order message customer data
        thank please dear send record received paid amount payment date age stock goods following summary overview
        steps advice answer brief beginner easily advance list furniture boxes flat room kitchen window door table
        chair wardrobe bed dishes clothes bicycle chain brake screw tools drill iron backpack notebook tent suitcase
        sweater monitor keyboard printer lamp scooter mixer train ticket station snack drink book food soup meat
        vegetables fruit pot plate guest guests recipe bread flour mushroom forest basket neighbour grandmother friend
        family school teacher story article text sentence word bullet roof tile fence board paint brush flood
        insurance car engine seller contract marathon running training shoes pace orchard apple organ pipe practice
        chronicle event ball music electricity bulb fridge saving insulation library shelf workshop lesson wanted
        began said came saw knew found got returned sat stayed helped need do say see know speak go teach wait try
        search well badly quickly slowly carefully first next finally further back home outside inside up down beside
        around during while until although thanks instead except including especially usually mainly example together
        regularly daily monthly gently properly firmly ahead ready right left enough before after everything everyone
        several many few little second third another something anything nothing someone regular local cheap expensive
        healthy fresh strong weak heavy just only even still yet soon again ever quite rather almost perhaps certainly
        correctly exactly help ask tell show turn look feel hold carry follow learn read listen build grow cut dry
        cover fill thing things part place point week month hour minute weather tip tips step note end line air side
        """,
    "sk": """
        je sú bol bola bolo byť sa si že ale alebo ani aby keď pretože preto tak tiež ako už ešte len iba vo zo pre
        pri podľa medzi cez pred pod nad bez ktorý ktorá ktoré ktorí ktorú tento táto toto tieto tým tom jeho jej ich
        môj naše vaše čo kto kde prečo nie nemá majú môže môžu musí možno bude budú než však teda veľmi viac menej dom
        práca deň dni rok roky čas človek ľudia dieťa deti žena muž mesto dedina ulica cesta voda drevo kameň zem pole
        záhrada strom stromy kvetina zviera pes mačka krava sliepka včela včely úľ med začnite vyberte kúpte pripravte
        skontrolujte rozmyslite zožeňte nechajte zapisujte upracte nešetrite vezmite dajte uvarte nakúpte posaďte
        zmerajte roztrieďte popíšte uložte zabaľte vysejte vysaďte polievajte vylamujte pridajte použite postupujte
        nezabudnite premyslite stanovte naplánujte zabezpečte overte udržiavajte vetrajte strážte doplňte rozširujte
        otvárajte sledujte sadnite nabite odpočiňte umyte vymeňte nastavte nafúkajte očistite dôležité potrebné vhodné
        dobré nové staré malé veľké celý celá každý každá vždy nikdy často zriedka skoro neskoro ráno večer doobeda
        popoludní jar leto jeseň zima sneh dážď vietor slnko svetlo tma teplo chladno peniaze cena objednávka správa
        zákazník údaje ďakujeme prosím ďakujem dobrý posielame evidujeme prijali zaplatené uhradená suma platba dátum
        vek skladom tovar záznam nasledujúce uvedené zhrnutie prehľad kroky odporúčanie záver odpoveď stručne postup
        rady začiatočník zvládnete včas vopred poradie zoznam nábytok škatule byt izba kuchyňa okno dvere stôl
        stolička skriňa posteľ riad oblečenie bicykel reťaz brzda skrutka náradie vŕtačka žehlička batoh zošit stan
        kufor sveter vlak lístok stanica prestup výluka trať sedadlo desiata pitie knižka jedlo polievka guláš mäso
        zelenina ovocie hrniec tanier obrus hosť hostia recept chlieb kvások múka huba les hríb košík poradňa rybník
        sused suseda babička dedko priateľ rodina škola učiteľ kniha príbeh článok text veta slovo odrážka strecha
        škridla komín plot doska farba štetec povodeň poistenie auto motor predajca zmluva maratón beh tréning topánky
        sad jabloň hruška organ píšťala tón cvičenie kronika obec zápis udalosť ples sála hudba vstupenka elektrina
        spotreba žiarovka chladnička úspora zateplenie knižnica polica dielňa píla vyučovanie chcel chcela začal
        začala povedal povedala prišiel prišla videl vedel našiel našla dostal vrátil sedel zostal pomohol treba
        urobiť kúpiť napísať povedať vidieť vedieť hovoriť ísť pracovať robiť učiť čakať skúsiť hľadať nájsť dobre zle
        rýchlo pomaly ľahko ťažko opatrne najprv potom nakoniec ďalej späť domov vonku vnútri hore dole vedľa okolo
        počas zatiaľ kým hoci kvôli vďaka namiesto okrem vrátane najmä zvyčajne hlavne napríklad zároveň najlepšie
        aspoň určite iste správne presne spoločne ak nám našu vašu sme ste som tam tu prvý druhý tretí niekoľko mnoho
        málo trochu všetko všetci svoj svojho svojich vášho pravidelne dostatok kvalitné miestom
        """,
    "pl": """
        jest są był była było być się że ale lub albo ani żeby gdy kiedy jeśli ponieważ dlatego tak też jak już
        jeszcze tylko we ze dla przy według między przez przed pod nad bez który która które którzy którą ten ta to te
        tym tego jego jej ich mój nasze wasze co kto gdzie dlaczego nie ma mają może mogą musi można będzie będą niż
        jednak więc bardzo więcej mniej dom praca dzień rok czas człowiek ludzie dziecko kobieta miasto wieś ulica
        droga woda drewno kamień ziemia ogród drzewo kwiat zwierzę pies kot krowa kura pszczoła ul miód zacznij
        wybierz kup przygotuj sprawdź zostaw zapisuj posprzątaj weź daj ugotuj zmierz opisz zapakuj posiej podlewaj
        dodaj użyj zacznijcie sprawdźcie kupcie przygotujcie pamiętajcie ważne potrzebne dobre nowe stare małe duże
        cały każdy zawsze nigdy często wcześnie późno rano wieczór wiosna lato jesień zima śnieg deszcz wiatr słońce
        światło pieniądze cena zamówienie wiadomość klient dane dziękujemy proszę dobry wysyłamy przyjęliśmy zapłacono
        kwota płatność data wiek magazyn towar następujące podsumowanie przegląd kroki zalecenia wniosek odpowiedź
        rady początkujący lista meble pudełka mieszkanie pokój kuchnia okno drzwi stół krzesło szafa łóżko naczynia
        ubranie rower łańcuch śruba narzędzia plecak zeszyt namiot walizka pociąg bilet stacja jedzenie zupa mięso
        warzywa owoce garnek talerz goście przepis chleb mąka grzyb las koszyk sąsiad babcia przyjaciel rodzina szkoła
        nauczyciel książka zdanie chciał zaczął powiedział przyszedł widział wiedział znalazł trzeba zrobić kupić
        napisać mówić iść pracować dobrze źle szybko wolno łatwo najpierw potem wreszcie dalej na zewnątrz podczas
        chociaż dzięki zamiast oprócz zwłaszcza zwykle głównie przykład razem przynajmniej pewnie dokładnie
        """,
    "de": """
        der die das den dem des ein eine einen einem einer ist sind war waren sein und oder aber nicht auch auf mit
        für von zu zum zur bei nach aus im ins als wie wenn weil dass kann können wird werden hat haben sie wir ihr
        ich es sich nur noch sehr mehr über unter zwischen haus arbeit tag jahr zeit mensch leute kind frau mann stadt
        dorf straße weg wasser holz stein land feld garten baum bäume blume tier hund katze kuh huhn biene bienen
        honig beginnen wählen kaufen bereiten prüfen denken finden lassen schreiben reinigen nehmen geben kochen
        messen sortieren beschriften lagern packen säen pflanzen gießen entfernen verwenden vergessen planen halten
        öffnen schließen bringen stellen wichtig notwendig geeignet gut neu alt klein groß ganz jeder immer nie oft
        früh spät morgen abend frühling sommer herbst winter schnee regen wind sonne licht geld preis bestellung
        nachricht kunde daten danke bitte senden erhalten bezahlt betrag zahlung datum alter lager ware folgende
        zusammenfassung übersicht schritte rat antwort kurz anfänger rechtzeitig liste möbel kisten wohnung zimmer
        küche fenster tür tisch stuhl schrank bett geschirr kleidung fahrrad kette bremse schraube werkzeug rucksack
        heft zelt koffer zug fahrkarte bahnhof essen suppe fleisch gemüse obst topf teller gäste rezept brot mehl pilz
        wald korb nachbar großmutter freund familie schule lehrer buch geschichte satz wort alle deutlich regelmäßig
        gründlich vorher zuerst dann schließlich weiter zurück draußen drinnen oben unten neben während obwohl dank
        statt außer besonders gewöhnlich wollte begann sagte kam sah wusste fand bekam machen sehen wissen sprechen
        gehen arbeiten lernen warten suchen
        """,
}
"""Common words, our own choice: their groups of letters tell a language."""
