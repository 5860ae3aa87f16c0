"""Czech discount problems: percentage against absolute discount, two steps, three shops, a threshold.

Every answer calculates each shop on a separate line and states the comparison last, so that "right numbers, wrong
conclusion" can be distinguished from wrong arithmetic. All amounts are whole crowns.
"""

import random
from typing import Any, Literal, NamedTuple

from q36eval.canaries.generators.words import WORDS, koruna, pick, spaced, step_number
from q36eval.examples import ChatExample

PRICE_MIN, PRICE_MAX, PRICE_STEP = 200, 9_900, 50
"""Prices in Kč. A finer step makes the multiplication harder to learn."""

AMOUNT_STEP = 10
"""Absolute discounts in Kč come in this step, except in exact ties."""

PERCENTS = (5, 10, 15, 20, 25, 30, 40, 50)
STEP_PERCENTS = (10, 20, 30, 40, 50)
TWO_STEP_PRICE_STEP = 100

NEAR_TIE_SHARE = 0.35
"""Share of problems whose two final prices lie at most `NEAR_TIE_KC` apart."""

TIE_SHARE = 0.05
NEAR_TIE_KC = 50
THRESHOLDS = (500, 1_000, 1_500, 2_000, 3_000)
SYSTEM_SHARE = 0.25
SANE = {"scripts": ["Latin"], "min_characters": 40, "max_characters": 6_000}
"""Of an answer's text: a model that writes every step with headings and LaTeX takes a third of the most."""

_WORDS = WORDS["discount"]
SYSTEMS: list[str] = _WORDS["systems"]
TIE = "tie"
LastLine = Literal["free", "demanded"]
"""Whether the prompt demands a fixed last line, which a program can read without knowing Czech."""


class Offer(NamedTuple):
    """One shop's offer: its words in the prompt, the lines that work it out, its list price and discounts, the price
    that is paid."""

    text: str
    lines: tuple[str, ...]
    price: int
    discounts: tuple[dict[str, int], ...]
    final: int
    key: str


def _percent_line(price: int, percent: int) -> tuple[str, int]:
    """The line that calculates a discount, and the remaining price."""
    off = price * percent // 100
    line = f"{percent} % z {koruna(price)} = {koruna(off)}, {spaced(price)} − {spaced(off)} = {koruna(price - off)}"
    return line, price - off


def _percent_offer(rng: random.Random, price: int, percent: int) -> Offer:
    line, final = _percent_line(price, percent)
    text = pick(rng, _WORDS["percent"]).format(price=koruna(price), percent=percent)
    return Offer(text, (line,), price, ({"percent": percent},), final, f"{price}-{percent}%")


def _amount_offer(rng: random.Random, price: int, amount: int) -> Offer:
    final = price - amount
    text = pick(rng, _WORDS["amount"]).format(price=koruna(price), amount=koruna(amount))
    line = f"{spaced(price)} − {spaced(amount)} = {koruna(final)}"
    return Offer(text, (line,), price, ({"amount": amount},), final, f"{price}-{amount}")


def _whole_percent(rng: random.Random) -> tuple[int, int]:
    while True:
        price, percent = step_number(rng, PRICE_MIN, PRICE_MAX, PRICE_STEP), pick(rng, PERCENTS)
        if price * percent % 100 == 0:
            return price, percent


def _amount_for(rng: random.Random, price: int, target: int) -> int:
    """An absolute discount off `price`: tie with `target`, near it, or anything up to 60 %."""
    roll = rng.random()
    if roll < TIE_SHARE and price - target > 0:
        return price - target
    if roll < TIE_SHARE + NEAR_TIE_SHARE:
        near = (price - target) // AMOUNT_STEP * AMOUNT_STEP
        amount = near + AMOUNT_STEP * pick(rng, range(-(NEAR_TIE_KC // AMOUNT_STEP), NEAR_TIE_KC // AMOUNT_STEP + 1))
        if 0 < amount < price:
            return amount
    return step_number(rng, AMOUNT_STEP, max(AMOUNT_STEP, price * 6 // 10 // AMOUNT_STEP * AMOUNT_STEP), AMOUNT_STEP)


def _other_price(rng: random.Random, price: int) -> int:
    """The same price, or one nearby."""
    if rng.random() < 0.5:
        return price
    return max(PRICE_MIN, min(PRICE_MAX, price + PRICE_STEP * pick(rng, range(-8, 9))))


def _conclusion(offers: list[Offer]) -> tuple[str, str]:
    """The decision (a shop's letter or `tie`) and its sentence."""
    best = min(offer.final for offer in offers)
    winners = [letter for letter, offer in zip("ABC", offers, strict=False) if offer.final == best]
    if len(winners) > 1:
        return TIE, "Vyjde to nastejno."
    word = "Levnější" if len(offers) == 2 else "Nejlevnější"
    return winners[0], f"{word} je obchod {winners[0]}."


def _example(
    rng: random.Random, kind: str, offers: list[Offer], last_line: LastLine, tasks: str = "tasks"
) -> ChatExample:
    shops = list(zip("ABC", offers, strict=False))
    opening = pick(rng, _WORDS["openings"]).format(pick(rng, _WORDS["goods"]))
    separator = "\n" if rng.random() < 0.4 else " "
    listing = separator.join(f"Obchod {letter}: {offer.text}." for letter, offer in shops)
    task = pick(rng, _WORDS[tasks])
    demanded = _WORDS["last_line"].format("C" if len(offers) == 3 else "stejně")
    if last_line == "demanded":
        task = f"{task} {demanded}"
    prompt = f"{opening}{separator}{listing}{separator}{task}"
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    if rng.random() < SYSTEM_SHARE:
        messages.insert(0, {"role": "system", "content": pick(rng, SYSTEMS)})
    decision, sentence = _conclusion(offers)
    lines = [f"Obchod {letter}: {line}" for letter, offer in shops for line in offer.lines]
    if last_line == "demanded":
        sentence = f"Rozhodnutí: {'stejně' if decision == TIE else decision}"
    return ChatExample(
        key=f"{kind}:{'|'.join(offer.key for offer in offers)}",
        messages=tuple(messages),
        answer="\n".join([*lines, sentence]),
        expected={
            "offers": {letter: {"price": one.price, "discounts": list(one.discounts)} for letter, one in shops},
            "last_line": last_line == "demanded",
            "stable": SANE,
        },
    )


def _shuffled(rng: random.Random, first: Offer, second: Offer) -> list[Offer]:
    return [first, second] if rng.random() < 0.6 else [second, first]


def discount_compare(rng: random.Random, last_line: LastLine = "free") -> ChatExample:
    """A percentage in one shop against an absolute amount in the other."""
    price, percent = _whole_percent(rng)
    by_percent = _percent_offer(rng, price, percent)
    other = _other_price(rng, price)
    by_amount = _amount_offer(rng, other, _amount_for(rng, other, by_percent.final))
    return _example(rng, "discount_compare", _shuffled(rng, by_percent, by_amount), last_line)


def _two_step_offer(rng: random.Random, price: int) -> Offer:
    first = pick(rng, STEP_PERCENTS)
    line, between = _percent_line(price, first)
    if rng.random() < 0.6:
        second = pick(rng, STEP_PERCENTS)
        line2, final = _percent_line(between, second)
        said, then = f"{second} %", {"percent": second}
    else:
        amount = step_number(rng, AMOUNT_STEP, max(AMOUNT_STEP, between // 2 // AMOUNT_STEP * AMOUNT_STEP), AMOUNT_STEP)
        final = between - amount
        line2 = f"{spaced(between)} − {spaced(amount)} = {koruna(final)}"
        said, then = koruna(amount), {"amount": amount}
    text = pick(rng, _WORDS["two_steps"]).format(price=koruna(price), percent=first, then=said)
    return Offer(text, (line, line2), price, ({"percent": first}, then), final, f"{price}-{first}%-{said}")


def discount_two_step(rng: random.Random, last_line: LastLine = "free") -> ChatExample:
    """Two discounts one after the other against a single one on the same price."""
    price = step_number(rng, PRICE_MIN, PRICE_MAX, TWO_STEP_PRICE_STEP)
    two = _two_step_offer(rng, price)
    if rng.random() < 0.5:
        one = _percent_offer(rng, price, pick(rng, (*PERCENTS, 60)))
    else:
        one = _amount_offer(rng, price, _amount_for(rng, price, two.final))
    return _example(rng, "discount_two_step", _shuffled(rng, two, one), last_line)


def discount_three_shops(rng: random.Random, last_line: LastLine = "free") -> ChatExample:
    """Three offers; exactly one is the cheapest."""
    while True:
        price, percent = _whole_percent(rng)
        first = _percent_offer(rng, price, percent)
        other = _other_price(rng, price)
        second = _amount_offer(rng, other, _amount_for(rng, other, first.final))
        if rng.random() < 0.5:
            third = _percent_offer(rng, *_whole_percent(rng))
        else:
            other = _other_price(rng, price)
            third = _amount_offer(rng, other, _amount_for(rng, other, first.final))
        offers = [first, second, third]
        rng.shuffle(offers)
        if _conclusion(offers)[0] != TIE:
            return _example(rng, "discount_three_shops", offers, last_line, "three_tasks")


def _threshold_offer(rng: random.Random, price: int, percent: int, threshold: int) -> Offer:
    if price > threshold:
        line, final = _percent_line(price, percent)
        line = f"{koruna(price)} je nad {koruna(threshold)}, {line}"
    else:
        line, final = f"{koruna(price)} není nad {koruna(threshold)}, bez slevy {koruna(price)}", price
    said = pick(rng, _WORDS["threshold"])
    text = said.format(price=koruna(price), percent=percent, threshold=koruna(threshold))
    discounts = ({"percent": percent, "only_above": threshold},)
    return Offer(text, (line,), price, discounts, final, f"{price}-{percent}%>{threshold}")


def discount_threshold(rng: random.Random, last_line: LastLine = "free") -> ChatExample:
    """A percentage that only holds above a threshold against an absolute amount."""
    threshold = pick(rng, THRESHOLDS)
    while True:
        price, percent = step_number(rng, threshold // 2, threshold * 3 // 2, PRICE_STEP), pick(rng, PERCENTS)
        if price != threshold and price * percent % 100 == 0:
            break
    gated = _threshold_offer(rng, price, percent, threshold)
    other = _other_price(rng, price)
    by_amount = _amount_offer(rng, other, _amount_for(rng, other, gated.final))
    return _example(rng, "discount_threshold", _shuffled(rng, gated, by_amount), last_line)
