"""Requests for tools: one fits, none fits, nested arguments, several calls in a turn, a call after results."""

import json
import random
from typing import Any, NamedTuple

from q36eval.canaries.generators.tools import NESTED_TOOLS, TOOLS, Arguments, Tool, call_text, tool_schema
from q36eval.canaries.generators.words import CITIES, WORDS, code, declined_person, koruna, pick, words_of
from q36eval.examples import ChatExample

OFFERED_MIN, OFFERED_MAX = 2, 4
CZECH_SHARE = 0.65
SYSTEM_SHARE = 0.6
"""Share of fitting requests with the system prompt, which every request without a fitting tool has."""

COUNT_MIN = 5
"""From five on, counted nouns are in the genitive plural: „5 stromů“, but „4 stromy“."""


def _messages(rng: random.Random, request: str, czech: bool, with_system: bool) -> tuple[dict[str, Any], ...]:
    words = words_of("tool_calls", czech)
    text = pick(rng, words["polite"]).format(request)
    user = {"role": "user", "content": text}
    if not with_system:
        return (user,)
    return {"role": "system", "content": words["system"]}, user


def _offer(rng: random.Random) -> list[Tool]:
    return rng.sample(TOOLS, OFFERED_MIN + int(rng.random() * (OFFERED_MAX - OFFERED_MIN + 1)))


def _example(
    kind: str,
    request: str,
    messages: tuple[dict[str, Any], ...],
    offered: list[Tool],
    answer: str,
    expected: dict[str, Any],
) -> ChatExample:
    return ChatExample(
        key=f"{kind}:{request}:{','.join(sorted(tool.name for tool in offered))}",
        messages=messages,
        answer=answer,
        tools=tuple(tool.schema for tool in offered),
        expected=expected,
    )


def tool_call(rng: random.Random) -> ChatExample:
    """One of the offered tools fits; optional arguments are given only when the request names them."""
    czech = rng.random() < CZECH_SHARE
    offered = _offer(rng)
    chosen = pick(rng, offered)
    request, arguments = chosen.request(rng, czech)
    with_system = rng.random() < SYSTEM_SHARE
    expected = {"name": chosen.name, "arguments": arguments}
    if with_system:
        expected["refusal"] = words_of("tool_calls", czech)["none"]
    messages = _messages(rng, request, czech, with_system)
    return _example("tool_call", request, messages, offered, call_text(chosen.name, arguments), expected)


def tool_none(rng: random.Random) -> ChatExample:
    """A request that no tool can fulfil, so the answer is the refusal from the system prompt."""
    czech = rng.random() < CZECH_SHARE
    offered = _offer(rng)
    words = words_of("tool_calls", czech)
    request = pick(rng, words["chores"]).format(
        person=pick(rng, WORDS["tool_calls"]["first_names"]), count=rng.randint(COUNT_MIN, 99), ticket=code(rng)
    )
    expected = {"name": None, "arguments": {}, "text": words["none"]}
    return _example("tool_none", request, _messages(rng, request, czech, True), offered, words["none"], expected)


def _instructed(system: str, czech: bool, request: str) -> tuple[dict[str, Any], ...]:
    return {"role": "system", "content": words_of("tool_calls", czech)[system]}, {"role": "user", "content": request}


def tool_arguments(rng: random.Random) -> ChatExample:
    """Arrays, nested objects and dates; optional arguments are left out unless the request names them."""
    czech = rng.random() < CZECH_SHARE
    chosen = pick(rng, NESTED_TOOLS)
    others = [tool for tool in (*NESTED_TOOLS, *TOOLS) if tool.name != chosen.name]
    offered = [chosen, *rng.sample(others, OFFERED_MIN - 1 + int(rng.random() * (OFFERED_MAX - OFFERED_MIN + 1)))]
    rng.shuffle(offered)
    request, arguments = chosen.request(rng, czech)
    messages, expected = _instructed("exact", czech, request), {"name": chosen.name, "arguments": arguments}
    return _example("tool_arguments", request, messages, offered, call_text(chosen.name, arguments), expected)


def _two_requests(rng: random.Random, czech: bool, offered: list[Tool]) -> list[tuple[Tool, str, Arguments]]:
    """Of two tools, or twice of one."""
    chosen = [offered[0], offered[0]] if rng.random() < 0.4 else offered[:2]
    while True:
        drawn = [(tool, *tool.request(rng, czech)) for tool in chosen]
        if drawn[0][2] != drawn[1][2]:
            return drawn


def tool_parallel(rng: random.Random) -> ChatExample:
    """Two independent requests in one message: two calls in one turn, in either order."""
    czech = rng.random() < CZECH_SHARE
    offered = _offer(rng)
    drawn = _two_requests(rng, czech, offered)
    request = (" A ještě: " if czech else " And also: ").join(text for _, text, _ in drawn)
    calls: list[dict[str, Any]] = [{"name": tool.name, "arguments": arguments} for tool, _, arguments in drawn]
    return _example(
        "tool_parallel",
        request,
        _instructed("together", czech, request),
        sorted(offered, key=lambda tool: tool.name),
        "\n".join(call_text(**call) for call in calls),
        {"calls": calls, "any_order": True},
    )


def _called(*calls: tuple[str, Arguments]) -> dict[str, Any]:
    """The turn in which those calls were made."""
    functions = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"role": "assistant", "content": "", "tool_calls": functions}


class Step(NamedTuple):
    """A request that takes two calls: the first with its result, and the second, which needs that result."""

    request: str
    first: tuple[str, Arguments]
    result: dict[str, Any]
    second: tuple[str, Arguments]


STEP_NAMES = ("find_customer", "find_order", "cancel_order", "pay_invoice", "read_invoice")
STEP_TOOLS = [tool_schema(name) for name in STEP_NAMES]


def _latest_order(rng: random.Random, czech: bool) -> Step:
    who, number, contract = declined_person(rng).name, 1_000 + int(rng.random() * 900_000), code(rng)
    name = who.nominative
    request = f"Jaká je poslední objednávka {who.genitive}?" if czech else f"What is the latest order of {name}?"
    result = {"customer_id": number, "name": name, "contract": contract}
    return Step(request, ("find_customer", {"name": name}), result, ("find_order", {"customer_id": number}))


def _cancel(rng: random.Random, czech: bool) -> Step:
    number, order, older = 1_000 + int(rng.random() * 900_000), code(rng, 6), code(rng, 6)
    request = (
        f"Zruš poslední objednávku zákazníka {number}." if czech else f"Cancel the latest order of customer {number}."
    )
    result = {"order_id": order, "replaces": older, "total": koruna(100 + int(rng.random() * 90_000))}
    return Step(request, ("find_order", {"customer_id": number}), result, ("cancel_order", {"order_id": order}))


def _pay(rng: random.Random, czech: bool) -> Step:
    invoice, amount = code(rng, 6), 100 + int(rng.random() * 90_000)
    account, reference = f"{int(rng.random() * 10**10):010d}", f"{int(rng.random() * 10**8):08d}"
    request = f"Zaplať fakturu {invoice}." if czech else f"Pay invoice {invoice}."
    result = {"invoice": invoice, "account": account, "amount": amount, "reference": reference, "overdue": False}
    arguments = {"account": account, "amount": amount, "reference": reference}
    return Step(request, ("read_invoice", {"invoice": invoice}), result, ("pay_invoice", arguments))


STEPS = (_latest_order, _cancel, _pay)


def tool_follow_up(rng: random.Random) -> ChatExample:
    """A second call whose arguments are in the result of the first; the conversation contains both."""
    czech = rng.random() < CZECH_SHARE
    step = pick(rng, STEPS)(rng, czech)
    needed = {step.first[0], step.second[0]}
    others = [tool for tool in STEP_TOOLS if tool["function"]["name"] not in needed]
    offered = [tool for tool in STEP_TOOLS if tool not in others] + rng.sample(others, int(rng.random() * 3))
    rng.shuffle(offered)
    name, arguments = step.first
    result = json.dumps(step.result, ensure_ascii=False)
    messages = (
        {"role": "user", "content": step.request},
        _called((name, arguments)),
        {"role": "tool", "content": result},
    )
    return ChatExample(
        key=f"tool_follow_up:{step.request}:{result}",
        messages=messages,
        answer=call_text(*step.second),
        tools=tuple(offered),
        expected={"name": step.second[0], "arguments": step.second[1]},
    )


BESIDE = [tool_schema(name) for name in ("find_customer", "find_order", "pay_invoice")]
"""Tools that do not fit a cancelled order."""


def tool_results(rng: random.Random) -> ChatExample:
    """A call that needs two results of one turn; the earlier calls hold booleans and null."""
    czech, refund = rng.random() < CZECH_SHARE, rng.random() < 0.5
    orders = [code(rng, 6), code(rng, 6)]
    totals = rng.sample(range(100, 90_000), 2)
    invoices = [code(rng, 6), code(rng, 6)]
    options = {"with_items": rng.random() < 0.5, "warehouse": None if rng.random() < 0.5 else pick(rng, CITIES)}
    results = [
        {"order_id": order, "total": total, "express": rng.random() < 0.5, "carrier": None, "invoice": invoice}
        for order, total, invoice in zip(orders, totals, invoices, strict=True)
    ]
    one, other = orders
    if czech:
        money = "peníze vrať" if refund else "peníze nevracej"
        request = f"Načti objednávky {one} a {other} a tu dražší zruš; {money}."
    else:
        money = "refund the money" if refund else "do not refund the money"
        request = f"Look up the orders {one} and {other} and withdraw the more expensive one; {money}."
    offered = [tool_schema("order_details"), tool_schema("withdraw_order"), *rng.sample(BESIDE, int(rng.random() * 3))]
    rng.shuffle(offered)
    written = [json.dumps(result, ensure_ascii=False) for result in results]
    arguments = {"invoice": invoices[totals.index(max(totals))], "refund": refund}
    return ChatExample(
        key=f"tool_results:{request}:{';'.join(written)}",
        messages=(
            {"role": "user", "content": request},
            _called(*(("order_details", {"order_id": order, **options}) for order in orders)),
            *({"role": "tool", "content": result} for result in written),
        ),
        answer=call_text("withdraw_order", arguments),
        tools=tuple(offered),
        expected={"name": "withdraw_order", "arguments": arguments},
    )
