"""Gates that judge the files of a checkpoint alone, which takes a second; what they left in history and said."""

from pathlib import Path
from typing import Any

from q36eval.history import History

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
