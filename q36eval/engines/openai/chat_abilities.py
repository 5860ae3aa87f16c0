"""What a server's chat endpoint does with tools and with the thinking switch. Nothing that is measured goes through it.

A server may ignore what it does not know, so the count of the prompt's tokens decides: what changes nothing there was
not put into the prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from q36eval.engines.openai.answers import read_as
from q36eval.engines.openai.chat_answers import Chat, Said
from q36eval.engines.openai.client import Client, NoAnswerError, RefusedError
from q36eval.engines.openai.flavour import Server

TRIES = 2
QUESTION = "What is the weather in Brno? Look it up."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL_TOKENS = 64


@dataclass(frozen=True)
class ChatAbilities:
    """In words: `chat` is `answers` or why not, the others what the server makes of tools and the switch."""

    chat: str
    tools: str = "not tried"
    thinking_switch: str = "not tried"


def chat_abilities(client: Client, server: Server) -> ChatAbilities:
    """Ask four short questions.

    Raises:
        EngineError: the key is refused, or the server is gone.
    """
    plain = _asked(client, server, {})
    if isinstance(plain, str):
        return ChatAbilities(plain)
    return ChatAbilities("answers", _tools(client, server, plain), _thinking_switch(client, server))


def _tools(client: Client, server: Server, plain: Chat) -> str:
    answer = _asked(client, server, {"tools": [TOOL], "tool_choice": "auto", "max_tokens": CALL_TOKENS})
    if isinstance(answer, str):
        return answer
    if _count(answer) == _count(plain):
        return "ignored: the prompt is as long without them"
    message = (answer.choices[0].message if answer.choices else None) or Said()
    if message.tool_calls:
        return "read by the server's parser"
    if any(tag in (message.content or "") for tag in ("<tool_call>", "<function=")):
        return "written into the prompt; a call stays in the text, which no parser reads"
    return "written into the prompt; the model made no call"


def _thinking_switch(client: Client, server: Server) -> str:
    answers = [
        _asked(client, server, {"chat_template_kwargs": {"enable_thinking": thinking}}) for thinking in (True, False)
    ]
    told = [each for each in answers if isinstance(each, str)]
    if told:
        return told[0]
    counts = [_count(each) for each in answers if not isinstance(each, str)]
    return "works" if counts[0] != counts[1] else "changes nothing in the prompt"


def _asked(client: Client, server: Server, more: Mapping[str, Any]) -> "Chat | str":
    """The answer, or why there is none."""
    body = {
        "model": server.model.id,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 1,
        "temperature": 0.0,
        "stream": False,
        **more,
    }
    try:
        return client.post(
            f"{client.address.base}/chat/completions", body, lambda content: read_as(Chat, content), TRIES
        )
    except (RefusedError, NoAnswerError) as error:
        return f"refused: {error}"


def _count(answer: Chat) -> int | None:
    return None if answer.usage is None else answer.usage.prompt_tokens
