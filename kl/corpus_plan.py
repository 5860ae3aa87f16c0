"""The plan of a suite's own corpus: which splits it is frozen from, and how many texts of our own it adds."""

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
    """How many of the documents of our own it takes of each kind: JSON, and conversations with tools.

    They were generated once from templates; `json.jsonl` and `tool_dialogue.jsonl` beside the plans hold them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    json_documents: Annotated[int, Field(ge=0, le=120, alias="json")] = 0
    tool_dialogue: Annotated[int, Field(ge=0, le=120)] = 0


class CorpusPlan(BaseModel):
    """Everything that a corpus is frozen from. Documents of a split come in its own order, so nothing is drawn of them.

    `seed` is the one that documents of our own were drawn with; `on_policy` says how the reference's answers are
    sampled.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    seed: int
    on_policy: OnPolicySettings = OnPolicySettings()
    most_loss: Annotated[float, Field(gt=0)] | None = None
    """As in a corpus file."""
    datasets: tuple[HubDataset, ...] = ()
    generated: Generated = Generated()

    @property
    def sha256(self) -> str:
        """Content hash of what the frozen texts depend on."""
        return json_sha256(self.model_dump(mode="json", exclude={"on_policy", "most_loss"}))

    @property
    def most_clusters(self) -> int:
        """How many independent clusters it has at most: rows that share a page are fewer, which only the data tell."""
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
    """The first documents of our own of that kind: a `text`, or `messages` and `tools` with their `template`'s name."""
    lines = (PLANS / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def settings_of(suite: str) -> CorpusPlan | None:
    """How a shipped suite's corpus is scored, and what it is frozen from if it does not ship whole; None by default.

    Raises:
        UsageError: the plan is malformed.
    """
    path = PLANS / f"{corpus_name(suite)}.yaml"
    return read_yaml(path, CorpusPlan, "corpus plan") if path.is_file() else None


def plan_of(suite: str) -> CorpusPlan | None:
    """The plan of the corpus that a shipped suite brings; None where it brings none, or one that ships whole.

    Raises:
        UsageError: the plan is malformed.
    """
    plan = settings_of(suite)
    return plan if plan is not None and plan.slices else None


def corpus_name(suite: str) -> str:
    """What the folder of a suite's corpus is called."""
    return SHARED.get(suite, suite)
