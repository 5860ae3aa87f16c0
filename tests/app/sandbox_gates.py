"""Gates of the sandbox's branches within this process, in a state of their own; branches that a test damages."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from q36eval.app.targets import load_family, resolve
from q36eval.config import Paths
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunRecord
from q36eval.probes import Progress
from q36eval.run.measure import measure
from q36eval.run.request import Request, Target
from tests.q36eval.checkpoints.inspection.damage import Damage, edit_json

REPOSITORY = Path(__file__).parents[2]
SANDBOX = REPOSITORY / "data" / "sandbox"


def copied(source: Path, target: Path, damage: Damage = lambda folder: None) -> Path:
    """A copy of a checkpoint's folder, damaged."""
    shutil.copytree(source, target)
    damage(target)
    return target


def two_tokens_swapped(folder: Path) -> None:
    """Another tokenizer, of as many tokens."""

    def swap(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        one, other = list(vocabulary)[300:302]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]

    edit_json(folder, "tokenizer.json", swap)


class Heard(Progress):
    """Writes down the stages and the notes that it is told, and calls back when a stage begins."""

    def __init__(self, begun: Callable[[str], object] = lambda title: None) -> None:
        self._begun = begun
        self.stages: list[str] = []
        self.said: list[str] = []

    def stage(self, title: str, total: int) -> None:
        self.stages.append(title)
        self._begun(title)

    def note(self, sentence: str) -> None:
        self.said.append(sentence)


class Gates:
    """Gates with one history, judged by a policy of that text; `fields` are those of every request."""

    def __init__(self, state: Path, policy: str | None = None, **fields: Any) -> None:
        self.paths = Paths(REPOSITORY, state)
        self.family = load_family("sandbox", self.paths)
        self.history = History.open(self.paths.history)
        file = state / "policy.yaml"
        if policy is not None:
            file.write_text(policy)
        self.policy = None if policy is None else read_policy(file)
        self._fields = {"reference": resolve("bf16", self.family, self.paths)} | fields

    def request(self, branch: str | Path, **fields: Any) -> Request:
        """What the gate of a branch, by name or folder, asks for."""
        target = Target(branch.name, branch) if isinstance(branch, Path) else resolve(branch, self.family, self.paths)
        return replace(Request(self.family, target, None, "sandbox", self.policy), **self._fields | fields)

    def __call__(self, branch: str | Path, **fields: Any) -> RunRecord:
        progress = fields.pop("progress", Progress())
        return measure(self.request(branch, **fields), self.paths, self.history, progress)

    def figures(self, run: RunRecord) -> dict[str, float]:
        """The values that a run measured, by key."""
        return {each.key: each.value for each in self.history.measurements(run.id)}


# -- gates that judge the files of a checkpoint alone, which takes a second


POLICY = """
name: weights
criteria:
  - {id: intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: x}, lanes: [structured, freeform], waivable: false}
"""
SKIPPING = ("--skip", "kl", "--skip", "evals", "--skip", "canaries")


def kl(most: float) -> str:
    """One more criterion of a policy: the mean divergence in nats a token, over at least eight documents."""
    margin = f"{{kind: max_value, value: {most:f}, source: x}}"
    lanes = "lanes: [structured, freeform], min_clusters: 8"
    return f"  - {{id: kl, probe: kl, metric: kl_divergence, margin: {margin}, {lanes}}}\n"


def runs(state: Path) -> list[Any]:
    """The runs in the history of a state folder, newest first."""
    history = History.open(state / "history.sqlite")
    try:
        return history.list_runs()
    finally:
        history.close()


def said(text: str) -> str:
    """The program's one sentence; fails where there are several, or a traceback."""
    assert "Traceback" not in text
    sentences = [line for line in text.splitlines() if line.startswith("q36eval: ")]
    assert len(sentences) == 1, text
    return sentences[0]
