"""The loopback server of `tests/q36eval/openai` with what vLLM has beside it: chat, parsers, streams, a prefix cache.

A real model answers; its parsers are small and right. `Faults` break one thing each, as such defects were reported.
"""

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from typing_extensions import override

from q36eval.canaries.checks import parse_reply
from q36eval.canaries.checks.tool_parser import schemas_by_name, typed_arguments
from q36eval.chat import rendered_chat
from q36eval.engines import EngineSettings, ScoreRequest
from q36eval.engines.base import Generated, GenerationRequest
from q36eval.engines.openai.capabilities import TOP
from q36eval.engines.openai.endpoint import Endpoint
from tests.q36eval.openai.server import SANDBOX, Handler, RefusedError, Served, entry_of, log_probs, serving

BLOCK = 64
"""Tokens of a block of the prefix cache."""
WORDS = ("tea", "lamp", "Brno", "seven", "ticket", "blue", "river", "paper", "stone", "early")
WORN_AFTER = 90
"""Answers after which a server that wears out does: more than are asked before the mixed load ends."""


@dataclass
class Faults:
    """What is broken; nothing by default."""

    stale_cache: bool = False
    """Of a prompt found in the cache the state is lost: only what comes after it is read."""
    stale_eviction: bool = False
    """Of a prompt that was pushed out of the cache the blocks it had are not read again, though they are gone."""
    crossed: bool = False
    """Once two requests were under way together, each is answered with what the one before it was asked."""
    truncated_arguments: bool = False
    swallowed_thought: bool = False
    """The answer after a thought is part of the reasoning, and there is no content."""
    leaked_tags: bool = False
    forced_calls: bool = False
    """Whoever offers tools gets a call of the last one, without arguments."""
    wrong_finish: bool = False
    duplicated_chunk: bool = False
    other_template: bool = False
    """The server's template writes one word more."""
    worn: bool = False
    """After so many answers it answers as after a cut prompt."""
    stumbling: bool = False
    """Every fifth raw completion is answered with status 500, and rightly when it is asked for again."""
    turned: bool = False
    """A near tie turns every chat answer, so that the model writes another one there than in raw completions."""
    shifted_log_probs: bool = False
    """Log-probabilities of what is generated are of other places."""
    one_log_prob: bool = False
    """Only the chosen token has one."""
    undrafted: bool = False
    """Whoever asks for log-probabilities gets no drafts."""
    flaky: bool = False
    """Every fifth streamed answer is cut off, and whole when it is asked for again."""


@dataclass
class Chatting(Served):
    """What is served, the faults, and the counters of the prefix cache."""

    faults: Faults = field(default_factory=Faults)
    returns_chat_ids: bool = True
    writes_prompts: bool = True
    """Whether its `/tokenize` takes conversations."""
    counts_prompts: bool = True
    capacity_blocks: int = 200
    cached: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    evicted: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    prompt_tokens: int = 0
    tells_start: bool = True
    queries: int = 0
    hits: int = 0
    answered: int = 0
    streamed: int = 0
    under_way: int = 0
    mixed: bool = False
    """Whether two requests were under way at once, of a server whose requests are crossed from then on."""
    last: tuple[int, ...] = ()
    draft_length: int = 0
    """Tokens that are drafted at a time; 0 for a server that does not draft."""
    foresees: int = 6
    """Of ten tokens, by their ids, so many are such as the draft foresees."""
    drafts: int = 0
    accepted: int = 0
    by_rule: bool = False
    """Whether answers follow from a hash of the prompt in place of the model, which takes no time: where only the
    server is looked at, any model will do whose answers differ wherever the prompts that it read do."""
    known: dict[Any, Any] = field(default_factory=dict)
    """Greedy answers and log-probabilities of this very model, which repeats itself: computed once."""

    def looked_up(self, salt: str, ids: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """How many tokens of the prompt are in the cache of that salt, and what is read of it, as the faults have it.

        From now on all of its blocks are there.
        """
        with self.queue_lock:
            self.queries += len(ids)
            most = len(ids) - 1
            known = [_alike(ids, other) for other in self.cached.get(salt, ())]
            best = min(most, max(known, default=0)) // BLOCK * BLOCK
            read = () if self.faults.stale_cache else ids[:best]
            after = best
            if self.faults.stale_eviction and not best and (salt, ids) in self.evicted:
                after = most // BLOCK * BLOCK
            self.hits += best
            self.cached.setdefault(salt, []).append(ids)
            while self._blocks() > self.capacity_blocks:
                oldest = next(iter(self.cached))
                self.evicted.add((oldest, self.cached[oldest].pop(0)))
                if not self.cached[oldest]:
                    del self.cached[oldest]
            return best, (*read, *ids[after:])

    def draft(self, tokens: Sequence[int]) -> None:
        """Count what speculative decoding would draft of an answer, and have accepted."""
        at = 0
        with self.queue_lock:
            while at < len(tokens):
                following = tokens[at + 1 : at + 1 + self.draft_length]
                good = next((n for n, token in enumerate(following) if token % 10 >= self.foresees), len(following))
                self.drafts += 1
                self.accepted += good
                at += 1 + good

    def _blocks(self) -> int:
        return sum(len(each) // BLOCK for of_salt in self.cached.values() for each in of_salt)

    def continued(self, ids: tuple[int, ...], budget: int) -> Generated:
        """The greedy answer, of this process's model."""
        with self.queue_lock:
            self.prompt_tokens += len(ids)
        if self.by_rule:
            return ruled(self.engine.tokenizer, ids, budget)
        return self._once((ids, budget), lambda: self.generate(GenerationRequest("x", ids, budget)))

    def top(self, ids: tuple[int, ...], tokens: tuple[int, ...]) -> list[dict[str, float]]:
        """The likeliest tokens at each generated place, the generated one among them."""
        if self.by_rule:
            return [{f"token_id:{token + place}": -0.1 - 3.0 * place for place in range(TOP)} for token in tokens]
        rows = self._once((ids, tokens, "top"), lambda: self._scored(ids, tokens))
        entries = [entry_of(row, TOP, token) for row, token in zip(rows, tokens, strict=True)]
        return [{f"token_id:{name}": value for name, (value, _) in entry.items()} for entry in entries]

    def _scored(self, ids: tuple[int, ...], tokens: tuple[int, ...]) -> torch.Tensor:
        with self.lock:  # alone: a batch moves BF16
            return log_probs(self.engine, ScoreRequest("x", (*ids, *tokens), first=len(ids)))

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        with self.queue_lock:
            known = self.known.get(key)
        if known is None:
            known = compute()
            with self.queue_lock:
                self.known[key] = known
        return known


def ruled(tokenizer: Any, ids: tuple[int, ...], budget: int) -> Generated:
    """An answer by rule: a call of the first tool that is offered, or else words, which a hash of the prompt names."""
    prompt = tokenizer.decode(list(ids), skip_special_tokens=False)
    rng = random.Random(hashlib.sha256(prompt.encode()).digest())
    said = " ".join(rng.choices(WORDS, k=budget))
    thinks = prompt.rstrip().endswith("<think>")
    offered = re.search(r"<tools>\n(.*)\n", prompt)
    if offered is not None:
        function = json.loads(offered[1])
        schemas, required = (function["parameters"].get(key, {}) for key in ("properties", "required"))
        values = {name: 3 if schemas[name].get("type") in ("integer", "number") else said[:20] for name in required}
        parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in values.items())
        said = f"{said[:12]}\n<tool_call>\n<function={function['name']}>\n{parameters}</function>\n</tool_call>"
    said = f"{rng.choice(WORDS)}\n</think>\n\n{said}" if thinks else said
    tokens = tuple(tokenizer.encode(said, add_special_tokens=False))
    request = GenerationRequest("x", ids, budget)
    if len(tokens) >= budget:
        return Generated(request, tokens[:budget], tokenizer.decode(list(tokens[:budget])), "length")
    return Generated(request, tokens, said, "stop", end_id=tokenizer.eos_token_id)


class ChatHandler(Handler):
    """Answers what the plain one does not."""

    served: Chatting

    @override
    def do_GET(self) -> None:
        served = self.served
        if self.path != "/metrics" or served.shape != "vllm":
            super().do_GET()
            return
        lines = [f"process_start_time_seconds {served.started}"] if served.tells_start else []
        lines += [f'vllm:prompt_tokens_total{{engine="0"}} {served.prompt_tokens}'] if served.counts_prompts else []
        config = f'block_size="{BLOCK}",num_gpu_blocks="{served.capacity_blocks}"'
        lines += [
            f'vllm:prefix_cache_queries_total{{engine="0"}} {served.queries}',
            f'vllm:prefix_cache_hits_total{{engine="0"}} {served.hits}',
            f"vllm:cache_config_info{{{config}}} 1.0",
        ]
        if served.draft_length:
            counters = {"drafts": served.drafts, "draft_tokens": served.drafts * served.draft_length}
            counters["accepted_tokens"] = served.accepted
            lines += [f'vllm:spec_decode_num_{name}_total{{engine="0"}} {n:.1f}' for name, n in counters.items()]
        self._send(200, ("\n".join(lines) + "\n").encode())

    def answer(self, body: Mapping[str, Any]) -> None:
        scores = body.get("prompt_logprobs") is not None or (body.get("max_tokens") == 1 and body.get("logprobs"))
        try:
            if self.path == "/v1/chat/completions":
                self._answer(body, *self._chat(body))
            elif self.path == "/v1/completions" and not scores:
                self._answer(body, *self._completed(body))
            elif self.path == "/tokenize" and "messages" in body:
                if not self.served.writes_prompts:
                    raise RefusedError("no prompt")
                ids = self._prompt_of(body)
                self._send(200, {"tokens": ids, "count": len(ids), "max_model_len": self.served.context})
            else:
                super().answer(body)
        except RefusedError as error:
            self._send(400, {"error": {"message": str(error)}})

    def _answer(self, body: Mapping[str, Any], whole: dict[str, Any], pieces: list[dict[str, Any]]) -> None:
        served = self.served
        if served.faults.stumbling and served.answered % 5 == 0:
            self._send(500, {"error": {"message": "stumbled"}})
            return
        if not body.get("stream"):
            self._send(200, whole)
            return
        if served.faults.duplicated_chunk and len(pieces) > 3:
            pieces.insert(2, pieces[2])
        events = [{"model": whole["model"], "choices": [piece]} for piece in pieces]
        if "prompt_token_ids" in whole:
            events[0]["prompt_token_ids"] = whole["prompt_token_ids"]
        events.append({"model": whole["model"], "choices": [], "usage": whole["usage"]})
        for event in events:
            event |= {"id": whole["id"]}
        with served.queue_lock:
            served.streamed += 1
            cut = served.faults.flaky and served.streamed % 5 == 0
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n" * (not cut)
        self._send(200, text.encode())

    def _generated(self, ids: tuple[int, ...], budget: int, salt: str, *, drafts: bool = True) -> tuple[Generated, int]:
        """What is generated after a prompt, as the faults have it, and how much of it was cached."""
        served, faults = self.served, self.served.faults
        if len(ids) + budget > served.context:
            raise RefusedError(f"This model's maximum context length is {served.context} tokens.")
        cached, read = served.looked_up(salt, ids)
        with served.queue_lock:
            served.answered += 1
            served.under_way += 1
            worn = faults.worn and served.answered > WORN_AFTER
        try:
            if faults.crossed:
                threading.Event().wait(0.02)  # whoever came together is under way by then
                with served.queue_lock:
                    served.mixed |= served.under_way > 1
                    before, served.last = served.last, ids
                read = before if served.mixed and before else ids
            if worn:
                read = ids[: len(ids) // 2]
            generated = served.continued(read, budget)
            if served.draft_length and drafts:
                served.draft(_tokens(generated))
            return generated, cached
        finally:
            with served.queue_lock:
                served.under_way -= 1

    def _completed(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        served = self.served
        prompt = body["prompt"]
        ids = tuple(served.ids_of(prompt) if isinstance(prompt, str) else prompt)
        faults = served.faults
        drafts = not (faults.undrafted and body.get("logprobs"))
        generated, cached = self._generated(ids, body["max_tokens"], body.get("cache_salt", ""), drafts=drafts)
        tokens = _tokens(generated)
        choice: dict[str, Any] = {"index": 0, "text": generated.text, "finish_reason": generated.finish_reason}
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(tokens), "prompt_token_ids": list(ids)}
        if body.get("logprobs"):
            rows = served.top(ids, tokens)
            rows = [*rows[1:], *rows[:1]] if faults.shifted_log_probs else rows
            rows = [dict([next(iter(row.items()))]) for row in rows] if faults.one_log_prob else rows
            choice["logprobs"] = {"top_logprobs": rows}
        whole = self._whole(ids, tokens, cached) | {"choices": [choice]}
        return whole, _stream(_cut("text", generated.text) or [{"text": ""}], generated.finish_reason, tokens)

    def _whole(self, ids: Sequence[int], tokens: Sequence[int], cached: int) -> dict[str, Any]:
        served = self.served
        usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": len(tokens)}
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"id": f"x-{threading.get_ident()}", "model": served.name, "usage": usage}

    def _prompt_of(self, body: Mapping[str, Any]) -> list[int]:
        """The tokens of a conversation's prompt."""
        thinking, tools = body["chat_template_kwargs"]["enable_thinking"], body.get("tools") or []
        messages = [dict(message) for message in body["messages"]]
        if self.served.faults.other_template:
            messages[-1]["content"] += " Prosím."
        text = rendered_chat(self.served.engine.tokenizer, messages, tools, enable_thinking=thinking)
        return self.served.ids_of(text)

    def _chat(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        served, faults = self.served, self.served.faults
        thinking, tools = body["chat_template_kwargs"]["enable_thinking"], body.get("tools") or []
        ids = tuple(self._prompt_of(body))
        read = ids[: len(ids) // 2] if faults.turned else ids
        generated, cached = self._generated(read, body["max_tokens"], body.get("cache_salt", ""))
        tokens = _tokens(generated)
        message, finish = parsed(generated.text, tools, thinking, generated.finish_reason, faults)
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        whole = self._whole(ids, tokens, cached) | {"choices": [choice]}
        if served.returns_chat_ids:
            choice["token_ids"] = list(tokens)
            whole["prompt_token_ids"] = list(ids)
        return whole, _stream(_deltas(message), finish, tokens if served.returns_chat_ids else None)


def _alike(ids: Sequence[int], other: Sequence[int]) -> int:
    """With how many tokens both begin."""
    shortest = min(len(ids), len(other))
    return next((at for at in range(shortest) if ids[at] != other[at]), shortest)


def _tokens(generated: Generated) -> tuple[int, ...]:
    return (*generated.token_ids, *(() if generated.end_id is None else (generated.end_id,)))


def parsed(
    text: str, tools: Sequence[dict[str, Any]], thinking: bool, finish: str, faults: Faults
) -> tuple[dict[str, Any], str]:
    """Content, reasoning and calls of a raw text, and the finish reason."""
    reasoning, answer = None, text
    if thinking:
        before, mark, after = text.partition("</think>")
        reasoning, answer = (before, after) if mark else (text, "")
        if faults.swallowed_thought and mark:
            reasoning, answer = text, ""
    reply, offered = parse_reply(answer), schemas_by_name(tools)
    calls = []
    for call in reply.calls:
        arguments = json.dumps(typed_arguments(call, offered.get(call.name, {})), ensure_ascii=False)
        if faults.truncated_arguments:
            arguments = arguments[:-3]
        calls.append({"id": "1", "type": "function", "function": {"name": call.name, "arguments": arguments}})
    if faults.forced_calls and tools:
        forced = {"name": tools[-1]["function"]["name"], "arguments": "{}"}
        calls = [{"id": "1", "type": "function", "function": forced}]
    content: str | None = (reply.before if reply.calls else answer).strip() or None
    if faults.leaked_tags:
        content = f"{content or ''}</think>"
    message: dict[str, Any] = {"content": content, "reasoning": reasoning}
    if calls:
        message["tool_calls"] = calls
        finish = "stop" if faults.wrong_finish else "tool_calls"
    return message, finish


def _cut(name: str, text: str) -> list[dict[str, Any]]:
    """The text in pieces of a stream."""
    return [{name: text[at : at + 8]} for at in range(0, len(text), 8)]


def _deltas(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The message in pieces."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "content"):
        deltas += _cut(name, message.get(name) or "")
    for index, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        parts = [{"name": name, "arguments": ""}, *_cut("arguments", arguments)]
        deltas += [{"tool_calls": [{"index": index, "function": part}]} for part in parts]
    return [{"delta": delta} for delta in (*deltas, {})]


def _stream(pieces: Sequence[Mapping[str, Any]], finish: str, tokens: Sequence[int] | None) -> list[dict[str, Any]]:
    """The choices of a stream: the token ids are spread over its pieces, and the last one has the finish reason."""
    choices: list[dict[str, Any]] = [{"index": 0, "finish_reason": None, **piece} for piece in pieces]
    if tokens is not None:
        per = -(-len(tokens) // len(choices))
        for number, choice in enumerate(choices):
            choice["token_ids"] = list(tokens[number * per : (number + 1) * per])
    choices[-1]["finish_reason"] = finish
    return choices


@contextmanager
def chatting(served: Chatting) -> Iterator[str]:
    """That server; gives its address."""
    with serving(served, handles=ChatHandler) as address:
        yield address


@contextmanager
def endpoint_of(served: Chatting) -> Iterator[Endpoint]:
    """That server, as `q36eval served` opens it."""
    with (
        chatting(served) as address,
        closing(Endpoint.load(EngineSettings(SANDBOX, kind="openai", base_url=address))) as endpoint,
    ):
        yield endpoint
