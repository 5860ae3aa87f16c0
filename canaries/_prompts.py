"""What a canary's conversation must look like, whatever chat template renders it."""

from typing import Any

ROLES = ("system", "user", "assistant", "tool")


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Every message has a known role and text; earlier tool calls carry their arguments as a mapping.

    Qwen's chat templates iterate over a call's arguments, so arguments as a JSON string would not render.

    Raises:
        ValueError: what is wrong, by the message's number.
    """
    for number, message in enumerate(messages, 1):
        role, calls = message.get("role"), message.get("tool_calls")
        if role not in ROLES:
            raise ValueError(f"message {number} has the role {role!r}; there are {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"message {number} has no text under content")
        if calls is not None and not isinstance(calls, list):
            raise ValueError(f"message {number} has tool_calls that are no list")
        for call in calls or ():
            function = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError(f"message {number} holds a tool call without a name")
            if not isinstance(function.get("arguments"), dict):
                raise ValueError(f"message {number}: the arguments of {function['name']!r} must be a mapping")
    _check_order([message["role"] for message in messages])


def _check_order(roles: list[str]) -> None:
    """What Qwen's templates refuse, although the sandbox's may write it: a late system message, nothing to answer."""
    if "system" in roles[1:]:
        late = roles.index("system", 1) + 1
        raise ValueError(f"message {late} is a system message after the first message, which no Qwen takes")
    if "user" not in roles:
        raise ValueError("no message is a user's, so nothing is asked")
    if roles[-1] == "assistant":
        raise ValueError("the last message is an answer; leave it out")
