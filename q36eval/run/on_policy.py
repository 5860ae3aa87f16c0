"""The prompts that a reference answers for the on-policy slices: canary questions, and chat prompts of our own."""

from collections.abc import Sequence
from functools import cache

from q36eval.canaries.cases import cases_of
from q36eval.canaries.specification import CanarySpec, load_specs
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.kl.on_policy import OnPolicyPrompt, OnPolicySettings
from q36eval.kl.planning import ANSWERS_PREFIX

CANARIES_SLICE = "on_policy/canaries"


ANSWERED = (
    "copy-exact-must-pass",
    "copy-exact",
    "discount-compare-must-pass",
    "discount-compare",
    "discount-thinking-must-pass",
    "discount-three-shops-must-pass",
    "discount-three-shops",
    "discount-threshold-must-pass",
    "discount-threshold",
    "discount-two-step-must-pass",
    "discount-two-step",
    "enum-order-must-pass",
    "enum-order",
    "enum-select-must-pass",
    "enum-select",
    "json-flat-must-pass",
    "json-flat",
    "json-nested-must-pass",
    "json-nested",
    "tool-call-must-pass",
    "tool-call",
    "tool-none-must-pass",
    "tool-none",
)
"""The canaries whose first questions are answered: named, so that a canary more moves no divergence."""


@cache
def answered_canaries() -> tuple[CanarySpec, ...]:
    """Those of the shipped canaries, read once."""
    return tuple(load_specs(only=ANSWERED, skills=None))


def on_policy_prompts(settings: OnPolicySettings, paths: Paths) -> list[OnPolicyPrompt]:
    """The first questions of the canaries named above, and the chat prompts, as far as the settings want them.

    Raises:
        UsageError: the chat prompts are not what their manifest says.
    """
    found = _canary_prompts(answered_canaries(), settings.per_canary)
    return found + (_own_prompts(paths, settings.prompts or "chat") if settings.chat else [])


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


def _own_prompts(paths: Paths, name: str) -> list[OnPolicyPrompt]:
    """A list of prompts of ours; those without a kind are chat."""
    import json

    from q36eval.evals.frozen import verify

    folder = paths.data / "prompts"
    if f"{name}.jsonl" not in verify(folder).files:
        raise UsageError(f"There is no list of prompts {name!r} in {folder}; name another in on_policy.prompts.")
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        OnPolicyPrompt(
            id=f"{line.get('kind', 'chat')}/{line['id']}",
            slice=f"{ANSWERS_PREFIX}{line.get('kind', 'chat')}",
            messages=tuple(line["messages"]),
            tools=tuple(line.get("tools", ())),
            enable_thinking=line.get("enable_thinking", False),
            max_new_tokens=line["max_new_tokens"],
            cluster=line.get("cluster"),
        )
        for line in lines
    ]
