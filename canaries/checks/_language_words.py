"""Common words of a few languages, our own choice: their groups of letters tell a language (see `_language`)."""

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
