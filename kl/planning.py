"""From documents and sampled answers to scored tokens and their entry in a pack: windows, kinds, positions."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from q36eval.engines.base import ScoreRequest
from q36eval.errors import UsageError
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.on_policy import OnPolicyAnswer
from q36eval.kl.raw_texts import leading_ids, preceded
from q36eval.kl.spans import text_kinds, token_kinds
from q36eval.probes import ItemResults, WorkItem

if TYPE_CHECKING:
    import torch


CONTEXT = 4096
OVERLAP = 512

ANSWERS_PREFIX = "on_policy/"
"""The prefix of the slices of sampled answers."""


@dataclass(frozen=True, eq=False)
class PlannedDocument:
    """One document (or sampled answer) to score: T = len(token_ids) - first tokens, in order.

    `kinds` [T] are indices into `kl.spans.KINDS`; `positions` [T] count the tokens to the left that the model sees when
    it predicts the token: all preceding ones, or those in its window.
    """

    key: str
    id: str
    slice: str
    token_ids: tuple[int, ...]
    first: int
    kinds: NDArray[np.uint8]
    positions: NDArray[np.int32]
    requests: tuple[ScoreRequest, ...]

    @property
    def labels(self) -> tuple[int, ...]:
        """The scored token ids."""
        return self.token_ids[self.first :]


@dataclass(frozen=True)
class Material:
    """The input of a divergence measurement. At most `context` tokens are fed at a time, `overlap` of them repeated.

    `prefix` are the token ids before each document (by default BOS if the tokenizer adds it). A document whose mean
    loss under the reference exceeds `most_loss` nats per token is left out.
    """

    documents: tuple[CorpusDocument, ...]
    answers: tuple[OnPolicyAnswer, ...] = ()
    context: int = CONTEXT
    overlap: int = OVERLAP
    prefix: tuple[int, ...] = ()
    most_loss: float | None = None


@dataclass(frozen=True)
class Planned:
    """All scored documents, by key, and the number of documents too short to score."""

    documents: dict[str, PlannedDocument]
    too_short: int


def refuse_reserved_slices(documents: Iterable[CorpusDocument]) -> None:
    """Refuse documents whose slice has the name of other figures, which theirs would replace.

    `all` is every token, `kind=...` and `position=...` are groups across documents, and names starting with
    `on_policy/` are sampled answers.

    Raises:
        UsageError: names the first such document and its slice.
    """
    for document in documents:
        name = document.slice
        if name.strip() in ("", "all") or "=" in name or name.startswith(ANSWERS_PREFIX):
            raise UsageError(
                "slice-name-reserved",
                f"Document {document.id!r} of the corpus is in a slice named {name!r}, a name kept for other figures: "
                f'name it neither "all" nor empty, without "=", and not beginning with "{ANSWERS_PREFIX}".',
            )


def windows(length: int, context: int, overlap: int, first: int = 1) -> Sequence[tuple[int, int, int]]:
    """Windows `(begin, end, first)` over a document of `length` tokens: each token from `first` on is scored once.

    Token i is scored in the window with `first <= i < end`, after at least `overlap` tokens of left context (or all
    preceding tokens). `first` counts from the document's start.
    """
    if first < 1 or overlap < 1:
        raise ValueError("a token is scored after at least one other")
    if context <= overlap:
        raise ValueError(f"a context of {context} tokens leaves nothing to score after an overlap of {overlap}")
    spans: list[tuple[int, int, int]] = []
    while first < length:
        begin = 0 if not spans and first < context else max(0, first - overlap)
        end = min(length, begin + context)
        spans.append((begin, end, first))
        first = end
    return spans


def plan_material(material: Material, tokenizer: Any) -> Planned:
    """Tokenize and window everything.

    Raises:
        UsageError: no document of the corpus has two tokens.
    """
    planned: dict[str, PlannedDocument] = {}
    short = 0
    leading = material.prefix or leading_ids(tokenizer)
    for document in material.documents:
        own_ids, kinds = text_kinds(tokenizer, document.text)
        token_ids = preceded(leading, own_ids)
        first = max(1, len(token_ids) - len(own_ids))
        if len(token_ids) <= first:
            short += 1
            continue
        planned[document.key] = _planned(document, token_ids, first, kinds[first - len(token_ids) :], material)
    if not planned:
        raise UsageError(
            "corpus-too-short",
            f"The corpus is too short: none of its {short:,} documents has two tokens, so there is nothing to predict.",
        )
    for answer in material.answers:
        token_ids = (*answer.prompt_ids, *answer.token_ids)
        kinds = token_kinds(tokenizer, answer.token_ids)
        planned[answer.key] = _planned(answer, token_ids, len(answer.prompt_ids), kinds, material)
    return Planned(planned, short)


def _planned(
    source: CorpusDocument | OnPolicyAnswer,
    token_ids: tuple[int, ...],
    first: int,
    kinds: NDArray[np.uint8],
    material: Material,
) -> PlannedDocument:
    spans = windows(len(token_ids), material.context, material.overlap, first)
    return PlannedDocument(
        key=source.key,
        id=source.id,
        slice=source.slice,
        token_ids=token_ids,
        first=first,
        kinds=kinds,
        positions=np.concatenate(
            [np.arange(start - begin, end - begin, dtype=np.int32) for begin, end, start in spans]
        ),
        requests=tuple(
            ScoreRequest(key=f"{source.key}/{begin}", token_ids=token_ids[begin:end], first=start - begin)
            for begin, end, start in spans
        ),
    )


def request_tensors(item: WorkItem) -> "dict[str, torch.Tensor]":
    """`token_ids` int32 [N], window after window, and `windows` int32 [W, 2]: each one's length and first scored token.

    Each window's tokens from `first` on are scored; row t of a pack's figures is the t-th of them over all windows.
    """
    import torch

    ids = [token for request in item.scores for token in request.token_ids]
    windows = [[len(request.token_ids), request.first] for request in item.scores]
    return {
        "token_ids": torch.tensor(ids, dtype=torch.int32),
        "windows": torch.tensor(windows, dtype=torch.int32),
    }


def suite_fields(settings: Mapping[str, Any]) -> dict[str, str]:
    """The inputs of a suite's hash, for a person: the keys of sampled answers as one hash, the rest as text.

    Clusters are always included, even if there are none, so that captures with and without clusters differ in them.
    """
    shown = {"clusters": "", **{name: value for name, value in settings.items() if name != "answers"}}
    return {**{name: str(value) for name, value in shown.items()}, "answers": answers_sha256(settings["answers"])}


def answers_sha256(keys: Sequence[str]) -> str:
    """Content hash of a set of sampled answers, independent of their order; empty text for none."""
    return hashlib.sha256("\0".join(sorted(keys)).encode()).hexdigest() if keys else ""


def scored_tokens(item: WorkItem) -> int:
    """The number of an item's scored tokens."""
    return sum(len(request.token_ids) - request.first for request in item.scores)


def scored_states(item: WorkItem, results: ItemResults) -> "torch.Tensor":
    """The final hidden states [T, H] of all scored tokens, window after window."""
    import torch

    parts = [results.scored[request.key].hidden_states for request in item.scores]
    return torch.cat([part for part in parts if part is not None])
