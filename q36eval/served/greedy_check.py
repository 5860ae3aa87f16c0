"""Whether greedy answers take the tokens that the server itself holds likeliest: else its sampler does not do as told.

A temperature or a penalty that replaces what a request says changes few answers of a sure model. So prompts are cut in
the middle, where many tokens could follow, and each generated token is held to the server's own log-probabilities.
vLLM gives those before temperature and penalties; a server that gives them after its penalties hides these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from q36eval.records import Counts, Measurement
from q36eval.served.comparison import NEAR_TIE_NATS, counted_faults
from q36eval.served.differentials import Answers
from q36eval.served.prompts import Prompt


def cut_in_half(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first half of each prompt's tokens, and no turn that would end the question."""
    return [replace(prompt, token_ids=prompt.token_ids[: max(1, len(prompt.token_ids) // 2)]) for prompt in prompts]


def _tells(row: Mapping[int, float]) -> bool:
    """Whether a place's log-probabilities say which token is likelier than another."""
    return len(row) > 1 and all(map(math.isfinite, row.values()))


def greedy_measured(prompts: Sequence[Prompt], greedy: Answers) -> Measurement:
    """Answers with a token that is less likely than another by more than a near tie."""
    faults, scored = [], 0
    for prompt in prompts:
        answer = greedy[prompt.name]
        if isinstance(answer, str) or not answer.log_probs:
            continue
        chosen = answer.token_ids or answer.row_ids
        if not chosen:
            continue
        rows = answer.log_probs[: len(chosen)]
        if len(rows) < len(chosen) or not all(_tells(row) for row in rows):
            continue
        scored += 1
        for place, (token, row) in enumerate(zip(chosen, answer.log_probs, strict=False)):
            behind = max(row.values()) - row[token] if token in row else float("inf")
            if behind > NEAR_TIE_NATS:
                faults.append(f"{prompt.name}: token {place} is {behind:.2f} nats less likely than another")
                break
    counts = Counts(total=len(prompts), scored=scored, errored=len(prompts) - scored)
    return counted_faults("greedy_faults", "all", faults, counts, "sampler")
