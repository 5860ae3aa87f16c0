"""Decisive margins: a deployment's preference for the right choice where an answer is decided.

Both deployments are teacher-forced on the reference's own answer, so all margins are of the same tokens in the same
context. A margin is log p(right token) - log p(best wrong token) in nats: positive if the right one is preferred. An
answer's margin is the minimum over its decisive tokens, where it would first change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from q36eval.canaries.checks import Decision
from q36eval.canaries.checks.base import first_difference as parting

if TYPE_CHECKING:
    import torch

CHOICES = 5
ENOUGH_MASS = 0.999
"""The maximum of most likely tokens stored per position, limited to this share of the probability."""

ROWS_AT_ONCE = 64
"""Positions whose logits are held at a time: 64 MB at a vocabulary of 248,320."""

END = "end"
"""The decision to end the turn, the last one of every answer."""


class DecisiveToken(NamedTuple):
    """Token `position` of an answer decides; `wrong` are the tokens that would decide differently, () any other."""

    decision: str
    position: int
    right: int
    wrong: Sequence[int] = ()


@dataclass(frozen=True)
class Teacher:
    """A deployment's predictions for an answer on which it is teacher-forced.

    `margins[i]` in nats belongs to the i-th decisive token, `best_wrong[i]` is the best wrong token there. `choices[t]`
    are the most likely tokens at position t with their log-probabilities, best first.
    """

    margins: list[float]
    best_wrong: list[int]
    choices: list[list[tuple[int, float]]]


def decisive_tokens(
    tokenizer: Any, token_ids: Sequence[int], text: str, decisions: Sequence[Decision], end_id: int | None = None
) -> list[DecisiveToken]:
    """The positions of an answer's decisions among its tokens.

    A wrong alternative replaces the right one and is tokenized from the token in which the decision begins: its first
    different token is decisive. Between `high` and `higher` that is the end of one of them: with `end_id`, the end of
    turn after the answer (None without one). If the tokenizer would tokenize the answer differently than the model did,
    any other token there counts as wrong.
    """
    spans = token_spans(tokenizer, token_ids, text)
    ending = [] if end_id is None else [end_id]
    said = [*token_ids, *ending]
    wrong_tokens: dict[tuple[str, int], set[int]] = {}
    open_ended: set[tuple[str, int]] = set()
    for decision in decisions:
        inside = [at for at, (start, end) in enumerate(spans) if start < decision.end and end > decision.start]
        choosing = inside and decision.wrong
        parts = _partings(tokenizer, token_ids, text, spans, decision, inside[0], ending) if choosing else []
        for position, token in parts:
            wrong_tokens.setdefault((decision.kind, position), set()).add(token)
        if not parts:
            open_ended |= {(decision.kind, position) for position in inside}
    tokens = [
        DecisiveToken(kind, position, said[position], tuple(sorted(wrong)))
        for (kind, position), wrong in wrong_tokens.items()
        if (kind, position) not in open_ended
    ]
    tokens += [DecisiveToken(kind, position, token_ids[position]) for kind, position in open_ended]
    return sorted(tokens, key=lambda token: (token.position, token.decision))


def _partings(
    tokenizer: Any,
    token_ids: Sequence[int],
    text: str,
    spans: Sequence[tuple[int, int]],
    decision: Decision,
    first: int,
    ending: Sequence[int],
) -> list[tuple[int, int]]:
    """For every wrong alternative the position of its first different token, and that token."""
    begins = spans[first][0]
    before, after = text[begins : decision.start], text[decision.end :]
    rest = list(token_ids[first:])
    if tokenizer.encode(before + text[decision.start :], add_special_tokens=False) != rest:
        return []
    partings = []
    for wrong in decision.wrong:
        other = tokenizer.encode(before + wrong + after, add_special_tokens=False)
        pairs = enumerate(zip([*rest, *ending], [*other, *ending], strict=False))
        parting = next(((first + at, b) for at, (a, b) in pairs if a != b), None)
        if parting is not None:
            partings.append(parting)
    return partings


def token_spans(tokenizer: Any, token_ids: Sequence[int], text: str) -> list[tuple[int, int]]:
    """The characters of `text` (the decoded ids) of every token; a part of a character counts as the character."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if list(encoded["input_ids"]) == list(token_ids):
        return [(start, end) for start, end in encoded["offset_mapping"]]
    ends = [len(tokenizer.decode(list(token_ids[: count + 1]))) for count in range(len(token_ids))]
    return [(start, max(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def taught(
    logits_of: "Callable[[torch.Tensor], torch.Tensor]",
    hidden_states: "torch.Tensor",
    token_ids: Sequence[int],
    tokens: Sequence[DecisiveToken],
) -> Teacher:
    """Margins and choices of an answer from its final hidden states [T, H], row t of which predicts `token_ids[t]`.

    `logits_of` maps states [R, H] to float32 logits [R, V].
    """
    margins, wrong = [0.0] * len(tokens), [0] * len(tokens)
    choices: list[list[tuple[int, float]]] = []
    for start in range(0, len(token_ids), ROWS_AT_ONCE):
        log_probs = logits_of(hidden_states[start : start + ROWS_AT_ONCE]).float().log_softmax(-1)
        choices += list(_choices(log_probs))
        for number, token in enumerate(tokens):
            if start <= token.position < start + len(log_probs):
                margins[number], wrong[number] = _margin(log_probs[token.position - start], token)
    return Teacher(margins, wrong, choices)


def _choices(log_probs: "torch.Tensor") -> "Iterator[list[tuple[int, float]]]":
    values, ids = log_probs.topk(min(CHOICES, log_probs.shape[-1]), -1)
    before = values.exp().cumsum(-1) - values.exp()
    for row_values, row_ids, row_before in zip(values.tolist(), ids.tolist(), before.tolist(), strict=True):
        kept = [(token, value) for token, value, mass in zip(row_ids, row_values, row_before, strict=True)
                if mass < ENOUGH_MASS]  # fmt: skip
        yield kept or list(zip(row_ids[:1], row_values[:1], strict=True))


def _margin(log_probs: "torch.Tensor", token: DecisiveToken) -> tuple[float, int]:
    """The margin in nats at one position [V], and the best wrong token."""
    right = float(log_probs[token.right])
    if token.wrong:
        wrong = max(token.wrong, key=lambda other: float(log_probs[other]))
    else:
        best = log_probs.topk(2).indices.tolist()
        wrong = next(other for other in best if other != token.right)
    return right - float(log_probs[wrong]), wrong


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first position at which two sequences differ, possibly the end of one; None if they are equal."""
    return None if list(one) == list(other) else parting(one, other)
