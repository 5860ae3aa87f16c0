"""One word of a list, an order, a copy, constraints, price comparisons and short answers."""

import random
from typing import Any, Literal

from q36eval.canaries.generators.standard.drawing import KINDS, WORDS, Drawn, demonstrated, drawn, said
from q36eval.canaries.generators.words import code, pick, question, step_number
from q36eval.examples import ChatExample


def named_member(rng: random.Random) -> ChatExample:
    """The member of a closed list that a sentence names."""
    words = WORDS["choice"]
    listed = pick(rng, words["lists"])
    options = rng.sample(listed["members"], 4)
    sentence, member = pick(rng, listed["sentences"]), pick(rng, options)
    text = said(sentence, {**drawn(rng, sentence), "member": Drawn(member, member)})

    def prompt(options: list[str], text: str) -> str:
        return f"{words['ask'].format(options=', '.join(options))}\n{text}"

    shown = [(prompt(one["options"], one["sentence"]), one["answer"]) for one in words["demonstrations"]]
    key = f"named_member:{text}:{','.join(options)}"
    return demonstrated(key, shown, prompt(options, text), member, {"value": member, "options": options})


def stated_order(rng: random.Random) -> ChatExample:
    """Two to four words brought into the order that is stated, which runs either way."""
    words = WORDS["order"]
    listed = pick(rng, words["lists"])
    stated = listed if rng.random() < 0.5 else listed[::-1]
    given = rng.sample(stated, 2 + int(rng.random() * 3))
    ordered, ticket = sorted(given, key=stated.index), code(rng)

    def prompt(listing: list[str], given: list[str], ticket: str) -> str:
        return f"{words['ask'].format(listing=', '.join(listing))}\nTicket {ticket}: {', '.join(given)}"

    shown = [
        (prompt(one["listing"], one["given"], f"AA-000{at}"), ", ".join(one["answer"]))
        for at, one in enumerate(words["demonstrations"], 1)
    ]
    key = f"stated_order:{ticket}:{','.join(stated)}:{','.join(given)}"
    expected = {"items": ordered, "separator": "comma"}
    return demonstrated(key, shown, prompt(stated, given, ticket), ", ".join(ordered), expected)


def copied_line(rng: random.Random) -> ChatExample:
    """One line, character by character."""
    line = pick(rng, WORDS["copy"]["lines"])
    text = said(line, drawn(rng, line))
    return question(f"copied_line:{text}", f"{pick(rng, WORDS['copy']['ask'])}\n{text}", text, {"lines": [text]})


SOUND = {"scripts": ["Latin"], "min_characters": 1, "max_characters": 2_000, "finished": True}


def constrained_text(rng: random.Random) -> ChatExample:
    """One or two sentences, or a short list, under one or two constraints that a program can check."""
    words = WORDS["instructions"]
    subject = f"{pick(rng, words['subjects'])} in {KINDS['city'](rng)}"
    as_list = rng.random() < 0.4
    form = pick(rng, list(words["bullets" if as_list else "sentences"]))
    values = {"word": pick(rng, words["words"]), "banned": pick(rng, words["banned"])}
    values |= {"first": pick(rng, words["firsts"]), "most": str(step_number(rng, 30, 60, 2))}
    named = {"contains": [values["word"]], "lacks": [values["banned"]]}
    named |= {"first_word": values["first"], "max_words": int(values["most"])}
    offered = ["contains", "lacks", "max_words"] if as_list else list(words["demands"])
    chosen = [demand for demand in offered if demand in rng.sample(offered, 1 + int(rng.random() * 2))]
    demands = " ".join(words["demands"][demand].format(**values) for demand in chosen)
    style = {demand: named[demand] for demand in chosen} | ({"bullets": form, "bullet": "dash"} if as_list else {})
    style |= {} if as_list else {"sentences": form}
    prompt = words["list" if as_list else "text"].format(
        form=words["bullets" if as_list else "sentences"][form], subject=subject, demands=demands
    )
    key = f"constrained_text:{subject}:{form}:{as_list}:{demands}"
    answer = _constrained(subject, form, as_list, values)
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
    form = words["line"].format(A="70", B="95", cheaper="A")
    opening = words["opening"].format(goods=pick(rng, words["goods"]))
    prompt = "\n".join([opening, *offers, f"{words['ask']} {form}"])
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
    one, other = step_number(rng, 3, 30, 1), step_number(rng, 2, 9, 1)
    total = one + other if plus else one
    a, b, result = (one, other, total) if plus else (one + other, other, one)
    form = pick(rng, forms["plus" if plus else "minus"])
    slots: dict[str, Any] = {name: KINDS[name](rng) for name in ("person", "things")}
    text = form.format(a=a, b=b, **slots)
    return question(f"short_answer:{text}", text, str(result), {"value": str(result), "number": True})
