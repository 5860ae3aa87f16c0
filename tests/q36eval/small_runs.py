"""Runs of a few canaries, documents and items of evals, in a state of their own."""

import json
from collections.abc import Sequence
from pathlib import Path

from q36eval.app.targets import load_family
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.probes import Progress
from q36eval.records import Measurement, ProbeName
from q36eval.run.measure import measure
from q36eval.run.request import CanaryChoice, Request, Target
from tests.app.weights_gates import kl
from tests.evals.small_suite import write_small_suite

REPOSITORY = Path(__file__).parents[2]
COUNTS = {f"mmlu{kind}/{name}.jsonl": 5 for kind in ("", "_dev") for name in ("geology", "law")}
COUNTS |= {f"short_answers{kind}/law.jsonl": 4 for kind in ("", "_dev")} | {"perplexity/czech.jsonl": 2}
POLICY = f"name: test\ncriteria:\n{kl(0.02)}"


class SmallRuns:
    """`on_policy` is what the corpus has sampled from the reference, as YAML."""

    def __init__(self, state: Path, documents: Sequence[str], canaries: CanaryChoice, on_policy: str = "null") -> None:
        lines = [json.dumps({"id": str(n), "slice": "own", "text": text}) for n, text in enumerate(documents)]
        (state / "few.jsonl").write_text("\n".join(lines), encoding="utf-8")
        corpus = f"name: few\njson_lines: [{{path: few.jsonl}}]\non_policy: {on_policy}\n"
        (state / "corpus.yaml").write_text(corpus, encoding="utf-8")
        (state / "policy.yaml").write_text(POLICY, encoding="utf-8")
        self.state, self.canaries = state, canaries
        self.suite = str(write_small_suite(state / "suite", COUNTS))
        self.paths = Paths(REPOSITORY, state)
        self.history = History.open(self.paths.history)

    def run(
        self,
        branch: Path,
        reference: Path,
        engine: EngineOptions,
        *probes: ProbeName,
        gated: bool = True,
    ) -> RunRecord:
        """A run that measures the branch, and is decided where it is gated."""
        request = Request(
            family=load_family("sandbox", self.paths),
            branch=Target(branch.name, branch),
            reference=Target(reference.name, reference),
            suite=self.suite,
            policy=read_policy(self.state / "policy.yaml") if gated else None,
            probes=probes,
            engine=engine,
            corpus=self.state / "corpus.yaml",
            canaries=self.canaries,
            exhaustive=True,
        )
        return measure(request, self.paths, self.history, Progress())

    def figures(self, run: RunRecord) -> dict[str, Measurement]:
        """What was measured, by key."""
        return {figure.key: figure for figure in self.history.measurements(run.id)}

    def failures(self, run: RunRecord) -> dict[ProbeName, str]:
        """Why a probe was not measured."""
        return {failure.probe: failure.reason for failure in self.history.failures(run.id)}
