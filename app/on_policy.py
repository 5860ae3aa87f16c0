"""The prompts that a reference answers for the on-policy slices: canary questions, and chat prompts of our own."""

from collections.abc import Sequence
from functools import cache

from canaries.cases import cases_of
from canaries.specification import CanarySpec, load_specs
from kl.on_policy import OnPolicyPrompt, OnPolicySettings
from q36eval.config import Paths

CANARIES_SLICE = "on_policy/canaries"
CHAT_SLICE = "on_policy/chat"


@cache
def shipped_canaries() -> tuple[CanarySpec, ...]:
    """The canaries that ship, read once."""
    return tuple(load_specs())


def on_policy_prompts(settings: OnPolicySettings, paths: Paths) -> list[OnPolicyPrompt]:
    """The first questions of every canary, and the chat prompts, as far as the settings want them.

    Raises:
        UsageError: the chat prompts are not what their manifest says.
    """
    found = _canary_prompts(shipped_canaries(), settings.per_canary)
    return found + (_chat_prompts(paths) if settings.chat else [])


def _canary_prompts(specs: Sequence[CanarySpec], count: int) -> list[OnPolicyPrompt]:
    found = []
    for spec in specs if count else ():
        # a family of `count` draws begins like a longer one, and is drawn sooner
        family = None if spec.family is None else spec.family.model_copy(update={"n": count})
        for case in cases_of(spec.model_copy(update={"family": family}))[:count]:
            found.append(
                OnPolicyPrompt(
                    id=f"canaries/{case.name}",
                    slice=CANARIES_SLICE,
                    messages=case.messages,
                    tools=case.tools,
                    enable_thinking=case.generation.enable_thinking,
                    max_new_tokens=case.generation.max_new_tokens,
                )
            )
    return found


def _chat_prompts(paths: Paths) -> list[OnPolicyPrompt]:
    import json

    from evals.frozen import verify

    folder = paths.data / "prompts"
    verify(folder)
    lines = [json.loads(line) for line in (folder / "chat.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        OnPolicyPrompt(
            id=f"chat/{line['id']}",
            slice=CHAT_SLICE,
            messages=tuple(line["messages"]),
            max_new_tokens=line["max_new_tokens"],
        )
        for line in lines
    ]
