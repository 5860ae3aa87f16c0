"""Runs of a few canaries, documents and items of evals, in a state of their own."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from q36eval.engines import EngineOptions
from q36eval.history import RunRecord
from q36eval.records import Measurement, ProbeName
from q36eval.run.request import CanaryChoice, Target
from tests.app.sandbox_gates import Gates, kl
from tests.evals.small_suite import write_small_suite
from tests.small_corpus import write_corpus

COUNTS = {f"mmlu{kind}/{name}.jsonl": 5 for kind in ("", "_dev") for name in ("geology", "law")}
COUNTS |= {f"short_answers{kind}/law.jsonl": 4 for kind in ("", "_dev")} | {"perplexity/czech.jsonl": 2}
POLICY = f"name: test\ncriteria:\n{kl(0.02)}"


class SmallRuns:
    """`on_policy` is what the corpus has sampled from the reference, as YAML."""

    def __init__(self, state: Path, documents: Sequence[str], canaries: CanaryChoice, on_policy: str = "null") -> None:
        corpus = write_corpus(state, documents, on_policy=yaml.safe_load(on_policy))
        asked = {"corpus": corpus, "suite": str(write_small_suite(state / "suite", COUNTS)), "canaries": canaries}
        self._gates = Gates(state, POLICY, exhaustive=True, **asked)
        self.history = self._gates.history

    def run(
        self,
        branch: Path,
        reference: Path,
        engine: EngineOptions,
        *probes: ProbeName,
        gated: bool = True,
    ) -> RunRecord:
        """A run that measures the branch, and is decided where it is gated."""
        policy = self._gates.policy if gated else None
        target = Target(reference.name, reference)
        return self._gates(branch, reference=target, engine=engine, probes=probes, policy=policy)

    def figures(self, run: RunRecord) -> dict[str, Measurement]:
        """What was measured, by key."""
        return {figure.key: figure for figure in self.history.measurements(run.id)}

    def failures(self, run: RunRecord) -> dict[ProbeName, str]:
        """Why a probe was not measured."""
        return {failure.probe: failure.reason for failure in self.history.failures(run.id)}
