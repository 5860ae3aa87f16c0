"""Two answers next to each other, for evals and canaries: their differences, and each model's probabilities. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby

MAX_DIFF_CHARACTERS = 6_000
MAX_SHARED_CHARACTERS = 1_000
MOST_PROMPT = 4_000
"""A longer prompt loses its middle where it is shown; history keeps it whole."""

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True)
class Held:
    """A token's probability in one model: `share` is the probability, `said` whether the model chose it."""

    share: float
    words: str
    said: bool


@dataclass(frozen=True)
class Choice:
    """A token where two answers diverge, in both models; None if it is not among a model's most likely."""

    token: str
    reference: Held | None
    branch: Held | None


def shortened(text: str, most: int = MOST_PROMPT) -> str:
    """The text without its middle where it is longer than `most` characters, the end being what was asked last."""
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]}\n[… {len(text) - most:,} characters …]\n{text[head - most :]}"


LAST_LINES, LAST_CHARACTERS = 3, 600
_TURN = re.compile(r"(?:<\|[^<>\s]{1,40}\|>|<(?:start|end)_of_turn>)(?:system|user|assistant|model)?|</?think>")
"""A chat template's marks around a turn: its ends, and its role."""


def last_lines(prompt: str) -> str:
    """The end of a prompt, where what is asked stands: its last lines of text, with a mark where more stands before."""
    lines = [each for each in prompt.splitlines() if _TURN.sub("", each).strip()]
    end = "\n".join([_TURN.sub("", each).strip() for each in lines[-LAST_LINES:]])
    return end if len(lines) <= LAST_LINES and len(end) <= LAST_CHARACTERS else f"…{end[-LAST_CHARACTERS:]}"


Pieces = tuple[tuple[str, bool], ...]
"""A text in order; True marks what the other text does not have."""


def diff_pieces(reference: str, branch: str) -> tuple[Pieces, Pieces]:
    """Both texts cut where they differ, word by word; of longer ones, from the first to the last difference.

    A line end that differs is shown as `⏎`, for nothing else of it could be marked.
    """
    if reference == branch:
        return _pieces([(reference, False)]), _pieces([(branch, False)])
    if max(len(reference), len(branch)) > MAX_DIFF_CHARACTERS:
        return _ends_alike(reference, branch)
    old, new = _TOKEN.findall(reference), _TOKEN.findall(branch)
    left, right = [], []
    codes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for place, (tag, old_from, old_to, new_from, new_to) in enumerate(codes):
        ours, theirs = "".join(old[old_from:old_to]), "".join(new[new_from:new_to])
        # a comma that happens to be the same between two differences only makes them hard to read
        stray = 0 < place < len(codes) - 1 and not any(map(str.isalnum, ours)) and "\n" not in ours
        left.append((ours, tag != "equal" or stray))
        right.append((theirs, tag != "equal" or stray))
    return _pieces(left), _pieces(right)


def _ends_alike(reference: str, branch: str) -> tuple[Pieces, Pieces]:
    shorter = min(len(reference), len(branch))
    start = next((at for at in range(shorter) if reference[at] != branch[at]), shorter)
    end = next((at for at in range(shorter - start) if reference[-1 - at] != branch[-1 - at]), shorter - start)
    sides = []
    for text in (reference, branch):
        stop = len(text) - end
        sides.append(_pieces([(_near(text[:start]), False), (text[start:stop], True), (text[stop:], False)]))
    return sides[0], sides[1]


def _near(text: str) -> str:
    """The end of a long beginning that both texts share: what differs would be out of sight after all of it."""
    if len(text) <= MAX_SHARED_CHARACTERS:
        return text
    return f"[… {len(text) - MAX_SHARED_CHARACTERS:,} characters that are the same …]\n{text[-MAX_SHARED_CHARACTERS:]}"


def _pieces(pieces: Iterable[tuple[str, bool]]) -> Pieces:
    """Neighbours of a kind joined, the empty ones left out."""
    joined = ((marked, "".join(text for text, _ in of)) for marked, of in groupby(pieces, key=lambda piece: piece[1]))
    return tuple((text.replace("\n", "⏎\n") if marked else text, marked) for marked, text in joined if text)
