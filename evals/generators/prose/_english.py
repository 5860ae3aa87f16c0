"""English: narrative, news, recipes and letters."""

import random

NAMES = "Anna Ben Clara David Emma Frank Grace Henry Iris Jack Kate Leo Mary Nora Oliver Paul Rose Sam Tom Vera Will Zoe Alice Martin Helen George Lucy Peter Julia Simon".split()
JOBS = "baker teacher sailor farmer doctor painter carpenter clerk gardener driver nurse miller singer lawyer writer cook judge soldier tailor engineer librarian postman fisherman shepherd".split()
THINGS = "lamp letter basket clock map bottle chair ladder violin wagon kettle hammer blanket mirror ticket bicycle umbrella notebook coin boat key coat candle drum parcel rope saddle spoon table window bell brush cup engine fence hat kite lantern needle pipe".split()
ADJECTIVES = "old small heavy broken green quiet bright wooden empty strange golden cheap narrow clean dusty soft round yellow cold warm tall simple rusty blue white black silver thin wide little".split()
PLACES = "in the garden|at the market|near the river|behind the barn|on the hill|by the harbour|in the kitchen|under the bridge|at the station|in the old library|beside the church|on the train|in the forest|at school|across the square|in the attic|by the lake|along the road|in the workshop|at the inn".split(
    "|"
)
TIMES = "yesterday|in the morning|after dinner|last winter|before noon|on Monday|at midnight|in early spring|every evening|two days later|that summer|at dawn|during the storm|on a Sunday|in September|just then|long ago|once more".split(
    "|"
)
DEEDS = "found|bought|sold|repaired|lost|painted|carried|hid|borrowed|cleaned|opened|forgot|kept|measured|dropped|wrapped|noticed|lifted|drew|broke|brought|threw away|put down|examined".split(
    "|"
)
FEELINGS = (
    "happy tired angry calm curious proud afraid hungry sad nervous patient thankful lonely certain surprised".split()
)
WEATHER = "The rain had stopped.|A cold wind was blowing.|The sun was low.|Snow lay on the roofs.|It was a clear night.|Fog covered the valley.|The air smelled of hay.|Thunder rolled far away.|The leaves were turning red.|The river was high.".split(
    "|"
)
INSTITUTIONS = "the city council|the national bank|the water company|the university|the regional court|the railway office|the museum|the hospital|the ministry|the football club|the weather service|the post office|the theatre|the energy agency".split(
    "|"
)
DECISIONS = "approved a new budget|closed the northern bridge|raised the price of tickets|announced a public tender|opened a second branch|published its yearly report|rejected the complaint|hired new staff|postponed the vote|signed a contract|cancelled two trains|lowered the fee|repaired the main pipe|promised better service".split(
    "|"
)
REASONS = "because of the high cost|after a long debate|despite many protests|without giving a reason|to save energy|under a new law|for the third time|with a small majority|as planned|at the last moment".split(
    "|"
)
FOODS = "flour butter sugar milk rice onions carrots mushrooms potatoes cream cheese beans tomatoes apples honey lentils spinach walnuts".split()
STEPS = "Mix the {0} with the {1}.|Chop the {0} finely.|Fry the {0} for {2} minutes.|Add the {0} and stir.|Let the {0} rest for {2} minutes.|Boil the {0} in salted water.|Pour the {0} over the {1}.|Bake everything at {3} degrees.|Serve with {0}.|Season the {1} with pepper.".split(
    "|"
)


def article(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def thing(rng: random.Random) -> str:
    """An indefinite noun phrase."""
    return article(f"{rng.choice(ADJECTIVES)} {rng.choice(THINGS)}")


def sentence(rng: random.Random) -> str:
    """One narrative sentence."""
    kind = rng.randrange(8)
    name, job, place = rng.choice(NAMES), rng.choice(JOBS), rng.choice(PLACES)
    if kind == 0:
        return f"{name} {rng.choice(DEEDS)} {thing(rng)} {place}."
    if kind == 1:
        moment = rng.choice(TIMES)
        return f"{moment[0].upper()}{moment[1:]} the {job} {rng.choice(DEEDS)} {thing(rng)}."
    if kind == 2:
        return f"The {rng.choice(THINGS)} {place} was {rng.choice(ADJECTIVES)} and {rng.choice(ADJECTIVES)}."
    if kind == 3:
        return rng.choice(WEATHER)
    if kind == 4:
        return f"{name} felt {rng.choice(FEELINGS)}, but the {job} was {rng.choice(FEELINGS)}."
    if kind == 5:
        return f'"Where is the {rng.choice(THINGS)}?" asked {name}. "It is {place}," said the {job}.'
    if kind == 6:
        return f"{name} and {rng.choice(NAMES)} walked {rng.randint(2, 30)} miles to see {thing(rng)}."
    return f"The {job} {rng.choice(DEEDS)} the {rng.choice(THINGS)} and gave it to {name}."


def _news(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(2, 4)):
        who = rng.choice(INSTITUTIONS)
        kind = rng.randrange(3)
        if kind == 0:
            parts.append(f"{who[0].upper()}{who[1:]} {rng.choice(DECISIONS)} {rng.choice(REASONS)}.")
        elif kind == 1:
            parts.append(f"According to {who}, the number of visitors rose by {rng.randint(2, 48)} percent.")
        else:
            parts.append(f"{rng.choice(NAMES)} of {who} said the change would cost {rng.randint(2, 90)} million.")
    return " ".join(parts)


def _recipe(rng: random.Random) -> str:
    foods = rng.sample(FOODS, 4)
    listed = ", ".join(f"{rng.randrange(50, 600, 50)} g {food}" for food in foods)
    steps = []
    for number in range(1, rng.randint(3, 5)):
        step = rng.choice(STEPS).format(*rng.sample(foods, 2), rng.randint(3, 40), rng.randrange(150, 230, 10))
        steps.append(f"{number}. {step}")
    return f"{foods[0].capitalize()} with {foods[1]}\nIngredients: {listed}.\n" + "\n".join(steps)


def _letter(rng: random.Random) -> str:
    body = " ".join(sentence(rng) for _ in range(rng.randint(2, 3)))
    close = rng.choice(["Yours sincerely", "Best wishes", "With love", "Kind regards"])
    return f"Dear {rng.choice(NAMES)},\n{body} Please write to me soon.\n{close},\n{rng.choice(NAMES)}"


def paragraph(rng: random.Random) -> str:
    """One paragraph of some kind."""
    kind = rng.choices((0, 1, 2, 3), (5, 3, 1, 1))[0]
    if kind == 0:
        return " ".join(sentence(rng) for _ in range(rng.randint(3, 6)))
    return (_news, _recipe, _letter)[kind - 1](rng)
