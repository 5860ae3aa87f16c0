"""A branch compared with a reference by the KL probe, and a tokenizer of single letters."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from q36eval.engines import Engine
from q36eval.kl.probe import KLProbe
from q36eval.probes import ItemResults, WorkItem
from q36eval.records import Measurement

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = ROOT / "data" / "sandbox" / "bf16"
CORPUS = ROOT / "data" / "corpus" / "sandbox"


class Letters:
    """One token per character, its number below `vocabulary`; decodes to the characters of those numbers."""

    is_fast = False

    def __init__(self, vocabulary: int = 0x110000) -> None:
        self.vocabulary = vocabulary

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) % self.vocabulary for letter in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, ids))


class Words:
    """One token per word."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [len(word) for word in text.split()]


def results_of(engine: Engine, item: WorkItem) -> ItemResults:
    return ItemResults({scored.request.key: scored for scored in engine.score(item.scores)})


def compared(probe: KLProbe, branch: Engine, reference: Engine, tokenizer: Any = None) -> dict[str, Measurement]:
    """All measurements by key, without the probe's name."""
    outcomes = []
    for item in probe.plan(tokenizer or reference.tokenizer):
        digest = probe.digest(reference, item, results_of(reference, item))
        whole = replace(digest, tensors={**digest.tensors, **probe.shared_tensors(reference)})
        outcomes += probe.compare(branch, item, results_of(branch, item), whole)
    return {figure.key.removeprefix("kl."): figure for figure in probe.summarize(outcomes)}
