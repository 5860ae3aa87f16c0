"""What every RULER prompt shares: a head, filler with inserts at given depths, a tail; and how it is cut to length."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from q36eval.evals.generators.prose import _english

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True)
class Frame:
    """A prompt still to be cut to length: `inserts[i]` goes at `depths[i]` (0..1, ascending) of the filler used.

    `answer` starts with its space; `outputs` are the strings that must all occur in a right answer.
    """

    query: str
    outputs: tuple[str, ...]
    answer: str
    head: str
    tail: str
    filler: tuple[str, ...]
    inserts: tuple[str, ...] = ()
    depths: tuple[float, ...] = ()
    separator: str = " "
    min_filler: int = 0

    def prompt(self, filler_used: int) -> str:
        """The prompt with the first `filler_used` pieces of filler."""
        pieces = list(self.filler[:filler_used])
        for index, (insert, depth) in enumerate(zip(self.inserts, self.depths, strict=True)):
            pieces.insert(int(depth * (filler_used + 1)) + index, insert)
        return self.head + self.separator.join(pieces) + self.tail


def fill(frame: Frame, max_tokens: int, count_tokens: Callable[[str], int]) -> tuple[str, str]:
    """The prompt with as much filler as fits beside the answer, and the answer.

    The tokens per piece are estimated from the whole filler, then corrected: at most 14 calls of `count_tokens`.

    Raises:
        ValueError: the prompt does not fit even with the least filler.
    """
    bare = count_tokens(frame.prompt(frame.min_filler) + frame.answer)
    if bare > max_tokens:
        raise ValueError(f"the prompt for {frame.query!r} takes {bare} tokens, more than {max_tokens}")
    room = len(frame.filler) - frame.min_filler
    if room <= 0:
        return frame.prompt(frame.min_filler), frame.answer
    sample = frame.separator.join(frame.filler[frame.min_filler : frame.min_filler + 40])
    per_piece = max(count_tokens(sample) / min(40, room), 0.5)
    used = frame.min_filler + min(room, int((max_tokens - bare) / per_piece))
    for _ in range(12):
        excess = count_tokens(frame.prompt(used) + frame.answer) - max_tokens
        if excess <= 0:
            return frame.prompt(used), frame.answer
        used = max(frame.min_filler, used - int(excess / per_piece) - 1)
    return frame.prompt(frame.min_filler), frame.answer


def needle_keys(rng: random.Random) -> Iterator[str]:
    """Endless keys such as "quiet-lamp"; a noun comes back only when all have been used."""
    seen: set[str] = set()
    while True:
        for noun in rng.sample(_english.THINGS, len(_english.THINGS)):
            key = f"{rng.choice(_english.ADJECTIVES)}-{noun}"
            if key not in seen:
                seen.add(key)
                yield key
