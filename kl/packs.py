"""What a pack keeps of a document beside the reference's figures: its token ids and which of them are scored."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from q36eval.probes import ItemResults, WorkItem

if TYPE_CHECKING:
    import torch


def asked_tensors(item: WorkItem) -> "dict[str, torch.Tensor]":
    """`token_ids` int32 [N], window after window, and `windows` int32 [W, 2]: each one's length and first scored token.

    Scored are the tokens `first ..` of each window; row t of a pack's figures is the t-th of them over all windows.
    """
    import torch

    ids = [token for request in item.scores for token in request.token_ids]
    windows = [[len(request.token_ids), request.first] for request in item.scores]
    return {
        "token_ids": torch.tensor(ids, dtype=torch.int32),
        "windows": torch.tensor(windows, dtype=torch.int32),
    }


def suite_fields(settings: Mapping[str, Any]) -> dict[str, str]:
    """What a suite's hash is made of, for a person: the keys of sampled answers as one hash, the rest as text.

    Clusters are named where there are none too: a capture with clusters and one without differ in them.
    """
    shown = {"clusters": "", **{name: value for name, value in settings.items() if name != "answers"}}
    return {**{name: str(value) for name, value in shown.items()}, "answers": answers_sha256(settings["answers"])}


def answers_sha256(keys: Sequence[str]) -> str:
    """Content hash of a set of sampled answers, whatever their order; empty text for none."""
    return hashlib.sha256("\0".join(sorted(keys)).encode()).hexdigest() if keys else ""


def scored_tokens(item: WorkItem) -> int:
    """How many tokens of an item are scored."""
    return sum(len(request.token_ids) - request.first for request in item.scores)


def scored_states(item: WorkItem, results: ItemResults) -> "torch.Tensor":
    """The final hidden states [T, H] of all scored tokens, window after window."""
    import torch

    parts = [results.scored[request.key].hidden_states for request in item.scores]
    return torch.cat([part for part in parts if part is not None])
