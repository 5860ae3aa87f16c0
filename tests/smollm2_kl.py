"""The divergence of any branch of SmolLM2 from the rescaled reference, on twenty short English texts."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from q36eval.engines import EngineSettings, open_engine
from q36eval.engines.logits import OutputHead
from q36eval.kl.attribution import Pass, Sample, divergences, hidden_states, sample
from q36eval.kl.corpus import CorpusDocument
from tests import smollm2
from tests.assets.smollm2_decoded import TEXTS

DOCUMENTS = tuple(CorpusDocument(str(number), "english", text) for number, text in enumerate(TEXTS["evaluation"]))


@dataclass(frozen=True)
class Scored:
    """The reference's head, and its hidden states of the texts."""

    head: OutputHead
    texts: Sample
    states: Pass


@cache
def reference() -> Scored:
    """The reference, scored once in a process."""
    engine = open_engine(smollm2.folder())
    texts = sample(DOCUMENTS, engine.tokenizer, passes=1, budget=10_000)
    return Scored(engine.output_head(), texts, hidden_states(engine, texts.requests))


def kl(folder: Path, **options: Any) -> float:
    """Mean KL(reference || branch) in nats per token; `options` are of `EngineSettings`."""
    scored = reference()
    sums = divergences(open_engine(EngineSettings(folder, **options)), scored.texts, scored.states, scored.head)
    return sum(sums) / sum(scored.texts.units)


WEIGHTS_ALONE: dict[str, Any] = {"emulate_activations": False, "kv_cache_dtype": "auto"}
"""Options with which neither inputs nor the KV cache are quantized."""
