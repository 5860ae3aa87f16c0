"""One fault for each blocking criterion: what a deployment answers, or a checkpoint stores, wrong, and nothing else."""

import math
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from q36eval.engines.base import ScoreRequest
from q36eval.gate import Criterion
from q36eval.records import Lane
from tests.app.satisfiable.stub_deployment import Asked, Fault
from tests.q36eval.checkpoints.inspection import damage

SHOPS = ("obchod A", "obchod B", "obchod C")


def part(keys: Collection[str], share: float) -> frozenset[str]:
    """A seeded part of them, at most all."""
    wanted = min(len(keys), math.ceil(share * len(keys) - 1e-9))
    return frozenset(random.Random(7).sample(sorted(keys), wanted))


# ---- canaries


def of_canaries(asked: Asked, criterion: Criterion, margins: float) -> Fault:
    """The fault that a criterion over canaries is for."""
    specs = {spec.id: spec for spec in asked.probe.specs}
    fixed = [o for o in asked.outcomes if o.must_pass]
    drawn = [o for o in asked.outcomes if not o.must_pass and specs[o.group].generation.sampling is None]
    sampled = [o for o in asked.outcomes if specs[o.group].generation.sampling is not None]
    if criterion.metric == "must_pass_flips":
        in_slice = [o for o in fixed if specs[o.group].absolute and _inside(specs[o.group], criterion)]
        # of those that most slices hold last: a canary of both lanes concerns both
        chosen = min(in_slice, key=lambda o: (len(specs[o.group].lanes), o.cluster))
        return _answered({chosen.item_key}, "?")
    if criterion.metric == "fixed_prompt_failure_rate":
        judged = {o.item_key for o in fixed if not specs[o.group].absolute and _inside(specs[o.group], criterion)}
        return _answered(part(judged, margins * criterion.margin.value), "?")
    if criterion.metric == "right_numbers_wrong_conclusion":
        concluding = {o.item_key: o for o in drawn if "discount" in specs[o.group].checks}
        wrong = part(concluding, margins * criterion.margin.value)
        texts = {key: _other_conclusion(asked.right.texts[key]) for key in wrong}
        return Fault(frozenset(wrong), texts=texts)
    if criterion.metric.startswith("thinking_"):
        inside = {o.item_key for o in sampled if _inside(specs[o.group], criterion)}
        return _answered(part(inside, margins * criterion.margin.value), "</think>\n\n?")
    assert criterion.metric == "failure_rate", criterion.id
    inside = {o.item_key for o in drawn if _inside(specs[o.group], criterion)}
    alone = {o.item_key for o in drawn if _alone(specs[o.group], criterion)}
    return _answered(part(alone, margins * criterion.margin.value * len(inside) / len(alone)), "?")


def _inside(spec: Any, criterion: Criterion) -> bool:
    return criterion.slice in ("all", spec.id, *spec.lanes)


def _alone(spec: Any, criterion: Criterion) -> bool:
    """Of that slice and of no other lane's."""
    lanes = {lane.value for lane in Lane}
    return _inside(spec, criterion) and (criterion.slice not in lanes or len(spec.lanes) == 1)


def _answered(keys: Collection[str], text: str) -> Fault:
    return Fault(frozenset(keys), texts=dict.fromkeys(keys, text))


def _other_conclusion(answer: str) -> str:
    """The same amounts, and another shop named; of a tie one of them."""
    body, _, said = answer.rpartition("\n")
    if said.startswith("Rozhodnutí: "):
        return f"{body}\nRozhodnutí: {'B' if said.endswith('A') else 'A'}"
    shop = next((shop for shop in SHOPS if shop in said), None)
    if shop is None:
        return f"{body}\nLevnější je {SHOPS[0]}."
    return f"{body}\n{said.replace(shop, next(other for other in SHOPS if other != shop))}"


# ---- evals


def of_evals(asked: Asked, criterion: Criterion, margins: float) -> Fault:
    """Wrong answers, or unlikely texts, in that slice."""
    group = next(g for g in asked.probe._loaded.groups if criterion.slice.split("/")[0] == g.slice or g.slice == "all")
    own = [o for o in asked.outcomes if o.group == group.name]
    if criterion.metric.endswith("perplexity"):
        keys = frozenset(o.item_key for o in own)
        asked_for = {request.key for item in asked.work.items if item.key in keys for request in item.scores}
        return Fault(keys, states=lambda one, states: states * LESS_SURE if one.key in asked_for else states)
    value = criterion.slice.removeprefix(f"{group.slice}/")
    if value != criterion.slice:
        own = [o for o in own if value in o.stratum.split("/")]
        wrong = part({o.item_key for o in own}, margins * (1.0 - criterion.margin.value))
    else:
        # spread over what no criterion judges apart: a length of its own keeps its answers
        rest = {o.item_key for o in own if "131072" not in o.stratum.split("/")}
        wrong = part(rest, margins * (1.0 - criterion.margin.value) * len(own) / len(rest))
    texts, choices = {}, {}
    for key in wrong:
        document, encoded = asked.probe._encoded[key]
        for number, reading in enumerate(encoded.readings):
            if reading.generation_key is not None:
                texts[reading.generation_key] = " wrong"
            elif number == (document.target + 1) % len(document.choices):
                choices |= {piece.request_key: piece.token_ids for piece in reading.pieces}
    return Fault(wrong, texts=texts, choices=choices)


LESS_SURE = 0.9
"""Of every logit so much: the words of a text become less likely by more than three margins of perplexity."""


# ---- divergence


def of_texts(asked: Asked, criterion: Criterion, margins: float) -> Fault:
    """Another distribution throughout, or of one text none at all."""
    keys = sorted(item.key for item in asked.work.items)
    if criterion.metric == "non_finite_tokens":
        (first,) = (item for item in asked.work.items if item.key == keys[0])
        spoiled = first.scores[0].key
        return Fault(frozenset([first.key]), states=lambda one, x: x * math.nan if one.key == spoiled else x)
    if criterion.margin.kind == "max_share":
        return _in_some_documents(asked, criterion)
    return Fault(frozenset(keys), states=lambda request, states: _blank(states, BLANK_THROUGHOUT))


BLANK_THROUGHOUT = 0.022
"""Of every document such a share of tokens is told nothing: beyond the margin of the mean, far from ten of them."""
BLANK_OF_DOCUMENT = 0.22
"""Of some documents: beyond ten margins of their divergence."""


def _blank(states: torch.Tensor, share: float) -> torch.Tensor:
    """The first of them say nothing of what comes next."""
    states = states.clone()
    states[: math.ceil(share * len(states))] = 0.0
    return states


def _in_some_documents(asked: Asked, criterion: Criterion) -> Fault:
    """A catastrophe in so few documents that the mean stays inside its margin."""
    share = max(0.05, 3 * criterion.margin.value)
    wrong = part([item.key for item in asked.work.items], share)
    requests = {request.key for item in asked.work.items if item.key in wrong for request in item.scores}

    def change(request: ScoreRequest, states: torch.Tensor) -> torch.Tensor:
        if request.key not in requests:
            return states
        return _blank(states, BLANK_OF_DOCUMENT)

    return Fault(wrong, states=change)


# ---- weights


OF_WEIGHTS: dict[str, Callable[[Path], object]] = {
    "integrity_faults": damage.stray_file,
    "coverage_faults": damage.dead_ignore_list,
    "errors_beyond_scheme": damage.twice_as_coarse,
    "configuration_differences": damage.other_generation_config,
    "served_differences": damage.global_scale_of_its_own,
}
"""By metric, what is stored wrong in the sandbox's NVFP4 branch."""
