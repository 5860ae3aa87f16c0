"""The plan of a suite's own corpus: the splits from which it is frozen, and the number of our own texts in it."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from q36eval.files import json_sha256, read_yaml
from q36eval.kl.hub_datasets import HubDataset
from q36eval.kl.on_policy import OnPolicySettings

PLANS = Path(__file__).parent / "corpora"

SHARED = {"extended": "release"}
"""Suites that measure the KL on another's corpus."""


class Generated(BaseModel):
    """The number of our own documents of each kind: JSON, and conversations with tools.

    They were generated once from templates; `json.jsonl` and `tool_dialogue.jsonl` next to the plans hold them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    json_documents: Annotated[int, Field(ge=0, le=120, alias="json")] = 0
    tool_dialogue: Annotated[int, Field(ge=0, le=120)] = 0


class CorpusPlan(BaseModel):
    """All sources of a frozen corpus. Documents of a split keep its order, so none is drawn at random.

    `seed` is the seed of our own generated documents; `on_policy` sets how the reference's answers are sampled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    seed: int
    on_policy: OnPolicySettings = OnPolicySettings()
    most_loss: Annotated[float, Field(gt=0)] | None = None
    """See the corpus file."""
    datasets: tuple[HubDataset, ...] = ()
    generated: Generated = Generated()

    @property
    def sha256(self) -> str:
        """Content hash of the inputs that determine the frozen texts."""
        return json_sha256(self.model_dump(mode="json", exclude={"on_policy", "most_loss"}))

    @property
    def most_clusters(self) -> int:
        """An upper bound on the independent clusters: rows that share a page reduce it, which only the data show."""
        templates = {row["template"] for row in generated("tool_dialogue", self.generated.tool_dialogue)}
        of_datasets = sum(dataset.max_documents for dataset in self.datasets)
        return of_datasets + self.generated.json_documents + len(templates)

    @property
    def slices(self) -> tuple[str, ...]:
        """The names of its slices, in order."""
        generated = {"json": self.generated.json_documents, "tool_dialogue": self.generated.tool_dialogue}
        return tuple(
            sorted({dataset.slice for dataset in self.datasets} | {n for n, count in generated.items() if count})
        )


def generated(kind: Literal["json", "tool_dialogue"], count: int) -> list[dict[str, Any]]:
    """The first of our own documents of that kind: a `text`, or `messages` and `tools` with their `template`'s name."""
    lines = (PLANS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def settings_of(suite: str) -> CorpusPlan | None:
    """The scoring of a shipped suite's corpus, and its sources unless it ships whole; None by default.

    Raises:
        UsageError: the plan is malformed.
    """
    path = PLANS / f"{corpus_name(suite)}.yaml"
    return read_yaml(path, CorpusPlan, "corpus plan") if path.is_file() else None


def plan_of(suite: str) -> CorpusPlan | None:
    """The plan of a shipped suite's corpus; None without a corpus, or if it ships whole.

    Raises:
        UsageError: the plan is malformed.
    """
    plan = settings_of(suite)
    return plan if plan is not None and plan.slices else None


def corpus_name(suite: str) -> str:
    """The folder name of a suite's corpus."""
    return SHARED.get(suite, suite)
