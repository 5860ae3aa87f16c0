"""Examples drawn by seeded generators, and the rule that keeps training and test draws apart.

A generator is a function `(rng: random.Random) -> ChatExample | TextExample`. Its `key` names the draw by its content
(the numbers, names and fields that make the problem), never by the random state, so that a problem lands on the same
side of the split however it was reached.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Split = Literal["train", "test"]

TEST_SHARE = 8
"""One draw in eight is kept for tests."""


@dataclass(frozen=True)
class ChatExample:
    """A conversation and the one right answer (raw assistant text, tool calls in the wire format included)."""

    key: str
    messages: tuple[dict[str, Any], ...]
    answer: str
    tools: tuple[dict[str, Any], ...] = ()
    expected: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextExample:
    """Plain text to continue: `prompt` and its `answer` (which starts with its own leading space, if it has one)."""

    key: str
    prompt: str
    answer: str
    expected: dict[str, Any] = field(default_factory=dict)


ExampleT = TypeVar("ExampleT", bound=ChatExample | TextExample)


def split_of(key: str) -> Split:
    """The side of the split a draw belongs to, decided by its content alone."""
    return "test" if hashlib.sha256(key.encode()).digest()[0] % TEST_SHARE == 0 else "train"


def draw(generator: Callable[[random.Random], ExampleT], rng: random.Random, split: Split) -> ExampleT:
    """Draw until the example belongs to `split`.

    Raises:
        RuntimeError: after 1,000 draws on the other side (a generator with too few distinct problems).
    """
    for _ in range(1000):
        example = generator(rng)
        if split_of(example.key) == split:
            return example
    raise RuntimeError(f"{generator} gave no {split} example in 1,000 draws")
