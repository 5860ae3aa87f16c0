"""Choosing from a closed list and ordering by a stated order, short or long; the list is always in the prompt."""

import random

from q36eval.canaries.generators.words import TOWN_OF, TOWNS, WORDS, code, pick, question, step_number, words_of
from q36eval.examples import ChatExample

LATENCY_MAX_MS, LATENCY_STEP_MS = 9_990, 10
NEAR_THRESHOLD_SHARE = 0.3
"""Share of threshold problems at most five steps from a threshold."""

ORDER_MIN = 3

_WORDS = WORDS["enums"]


def _select_by_meaning(rng: random.Random) -> ChatExample:
    choice = pick(rng, _WORDS["choices"])
    words, members = words_of("enums", choice["czech"]), choice["members"]
    offered = rng.sample(list(members), 3 + int(rng.random() * (len(members) - 2)))
    answer = pick(rng, offered)
    report, ticket = pick(rng, members[answer]), code(rng)
    source = pick(rng, words["sources"]).format(ticket, report)
    ask = pick(rng, words["ask"]).format(what=choice["what"], listing=", ".join(offered))
    prompt = f"{source}\n{ask}" if rng.random() < 0.6 else f"{ask}\n{source}"
    key = f"enum_select:{ticket}:{report}:{','.join(offered)}"
    return question(key, prompt, answer, {"value": answer, "options": offered})


def _select_by_threshold(rng: random.Random) -> ChatExample:
    czech = rng.random() < 0.65
    words = words_of("enums", czech)
    names = words["severities"]
    limits = sorted((step_number(rng, 100, 9_000, 100) for _ in range(3)), reverse=True)
    if len(set(limits)) < 3:
        return _select_by_threshold(rng)
    if rng.random() < NEAR_THRESHOLD_SHARE:
        value = pick(rng, limits) + LATENCY_STEP_MS * pick(rng, (-5, -4, -3, -2, -1, 1, 2, 3, 4, 5))
    else:
        value = step_number(rng, LATENCY_STEP_MS, LATENCY_MAX_MS, LATENCY_STEP_MS)
    if value in limits:
        return _select_by_threshold(rng)
    answer = names[sum(value < limit for limit in limits)]
    rules = ", ".join(words["rule"].format(limit, name) for limit, name in zip(limits, names, strict=False))
    rules += words["otherwise"].format(names[3])
    prompt = pick(rng, words["threshold"]).format(rules=rules, value=value)
    key = f"enum_select:{limits}:{value}:{answer}"
    return question(key, prompt, answer, {"value": answer, "options": list(names)})


def enum_select(rng: random.Random) -> ChatExample:
    """One member of a closed list, by meaning or by a numeric rule."""
    return _select_by_meaning(rng) if rng.random() < 0.4 else _select_by_threshold(rng)


def enum_order(rng: random.Random) -> ChatExample:
    """Distinct enum values brought into the stated order, which runs either way."""
    order = pick(rng, _WORDS["orders"])
    czech, levels = order["czech"], order["levels"]
    stated = list(levels) if rng.random() < 0.5 else list(reversed(levels))
    values = rng.sample(levels, ORDER_MIN + int(rng.random() * (len(levels) - ORDER_MIN + 1)))
    ticket = code(rng)
    ordered = sorted(values, key=stated.index)
    ask = pick(rng, words_of("enums", czech)["order"]).format(what=order["what"], listing=", ".join(stated))
    given = f"{'Tiket' if czech else 'Ticket'} {ticket}: {', '.join(values)}"
    prompt = f"{ask}\n{given}" if rng.random() < 0.6 else f"{given}\n{ask}"
    key = f"enum_order:{ticket}:{stated[0]}:{','.join(values)}"
    return question(key, prompt, ", ".join(ordered), {"items": ordered, "separator": "comma"})


OFFERED_MIN, OFFERED_MAX = 20, 36
ORDERED_MIN, ORDERED_MAX = 8, 12


def enum_long(rng: random.Random) -> ChatExample:
    """One of up to three dozen towns, named in the genitive next to another one; the answer is the list's own form."""
    offered = rng.sample(
        [town.nominative for town in TOWNS], OFFERED_MIN + int(rng.random() * (OFFERED_MAX - OFFERED_MIN + 1))
    )
    target, origin = rng.sample(offered, 2)
    ticket = code(rng)
    forms = {"target": TOWN_OF[target].genitive, "other": TOWN_OF[origin].genitive, "origin": TOWN_OF[origin].origin}
    sent = pick(rng, _WORDS["sent"]).format(code=ticket, **forms)
    ask = pick(rng, _WORDS["pick"]).format(listing=", ".join(offered))
    text = f"{sent}\n{ask}" if rng.random() < 0.6 else f"{ask}\n{sent}"
    key = f"enum_long:{ticket}:{target}:{','.join(offered)}"
    exactly = "přesně jako v seznamu" in ask
    return question(key, text, target, {"value": target, "options": offered, "exactly": exactly})


def enum_order_long(rng: random.Random) -> ChatExample:
    """Eight to twelve states brought into an order that each question states."""
    states = _WORDS["states"]
    stated = rng.sample(states, len(states))
    values = rng.sample(states, ORDERED_MIN + int(rng.random() * (ORDERED_MAX - ORDERED_MIN + 1)))
    ticket = code(rng)
    ordered = sorted(values, key=stated.index)
    ask = pick(rng, _WORDS["order_states"]).format(listing=", ".join(stated))
    given = f"Vstup {ticket}: {', '.join(values)}"
    text = f"{ask}\n{given}" if rng.random() < 0.6 else f"{given}\n{ask}"
    key = f"enum_order_long:{ticket}:{','.join(stated)}:{','.join(values)}"
    return question(key, text, ", ".join(ordered), {"items": ordered, "separator": "comma"})
