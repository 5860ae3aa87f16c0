"""The scales of a quantized KV cache to judge: the stored ones, or 1 as in engines that do not read them.

vLLM and SGLang ignored the scales of this family in tests (https://github.com/vllm-project/vllm/issues/54623,
https://github.com/sgl-project/sglang/issues/37379). If a branch stores scales other than 1 and the serving engine is
unknown, both are measured on a few texts against the same branch with an unquantized cache, which needs no reference;
the deployment that loses more is judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from q36eval.checkpoints.kv_cache import IGNORED, STORED, scales_matter
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.reader import open_checkpoint
from q36eval.engines import Engine, EngineSettings, identity_of
from q36eval.engines.base import ScoreRequest
from q36eval.kl.attribution import Pass, hidden_states
from q36eval.kl.corpus import CorpusDocument, in_turn
from q36eval.kl.raw_texts import raw_ids

CACHE_SCALES = "kv_scales"
"""The key in a run's provenance for the judged scales and the losses of both."""
DOCUMENTS, TOKENS = 20, 2048
"""The number of texts, each scored three times, and the maximum of tokens of one; not timed at the full size."""


ROWS = 256
"""Tokens whose logits are in memory at once."""


@dataclass(frozen=True)
class Losses:
    """KL of each cache from the unquantized one of the same branch, in nats/token; the larger loss is judged."""

    stored: float
    ignored: float

    @property
    def judged(self) -> str:
        """NaN is worse than any number."""
        return STORED if self.stored >= self.ignored or self.stored != self.stored else IGNORED

    def __str__(self) -> str:
        return (
            f"KV cache: {self.stored:.3g} nats/token with the stored scales, {self.ignored:.3g} where an engine "
            f"ignores them (vllm #54623, sglang #37379); judged with {self.judged} scales"
        )


Texts = Callable[[], Sequence[CorpusDocument]]


def judge_worse_scales(engine: Engine, settings: EngineSettings, texts: Texts) -> Losses | None:
    """Use the worse scales in the engine, and record it in its identity; None if there is no choice.

    Raises:
        EngineError: the texts cannot be scored.
    """
    if settings.kv_scales is not None or "kv_scales" not in engine.options:
        return None
    if not scales_matter(open_checkpoint(hold(settings.folder)), engine.identity.kv_cache_dtype):
        return None
    requests = _requests(engine, texts())
    engine.use_kv_scales(None)
    unquantized = hidden_states(engine, requests)
    kl = {}
    for which in (STORED, IGNORED):
        engine.use_kv_scales(which)
        kl[which] = _divergence(engine, unquantized, hidden_states(engine, requests))
    losses = Losses(kl[STORED], kl[IGNORED])
    engine.use_kv_scales(losses.judged)
    engine.identity = identity_of(replace(settings, kv_scales=losses.judged))
    return losses


def _requests(engine: Engine, documents: Sequence[CorpusDocument]) -> list[ScoreRequest]:
    chosen = in_turn(documents, lambda document: document.slice)[:DOCUMENTS]
    ids = [raw_ids(engine.tokenizer, one.text)[:TOKENS] for one in chosen]
    requests = [ScoreRequest(one.key, text, 1, CACHE_SCALES) for one, text in zip(chosen, ids, strict=True)]
    return [request for request in requests if len(request.token_ids) > 1]


def _divergence(engine: Engine, reference: Pass, states: Pass) -> float:
    """KL(reference || states) in nats/token, both through the engine's own head, whose inputs it may quantize."""
    total, tokens = 0.0, 0
    for key, theirs in reference.items():
        for p, q in zip(torch.split(theirs, ROWS), torch.split(states[key], ROWS), strict=True):
            log_p, log_q = (engine.logits(rows).log_softmax(-1) for rows in (p, q))
            total += float((log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64))
            tokens += len(p)
    return total / tokens
