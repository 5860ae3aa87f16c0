"""Train the tokenizer on a seeded sample of the training mixture.

`python -m q36eval.app.sandbox.make_tokenizer OUT`."""

import random
import sys
from collections.abc import Iterator

from q36eval.app.sandbox.mixture import Renderer, document
from q36eval.app.sandbox.shares import TOKEN_SHARES
from q36eval.app.sandbox.tokenizer import train_tokenizer


def sample(seed: int, characters: int) -> Iterator[str]:
    """Texts of the mixture, about in proportion to their token shares."""
    rng, renderer = random.Random(f"tokenizer-{seed}"), Renderer()
    for kind in sorted(TOKEN_SHARES):
        wanted = characters * TOKEN_SHARES[kind]
        while wanted > 0:
            drawn = document(kind, rng, "train", renderer)
            text = drawn.prompt + drawn.answer
            wanted -= len(text)
            yield text


def main() -> None:
    """Write the tokenizer files into the folder named on the command line."""
    tokenizer = train_tokenizer(sample(seed=1, characters=12_000_000))
    tokenizer.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
