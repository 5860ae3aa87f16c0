"""Which questions RULER asks at which length: none about a paragraph of another length, nor two about one if possible.

lm-eval asks the first questions of SQuAD and HotpotQA at every length. Then one paragraph of SQuAD stands behind a
dozen answers or more, which are right or wrong together, and a hundred items weigh as few as twenty-four.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from q36eval.evals.frozen import ClusterCounts

QA_TASKS: Mapping[str, tuple[str, str]] = {
    "ruler_qa_squad": ("read_squad", "SQuAD"),
    "ruler_qa_hotpot": ("read_hotpotqa", "HotpotQA"),
}
"""Task -> the function of lm-eval that reads its questions, and what a person calls them."""

Question = Mapping[str, Any]
"""As lm-eval keeps it: `query`, `outputs`, and in `context` the places of the documents that it is asked about."""


def questions_at(
    questions: Sequence[Question], lengths: Sequence[int], samples: int, seed: str, name: str
) -> dict[int, list[tuple[str, Question]]]:
    """By length its `samples` questions, each with its source: one of every source, then a second one of each.

    A source is what questions have in common that share a document (a paragraph of SQuAD, the ten of a question of
    HotpotQA). Sources are shuffled by `seed` and dealt out to the lengths, so that none is asked about at two of them.
    A question that would join two sources is left out.

    Raises:
        ValueError: there are too few questions; says how many samples there may be.
    """
    sources = _sources(questions, seed)
    found = {}
    for place, length in enumerate(lengths):
        own = list(range(place, len(sources), len(lengths)))
        deepest = max((len(sources[source]) for source in own), default=0)
        in_turn = [
            (str(source), sources[source][turn])
            for turn in range(deepest)
            for source in own
            if turn < len(sources[source])
        ]
        found[length] = in_turn
    least = min(map(len, found.values()), default=0)
    if least < samples:
        raise ValueError(
            f"{name} has {len(questions)} questions about {len(sources)} texts, enough for {least} samples at each of "
            f"{len(lengths)} lengths without a text at two of them, and {samples} are asked for; lower samples"
        )
    return {length: in_turn[:samples] for length, in_turn in found.items()}


def _sources(questions: Sequence[Question], seed: str) -> list[list[Question]]:
    """Questions that share no document with those of another list, in an order that the seed alone decides."""
    order = list(questions)
    random.Random(seed).shuffle(order)
    owner: dict[int, int] = {}
    sources: list[list[Question]] = []
    for question in order:
        owners = {owner[document] for document in question["context"] if document in owner}
        if len(owners) > 1:
            continue
        source = owners.pop() if owners else len(sources)
        if source == len(sources):
            sources.append([])
        sources[source].append(question)
        owner |= dict.fromkeys(question["context"], source)
    return sources


def cluster_counts(clusters: Iterable[str]) -> ClusterCounts:
    """How many items there are, in how many clusters, and what those weigh; `clusters` has one entry an item."""
    sizes = Counter(clusters).values()
    items = sum(sizes)
    return ClusterCounts(
        items=items,
        clusters=len(sizes),
        effective_clusters=items**2 / sum(size**2 for size in sizes) if items else 0.0,
        largest=max(sizes, default=0),
    )
