"""Captures the sandbox's reference again and again, kills each at a random moment and resumes it; run by a test.

Usage: `kill_captures.py FOLDER KILLS SEED [PLACEMENT]`. The model is loaded once; every capture runs in a process of
its own, forked from this one. FOLDER then holds `whole`, which nothing interrupted, and one resumed pack a kill. Prints
for each kill how many CPU seconds into the capture it was, and what was finished by then. Layer by layer, states are
kept after every layer, and nothing is answered.
"""

import random
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch  # noqa: F401 (once here, and not in every fork)

from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.checkpoints.placements import DECODED, LAYERS
from q36eval.engines import EngineOptions, EngineSettings, layer_pass, open_engine
from q36eval.kl.corpus import load_corpus
from q36eval.kl.probe import KLProbe
from q36eval.probes import Progress, Sink, WorkItem
from q36eval.run.capture import captured
from q36eval.run.reference import local_reference
from q36eval.run.rounds import plan_probes
from tests.kills import killed_after, whole

DATA = Path(__file__).resolve().parents[2] / "data"


class FewCanaries(CanaryProbe):
    """Few and short, so that a capture takes a second and holds answers beside tensors."""

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [
            replace(item, generations=tuple(replace(request, max_new_tokens=16) for request in item.generations))
            for item in super().plan(tokenizer)[:5]
        ]


def main(folder: Path, kills: int, seed: int, placement: str = DECODED) -> None:
    shortest = sorted(load_corpus(DATA / "corpus" / "sandbox"), key=lambda document: len(document.text))[:6]
    probes: list[Any] = [KLProbe(shortest), FewCanaries(load_specs()[:1])]
    if placement == LAYERS:
        probes, layer_pass.SAVE_EVERY_S = probes[:1], 0.0
    engine = open_engine(EngineSettings(DATA / "sandbox" / "bf16", placement=placement))
    works = plan_probes(probes, engine.tokenizer, Sink())
    reference = local_reference(DATA / "sandbox" / "bf16", folder, EngineOptions())
    rng = random.Random(seed)

    def capture(root: Path) -> partial[object]:
        return partial(captured, works, replace(reference, root=root).open, lambda: engine, Progress())

    def to_the_end(root: Path) -> float:
        return whole(capture(root), f"a capture into {root}")

    lasted = min(to_the_end(folder / "whole"), to_the_end(folder / "another"))
    for number in range(kills):
        root = folder / str(number)
        # spread over the whole, at random within each part
        moment = lasted * (number + rng.random()) / kills
        while not killed_after(capture(root), moment):  # it was faster than those two
            shutil.rmtree(root)
            moment *= 0.8
        print(f"{number}: {moment:.2f} of {lasted:.2f} s, {len(list(root.rglob('items/*.safetensors')))} shards")
        if number % 4 == 0:  # some are killed a second time, while they resume
            killed_after(capture(root), lasted * rng.random())
        to_the_end(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
