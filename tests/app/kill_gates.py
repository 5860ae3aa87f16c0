"""Gates the sandbox from nothing again and again, kills each at another point and goes on with it; run by a test.

Usage: `kill_gates.py FOLDER KILLS SEED`. Every gate runs in a process of its own, forked from this one, with a state of
its own below FOLDER: `whole` and `another`, which nothing interrupted, then one a kill. The first kills come in the
middle of each stage (sampling the reference's answers, capturing it, its noise floor, the branch), the others at
random CPU seconds. Prints where each came.
"""

import os
import random
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch  # noqa: F401 (once here, and not in every fork)

import q36eval.kl.floor
import q36eval.run.preflight
from q36eval.canaries.probe import CanaryProbe
from q36eval.canaries.specification import load_specs
from q36eval.config import Paths
from q36eval.engines import EngineOptions, open_engine
from q36eval.evals.probe import EvalsProbe
from q36eval.history import RunState
from q36eval.kl.corpus import load_corpus
from q36eval.kl.probe import KLProbe
from q36eval.probes import Probe, Progress, WorkItem
from q36eval.records import Lane, ProbeName
from tests.app.sandbox_gates import Gates
from tests.evals.small_suite import ROOT, write_small_suite
from tests.forked import killed_after, whole
from tests.q36eval.gate.evidence import only
from tests.small_corpus import write_corpus

POLICY = only("max_value", 0.5, id="kl", min_clusters=1, lanes=tuple(Lane))
COUNTS = {f"mmlu{kind}/law.jsonl": 15 for kind in ("", "_dev")}
ALONE = EngineOptions()


class FewCanaries(CanaryProbe):
    """Few and short, so that a gate takes seconds and a capture holds answers beside tensors."""

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [
            replace(item, generations=tuple(replace(request, max_new_tokens=16) for request in item.generations))
            for item in super().plan(tokenizer)[:5]
        ]


class Killing(Progress):
    """Kills its process after so many steps of a stage; lists the steps of every stage."""

    def __init__(self, stage: str | None = None, steps: int = 0) -> None:
        self._stage, self._steps, self._now = stage, steps, ""
        self.seen: dict[str, int] = {}

    def stage(self, title: str, total: int) -> None:
        self._now = title
        self.advance(0)

    def advance(self, count: int = 1) -> None:
        self.seen[self._now] = self.seen.get(self._now, 0) + count
        if self._now == self._stage and self.seen[self._now] >= self._steps:
            os.kill(os.getpid(), signal.SIGKILL)


def gate(state: Path, files: Path, progress: Progress, engine: EngineOptions = ALONE) -> None:
    """A gate, or what is left of it where the process that began it died."""
    gates = Gates(state)
    begun = [run.id for run in gates.history.list_runs() if run.state is not RunState.FINISHED]

    def probes(names: Any, suite: str, paths: Paths, material: Any, *_: Any) -> list[Probe]:
        if ProbeName.KL not in names:  # before any work, when nothing is sampled yet
            return []
        scored = material()
        kl = KLProbe(scored.documents, scored.context, scored.overlap, answers=scored.answers)
        return [FewCanaries(load_specs()[:1]), kl, EvalsProbe(files / "suite.yaml")]

    q36eval.run.preflight.build_probes = probes
    gates(
        "fp8-head",
        engine=engine,
        policy=POLICY,
        probes=(ProbeName.KL, ProbeName.CANARIES, ProbeName.EVALS),
        corpus=files / "corpus.yaml",
        resume=begun[0] if begun else None,
        exhaustive=True,
        progress=progress,
    )
    gates.history.close()
    if isinstance(progress, Killing):
        (state / "stages").write_text("".join(f"{steps} {title}\n" for title, steps in progress.seen.items()))


def write_files(files: Path) -> None:
    """The suite and the corpus of all these gates."""
    write_small_suite(files, COUNTS, block_items=15)
    shortest = sorted(load_corpus(ROOT / "data/corpus/sandbox"), key=lambda document: len(document.text))[:6]
    texts = [{"id": one.id, "slice": one.slice, "text": one.text} for one in shortest]
    write_corpus(files, texts, on_policy={"per_canary": 0, "chat": True, "max_new_tokens": 12})


def main(folder: Path, kills: int, seed: int) -> None:
    files = folder / "files"
    files.mkdir()
    write_files(files)
    q36eval.kl.floor.TOKENS, q36eval.kl.floor.DOCUMENTS = 1000, 3  # a whole one takes ten seconds
    open_engine(ROOT / "data" / "sandbox" / "bf16")  # so that every fork has imported what it needs
    rng = random.Random(seed)

    def to_the_end(state: Path) -> float:
        return whole(partial(gate, state, files, Killing()), f"the gate in {state}")

    lasted = min(to_the_end(folder / "whole"), to_the_end(folder / "another"))
    stages = [line.split(" ", 1) for line in (folder / "whole" / "stages").read_text().splitlines()]
    points: list[tuple[str, int] | None] = [(title, int(steps) // 2) for steps, title in stages]
    for number, point in enumerate([*points, *[None] * kills]):
        state = folder / f"killed{number}"
        if point is None:
            moment = lasted * rng.random()
            killed = killed_after(partial(gate, state, files, Killing()), moment)
            print(f"{number}: {moment:.2f} of {lasted:.2f} s{'' if killed else ', which was after its end'}")
        else:
            assert killed_after(partial(gate, state, files, Killing(*point)), 0.0), f"nothing killed it in {point}"
            print(f"{number}: {point[0]}, after {point[1]} steps")
        if point is not None or killed:
            to_the_end(state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
