"""When two answers to one prompt differ by more than rounding, and whether more often than the endpoint's own noise.

Greedy answers of one engine diverge at near ties whenever the shape of a batch or of a prefill changes. So two answers
differ only if, at their first different token, one side considers the other's token clearly unlikely or does not list
it, or if the log-probability of a common token changed by much. Without log-probabilities, different tokens (or text)
are a difference, and only the endpoint's own noise is allowed for.

Every item is evaluated three times: as a baseline, repeated, and with one thing changed. The share of items whose
changed answer differs from the baseline is compared with the share whose repeated one does, paired by item and exact
(`stats._pairs`). An endpoint that rarely repeats itself cannot be judged: its items are not informative.

An engine that quantizes inputs (W8A8, FP8) rounds them anew with every shape, which moves answers as far as the
quantization itself does. It is found by copies of one prompt sent together: they share all but the batch's shape.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from q36eval.canaries.checks.base import first_difference
from q36eval.engines.openai.endpoint import Continuation
from q36eval.metrics import metric_of
from q36eval.records import Clusters, Counts, FamilyCompetence, Measurement, ProbeName
from q36eval.served.prompts import Prompt

NEAR_TIE_NATS = 0.25
"""Two tokens this close on both sides are a tie decided by rounding; two engines of one model differ by less."""
MOVED_NATS = 1.0
"""The log-probability of a common token differs by this much only if another state computed it."""
NOISY_NATS = 2.0
"""Both limits where a batch's shape changes, for an engine that moves copies of a prompt by more than a near tie: of
SmolLM2 in W8A8 and FP8 by vLLM on an H200 42 and 26 % of 512 copies are over 0.25 nats apart, 1.4 % and none over 2,
and of 512 answers among others or found in the cache one."""
SHOWN = 3
"""The number of differing items that are named."""


@dataclass(frozen=True)
class Compared:
    """One item evaluated three times. `changed` and `repeated` are the differences of that answer from the baseline.

    `error` names a missing answer; the item then counts only as errored.
    """

    item: str
    changed: str | None = None
    repeated: str | None = None
    error: str | None = None


def difference(baseline: Continuation, other: Continuation, tie: float = NEAR_TIE_NATS) -> str | None:
    """The difference beyond rounding, which decides between tokens up to `tie` nats apart; None without one."""
    if baseline.token_ids is None or other.token_ids is None:
        same = (baseline.text, baseline.finish) == (other.text, other.finish)
        return None if same else _texts(baseline, other)
    ours, theirs = baseline.token_ids, other.token_ids
    at = first_difference(ours, theirs)
    moved = _moved(baseline, other, at, max(MOVED_NATS, tie))
    if moved is not None:
        return moved
    if at == min(len(ours), len(theirs)):
        if len(ours) == len(theirs) and baseline.finish == other.finish:
            return None
        return f"the same {at} tokens, then one ends ({baseline.finish}) and the other does not ({other.finish})"
    gaps = [
        gap
        for side, chosen, instead in ((baseline, ours[at], theirs[at]), (other, theirs[at], ours[at]))
        if (gap := _gap(side, at, chosen, instead)) is not None
    ]
    if gaps and max(gaps) <= tie:
        return None
    apart = f", {max(gaps):.2f} nats apart" if gaps and math.isfinite(max(gaps)) else ""
    return f"other tokens from place {at} on{apart}"


def _texts(baseline: Continuation, other: Continuation) -> str:
    if baseline.text == other.text:
        return f"the same text, ended by {baseline.finish} and by {other.finish}"
    return f"other text from character {first_difference(baseline.text, other.text)} on"


def _moved(baseline: Continuation, other: Continuation, shared: int, most: float) -> str | None:
    """Among the common first tokens, the first whose log-probability differs too much."""
    if baseline.log_probs is None or other.log_probs is None or baseline.token_ids is None:
        return None
    for place in range(min(shared, len(baseline.log_probs), len(other.log_probs))):
        token = baseline.token_ids[place]
        ours, theirs = baseline.log_probs[place].get(token), other.log_probs[place].get(token)
        if ours is not None and theirs is not None and abs(ours - theirs) > most:
            return f"the log-probability of token {place} moves from {ours:.2f} to {theirs:.2f}"
    return None


def _gap(side: Continuation, place: int, chosen: int, instead: int) -> float | None:
    """The margin of that side's own token over the other's; infinite if that is not listed, or its own is drawn."""
    if side.log_probs is None or place >= len(side.log_probs):
        return None
    row = side.log_probs[place]
    if chosen not in row:
        return None
    if max(row.values()) - row[chosen] > NEAR_TIE_NATS:
        return float("inf")
    return row[chosen] - row.get(instead, -float("inf"))


def measured_differences(part: str, compared: Sequence[Compared], note: str) -> Measurement:
    """The share of items that differ with the change, relative to the share that differ without it."""
    metric = metric_of(ProbeName.SERVED, "answer_differences")
    answered = [each for each in compared if each.error is None]
    steady = [each for each in answered if each.repeated is None]
    unsteady, errored = len(answered) - len(steady), len(compared) - len(answered)
    clusters = Clusters(
        units=tuple(int(each.error is None) for each in compared),
        branch=tuple(float(each.error is None and each.changed is not None) for each in compared),
        reference=tuple(float(each.error is None and each.repeated is not None) for each in compared),
        errored=tuple(int(each.error is not None) for each in compared),
        bounds=(0.0, 1.0),
        names=tuple(each.item for each in compared),
        families=(part,) * len(compared),
    )
    causes = {name: count for name, count in (("not_repeated", unsteady), ("errored", errored)) if count}
    able = FamilyCompetence(name=part, items=len(compared), informative=len(steady), causes=causes)
    differing = [f"{each.item}: {each.changed}" for each in answered if each.changed is not None]
    floor = f"{unsteady} of {len(answered)} differ when nothing is changed"
    errors = sorted({each.error for each in compared if each.error is not None})
    return metric.summarized(
        clusters,
        part,
        competence=(able,),
        note=sentences(
            note,
            f"{len(differing)} of {len(answered)} differ, and {floor}",
            examples(differing),
            *errors[:1],
        ),
    )


def counted_faults(metric: str, part: str, faults: Sequence[str], counts: Counts, note: str = "") -> Measurement:
    """Faults of one kind, all counted: `faults` describe each with its item."""
    return metric_of(ProbeName.SERVED, metric).counted(
        len(faults), counts, part, note=sentences(note, f"{len(faults)} of {counts.scored}", examples(faults))
    )


def examples(faults: Sequence[str]) -> str:
    """The first few of them."""
    more = f" (and {len(faults) - SHOWN} more)" if len(faults) > SHOWN else ""
    return "; ".join(faults[:SHOWN]) + more


def sentences(*parts: str) -> str:
    """The nonempty parts, joined."""
    return ". ".join(part.rstrip(".") for part in parts if part)


def cut_in_half(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The first half of each prompt's tokens, without the end of the question's turn."""
    return [replace(prompt, token_ids=prompt.token_ids[: max(1, len(prompt.token_ids) // 2)]) for prompt in prompts]


def greedy_measured(prompts: Sequence[Prompt], greedy: "Mapping[str, Continuation | str]") -> Measurement:
    """Answers with a token that is less likely than another by more than a near tie.

    A temperature or a penalty that overrides the request changes few answers of a confident model. So prompts are cut
    in the middle, where many tokens could follow, and each generated token is compared with the server's own
    log-probabilities. vLLM computes those before temperature and penalties; a server that computes them after its
    penalties hides these.
    """
    faults, scored = [], 0
    for prompt in prompts:
        answer = greedy[prompt.name]
        if isinstance(answer, str) or not answer.log_probs:
            continue
        chosen = answer.token_ids or answer.row_ids
        if not chosen:
            continue
        rows = answer.log_probs[: len(chosen)]
        # a row with one token, or with a missing number, does not show the more likely token
        if len(rows) < len(chosen) or any(len(row) < 2 or not all(map(math.isfinite, row.values())) for row in rows):
            continue
        scored += 1
        for place, (token, row) in enumerate(zip(chosen, answer.log_probs, strict=False)):
            behind = max(row.values()) - row[token] if token in row else float("inf")
            if behind > NEAR_TIE_NATS:
                faults.append(f"{prompt.name}: token {place} is {behind:.2f} nats less likely than another")
                break
    counts = Counts(total=len(prompts), scored=scored, errored=len(prompts) - scored)
    return counted_faults("greedy_faults", "all", faults, counts, "sampler")
