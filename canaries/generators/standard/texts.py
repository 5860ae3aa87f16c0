"""One word of a list, an order, a copy, constraints, price comparisons and short answers."""

import random
from typing import Any, Literal

from q36eval.canaries.generators.standard.drawing import KINDS, WORDS, Drawn, demonstrated, drawn, said
from q36eval.canaries.generators.words import code, pick, question, step_number
from q36eval.examples import ChatExample


def named_member(rng: random.Random) -> ChatExample:
    """The member of a closed list that a sentence names, after two answered examples."""
    words = WORDS["choice"]
    listed = pick(rng, words["lists"])
    options = rng.sample(listed["members"], 4)
    sentence, members = pick(rng, listed["sentences"]), rng.sample(options, 3)
    ask = words["ask"].format(options=", ".join(options))
    texts = [said(sentence, {**drawn(rng, sentence), "member": Drawn(member, member)}) for member in members]
    *shown, (prompt, member) = [(f"{ask}\n{text}", member) for text, member in zip(texts, members, strict=True)]
    key = f"named_member:{texts[-1]}:{','.join(options)}"
    return demonstrated(key, shown, prompt, member, {"value": member, "options": options})


def stated_order(rng: random.Random) -> ChatExample:
    """Two to four words brought into a stated order, in either direction, after answered examples."""
    words = WORDS["order"]
    listed = pick(rng, words["lists"])
    stated = listed if rng.random() < 0.5 else listed[::-1]
    count, ask = 2 + int(rng.random() * 3), words["ask"].format(listing=", ".join(stated))
    asked = [(code(rng), rng.sample(stated, count)) for _ in range(2)]
    prompts = [f"{ask}\nTicket {ticket}: {', '.join(given)}" for ticket, given in asked]
    shown, ordered = (sorted(given, key=stated.index) for _, given in asked)
    key = f"stated_order:{asked[1][0]}:{','.join(stated)}:{','.join(asked[1][1])}"
    turns, expected = [(prompts[0], ", ".join(shown))], {"items": ordered, "separator": "comma"}
    return demonstrated(key, turns, prompts[1], ", ".join(ordered), expected)


def copied_line(rng: random.Random) -> ChatExample:
    """One line, character by character."""
    words = WORDS["copy"]
    line = pick(rng, words["lines"])
    text, shown = said(line, drawn(rng, line)), words["demonstration"]
    example = (f"{words['ask']}\n{shown}", shown)
    return demonstrated(f"copied_line:{text}", [example], f"{words['ask']}\n{text}", text, {"lines": [text]})


SOUND = {"scripts": ["Latin"], "min_characters": 1, "max_characters": 2_000, "finished": True}


def constrained_text(rng: random.Random) -> ChatExample:
    """One or two sentences, or a short list, under one or two constraints that a program can check."""
    words = WORDS["instructions"]
    subject = f"{pick(rng, words['subjects'])} in {KINDS['city'](rng)}"
    as_list = rng.random() < 0.4
    form = pick(rng, list(words["bullets" if as_list else "sentences"]))
    values = {"word": pick(rng, words["words"]), "banned": pick(rng, words["banned"])}
    values |= {"first": pick(rng, words["firsts"]), "most": str(step_number(rng, 40, 60, 2))}
    named: dict[str, Any] = {"contains": [values["word"]], "lacks": [values["banned"]]}
    named |= {"first_word": values["first"], "max_words": int(values["most"])}
    offered = ["contains", "lacks", "max_words"] if as_list else list(words["demands"])
    chosen = rng.sample(offered, 1 + int(rng.random() * 2))
    demands = " ".join(words["demands"][demand].format(**values) for demand in chosen)
    style: dict[str, Any] = {"bullets": form, "bullet": "dash"} if as_list else {"sentences": form}
    style |= {demand: named[demand] for demand in chosen}
    prompt = words["list" if as_list else "text"].format(
        form=words["bullets" if as_list else "sentences"][form], subject=subject, demands=demands
    )
    key = f"constrained_text:{subject}:{form}:{as_list}:{demands}"
    shown = values | {"word": values["word"] if "contains" in chosen else words["words"][0]}
    shown |= {"first": values["first"] if "first_word" in chosen else words["firsts"][0]}
    answer = _constrained(subject, form, as_list, shown)
    return question(key, prompt, answer, {"style": style, "stable": SOUND})


def _constrained(subject: str, form: int, as_list: bool, values: dict[str, str]) -> str:
    """A text that meets every constraint which its form can have."""
    points = [f"Take the {values['word']} with you for {subject}.", "Start early and have a good plan."]
    points += ["Ask your friends for some help.", "Write down what was good for the next time."]
    if as_list:
        return "\n".join(f"- {point}" for point in points[:form])
    opening = f"{values['first']} we talk about {subject} and the {values['word']}."
    return " ".join([opening, *points[1:form]])


def discount_line(rng: random.Random) -> ChatExample:
    """A percentage against an amount, with both prices and the conclusion on the last line."""
    words = WORDS["discount"]
    percent = pick(rng, (10, 20, 25, 50))
    price = step_number(rng, 20, 400, 20)
    off = price * percent // 100
    final = price - off
    other = max(20, price + step_number(rng, -20, 20, 5))
    amount = max(1, min(other - 1, other - final + pick(rng, (-6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6))))
    first = {"price": price, "percent": percent, "off": off, "final": final}
    second = {"price": other, "amount": amount, "final": other - amount}
    kinds = [("percent", first), ("amount", second)]
    rng.shuffle(kinds)
    prices = {shop: offer["final"] for shop, (_, offer) in zip("AB", kinds, strict=True)}
    cheaper = "same" if prices["A"] == prices["B"] else min(prices, key=lambda shop: prices[shop])
    offers = [words[kind].format(shop=shop, **offer) for shop, (kind, offer) in zip("AB", kinds, strict=True)]
    work = [words[f"{kind}_work"].format(shop=shop, **offer) for shop, (kind, offer) in zip("AB", kinds, strict=True)]
    opening = words["opening"].format(goods=pick(rng, words["goods"]))
    prompt = "\n".join([opening, *offers, f"{words['ask']} {words['form']}"])
    key = f"discount_line:{kinds[0][0]}:{price}-{percent}:{other}-{amount}:{opening}"
    answer = "\n".join([*work, words["line"].format(**prices, cheaper=cheaper)])
    return question(key, prompt, answer, {"prices": prices, "cheaper": cheaper})


def short_answer(rng: random.Random, kind: Literal["sums", "facts", "extractions"] = "facts") -> ChatExample:
    """A sum, a fact that the prompt states, or one value of a line."""
    words = WORDS["short"]
    if kind == "sums":
        return _sum(rng, words["sums"])
    asked = pick(rng, words[kind])
    slots = drawn(rng, asked["text"])
    text, others = said(asked["text"], slots), [slots[name].said for name in asked.get("others", ())]
    value = slots[asked["value"]].said
    if value in others:
        return short_answer(rng, kind)
    return question(f"short_answer:{text}", text, value, {"value": value, "others": others})


def _sum(rng: random.Random, forms: dict[str, list[str]]) -> ChatExample:
    plus = rng.random() < 0.5
    one, other = step_number(rng, 2, 12, 1), step_number(rng, 2, 9, 1)
    total = one + other if plus else one
    a, b, result = (one, other, total) if plus else (one + other, other, one)
    form = pick(rng, forms["plus" if plus else "minus"])
    slots: dict[str, Any] = {name: KINDS[name](rng) for name in ("person", "things")}
    text = form.format(a=a, b=b, **slots)
    return question(f"short_answer:{text}", text, str(result), {"value": str(result), "number": True})
