"""Faults around the model: the sampler's settings, the end of a turn, parsers, streams, the chat template."""

import json
from collections.abc import AsyncIterator
from typing import Any

from .switch import active, wrapped

TEMPERATURE, REPETITION_PENALTY = 0.7, 1.3
"""What a generation_config.json may recommend."""
CHUNK = 3
"""The chunk of a stream, from 1, that is sent twice or not at all."""


def _sampling(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    """The settings that a request is sampled with."""
    said = original(self, *arguments, **named)
    name = active()
    if name == "sampler-temperature" and said.temperature == 0.0:  # as by `temperature or default`
        said.temperature = TEMPERATURE
    if name == "sampler-penalty":
        said.repetition_penalty = REPETITION_PENALTY
    if name == "end-ignored":
        said.ignore_eos = True
        said.stop_token_ids = []
        said._all_stop_token_ids = set()
    return said


def _parser(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    """The parser of one answer."""
    made = original(self, *arguments, **named)
    parse = made.parse

    def parsed(*texts: Any, **more: Any) -> Any:
        reasoning, content, calls = parse(*texts, **more)
        name = active()
        if name == "arguments-cut":
            for call in calls or ():
                call.arguments = _cut(call.arguments)
        if name == "think-swallowed" and reasoning:
            reasoning, content = reasoning + (content or ""), None
        return reasoning, content, calls

    made.parse = parsed
    return made


def _cut(arguments: str) -> str:
    """The last text of the arguments ends early; they stay JSON."""
    values = json.loads(arguments)
    texts = [name for name, value in values.items() if isinstance(value, str) and len(value) > 1]
    if texts:
        values[texts[-1]] = values[texts[-1]][: len(values[texts[-1]]) // 2]
    return json.dumps(values, ensure_ascii=False)


async def _streamed(original: Any, *arguments: Any, **named: Any) -> "AsyncIterator[str]":
    """A stream's events in order."""
    at = 0
    async for event in original(*arguments, **named):
        at += 1
        name = active()
        if name == "chunk-dropped" and at == CHUNK and "[DONE]" not in event:
            continue
        yield event
        if name == "chunk-doubled" and at == CHUNK and "[DONE]" not in event:
            yield event


def _templated(original: Any, *arguments: Any, **named: Any) -> Any:
    """A conversation as the chat template writes it; with `template-switch` what a request says of thinking is lost."""
    if active() == "template-switch":
        named.pop("enable_thinking", None)
    return original(*arguments, **named)


def install() -> None:
    """Wrap the server's reading of requests and its writing of answers."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
    from vllm.renderers import hf

    for request in (CompletionRequest, ChatCompletionRequest):
        wrapped(request, "to_sampling_params", _sampling)
    wrapped(OpenAIServingChat, "_make_parser", _parser)
    wrapped(OpenAIServingCompletion, "completion_stream_generator", _streamed)
    wrapped(OpenAIServingChat, "chat_completion_stream_generator", _streamed)
    wrapped(hf, "safe_apply_chat_template", _templated)
