"""The noise floor: the reference compared with itself, under every perturbation that its engine supports.

The result is one self-contained file per reference identity and suite. A difference below its figures says nothing
about a branch. The floor is the largest figure over the measured perturbations: some change nothing on some machines
(equal batches on a CPU are bit-identical), and a floor that cannot change is not a floor.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from q36eval.engines.base import Engine, Perturbation, ScoreRequest
from q36eval.engines.logits import OutputHead
from q36eval.kl.corpus import in_turn
from q36eval.kl.divergence import TokenFigures
from q36eval.kl.floor_file import VERSION, FloorFigures, PerturbationFloor, ReferenceFloor
from q36eval.kl.scoring import Scorer
from q36eval.probes import Digest, Progress, WorkItem
from q36eval.records import Clusters, DeploymentIdentity, Interval
from q36eval.stats import summarize

TOKENS = 12_000
"""The approximate number of tokens scored per perturbation, but at least `DOCUMENTS` documents."""

DOCUMENTS = 16
"""Minimum of documents; also the maximum if only the first tokens of each are scored (decoding is slow)."""

LEAST_SCORED = 32
"""A request cut to its first tokens must keep at least this many scored tokens."""


def measure_floor(
    reference: Engine,
    capture: Mapping[str, Digest],
    items: Sequence[WorkItem],
    slices: Mapping[str, str],
    identity: DeploymentIdentity,
    suite_sha256: str,
    progress: Progress,
) -> ReferenceFloor:
    """Score a sample of `items` (`slices`: the slice of each key) perturbed, and compare with the capture.

    An engine without perturbations gives an empty floor.
    """
    sample = chosen([item for item in items if item.key in capture], slices, TOKENS, DOCUMENTS)
    measured = []
    for perturbation in reference.perturbations():
        measured.append(_measured(perturbation, capture, sample, slices))
        progress.advance()
    return ReferenceFloor(version=VERSION, identity=identity, suite_sha256=suite_sha256, perturbations=tuple(measured))


def chosen(items: Sequence[WorkItem], slices: Mapping[str, str], tokens: int, least: int) -> list[WorkItem]:
    """Items of every slice in turn, up to `tokens` and at least `least`."""
    sample: list[WorkItem] = []
    spent = 0
    for item in in_turn(items, lambda item: slices[item.key]):
        spent += sum(len(request.token_ids) for request in item.scores)
        if spent > tokens and len(sample) >= least:
            break
        sample.append(item)
    return sample


def _measured(
    perturbation: Perturbation, capture: Mapping[str, Digest], sample: Sequence[WorkItem], slices: Mapping[str, str]
) -> PerturbationFloor:
    row = PerturbationFloor(name=perturbation.name, what=perturbation.what, skipped=perturbation.skipped)
    if perturbation.variant is None:
        return row
    began = time.monotonic()
    items = [_cut(item, perturbation.prefix) for item in sample]
    kept = [item for item in items if item is not None]
    if perturbation.prefix is not None:
        kept = kept[:DOCUMENTS]
    try:
        figures = _figures(perturbation.variant(), kept, capture, rescored=perturbation.rescores)
    except _NotScoredError as error:
        return row.model_copy(update={"skipped": f"the engine failed: {error}", "failed": True})
    by_slice = {"all": list(figures.values())}
    for key, one in figures.items():
        by_slice.setdefault(slices[key], []).append(one)
    summaries = {name: summarized(documents) for name, documents in by_slice.items() if documents}
    return row.model_copy(update={"slices": summaries, "seconds": round(time.monotonic() - began, 2)})


def _cut(item: WorkItem, prefix: int | None) -> WorkItem | None:
    """The item with only its first request, cut to `prefix` tokens; None if too few of them would be scored."""
    if prefix is None:
        return item
    request = replace(item.scores[0], token_ids=item.scores[0].token_ids[:prefix])
    return replace(item, scores=(request,)) if len(request.token_ids) - request.first >= LEAST_SCORED else None


class _NotScoredError(Exception):
    """The perturbed engine gave no hidden states."""


def _figures(
    variant: Engine, items: Sequence[WorkItem], capture: Mapping[str, Digest], *, rescored: bool
) -> dict[str, TokenFigures]:
    """Figures of every item's tokens: the captured states compared with those of `variant`."""
    states = _states(variant, [request for item in items for request in item.scores]) if rescored else {}
    scorer = None
    figures = {}
    for item in items:
        digest = capture[item.key]
        scorer = scorer or Scorer(variant, OutputHead.of(digest.tensors))
        labels = torch.tensor([token for request in item.scores for token in request.token_ids[request.first :]])
        # later tokens do not affect earlier ones, so a cut item is compared with the first rows
        reference = digest.tensors["hidden_states"][: len(labels)]
        if rescored:
            perturbed = torch.cat([states[request.key] for request in item.scores])
        else:  # in place of the engine's own states
            perturbed = reference.to(variant.device)
        figures[item.key] = scorer.figures(reference, perturbed, labels)
    return figures


def _states(variant: Engine, requests: Sequence[ScoreRequest]) -> dict[str, torch.Tensor]:
    states = {}
    for scored in variant.score(requests):
        if scored.hidden_states is None:
            raise _NotScoredError(scored.error)
        states[scored.request.key] = scored.hidden_states
    return states


def summarized(documents: Sequence[TokenFigures]) -> FloorFigures:
    """The figures of one slice from its documents, each an independent cluster."""
    tokens = TokenFigures.concatenated(documents)
    missing = int((~tokens.finite).sum())
    kl = tokens.forward_kl
    mean, kl_interval = _mean(documents, [d.forward_kl for d in documents])
    shift, shift_interval = _mean(documents, [d.reference_logprob - d.branch_logprob for d in documents])
    nan = math.nan
    return FloorFigures(
        documents=len(documents),
        tokens=len(kl),
        non_finite_tokens=missing,
        kl=nan if missing else mean,
        kl_interval=kl_interval,
        reverse_kl=nan if missing else float(tokens.reverse_kl.mean()),
        nll_shift=nan if missing else shift,
        nll_shift_interval=shift_interval,
        top1_agreement=float(tokens.top1_agrees.double().mean()),
        kl_p99=nan if missing else float(torch.quantile(kl, 0.99)),
        kl_max=nan if missing else float(kl.max()),
    )


def _mean(documents: Sequence[TokenFigures], values: Sequence[torch.Tensor]) -> tuple[float, Interval]:
    """Mean over all tokens and its interval, clustered by document."""
    clusters = Clusters(
        units=tuple(len(document.forward_kl) for document in documents),
        branch=tuple(float(value.sum()) for value in values),
        errored=(0,) * len(documents),
    )
    mean, _, _, interval = summarize(clusters, "mean")
    return mean, interval
